"""Events: a snapshot first, then what changes, to those whom it concerns; whatever is lost is made good."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from codehub.adapters.memory import MemoryBus, MemoryNotifier
from codehub.adapters.notifiers import BusNotifier
from codehub.api import access_watch, events
from codehub.api.access_watch import AccessWatch
from codehub.api.dependencies import ApiSite
from codehub.api.events import Event, EventHub, Listener, writes
from codehub.coordinator.event_listener import EventListener
from codehub.domain import notices
from codehub.domain.errors import Unreachable
from codehub.domain.identity import Role, Scope
from codehub.domain.workspace import Operation, Phase, Progress
from codehub.ports.views import WorkspaceViews
from codehub.telemetry import Metrics
from codehub.usecases import bus_listener
from tests.api.memory_api import ApiUser, MemoryApi, memory_api
from tests.rows import NOW, OP_ID


class Stream:
    """One GET /events, straight on the ASGI app: httpx's transport waits for an end that never comes."""

    def __init__(self, api: MemoryApi, headers: dict[str, str], query: str = "") -> None:
        self._events: asyncio.Queue[tuple[str, Any] | None] = asyncio.Queue()
        self._gone = asyncio.Event()
        self._answered = asyncio.Event()
        self.status = 0
        self.headers: dict[str, str] = {}
        self._text = ""
        self._body = b""
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/api/v1/events",
            "raw_path": b"/api/v1/events",
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
            "http_version": "1.1",
            "scheme": "http",
            "server": ("hub.test", 80),
            "client": ("127.0.0.1", 1),
            "root_path": "",
        }
        self._begun = False
        self._task = asyncio.ensure_future(self._run(api, scope))

    async def _run(self, api: MemoryApi, scope: dict[str, Any]) -> None:
        try:
            await api.app(scope, self._receive, self._send)
        finally:
            self._events.put_nowait(None)

    async def _receive(self) -> dict[str, Any]:
        if not self._begun:
            self._begun = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._answered.set()
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        self._text += message.get("body", b"").decode()
        while "\r\n\r\n" in self._text:
            block, self._text = self._text.split("\r\n\r\n", 1)
            fields = dict(line.split(": ", 1) for line in block.split("\r\n") if ": " in line)
            if "event" in fields:
                self._events.put_nowait((fields["event"], json.loads(fields["data"])))

    async def next(self) -> tuple[str, Any]:
        async with asyncio.timeout(10):
            event = await self._events.get()
        assert event is not None, "the stream has ended"
        return event

    async def begun(self) -> int:
        """Its status, once there is one."""
        async with asyncio.timeout(10):
            await self._answered.wait()
        return self.status

    async def until(self, name: str) -> Any:
        while True:
            found, data = await self.next()
            if found == name:
                return data

    async def ended(self) -> None:
        async with asyncio.timeout(10):
            while await self._events.get() is not None:
                pass

    async def close(self) -> None:
        self._gone.set()
        async with asyncio.timeout(10):
            await asyncio.gather(self._task, return_exceptions=True)


@asynccontextmanager
async def listening(api: MemoryApi, person: ApiUser, query: str = "") -> AsyncIterator[Stream]:
    stream = Stream(api, {"authorization": person.http.headers["authorization"]}, query)
    try:
        yield stream
    finally:
        await stream.close()


@asynccontextmanager
async def told(api: MemoryApi) -> AsyncIterator[None]:
    """The coordinator's half: what the database tells becomes messages."""
    state = api.backends.database
    listener = EventListener(state.changes(), api.backends.bus, lambda _: None, lambda: None, Metrics())
    task = asyncio.ensure_future(listener.run())
    await asyncio.sleep(0)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "RESTART_SECONDS", 0.02)
    monkeypatch.setattr(bus_listener, "RETRY_SECONDS", 0.02)


