"""An installation seen from outside: `codehub api` and `codehub coordinator` as processes, asked over HTTP alone.

Beside it stands what the rules are about: homes, archives, and time, which only the database keeps and which can
therefore be let pass. Each IDE obeys the files in its own home (controlled_ide.py), so that one may fail alone.
"""

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import httpx

from codehub.adapters.postgres.schema import migrate
from codehub.domain.identity import Role
from codehub.domain.naming import meta_key
from tests.api.real_api import Events, RealApi, real_api
from tests.system import controlled_ide

TIMEOUT_SECONDS = 150.0
Json = dict[str, Any]


@dataclass(frozen=True)
class Remote:
    """One workspace, as the client of one person sees it."""

    http: httpx.AsyncClient
    id: UUID

    @property
    def path(self) -> str:
        return f"/api/v1/workspaces/{self.id}"

    def of(self, http: httpx.AsyncClient) -> "Remote":
        return replace(self, http=http)

    async def shown(self) -> Json:
        answer = await self.http.get(self.path)
        assert answer.status_code == 200, answer.text
        shown: Json = answer.json()
        return shown

    async def shows(self, wanted: Callable[[Json], bool]) -> Json:
        seen: Json = {}
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while not wanted(seen := await self.shown()):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"it does not come to that: {seen}") from None
        return seen

    async def becomes(self, phase: str) -> Json:
        """At rest where it was wished."""
        return await self.shows(
            lambda ws: ws["phase"] == phase and ws["operation"] == "NONE" and ws["desired_state"] == phase
        )

    async def fails(self, reason: str) -> Json:
        return await self.shows(lambda ws: ws["phase"] == "ERROR" and ws["error"]["reason"] == reason)

    async def stumbles(self) -> Json:
        """An attempt has failed, and others are left."""
        return await self.shows(lambda ws: ws["error"] is not None and not ws["error"]["is_terminal"])

    async def wants(self, desired: str, **more: object) -> httpx.Response:
        return await self.http.patch(self.path, json={"desired_state": desired, **more})

    async def brought_to(self, desired: str) -> Json:
        answer = await self.wants(desired)
        assert answer.status_code in (200, 202), answer.text
        return await self.becomes(desired)

    async def recover(self, action: str, archive: str | None = None) -> httpx.Response:
        chosen = {} if archive is None else {"archive": archive}
        return await self.http.post(f"{self.path}/recover", json={"action": action, **chosen})

    async def lifecycle(self) -> Json:
        told: Json = (await self.http.get(f"{self.path}/lifecycle")).json()
        return told

    async def keep_alive(self, seconds: int) -> Json:
        answer = await self.http.post(f"{self.path}/keepalive", json={"seconds": seconds})
        assert answer.status_code == 200, answer.text
        lease: Json = answer.json()
        return lease

    async def restore_points(self) -> list[Json]:
        """Newest first."""
        items: list[Json] = (await self.http.get(f"{self.path}/archives")).json()["items"]
        return items

    async def ledger(self, *kinds: str) -> list[Json]:
        """Oldest first."""
        answer = await self.http.get(f"{self.path}/events", params={"limit": 200})
        entries: list[Json] = answer.json()["items"]
        return [entry for entry in reversed(entries) if not kinds or entry["kind"] in kinds]


