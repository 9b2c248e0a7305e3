"""A download lasts as long as the right to it: whoever loses that gets no further byte, and no end that looks whole."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from codehub.adapters.memory.archives import StoredEntry
from codehub.api import access_watch
from codehub.domain.identity import Role, Scope
from codehub.ports.archives import EntryKind
from tests.api.memory_api import ApiUser, MemoryApi
from tests.api.test_archives import point

__all__ = ["point"]

SIZE = 1 << 20


class Reader:
    """One download, straight on the ASGI app, whose reader takes one chunk and then no more until `read_on`."""

    def __init__(self, api: MemoryApi, path: str, headers: dict[str, str], spec_version: str = "2.3") -> None:
        self.got = 0
        self.status = 0
        self.is_whole = False
        self.has_begun = asyncio.Event()
        self.read_on = asyncio.Event()
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "http_version": "1.1",
            "scheme": "http",
            "server": ("hub.test", 80),
            "client": ("127.0.0.1", 1),
            "root_path": "",
            "asgi": {"version": "3.0", "spec_version": spec_version},
        }
        self.task = asyncio.ensure_future(api.app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        self.got += len(message.get("body", b""))
        self.is_whole = not message.get("more_body", False)
        self.has_begun.set()
        await self.read_on.wait()

    async def begun(self) -> None:
        async with asyncio.timeout(10):
            await self.has_begun.wait()

    async def broken(self) -> None:
        async with asyncio.timeout(10):
            with pytest.raises(RuntimeError, match="response already started"):
                await self.task
        assert (self.status, self.is_whole) == (200, False)
        assert 0 < self.got < SIZE


@pytest.fixture
def large(api: MemoryApi, point: str) -> str:
    """The address of a file of Ann's."""
    for stored in api.backends.archives.state.objects.values():
        stored.home = {b"large": StoredEntry(EntryKind.FILE, b"x" * SIZE)}
    return f"{point}/content?path=large"


def with_token(person: ApiUser) -> dict[str, str]:
    return {"authorization": person.http.headers["authorization"]}


@pytest.mark.parametrize("spec_version", ["2.3", "2.4"])
async def test_it_ends_with_its_user(
    api: MemoryApi, ann: ApiUser, admin: ApiUser, large: str, spec_version: str
) -> None:
    hers = Reader(api, large, with_token(ann), spec_version)
    theirs = Reader(api, large, with_token(admin), spec_version)
    await hers.begun()
    await theirs.begun()
    await (await api.browser(admin.name)).patch(f"/api/v1/admin/users/{ann.id}", json={"disabled": True})
    await hers.broken()
    theirs.read_on.set()
    async with asyncio.timeout(10):
        await theirs.task
    assert (theirs.got, theirs.is_whole) == (SIZE, True)


async def test_it_ends_with_its_session_and_no_other(api: MemoryApi, ann: ApiUser, large: str) -> None:
    browser, other = await api.browser("ann"), await api.browser("ann")
    ends, stays = (Reader(api, large, {"cookie": one.headers["cookie"]}) for one in (browser, other))
    await ends.begun()
    await stays.begun()
    await browser.delete("/api/v1/session")
    await ends.broken()
    stays.read_on.set()
    async with asyncio.timeout(10):
        await stays.task
    assert stays.is_whole


async def test_it_ends_with_its_token(api: MemoryApi, ann: ApiUser, large: str) -> None:
    reader = Reader(api, large.replace("content?path=large", "content"), with_token(ann))
    await reader.begun()
    [token] = (await ann.http.get("/api/v1/tokens")).json()["items"]
    await ann.http.delete(f"/api/v1/tokens/{token['id']}")
    await reader.broken()


async def test_it_ends_with_the_role_that_gave_the_right(
    api: MemoryApi, ann: ApiUser, admin: ApiUser, large: str
) -> None:
    boss = await api.person("boss", Role.ADMIN)
    reader = Reader(api, large, with_token(boss))
    await reader.begun()
    await (await api.browser(admin.name)).patch(f"/api/v1/admin/users/{boss.id}", json={"role": "user"})
    await reader.broken()


async def test_an_end_that_nobody_told_is_found_all_the_same(
    api: MemoryApi, ann: ApiUser, large: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_watch, "RECHECK_SECONDS", 0.05)
    reader = Reader(api, large, with_token(await api.person("ann", scopes=frozenset({Scope.READ}))))
    await reader.begun()
    api.backends.database.state.accounts.tokens.clear()
    await reader.broken()


async def test_who_still_waits_for_the_first_byte_is_told(
    api: MemoryApi, ann: ApiUser, admin: ApiUser, large: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = asyncio.Event()
    contents: Any = type(api.parts.contents)

    @asynccontextmanager
    async def never(_self: Any, *_what: Any, **_how: Any) -> AsyncIterator[Any]:
        waiting.set()
        await asyncio.Event().wait()
        yield None

    monkeypatch.setattr(contents, "content", never)
    asked: asyncio.Task[httpx.Response] = asyncio.ensure_future(ann.http.get(large))
    async with asyncio.timeout(10):
        await waiting.wait()
        await (await api.browser(admin.name)).patch(f"/api/v1/admin/users/{ann.id}", json={"disabled": True})
        answer = await asked
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


async def test_a_change_that_takes_no_right_ends_nothing(
    api: MemoryApi, ann: ApiUser, admin: ApiUser, large: str
) -> None:
    reader = Reader(api, large, with_token(ann))
    await reader.begun()
    await (await api.browser(admin.name)).patch(f"/api/v1/admin/users/{ann.id}", json={"role": "admin"})
    for _ in range(50):
        await asyncio.sleep(0)
    reader.read_on.set()
    async with asyncio.timeout(10):
        await reader.task
    assert (reader.got, reader.is_whole) == (SIZE, True)
