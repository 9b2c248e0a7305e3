"""The workspaces that were asked for lately, as the database had them: so a request need not ask it again.

An entry is looked up once, then kept current by the events on the bus. Whoever cannot hear the bus may not trust what
it remembers: then the database is asked again. An entry that no longer leads to the same place takes back every pass
that was given for it, before anybody is served by it again.

A pass: that these very headers may go on to that place, until it is withdrawn or has to be looked at again.

It hangs on the parsed headers, for which one object stands as long as a browser repeats them, so that a hot request
costs one comparison.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import structlog

from codehub.domain.access import AccessAction, access_to
from codehub.domain.errors import CodeHubError, Unreachable
from codehub.domain.workspace import Workspace
from codehub.ports.runtime import Endpoint, Runtime
from codehub.ports.signals import Bus
from codehub.ports.views import OwnedWorkspace, WorkspaceViews
from codehub.proxy.access.session_cache import Credential
from codehub.proxy.access.verdicts import Forward
from codehub.proxy.presence.periodic import PeriodicTraffic

REVOKED: Final = -1.0


class CachedAuthorization:
    __slots__ = ("entry", "forward", "prefix", "until")

    def __init__(self, forward: Forward, entry: "CachedWorkspace", prefix: bytes, until: float) -> None:
        self.forward = forward
        self.entry = entry
        self.prefix = prefix
        """What of the target is ours and not the workspace's."""
        self.until = until
        """By the doorkeeper's clock."""

    def inner(self, target: bytes) -> bytes:
        """As the workspace sees it."""
        return b"/" + target[len(self.prefix) :]

    def withdraw(self) -> None:
        self.until = REVOKED


log = structlog.get_logger()

MOST_ENTRIES: Final = 20_000
MOST_PASSES: Final = 512
MOST_KINDS: Final = 64
"""Of requests to one workspace that are remembered."""
AGAIN_SECONDS: Final = 0.5


@dataclass(eq=False, slots=True)
class CachedWorkspace:
    """One workspace. `endpoint` None: it is not to be reached now."""

    workspace: Workspace
    endpoint: Endpoint | None = None
    version: int = 0
    passes: set[CachedAuthorization] = field(default_factory=set)
    admitted: dict[Credential, Forward] = field(default_factory=dict)
    """Who was found to be let in as it is now; forgotten with the next change."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at the next change, and then replaced."""
    active: bool = False
    """Somebody was seen at work in it since the last look."""
    requests: PeriodicTraffic = field(default_factory=lambda: PeriodicTraffic(MOST_KINDS))
    """Which of the requests to it a page makes by itself."""

    def change(self, workspace: Workspace, endpoint: Endpoint | None) -> None:
        self.workspace, self.endpoint = workspace, endpoint
        self.version += 1
        self.admitted.clear()
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def give(self, given: CachedAuthorization, now: float) -> None:
        """Browsers vary their headers, and each variant has its own: those that are over go before they are many."""
        if len(self.passes) >= MOST_PASSES:
            self.passes = {kept for kept in self.passes if kept.until > now}
        if len(self.passes) >= MOST_PASSES:
            self.withdraw()
        self.passes.add(given)

    def admit(self, credential: Credential, forward: Forward) -> None:
        if len(self.admitted) >= MOST_PASSES:
            self.admitted.clear()
        self.admitted[credential] = forward

    def withdraw(self) -> None:
        for given in self.passes:
            given.withdraw()
        self.passes.clear()
        self.admitted.clear()