@dataclass
class RemoteInstallation:
    site: RealApi
    url: str
    ide: Path
    ann: httpx.AsyncClient
    root: httpx.AsyncClient
    eve: httpx.AsyncClient
    """The owner, an administrator, and somebody else."""
    events: Events
    """The owner's."""
    database: "asyncpg.Pool[asyncpg.Record]"
    heard: list[tuple[str, Json]] = field(default_factory=list)

    def warnings(self, ws: Remote) -> list[Json]:
        """What the owner's stream has said until now of a stop to come."""
        while not self.events.seen.empty():
            self.heard.append(self.events.seen.get_nowait())
        return [data for name, data in self.heard if name == "idle_warning" and data["id"] == str(ws.id)]

    async def create(self, name: str, desired: str = "STANDBY", **more: object) -> Remote:
        body = {"name": f"{name} {uuid4().hex[:6]}", "desired_state": desired, **more}
        answer = await self.ann.post("/api/v1/workspaces", json=body)
        assert answer.status_code == 201, answer.text
        return Remote(self.ann, UUID(answer.json()["id"]))

    async def at(self, name: str, phase: str, **more: object) -> Remote:
        """A new one, arrived."""
        made = await self.create(name, phase, **more)
        await made.becomes(phase)
        return made

    async def archived(self, name: str, *contents: str) -> Remote:
        """With a restore point for each, oldest first, each with a file `work` that holds it."""
        made = await self.at(name, "STANDBY")
        for number, content in enumerate(contents):
            if number:
                await made.brought_to("STANDBY")
            (await self.home(made) / "work").write_text(content)
            await made.brought_to("ARCHIVED")
        return made

    async def home(self, ws: Remote) -> Path:
        name = await self.database.fetchval("SELECT home_store_key FROM workspaces WHERE id = $1", ws.id)
        return self.site.services.processes.homes.home(name)

    async def work(self, ws: Remote) -> str | None:
        kept = await self.home(ws) / "work"
        return kept.read_text() if kept.exists() else None

    async def lose_volume(self, ws: Remote) -> Callable[[], None]:
        """By hand, behind our back. The answer brings the very same one back."""
        volume = (await self.home(ws)).parent
        away = self.site.directory / f"lost-{volume.name}"
        volume.rename(away)

        def bring_back() -> None:
            away.rename(volume)

        return bring_back

    async def archive(self, ws: Remote) -> tuple[Path, Path]:
        """The object that it sleeps on, and its marker."""
        key = (await ws.shown())["archive_key"]
        store = self.site.directory / "archives"
        return store / key, store / meta_key(key)

    async def passes(self, ws: Remote, seconds: float, *columns: str) -> None:
        """So much time since each of these moments of the workspace."""
        moved = ", ".join(f"{name} = {name} - make_interval(secs => $2)" for name in columns)
        await self.database.execute(f"UPDATE workspaces SET {moved} WHERE id = $1", ws.id, float(seconds))

    async def reads(self, ws: Remote, column: str, wanted: Callable[[Any], bool]) -> None:
        """For what is not told over HTTP: wait until it is so."""
        value = None
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                query = f"SELECT {column} FROM workspaces WHERE id = $1"
                while not wanted(value := await self.database.fetchval(query, ws.id)):
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"{column} stays {value}") from None

    @contextmanager
    def no_ide(self) -> Iterator[None]:
        away = self.ide.with_suffix(".away")
        self.ide.rename(away)
        try:
            yield
        finally:
            away.rename(self.ide)


@asynccontextmanager
async def remote_installation(database_url: str, redis_url: str, **settings: str) -> AsyncIterator[RemoteInstallation]:
    """On an empty database."""
    await migrate(database_url)
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="codehub-test-")))
        ide = directory / "ide"
        ide.write_text(f'#!/bin/sh\nexec {sys.executable} {controlled_ide.__file__} "$@"\n')
        ide.chmod(0o755)
        command = f"{ide} {{socket}} {{home}}"
        given = {"MAX_RUNNING_PER_USER": "100", "CODEHUB_IDE_COMMAND": command, **settings}
        site = await stack.enter_async_context(real_api(database_url, redis_url, **given))
        url = (await site.start_api()).url
        await site.start_coordinator()

        async def person(name: str, role: Role = Role.USER) -> httpx.AsyncClient:
            _, headers = await site.token(name, role)
            client = httpx.AsyncClient(base_url=url, headers=headers, timeout=30)
            return await stack.enter_async_context(client)

        ann, root, eve = await person("ann"), await person("root", Role.ADMIN), await person("eve")
        events = Events(url, dict(ann.headers))
        stack.push_async_callback(events.close)
        pool = asyncpg.create_pool(database_url, min_size=1, max_size=4)
        database = await stack.enter_async_context(pool)
        yield RemoteInstallation(site, url, ide, ann, root, eve, events, database)