async def test_a_snapshot_then_whole_objects_then_the_end(api: MemoryApi, ann: ApiUser) -> None:
    made = await ann.create()
    async with told(api), listening(api, ann) as stream:
        name, data = await stream.next()
        assert (name, [one["id"] for one in data["workspaces"]]) == ("snapshot", [made["id"]])
        assert stream.headers["content-type"].startswith("text/event-stream")
        await ann.http.patch(f"/api/v1/workspaces/{made['id']}", json={"memo": "new"})
        updated = await stream.until("workspace_updated")
        assert updated == (await ann.http.get(f"/api/v1/workspaces/{made['id']}")).json()
        other = await ann.create("other", desired_state="PENDING")
        assert (await stream.until("workspace_updated"))["id"] == other["id"]
        api.controller_writes(made["id"], deleted_at=NOW, phase=Phase.DELETED)
        assert await stream.until("workspace_deleted") == {"id": made["id"]}
        api.controller_writes(made["id"], deleted_at=None, phase=Phase.STANDBY)
        assert (await stream.until("workspace_updated"))["id"] == made["id"]


async def test_progress_is_small(api: MemoryApi, ann: ApiUser) -> None:
    made = await ann.create()
    api.controller_writes(made["id"], operation=Operation.STARTING, op_id=OP_ID, op_started_at=NOW)
    async with told(api), listening(api, ann) as stream:
        await stream.until("snapshot")
        api.controller_writes(made["id"], op_progress=Progress(10, 1, 20, "pulling"))
        moved = await stream.until("progress")
        assert (moved["id"], moved["operation"], moved["progress"]["bytes"]) == (made["id"], "STARTING", 10)


async def test_notices_reach_admins_alone_whatever_they_listen_to(api: MemoryApi, ann: ApiUser, admin: ApiUser) -> None:
    notifier = BusNotifier(api.backends.bus, "codehub:sse:", MemoryNotifier())
    async with (
        told(api),
        listening(api, ann) as hers,
        listening(api, admin) as own,
        listening(api, admin, "all=true") as everything,
    ):
        for stream in (hers, own, everything):
            await stream.until("snapshot")
        await notifier.notify(notices.backend_silent("runtime", "refused"))
        expected = {"subject": "backend does not answer", "details": {"backend": "runtime", "error": "refused"}}
        assert await own.until("notice") == expected
        assert await everything.until("notice") == expected
        made = await ann.create()
        assert (await hers.next())[1]["id"] == made["id"], "nothing came to her before her own"


async def test_only_one_s_own_are_heard_and_admins_may_ask_for_all(
    api: MemoryApi, ann: ApiUser, bob: ApiUser, admin: ApiUser
) -> None:
    async with told(api), listening(api, ann) as hers, listening(api, admin, "all=true") as everything:
        await hers.until("snapshot")
        await everything.until("snapshot")
        theirs = await bob.create("bob's")
        mine = await ann.create("ann's")
        assert (await hers.until("workspace_updated"))["id"] == mine["id"]
        both = {(await everything.until("workspace_updated"))["owner"] for _ in range(2)}
        assert both == {"ann", "bob"}
        assert theirs["id"] != mine["id"]
    async with listening(api, ann, "all=true") as refused:
        await refused.ended()
        assert refused.status == 403
    nobody = Stream(api, {})
    await nobody.ended()
    assert nobody.status == 401


async def test_warnings_are_passed_on(api: MemoryApi, ann: ApiUser) -> None:
    made = await ann.create()
    warning = {"type": "idle_warning", "id": made["id"], "stops_at": "2026-01-01T00:00:00+00:00", "becomes": "STANDBY"}
    async with listening(api, ann) as stream:
        await stream.until("snapshot")
        await api.backends.bus.publish(f"codehub:sse:{ann.id}", warning)
        assert await stream.until("idle_warning") == {key: warning[key] for key in ("id", "stops_at", "becomes")}


