"""The front door put together: the relay, the doorkeeper, and what keeps both current."""

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
from codehub.proxy.access.authorizer import Authorizer, Label
from codehub.proxy.access.endpoints import ReservedEndpoints, SignInRedirect
from codehub.proxy.access.session_cache import Credential, SessionCache
from codehub.proxy.access.verdicts import Forward
from codehub.proxy.access.workspace_cache import CachedWorkspace, WorkspaceCache
from codehub.proxy.access_log import AccessLog
from codehub.proxy.http.limits import ProxyLimits
from codehub.proxy.http.trusted_proxies import Network
from codehub.proxy.presence.activity import Activities
from codehub.proxy.server import ProxyServer
from codehub.proxy.traffic import TrafficCount
from codehub.usecases.workspace_access import Visitor, WorkspaceAccess

TICK_SECONDS: Final = 0.5
RECHECK_SECONDS: Final = 60.0
DEAF_RECHECK_SECONDS: Final = 2.0
"""While the bus cannot be heard, or was not for a while: nobody may have told us who left."""
LAST_SECONDS: Final = 5.0
"""For what is under way when nothing keeps us current any more."""
AT_FIRST_SECONDS: Final = 3.0
SIGNED_OUT: Final = 1008
"""Policy: whoever it was may no longer be here."""


@dataclass(frozen=True, slots=True)
class ProxyParts:
    """What the front door is made from. `by_path`: workspaces are served below `/w/` of the platform's host too."""

    entrance: WorkspaceAccess
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
    access: AccessLog | None = None
    forwarders: tuple[Network, ...] = ()
    """The proxies before us that are believed on who asks."""


class ProxyApp:
    def __init__(self, parts: ProxyParts, limits: ProxyLimits | None = None) -> None:
        directory = WorkspaceCache(parts.views, parts.runtime, parts.bus, f"{parts.sse_prefix}*", self._shut)
        visitors = SessionCache(parts.entrance, parts.bus, self._show_out)
        self.activities = Activities(parts.activity, parts.views, parts.clock, parts.flush_seconds)
        reception = ReservedEndpoints(parts.entrance, directory, visitors, parts.addresses, self._now)
        handover = SignInRedirect(parts.entrance, directory, visitors, parts.addresses, self._now, parts.provider)
        self.doorkeeper = Authorizer(
            reception,
            handover,
            parts.runtime,
            self.activities,
            parts.api,
            by_path=parts.by_path,
        )
        scheme = parts.addresses.scheme.decode()
        self.server = ProxyServer(
            self.doorkeeper, limits, scheme=scheme, access=parts.access, forwarders=parts.forwarders
        )
        self.traffic = TrafficCount(self.server, parts.traffic, parts.clock, parts.flush_seconds)
        self._directory = directory
        self._visitors = visitors

    async def run(self) -> None:
        """Until cancelled. The server listens when it is told to, before or after."""
        async with asyncio.TaskGroup() as tasks:
            kept = (self._directory, self.activities, self.traffic)
            for part in (self._visitors.listener.run, *(one.run for one in kept), self._tick, self._recheck):
                tasks.create_task(part())

    async def beside(self, serving: Awaitable[None]) -> None:
        """Runs until `serving` ends. If this ends before, so does serving, and what was raised says why: nobody new is
        served by what nothing keeps current. What was under way by then is still answered."""
        both = running, served = asyncio.ensure_future(self.run()), asyncio.ensure_future(serving)
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not served.done():
                await self.server.drain(LAST_SECONDS, 0.0)
            (served if served.done() else running).result()
        finally:
            for part in both:
                part.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def hears(self, seconds: float) -> None:
        """Returns when the bus is heard, or after so long without it: everything works, only slower."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not (self._directory.is_current and self._visitors.is_current):  # noqa: ASYNC110 - two parts, at the start
                    await asyncio.sleep(0.01)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _tick(self) -> None:
        while True:
            self.doorkeeper.now = self._now()
            self.activities.tick()
            self.traffic.tick()
            await asyncio.sleep(TICK_SECONDS)

    async def _recheck(self) -> None:
        """Sockets outlive what let them in: sessions end by themselves, and an announcement may be lost."""
        losses, due = 0, self._now() + RECHECK_SECONDS
        while True:
            await asyncio.sleep(DEAF_RECHECK_SECONDS)
            if self._visitors.is_current and self._visitors.listener.losses == losses and self._now() < due:
                continue
            losses, due = self._visitors.listener.losses, self._now() + RECHECK_SECONDS
            # Nothing is known: nobody is sent away for it.
            with contextlib.suppress(CodeHubError):
                await self._look_again()

    async def _look_again(self) -> None:
        labels = {forward.label for forward in self.server.forwards() if isinstance(forward.label, Label)}
        for credential in {label.credential for label in labels}:
            gone = _no_longer(credential, await self._visitors.find(credential, self._now()))
            if any(map(gone, labels)):
                self._end(gone, SIGNED_OUT)

    def _shut(self, entry: CachedWorkspace) -> None:
        self._end(lambda label: label.entry is entry)

    def _show_out(self, gone: Callable[[Visitor], bool]) -> None:
        self._directory.withdraw_all()
        self._end(lambda label: gone(label.visitor), SIGNED_OUT)

    def _end(self, which: Callable[[Label], bool], code: int | None = None) -> None:
        def chosen(forward: Forward) -> bool:
            return isinstance(forward.label, Label) and which(forward.label)

        self.server.abort_sockets(chosen, *(() if code is None else (code,)))


def _no_longer(credential: Credential, visitor: Visitor | None) -> Callable[[Label], bool]:
    """`visitor`: whom the credential proves now."""
    return lambda label: label.credential == credential and (visitor is None or not visitor.owns(label.entry.workspace))
