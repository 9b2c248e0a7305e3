"""The proxy put together: the server, the authorizer, and what keeps both current."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from codehub.domain.errors import CodeHubError
from codehub.ports.runtime import Endpoint, Runtime
from codehub.ports.signals import Activity, Bus, Clock
from codehub.ports.stores import Traffic
from codehub.ports.views import WorkspaceViews
from codehub.proxy.access.addresses import Addresses
from codehub.proxy.access.authorizer import AccessGrant, Authorizer
from codehub.proxy.access.endpoints import AccessServices
from codehub.proxy.access.session_cache import Credential, SessionCache
from codehub.proxy.access.workspace_cache import CachedWorkspace, WorkspaceCache
from codehub.proxy.access_log import AccessLog
from codehub.proxy.http.headers import Network
from codehub.proxy.http.limits import ProxyLimits
from codehub.proxy.presence.activity import Activities
from codehub.proxy.server import GOING_AWAY, ProxyServer
from codehub.proxy.traffic import TrafficCount
from codehub.usecases.lifecycle import Lifecycles
from codehub.usecases.workspace_access import WorkspaceAccess, WorkspaceCaller

TICK_SECONDS: Final = 0.5
RECHECK_SECONDS: Final = 60.0
UNSUBSCRIBED_RECHECK_SECONDS: Final = 2.0
"""How often sockets are checked again while the bus is not heard, or was not for a while: a revocation may have been
missed.
"""
FINAL_DRAIN_SECONDS: Final = 5.0
"""How long requests under way may take once nothing keeps the caches current any more."""
SUBSCRIBE_SECONDS: Final = 3.0
SIGNED_OUT: Final = 1008
"""The close code of a WebSocket whose user may no longer have it: a policy violation."""


@dataclass(frozen=True, slots=True)
class ProxyParts:
    """What the proxy is made from. `by_path`: workspaces are served below `/w/` of the platform's host too."""

    workspace_access: WorkspaceAccess
    lifecycles: Lifecycles
    views: WorkspaceViews
    runtime: Runtime
    bus: Bus
    activity: Activity
    traffic: Traffic
    clock: Clock
    addresses: Addresses
    api: Endpoint
    by_path: bool
    provider: str | None = None
    sse_prefix: str = "codehub:sse:"
    flush_seconds: float = 30.0
    access_log: AccessLog | None = None
    trusted_proxies: tuple[Network, ...] = ()
    """The proxies in front of this one that are trusted to say who asks."""


class ProxyApp:
    def __init__(self, parts: ProxyParts, limits: ProxyLimits | None = None) -> None:
        workspaces = WorkspaceCache(parts.views, parts.runtime, parts.bus, f"{parts.sse_prefix}*", self._end_workspace)
        sessions = SessionCache(parts.workspace_access, parts.bus, self._end_sessions)
        self.activities = Activities(parts.activity, parts.views, parts.clock, parts.flush_seconds)
        services = AccessServices(
            parts.workspace_access, workspaces, sessions, parts.addresses, parts.lifecycles, self._now
        )
        self.authorizer = Authorizer(
            services, parts.runtime, self.activities, parts.api, by_path=parts.by_path, provider=parts.provider
        )
        scheme = parts.addresses.scheme.decode()
        self.server = ProxyServer(
            self.authorizer, limits, scheme=scheme, access_log=parts.access_log, trusted_proxies=parts.trusted_proxies
        )
        self.traffic = TrafficCount(self.server, parts.traffic, parts.clock, parts.flush_seconds)
        self._workspaces = workspaces
        self._sessions = sessions

    async def run(self) -> None:
        """Keep everything current until cancelled. The server listens when it is told to, before or after."""
        async with asyncio.TaskGroup() as tasks:
            kept = (self._workspaces, self.activities, self.traffic)
            for part in (self._sessions.listener.run, *(one.run for one in kept), self._tick, self._recheck):
                tasks.create_task(part())

    async def run_beside(self, serving: Awaitable[None]) -> None:
        """Run until `serving` ends. If `run` ends before, so does serving, and what it raised says why: nobody new is
        served from caches that nothing keeps current. What was under way by then is still answered."""
        both = running, served = asyncio.ensure_future(self.run()), asyncio.ensure_future(serving)
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not served.done():
                await self.server.drain(FINAL_DRAIN_SECONDS, 0.0)
            (served if served.done() else running).result()
        finally:
            for part in both:
                part.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def wait_until_current(self, seconds: float) -> None:
        """Wait until the bus is heard, or for so long: without it everything works, only slower."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not (self._workspaces.is_current and self._sessions.is_current):  # noqa: ASYNC110 - two parts, at the start
                    await asyncio.sleep(0.01)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _tick(self) -> None:
        while True:
            self.authorizer.now = self._now()
            self.activities.tick()
            self.traffic.tick()
            await asyncio.sleep(TICK_SECONDS)

    async def _recheck(self) -> None:
        """End sockets whose sessions are over: sessions end by themselves, and a revocation may be lost."""
        losses, due = 0, self._now() + RECHECK_SECONDS
        while True:
            await asyncio.sleep(UNSUBSCRIBED_RECHECK_SECONDS)
            if self._sessions.is_current and self._sessions.listener.losses == losses and self._now() < due:
                continue
            losses, due = self._sessions.listener.losses, self._now() + RECHECK_SECONDS
            # Nothing is known: nobody is sent away for it.
            with contextlib.suppress(CodeHubError):
                await self._recheck_open()

    async def _recheck_open(self) -> None:
        grants = {forward.grant for forward in self.server.forwards() if isinstance(forward.grant, AccessGrant)}
        for credential in {grant.credential for grant in grants}:
            gone = _no_longer(credential, await self._sessions.find(credential, self._now()))
            if any(map(gone, grants)):
                self._end(gone, SIGNED_OUT)

    def _end_workspace(self, entry: CachedWorkspace) -> None:
        self._end(lambda grant: grant.entry is entry)

    def _end_sessions(self, gone: Callable[[WorkspaceCaller], bool]) -> None:
        self._workspaces.withdraw_all()
        self._end(lambda grant: gone(grant.caller), SIGNED_OUT)

    def _end(self, which: Callable[[AccessGrant], bool], code: int = GOING_AWAY) -> None:
        self.server.abort_sockets(lambda forward: isinstance(forward.grant, AccessGrant) and which(forward.grant), code)


def _no_longer(credential: Credential, caller: WorkspaceCaller | None) -> Callable[[AccessGrant], bool]:
    """A test for the grants that are over, now that their credential proves this caller, or nobody."""
    return lambda grant: grant.credential == credential and (caller is None or not caller.owns(grant.entry.workspace))