async def test_an_owner_s_notice_comes_to_the_owner_alone(
    api: MemoryApi, ann: ApiUser, bob: ApiUser, admin: ApiUser
) -> None:
    told_to_owner = {"subject": "secrets could not be opened", "details": {"names": ["A"]}}
    async with (
        told(api),
        listening(api, ann) as hers,
        listening(api, bob) as his,
        listening(api, admin, "all=true") as everything,
    ):
        for stream in (hers, his, everything):
            await stream.until("snapshot")
        await api.backends.bus.publish(f"codehub:sse:{ann.id}", {"type": "owner_notice", **told_to_owner})
        assert await hers.until("notice") == told_to_owner
        made = await bob.create()
        for stream in (his, everything):
            assert (await stream.next())[1]["id"] == made["id"], "nothing came before it"


async def test_strange_messages_are_passed_over(api: MemoryApi, ann: ApiUser) -> None:
    async with told(api), listening(api, ann) as stream:
        await stream.until("snapshot")
        for strange in ({}, {"type": "updated"}, {"type": "updated", "id": "x"}, {"type": 5, "id": None}):
            await api.backends.bus.publish(f"codehub:sse:{ann.id}", strange)
        made = await ann.create()
        assert (await stream.until("workspace_updated"))["id"] == made["id"]


async def test_a_heartbeat_comes_by_itself() -> None:
    async with memory_api(site=ApiSite(heartbeat=0.05)) as api, listening(api, await api.person("ann")) as stream:
        assert await stream.until("heartbeat") == {}


# ── gaps ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_lost_bus_is_made_good_by_a_snapshot(api: MemoryApi, ann: ApiUser) -> None:
    async with told(api), listening(api, ann) as stream:
        await stream.until("snapshot")
        api.backends.bus.state.sever()
        missed = await ann.create()
        names = {one["id"] for one in (await stream.until("snapshot"))["workspaces"]}
        assert missed["id"] in names
        after = await ann.create("after", desired_state="PENDING")
        assert (await stream.until("workspace_updated"))["id"] == after["id"]


async def test_one_lost_subscription_is_made_good_by_itself(api: MemoryApi, ann: ApiUser) -> None:
    """Only this person's: nobody else tells the topic that something was missed."""
    async with listening(api, ann) as stream:
        await stream.until("snapshot")
        [subscription] = api.backends.bus.state.listeners[f"codehub:sse:{ann.id}"]
        subscription.put_nowait(None)
        missed = await ann.create()
        names = {one["id"] for one in (await stream.until("snapshot"))["workspaces"]}
        assert missed["id"] in names


async def test_a_resync_of_the_coordinator_is_a_snapshot(api: MemoryApi, ann: ApiUser) -> None:
    async with listening(api, ann) as stream:
        await stream.until("snapshot")
        unheard = await ann.create()
        async with told(api):
            names = {one["id"] for one in (await stream.until("snapshot"))["workspaces"]}
            assert unheard["id"] in names


