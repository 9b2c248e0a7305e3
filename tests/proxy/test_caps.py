"""As many connections as there may be: in all, of one address, of one person. Who comes beyond is told so in their own
terms; who leaves, however they do, is counted no longer."""

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from codehub.domain.workspace import Workspace as Row
from codehub.proxy import server as server_module
from codehub.proxy.access.session_cache import VISIT_COOKIE
from codehub.proxy.access.verdicts import Cap, Forward, Respond
from codehub.proxy.http.downstream import Downstream
from codehub.proxy.http.limits import SPARE_DESCRIPTORS, ConnectionCounter, ProxyLimits, limits_within
from codehub.proxy.http.parser import RequestHead
from codehub.proxy.http.trusted_proxies import networks
from codehub.proxy.server import ProxyServer
from codehub.proxy.workers import census
from tests.eventually import eventually
from tests.proxy.doors import LIMITS, Door, Raw, ToldGate, get, patient, status
from tests.proxy.hub import Hub, Somebody, handshake_and_echo, hub_on
from tests.proxy.test_websocket import OFFER, SWITCH, raw_end, upgraded
from tests.proxy.workspaces import OK, Workspace


def counted(server: ProxyServer) -> int:
    """How many addresses and people have something open."""
    return len(server._addresses) + len(server._people)