class WorkspaceCache:
    def __init__(
        self, views: WorkspaceViews, runtime: Runtime, bus: Bus, channel: str, closed: Callable[[CachedWorkspace], None]
    ) -> None:
        """`channel`: the pattern of everybody's events. `closed`: told when an entry's passes were taken back."""
        self.hears = False
        self._views = views
        self._runtime = runtime
        self._bus = bus
        self._channel = channel
        self._closed = closed
        self._by_id: dict[UUID, CachedWorkspace] = {}
        self._by_slug: dict[str, CachedWorkspace] = {}
        self._looking: dict[str | UUID, asyncio.Future[CachedWorkspace | None]] = {}
        self._told: dict[UUID, None] = {}
        self._wake = asyncio.Event()

    # ── asking ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def known(self, name: str | UUID) -> CachedWorkspace | None:
        """By slug or id, without asking anybody."""
        if not self.hears:
            return None
        return self._by_slug.get(name) if isinstance(name, str) else self._by_id.get(name)

    async def find(self, name: str | UUID) -> CachedWorkspace | None:
        """None: there is none such that lives. However many ask at once, the database is asked once."""
        found = self.known(name)
        if found is not None:
            return found
        looking = self._looking.get(name)
        if looking is None:
            looking = self._looking[name] = asyncio.ensure_future(self._look(name))
            looking.add_done_callback(lambda _: self._looking.pop(name, None))
        return await asyncio.shield(looking)

    async def _look(self, name: str | UUID) -> CachedWorkspace | None:
        owned = await (self._views.by_slug(name) if isinstance(name, str) else self._views.get(name))
        if owned is None or owned.workspace.deleted_at is not None:
            return None
        endpoint = await self._endpoint(owned.workspace)
        entry = self._by_id.get(owned.workspace.id)
        if entry is not None:  # perhaps only by now: whoever asked by its other name was quicker
            await self._renew(entry, owned)
            return entry
        entry = CachedWorkspace(owned.workspace, endpoint)
        self._remember(entry)
        return entry

    def _remember(self, entry: CachedWorkspace) -> None:
        if len(self._by_id) >= MOST_ENTRIES:
            for old in [old for old in self._by_id.values() if not old.passes]:
                self._forget(old)
        self._by_id[entry.workspace.id] = entry
        self._by_slug[entry.workspace.slug] = entry
        # What changed between the reading and this line was told to nobody here: look once more.
        self._told[entry.workspace.id] = None
        self._wake.set()

    def _forget(self, entry: CachedWorkspace) -> None:
        self._by_id.pop(entry.workspace.id, None)
        self._by_slug.pop(entry.workspace.slug, None)

    async def _endpoint(self, workspace: Workspace) -> Endpoint | None:
        if access_to(workspace).action is not AccessAction.FORWARD:
            return None
        return await self._runtime.endpoint(workspace.id)

    def withdraw_all(self) -> None:
        """Every pass has to be found out anew; sockets stay."""
        for entry in self._by_id.values():
            entry.withdraw()

    # ── hearing ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen())
            tasks.create_task(self._follow())

    async def _listen(self) -> None:
        while True:
            try:
                async for message in self._bus.subscribe(self._channel, self._listening):
                    self._hear(message)
            except Unreachable as error:
                log.warning("the front door hears no events", error=str(error))
            self.hears = False
            self.withdraw_all()
            await asyncio.sleep(AGAIN_SECONDS)

    def _listening(self) -> None:
        self.hears = True
        self._look_at_all()

    def _look_at_all(self) -> None:
        self._told = dict.fromkeys(self._by_id)
        self._wake.set()

    def _hear(self, message: Mapping[str, Any]) -> None:
        if message.get("type") == "resync":
            self._look_at_all()
            return
        try:
            workspace_id = UUID(message["id"])
        except (KeyError, ValueError, TypeError, AttributeError):
            return  # nothing about one workspace
        if workspace_id in self._by_id and message.get("type") in ("updated", "deleted"):
            self._told[workspace_id] = None
            self._wake.set()

    async def _follow(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            ids, self._told = list(self._told), {}
            try:
                again = await self._renew_all(ids)
            except CodeHubError as error:
                log.warning("the front door waits for the database", error=str(error))
                again = ids
            if again:
                self._told.update(dict.fromkeys(again))
                await asyncio.sleep(AGAIN_SECONDS)
                self._wake.set()

    async def _renew_all(self, ids: list[UUID]) -> list[UUID]:
        """Returns those that could not be looked at: what is wrong with one must not keep the others from anything."""
        found = await self._views.some(ids) if ids else {}
        failed: list[UUID] = []
        for workspace_id in ids:
            entry = self._by_id.get(workspace_id)
            if entry is None:
                continue
            try:
                await self._renew(entry, found.get(workspace_id))
            except CodeHubError:
                raise
            except Exception:
                log.exception("the front door cannot look at a workspace", workspace=str(workspace_id))
                entry.withdraw()
                failed.append(workspace_id)
        return failed

    async def _renew(self, entry: CachedWorkspace, owned: OwnedWorkspace | None) -> None:
        if owned is None or owned.workspace.deleted_at is not None:
            self._forget(entry)
            self._shut(entry, entry.workspace if owned is None else owned.workspace, None)
            return
        workspace = owned.workspace
        endpoint = await self._endpoint(workspace)
        if workspace.updated_at < entry.workspace.updated_at:
            return  # read before what we have
        if (
            endpoint == entry.endpoint
            and workspace.owner_id == entry.workspace.owner_id
            and _same_life(workspace, entry)
        ):
            if workspace != entry.workspace:
                entry.change(workspace, endpoint)
        else:
            self._shut(entry, workspace, endpoint)

    def _shut(self, entry: CachedWorkspace, workspace: Workspace, endpoint: Endpoint | None) -> None:
        entry.change(workspace, endpoint)
        entry.withdraw()
        self._closed(entry)


def _same_life(workspace: Workspace, entry: CachedWorkspace) -> bool:
    """The same container answers: a restart between two looks is another."""
    return workspace.home.ready_instance == entry.workspace.home.ready_instance