async def test_a_lost_database_is_made_good_by_a_snapshot(
    api: MemoryApi, ann: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await ann.create()
    async with told(api), listening(api, ann) as stream:
        await stream.until("snapshot")
        views: Any = type(api.parts.views)
        asked = asyncio.Event()

        async def gone(*_: object) -> Any:
            asked.set()
            raise Unreachable("no database")

        with monkeypatch.context() as outage:
            outage.setattr(views, "some", gone)
            outage.setattr(views, "everything", gone)
            api.controller_writes(made["id"], phase=Phase.STANDBY)
            await asked.wait()
        [seen] = (await stream.until("snapshot"))["workspaces"]
        assert seen["phase"] == "STANDBY"


async def test_without_a_bus_there_is_a_snapshot_all_the_same(
    api: MemoryApi, ann: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "JOIN_TIMEOUT_SECONDS", 0.05)

    async def silent(*_: object) -> AsyncIterator[Any]:
        for _reason in ("no bus",):
            raise Unreachable(_reason)
        yield {}

    with monkeypatch.context() as outage:
        outage.setattr(MemoryBus, "subscribe", silent)
        stream = Stream(api, {"authorization": ann.http.headers["authorization"]})
        assert await stream.until("snapshot") == {"workspaces": []}
    made = await ann.create()
    [seen] = (await stream.until("snapshot"))["workspaces"]
    assert seen["id"] == made["id"]
    await stream.close()


# ── the end of somebody's access ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_stream_ends_with_its_session(api: MemoryApi, ann: ApiUser) -> None:
    browser, other = await api.browser("ann"), await api.browser("ann")
    streams = [Stream(api, {"cookie": one.headers["cookie"]}) for one in (browser, other)]
    for stream in streams:
        await stream.until("snapshot")
    await browser.delete("/api/v1/session")
    await streams[0].ended()
    made = await ann.create()
    async with told(api):
        assert made["id"] in json.dumps(await streams[1].until("snapshot"))
    await streams[1].close()


async def test_a_stream_ends_with_its_token_its_user_and_its_role(api: MemoryApi, ann: ApiUser, admin: ApiUser) -> None:
    boss = await api.person("boss", Role.ADMIN)
    async with listening(api, ann) as hers, listening(api, boss, "all=true") as everything:
        await hers.until("snapshot")
        await everything.until("snapshot")
        await (await api.browser(admin.name)).patch(f"/api/v1/admin/users/{ann.id}", json={"disabled": True})
        await hers.ended()
        await (await api.browser(admin.name)).patch(f"/api/v1/admin/users/{boss.id}", json={"role": "user"})
        await everything.ended()
    async with listening(api, admin) as last:
        await last.until("snapshot")
        [token] = (await admin.http.get("/api/v1/tokens")).json()["items"]
        await admin.http.delete(f"/api/v1/tokens/{token['id']}")
        await last.ended()


async def test_an_end_that_nobody_told_is_found_all_the_same(
    api: MemoryApi, ann: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_watch, "RECHECK_SECONDS", 0.05)
    reader = await api.person("ann", scopes=frozenset({Scope.READ}))
    async with listening(api, reader) as stream:
        await stream.until("snapshot")
        api.backends.database.state.accounts.tokens.clear()
        await stream.ended()


# ── many ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class CountingViews:
    """Passes on, and counts."""

    def __init__(self, views: WorkspaceViews) -> None:
        self._views = views
        self.reads = 0

    async def some(self, ids: Any) -> Any:
        self.reads += 1
        return await self._views.some(ids)

    async def everything(self, owner_id: str | None = None) -> Any:
        return await self._views.everything(owner_id)


async def allowed() -> bool:
    return True


async def test_many_listeners_are_one_subscription_and_one_read(api: MemoryApi, ann: ApiUser) -> None:
    views: Any = CountingViews(api.parts.views)
    bus = api.backends.bus
    hub = EventHub(
        bus, views, lambda o: {"id": str(o.workspace.id), "v": o.workspace.version}, Metrics(), AccessWatch(bus)
    )
    made = await ann.create()
    listeners = [Listener(ann.id, allowed) for _ in range(50)]
    contexts = [hub.listening(str(ann.id), listener) for listener in listeners]
    for context in contexts:
        await context.__aenter__()
    for listener in listeners:
        assert (await listener.all_waiting())[0].name == "snapshot"
    assert len(api.backends.bus.state.listeners[f"codehub:sse:{ann.id}"]) == 1
    api.controller_writes(made["id"], memo="x")
    await api.backends.bus.publish(f"codehub:sse:{ann.id}", {"type": "updated", "id": made["id"]})
    for listener in listeners:
        while (heard := await listener.all_waiting()) and heard[-1].name != "workspace_updated":
            pass
        assert heard
    assert views.reads == 1
    for context in contexts:
        await context.__aexit__(None, None, None)
    assert api.backends.bus.state.listeners[f"codehub:sse:{ann.id}"] == []
    await hub.close()


async def test_a_slow_listener_is_cut_off_and_the_others_are_not() -> None:
    slow, quick = Listener(UUID(int=1), allowed), Listener(UUID(int=1), allowed)
    for number in range(events.MOST_WAITING + 1):
        for listener in (slow, quick):
            listener.give(Event("workspace_updated", str(number)))
        assert await quick.all_waiting() == [Event("workspace_updated", str(number))]
    assert (slow.why, await slow.all_waiting()) == ("slow", [])
    assert quick.why is None


async def test_who_is_behind_gets_all_that_waits_in_order() -> None:
    listener = Listener(UUID(int=1), allowed)
    for number in range(3):
        listener.give(Event("workspace_updated", str(number)))
    assert [given.data for given in await listener.all_waiting()] == ["0", "1", "2"]
    listener.give(Event("workspace_updated", "3"))
    assert [given.data for given in await listener.all_waiting()] == ["3"]
    listener.give(Event("workspace_updated", "forgotten"))
    listener.end("closing")
    assert await listener.all_waiting() == []


async def test_one_person_has_so_many_streams(api: MemoryApi, ann: ApiUser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MOST_PER_USER", 1)
    async with listening(api, ann) as first:
        await first.until("snapshot")
        async with listening(api, ann) as second:
            await second.ended()
            assert second.status == 429
    async with listening(api, ann) as third:
        await third.until("snapshot")


async def test_a_burst_of_streams_is_counted_as_it_is_let_in(api: MemoryApi, ann: ApiUser, bob: ApiUser) -> None:
    headers = {"authorization": ann.http.headers["authorization"]}
    streams = [Stream(api, headers) for _ in range(events.MOST_PER_USER + 15)]
    let_in = [stream for stream in streams if (await stream.begun()) == 200]
    assert len(let_in) == events.MOST_PER_USER == 10
    assert {stream.status for stream in streams} == {200, 429}
    async with listening(api, bob) as his:
        await his.until("snapshot")
    for stream in streams:
        await stream.close()
    async with listening(api, ann) as later:
        await later.until("snapshot")


async def test_who_joins_at_the_same_version_shares_one_snapshot(api: MemoryApi, ann: ApiUser) -> None:
    made = await ann.create()
    bus = api.backends.bus
    hub = EventHub(bus, api.parts.views, lambda o: {"memo": o.workspace.memo}, Metrics(), AccessWatch(bus))
    async with AsyncExitStack() as stack:

        async def joined() -> Event:
            listener = await stack.enter_async_context(hub.listening(str(ann.id), Listener(ann.id, allowed)))
            return (await listener.all_waiting())[0]

        first, second = await joined(), await joined()
        assert first.encoded is second.encoded
        api.controller_writes(made["id"], memo="new")
        third = await joined()
        assert (json.loads(third.data), third is first) == ({"workspaces": [{"memo": "new"}]}, False)
    await hub.close()


def test_the_bytes_of_a_snapshot_are_shared_and_not_copied_for_each_who_hears_it() -> None:
    one, two, snapshot = Event("progress", "1"), Event("progress", "2"), Event("snapshot", "{}")
    written = list(writes([one, two, snapshot, one]))
    assert written == [one.encoded + two.encoded, snapshot.encoded, one.encoded]
    assert written[1] is snapshot.encoded
    assert list(writes([snapshot])) == [snapshot.encoded]


async def test_who_does_not_read_keeps_one_snapshot_and_every_warning() -> None:
    listener = Listener(UUID(int=1), allowed)
    for number in range(events.MOST_WAITING):
        listener.give(Event("workspace_updated", str(number)))
        if number == 3:
            listener.give(Event("idle_warning", "soon"))
        listener.give(Event("snapshot", str(number)))
    listener.give(Event("workspace_updated", "after"))
    waiting = [(given.name, given.data) for given in await listener.all_waiting()]
    newest = ("snapshot", str(events.MOST_WAITING - 1))
    assert waiting == [("idle_warning", "soon"), newest, ("workspace_updated", "after")]
    assert listener.why is None


async def test_closing_ends_every_stream(api: MemoryApi, ann: ApiUser) -> None:
    async with listening(api, ann) as stream:
        await stream.until("snapshot")
        await api.app.state.hub.close()
        await stream.ended()
