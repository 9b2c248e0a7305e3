"""The API on memory twins, served to a real browser: every state can be shown at will, and a thousand of them.

What runs on real parts is in tests/browser/end_to_end/test_dashboard.py; here pages are looked at.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID, uuid4

from fastapi import FastAPI
from playwright.async_api import Browser

from codehub.adapters.memory.archives import StoredArchive, StoredEntry
from codehub.adapters.memory.runtime import Container, Volume
from codehub.adapters.system import SystemClock
from codehub.api.app import create_app
from codehub.api.server import listen_on, serve
from codehub.coordinator.event_listener import EventListener
from codehub.dashboard import dashboard
from codehub.domain.admission import RunningLimits
from codehub.domain.errors import ErrorInfo, ErrorReason
from codehub.domain.gc_rules import RestorePoint
from codehub.domain.identity import Role
from codehub.domain.judge import ArchiveState
from codehub.domain.ledger import LedgerEntry, LedgerKind
from codehub.domain.naming import archive_key, slug_from
from codehub.domain.workspace import (
    NO_ARCHIVE,
    NO_CONTAINER,
    NO_VOLUME,
    Condition,
    Conditions,
    Desired,
    HomeContext,
    Operation,
    Phase,
    Progress,
    Workspace,
)
from codehub.ports.accounts import NewUser
from codehub.ports.archives import EntryKind
from codehub.ports.stores import Actor
from codehub.telemetry import Metrics
from tests.api.memory_api import Backends, memory_parts
from tests.browser.deployment import PASSWORD, DashboardUser, signed_in_browser

BY_PHASE = {
    Phase.RUNNING: (True, False, True),
    Phase.STANDBY: (True, False, False),
    Phase.ARCHIVED: (False, True, False),
    Phase.PENDING: (False, False, False),
    Phase.ERROR: (True, False, False),
}


@dataclass
class DashboardHarness:
    """The dashboard in a browser. `now` is when the test begins: what is shown is said relative to it."""

    backends: Backends
    app: FastAPI
    browser: Browser
    url: str
    now: datetime
    people: dict[str, UUID] = field(default_factory=dict)
    users: list[DashboardUser] = field(default_factory=list)

    async def person(self, name: str, role: Role = Role.USER) -> UUID:
        if name not in self.people:
            parts = self.app.state.parts
            stored = await parts.identity.passwords.hash(PASSWORD)
            made = await parts.identity.accounts.create_user(NewUser(uuid4(), name, role, stored), Actor("first run"))
            self.people[name] = made.id
        return self.people[name]

    async def user(self, name: str, role: Role = Role.USER, **context: Any) -> DashboardUser:
        user_id = await self.person(name, role)
        user = await signed_in_browser(self.browser, self.url, name, user_id, **context)
        self.users.append(user)
        return user

    def ago(self, **span: float) -> datetime:
        return self.now - timedelta(**span)

    def put(self, owner: str, name: str, phase: Phase, key: UUID | None = None, **fields: Any) -> Workspace:
        """A workspace that looks as the controller would have left it."""
        key = key or uuid4()
        volume, archive, container = BY_PHASE[phase]
        error = fields.get("error_info")
        at = fields.get("phase_changed_at", self.ago(minutes=30))
        conditions = Conditions(
            volume_ready=Condition(True, "VolumeProvisioned", "", at) if volume else NO_VOLUME,
            archive_ready=Condition(True, ArchiveState.READABLE.value, "", at) if archive else NO_ARCHIVE,
            container_ready=Condition(True, "process.Running", "", at) if container else NO_CONTAINER,
            healthy=Condition(False, error.reason.value, error.message, at)
            if phase is Phase.ERROR and error
            else Condition(True, "Healthy", "", at),
        )
        row = Workspace(
            id=key,
            owner_id=str(self.people[owner]),
            name=name,
            slug=slug_from(name, key),
            **{
                "created_at": self.ago(days=9),
                "updated_at": self.now,
                "phase": phase,
                "phase_changed_at": at,
                "desired_state": Desired.RUNNING if phase is Phase.ERROR else Desired(phase.value),
                "conditions": conditions,
                "home": HomeContext(incarnation=1, live=volume),
                "home_store_key": f"ws-{key}-home" if volume else None,
                "archive_key": archive_key("", key, uuid4()) if archive else None,
                "error_reason": error.reason if error else None,
                **fields,
            },
        )
        runtime = self.backends.runtime.state
        if row.home_store_key is not None:
            runtime.volumes[row.home_store_key] = Volume(key)
            if container:
                runtime.containers[key] = Container("c-1", row.home_store_key)
        return self.backends.database.state.put(None, row, "controller", "test")

    def change(self, row: Workspace, **fields: Any) -> Workspace:
        now = self.backends.database.state.rows[row.id]
        return self.backends.database.state.put(now, replace(now, **fields), "controller", "test")

    def told(self, row: Workspace, *story: tuple[float, str, LedgerKind, object, object, str, str]) -> None:
        """Replace the workspace's ledger by these entries, oldest first: minutes ago, actor, kind, before, after,
        reason, message."""
        ledger = self.backends.database.state.ledger
        ledger[:] = [entry for entry in ledger if entry.workspace_id != row.id]
        for minutes, actor, kind, before, after, reason, message in story:
            old = None if before is None else str(before)
            new = None if after is None else str(after)
            ledger.append(LedgerEntry(self.ago(minutes=minutes), row.id, actor, kind, old, new, reason, None, message))

    def point(self, row: Workspace, days: float, size: int, files: int, *, present: bool = False) -> UUID:
        op_id, at = uuid4(), self.ago(days=days)
        key = row.archive_key if present and row.archive_key else archive_key("", row.id, op_id)
        content = cast("tuple[int, ...]", range(size))  # as long as that many bytes, without being so
        point = RestorePoint(row.id, op_id, key, size, files, "0" * 64, at, at)
        self.backends.database.state.points.setdefault(row.id, []).append(point)
        self.backends.archives.state.objects[key] = StoredArchive(content, at, committed=True, home=home(at))
        return op_id


def home(at: datetime) -> dict[bytes, StoredEntry]:
    when = int(at.timestamp()) * 1_000_000_000

    def folder() -> StoredEntry:
        return StoredEntry(EntryKind.FOLDER, mode=0o755, mtime_ns=when)

    def file(size: int) -> StoredEntry:
        return StoredEntry(EntryKind.FILE, b"x" * size, mtime_ns=when)

    return {
        b"shop": folder(),
        b"shop/README.md": file(2_140),
        b"shop/package.json": file(1_022),
        b"shop/src": folder(),
        b"shop/src/main.ts": file(8_231),
        b"notes": folder(),
        "notes/오늘 할 일.md".encode(): file(412),
        b".bashrc": file(3_526),
        b".gitconfig": file(187),
        b"current": StoredEntry(EntryKind.LINK, mtime_ns=when, target=b"shop/src"),
        b"dump.sql": file(184_322),
    }


def failure(reason: ErrorReason, message: str, at: datetime, **context: object) -> ErrorInfo:
    return ErrorInfo(reason, message, "STARTING", True, 3, "STANDBY", at, context)


def archiving(done: int, total: int, files: int) -> dict[str, Any]:
    return {
        "operation": Operation.ARCHIVING,
        "desired_state": Desired.ARCHIVED,
        "op_id": uuid4(),
        "op_progress": Progress(done, files, total, "upload"),
    }


@asynccontextmanager
async def dashboard_harness(browser: Browser) -> AsyncIterator[DashboardHarness]:
    backends = Backends.fresh()
    parts = replace(memory_parts(backends, RunningLimits(max_running_per_user=3)), pages=dashboard())
    app = create_app(parts)
    listening = listen_on("127.0.0.1", 0)
    up = asyncio.Event()
    serving = asyncio.ensure_future(serve(app, listening, up.set))
    listener = EventListener(backends.database.changes(), backends.bus, lambda _: None, lambda: None, Metrics())
    telling = asyncio.ensure_future(listener.run())
    leading = await backends.database.leadership(SystemClock()).campaign("deployment-1:4711")
    await up.wait()
    harness = DashboardHarness(
        backends, app, browser, f"http://localhost:{listening.getsockname()[1]}", datetime.now(UTC)
    )
    try:
        yield harness
    finally:
        for user in harness.users:
            await user.close()
        await leading.resign()
        for task in (telling, serving):
            task.cancel()
        await asyncio.gather(telling, serving, return_exceptions=True)
    complaints = [line for user in harness.users for line in user.complaints]
    assert not complaints, "\n".join(complaints)