async def both(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers requests, and echoes on sockets."""
    while head := await reader.readuntil(b"\r\n\r\n"):
        if head.startswith(b"GET /ws"):
            writer.write(SWITCH)
            while data := await reader.read(65536):
                writer.write(data)
            return
        writer.write(OK)


def capped(workspace: Workspace, *, holder: object = None, **limits: float) -> Door:
    changed = replace(LIMITS, **limits)  # type: ignore[arg-type]
    return Door(workspace.endpoint, changed, Forward(workspace.endpoint, holder=holder))


# ── counting ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_tally_keeps_only_who_has_some() -> None:
    tally = ConnectionCounter(2)
    assert [tally.add("a"), tally.add("a"), tally.add("a"), tally.add("b")] == [True, True, False, True]
    tally.drop("a")
    assert tally.add("a")
    for key in "aab":
        tally.drop(key)
    assert len(tally) == 0
    boundless = ConnectionCounter(0)
    assert all(boundless.add("a") for _ in range(100))


@pytest.mark.parametrize(
    ("descriptors", "per_address", "connections", "of_one"),
    [
        (1 << 20, None, 20_000, 10_000),
        (4096, None, (4096 - SPARE_DESCRIPTORS) // 2, (4096 - SPARE_DESCRIPTORS) // 4),
        (4096, 0, (4096 - SPARE_DESCRIPTORS) // 2, 0),
        (4096, 7, (4096 - SPARE_DESCRIPTORS) // 2, 7),
        (256, None, 2, 1),
    ],
)
def test_caps_follow_what_a_process_may_open(
    descriptors: int, per_address: int | None, connections: int, of_one: int
) -> None:
    limits = limits_within(descriptors, per_address, 1000, ProxyLimits().response_seconds)
    assert (limits.connections, limits.per_address, limits.per_person) == (connections, of_one, 1000)
    assert replace(limits, connections=20_000, per_address=0, per_person=0) == ProxyLimits()


# ── all, and those of one address ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("limits", "cap", "wanted"),
    [({"connections": 2}, Cap.ALL, 503), ({"per_address": 2}, Cap.ADDRESS, 429)],
    ids=["all", "address"],
)
async def test_beyond_a_cap_one_is_told_so(workspace: Workspace, limits: dict[str, int], cap: Cap, wanted: int) -> None:
    async with capped(workspace, **limits) as door:
        first, second, third = [await door.connect() for _ in range(3)]
        third.write(get("/", "Content-Length: 100000", method="POST") + b"x" * 100_000)
        answer = await third.rest()
        assert status(answer) == wanted
        assert f'"code": "{cap.value}"'.encode() in answer
        assert b"Connection: close" in answer
        third.close()
        first.close()
        await eventually(lambda: door.server.connections == 1)
        assert status(await door.ask(get())) == 200
        second.close()
        assert door.server.turned_away == {**dict.fromkeys(Cap, 0), cap: 1}
        assert f'"{cap.name.lower()}": 1'.encode() in census(door.server)
        await eventually(lambda: counted(door.server) == 0 and not door.server._leaving)
        assert workspace.seen[0].method == "GET"


@pytest.mark.parametrize(
    ("sent", "begins", "ends"),
    [
        (b"", b"HTTP/1.1 429 ", b"}\n"),
        (b"GET / HT", b"HTTP/1.1 429 ", b"}\n"),
        (b"nonsense\r\n\r\n", b"HTTP/1.1 429 ", b"}\n"),
        (get("/", *(f"X-{n}: {'x' * 1000}" for n in range(40))), b"HTTP/1.1 429 ", b"}\n"),
        (get(method="HEAD"), b"HTTP/1.1 429 ", b"\r\n\r\n"),
        (get() * 3, b"HTTP/1.1 429 ", b"}\n"),
    ],
    ids=["nothing", "half a head", "nonsense", "a huge head", "HEAD", "three at once"],
)
async def test_whatever_it_sends_it_gets_one_answer(
    workspace: Workspace, sent: bytes, begins: bytes, ends: bytes
) -> None:
    async with capped(workspace, per_address=1, linger_seconds=0.2) as door:
        first, second = await door.connect(), await door.connect()
        second.write(sent)
        answer = await second.rest()
        assert answer.startswith(begins)
        assert answer.endswith(ends)
        assert answer.count(b"HTTP/1.1") == 1
        for raw in (first, second):
            raw.close()


async def test_who_does_not_leave_is_shown_out(workspace: Workspace) -> None:
    async with capped(workspace, per_address=1, linger_seconds=0.1) as door:
        first, second = await door.connect(), await door.connect()
        second.write(get())
        await second.rest()
        await eventually(lambda: not door.server._leaving)
        for raw in (first, second):
            raw.close()


async def test_few_are_told_at_once(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MOST_AT_ONCE", 1)
    async with capped(workspace, per_address=1) as door:
        raws = [await door.connect() for _ in range(3)]
        assert await raw_end(raws[2]) == b""
        raws[1].write(get())
        assert status(await raws[1].rest()) == 429
        assert door.server.turned_away[Cap.ADDRESS] == 2
        for raw in raws:
            raw.close()


async def test_a_gate_without_words_leaves_it_to_us(workspace: Workspace) -> None:
    class Speechless(ToldGate):
        def crowded(self, head: RequestHead, cap: Cap) -> Respond:
            raise RuntimeError("no words")

    door = capped(workspace, per_address=1)
    door.gate = Speechless(Forward(workspace.endpoint))
    async with door:
        first = await door.connect()
        assert status(await door.ask(get())) == 429
        first.close()


async def test_a_proxy_that_is_believed_is_no_single_address(workspace: Workspace) -> None:
    door = capped(workspace, per_address=1)
    door.forwarders = networks("127.0.0.1")
    async with door:
        raws = [await door.connect() for _ in range(5)]
        for raw in raws:
            raw.write(get("/", "X-Forwarded-For: 203.0.113.9"))
            assert status((await raw.answer())[0]) == 200
            raw.close()


async def test_who_comes_over_a_unix_socket_is_nobody_s_count(workspace: Workspace) -> None:
    async with capped(workspace, per_address=1) as door:
        raws = []
        for _ in range(3):
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            await asyncio.get_running_loop().connect_accepted_socket(lambda: Downstream(door.server), ours)
            raws.append(raw := Raw(*await asyncio.open_unix_connection(sock=theirs)))
            raw.write(get())
            assert status((await raw.answer())[0]) == 200
        for raw in raws:
            raw.close()


# ── leaving ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def close(raw: Raw) -> None:
    raw.close()


def abort(raw: Raw) -> None:
    raw.writer.transport.abort()


def reset(raw: Raw) -> None:
    option = (1).to_bytes(4, "little") + bytes(4)
    raw.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, option)
    raw.writer.transport.abort()


@pytest.mark.parametrize("leave", [close, abort, reset])
@pytest.mark.parametrize("is_socket", [False, True], ids=["a request", "a socket"])
async def test_who_leaves_is_counted_no_longer(
    workspace: Workspace, leave: Callable[[Raw], None], is_socket: bool
) -> None:
    workspace.handler = both
    async with capped(workspace, holder="ann", per_address=1, per_person=1) as door:
        for _ in range(3):
            if is_socket:
                raw = await upgraded(door, "/ws")
            else:
                raw = await door.connect()
                raw.write(get())
                await raw.answer()
            assert counted(door.server) == 2
            leave(raw)
            await eventually(lambda: counted(door.server) == 0)
        assert door.server.turned_away == dict.fromkeys(Cap, 0)


async def test_after_many_ways_to_go_nobody_is_counted(workspace: Workspace) -> None:
    workspace.handler = both
    dice = random.Random(11)

    async def leave(raw: Raw) -> None:
        path = dice.choice(["/", "/ws", "/later"])
        raw.write(get(path, *(OFFER if path == "/ws" else ()))[: dice.choice([None, None, 9])])
        for _ in range(dice.randrange(20)):
            await asyncio.sleep(0)
        if dice.random() < 0.5:
            with suppress(ConnectionError):
                await patient(raw.reader.read(20))
        dice.choice([close, abort, reset])(raw)

    async with capped(
        workspace, holder="ann", per_address=8, per_person=6, linger_seconds=0.2, head_seconds=0.2
    ) as door:
        for _ in range(20):
            raws = await asyncio.gather(*(door.connect() for _ in range(12)))
            await asyncio.gather(*map(leave, raws))
        await eventually(lambda: door.server.connections == 0 and not door.server._leaving)
        assert counted(door.server) == 0
        assert door.server.turned_away[Cap.ADDRESS] > 0


# ── one person ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_connection_is_whose_request_it_carried_last(workspace: Workspace) -> None:
    async with capped(workspace, per_person=1) as door:
        for name in ("ann", "bob"):
            door.gate.verdicts[f"/{name}".encode()] = lambda name=name: Forward(  # type: ignore[misc]
                workspace.endpoint, holder=name
            )
        one, other = await door.connect(), await door.connect()

        async def asks(raw: Raw, name: str) -> int:
            raw.write(get(f"/{name}"))
            return status((await raw.answer())[0])

        assert [await asks(one, "ann"), await asks(one, "ann"), await asks(one, "")] == [200] * 3
        assert await asks(one, "bob") == 200
        assert await asks(other, "ann") == 200
        assert await asks(other, "bob") == 429
        assert await other.rest() == b""
        await eventually(lambda: counted(door.server) == 2)  # the address, and bob
        assert door.server.turned_away[Cap.PERSON] == 1
        for raw in (one, other):
            raw.close()


async def test_a_person_is_the_same_by_another_name_tag(workspace: Workspace) -> None:
    """Who is looked up anew is an equal object, no other person."""
    async with capped(workspace, per_person=1) as door:
        key = uuid4()
        door.gate.verdicts[b"/"] = lambda: Forward(workspace.endpoint, holder=UUID(int=key.int))
        raw = await door.connect()
        for _ in range(3):
            raw.write(get())
            assert status((await raw.answer())[0]) == 200
        assert counted(door.server) == 2
        raw.close()
        await eventually(lambda: counted(door.server) == 0)


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with hub_on(door_limits=replace(LIMITS, per_person=2, per_address=4)) as opened:
        opened.ide.handler = handshake_and_echo
        yield opened


async def test_a_person_s_next_socket_is_refused_in_plain_words(hub: Hub) -> None:
    ann, bob = await hub.person(), await hub.person("bob")
    demo, own = await hub.workspace(ann), await hub.workspace(bob)
    opened = [await hub.open_socket(demo, ann) for _ in range(2)]
    assert (await refused_socket(hub, demo, ann)) == 429
    other = await hub.open_socket(own, bob)
    for socket_ in (*opened, other):
        socket_.raw.close()
    await eventually(lambda: hub.door.server.upgraded == 0)
    again = await hub.open_socket(demo, ann)
    assert hub.door.server.upgraded == 1
    again.raw.close()


async def refused_socket(hub: Hub, workspace: Row, who: Somebody) -> int:
    """The status that an upgrade is refused with: accepted and closed at once, it would look like a connection."""
    host, secret = hub.host(workspace), await hub.visit(who, workspace)
    return (await hub.socket(f"Origin: http://{host}", f"Cookie: {VISIT_COOKIE}={secret}", host=host)).status


async def test_a_person_s_next_request_gets_a_page(hub: Hub) -> None:
    ann = await hub.person()
    demo = await hub.workspace(ann)
    opened = [await hub.open_socket(demo, ann) for _ in range(2)]
    page = await hub.get(demo, "/", ann, {"accept": "text/html", "accept-language": "ko"})
    assert (page.status_code, page.headers["codehub-page"]) == (429, "too_many_of_person")
    assert "연결이 너무 많습니다" in page.text
    told = await hub.get(demo, "/", ann)
    assert (told.status_code, told.json()["code"], told.headers["retry-after"]) == (429, "too_many_of_person", "30")
    for socket_ in opened:
        socket_.raw.close()


async def test_an_address_s_next_connection_gets_a_page_or_a_refusal(hub: Hub) -> None:
    ann = await hub.person()
    demo = await hub.workspace(ann)
    raws = [Raw(*await asyncio.open_connection("127.0.0.1", hub.port)) for _ in range(4)]
    await eventually(lambda: hub.door.server.connections == 4)
    page = await hub.get(demo, "/", ann, {"accept": "text/html"})
    assert (page.status_code, page.headers["codehub-page"]) == (429, "too_many_from_address")
    assert "Too many connections are open from your address." in page.text
    assert (await refused_socket(hub, demo, ann)) == 429
    for raw in raws:
        raw.close()
