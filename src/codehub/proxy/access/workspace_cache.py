"""The workspaces that were asked for lately, as the database has them, so that a request need not ask it again.

An entry is read once, then kept current by the events on the bus. While the bus is not heard, the database is asked
again. An entry that no longer leads to the same place withdraws every authorization that was remembered for it, before
anybody is served by it again.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import structlog

from codehub.domain.access import AccessAction, access_to
from codehub.domain.errors import CodeHubError
from codehub.domain.workspace import Workspace
from codehub.ports.runtime import Endpoint, Runtime
from codehub.ports.signals import Bus
from codehub.ports.views import OwnedWorkspace, WorkspaceViews
from codehub.proxy.access.session_cache import Credential, SingleFlight
from codehub.proxy.access.verdicts import CachedAuthorization, Forward
from codehub.proxy.presence.activity import WorkspaceActivity
from codehub.usecases.bus_listener import RETRY_SECONDS, BusListener, Message, workspace_in

log = structlog.get_logger()

MOST_ENTRIES: Final = 20_000
MOST_AUTHORIZATIONS: Final = 512


@dataclass(eq=False, slots=True)
class CachedWorkspace:
    """A workspace as it was last read. `endpoint` None: it cannot be reached now."""

    workspace: Workspace
    endpoint: Endpoint | None = None
    version: int = 0
    authorizations: set[CachedAuthorization] = field(default_factory=set)
    admitted: dict[Credential, Forward] = field(default_factory=dict)
    """The verdict for each credential that was let in to the workspace as it is now; forgotten with the next change."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """An event that is set at the next change, and then replaced."""
    activity: WorkspaceActivity = field(init=False)

    def __post_init__(self) -> None:
        self.activity = WorkspaceActivity(self.workspace.id)

    def change(self, workspace: Workspace, endpoint: Endpoint | None) -> None:
        self.workspace, self.endpoint = workspace, endpoint
        self.version += 1
        self.admitted.clear()
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def remember(self, cached: CachedAuthorization, now: float) -> None:
        """Keep an authorization to withdraw it later. Browsers vary their headers, and each variant has its own, so
        those that are over go before they are many."""
        if len(self.authorizations) >= MOST_AUTHORIZATIONS:
            self.authorizations = {kept for kept in self.authorizations if kept.until > now}
        if len(self.authorizations) >= MOST_AUTHORIZATIONS:
            self.withdraw()
        self.authorizations.add(cached)

    def admit(self, credential: Credential, forward: Forward) -> None:
        if len(self.admitted) >= MOST_AUTHORIZATIONS:
            self.admitted.clear()
        self.admitted[credential] = forward

    def withdraw(self) -> None:
        for cached in self.authorizations:
            cached.withdraw()
        self.authorizations.clear()
        self.admitted.clear()


class WorkspaceCache:
    def __init__(
        self, views: WorkspaceViews, runtime: Runtime, bus: Bus, channel: str, closed: Callable[[CachedWorkspace], None]
    ) -> None:
        """`channel`: the pattern of everybody's events. `closed` is told when authorizations of an entry were
        withdrawn."""
        self._listener = BusListener(bus, channel, self._hear, subscribed=self._look_at_all, lost=self.withdraw_all)
        self._views = views
        self._runtime = runtime
        self._closed = closed
        self._by_id: dict[UUID, CachedWorkspace] = {}
        self._by_slug: dict[str, CachedWorkspace] = {}
        self._lookups: SingleFlight[str | UUID, CachedWorkspace | None] = SingleFlight()
        self._told: dict[UUID, None] = {}
        self._wake = asyncio.Event()

    @property
    def is_current(self) -> bool:
        """Whether changes are heard as they happen, so that what is kept here is what the database has."""
        return self._listener.is_subscribed

    # ── asking ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def known(self, name: str | UUID) -> CachedWorkspace | None:
        """The workspace of this slug or id, if it is kept and current."""
        if not self.is_current:
            return None
        return self._by_slug.get(name) if isinstance(name, str) else self._by_id.get(name)

    async def find(self, name: str | UUID) -> CachedWorkspace | None:
        """The workspace of this slug or id, read if need be; None if there is none that lives. However many ask at
        once, the database is asked once."""
        return self.known(name) or await self._lookups.do(name, lambda: self._look(name))

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
            for old in [old for old in self._by_id.values() if not old.authorizations]:
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
        """Forget every authorization, so that each is decided anew; sockets stay."""
        for entry in self._by_id.values():
            entry.withdraw()

    # ── hearing ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listener.run())
            tasks.create_task(self._follow())

    def _look_at_all(self) -> None:
        self._told = dict.fromkeys(self._by_id)
        self._wake.set()

    async def _hear(self, message: Message) -> None:
        if message.get("type") == "resync":
            self._look_at_all()
            return
        workspace_id = workspace_in(message)
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
                await asyncio.sleep(RETRY_SECONDS)
                self._wake.set()

    async def _renew_all(self, ids: list[UUID]) -> list[UUID]:
        """Read these entries again. Returns those that could not be read: what is wrong with one must not keep the
        others from anything."""
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
        same_owner = workspace.owner_id == entry.workspace.owner_id
        same_container = workspace.home.ready_instance == entry.workspace.home.ready_instance
        was_ending = entry.workspace.container_is_ending
        if same_owner and same_container and workspace.container_is_ending:
            # Open sockets stay until its container has ended, so that editors can save what was typed.
            entry.change(workspace, endpoint)
            entry.withdraw()
        elif same_owner and same_container and endpoint == entry.endpoint and not was_ending:
            if workspace != entry.workspace:
                entry.change(workspace, endpoint)
        else:
            self._shut(entry, workspace, endpoint)

    def _shut(self, entry: CachedWorkspace, workspace: Workspace, endpoint: Endpoint | None) -> None:
        entry.change(workspace, endpoint)
        entry.withdraw()
        self._closed(entry)
