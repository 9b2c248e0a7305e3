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
from codehub.proxy.http.headers import networks
from codehub.proxy.http.limits import SPARE_DESCRIPTORS, ProxyLimits, UsageCounter, limits_within
from codehub.proxy.http.parser import RequestHead
from codehub.proxy.server import ProxyServer
from codehub.proxy.workers import worker_report
from tests.eventually import eventually
from tests.proxy.deployment import Deployment, SignedInUser, deployed, handshake_and_echo
from tests.proxy.fake_workspace import OK, FakeWorkspace
from tests.proxy.harness import LIMITS, ProxyHarness, RawConnection, StubAuthorizer, get, in_time, status
from tests.proxy.test_websocket import OFFER, SWITCH, raw_end, upgraded


def counted(server: ProxyServer) -> int:
    """How many addresses and people have something open."""
    return len(server._addresses) + len(server._users)


async def both(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A workspace that answers requests, and echoes on sockets."""
    while head := await reader.readuntil(b"\r\n\r\n"):
        if head.startswith(b"GET /ws"):
            writer.write(SWITCH)
            while data := await reader.read(65536):
                writer.write(data)
            return
        writer.write(OK)


def capped(workspace: FakeWorkspace, *, counted_user: object = None, **limits: float) -> ProxyHarness:
    changed = replace(LIMITS, **limits)  # type: ignore[arg-type]
    return ProxyHarness(workspace.endpoint, changed, Forward(workspace.endpoint, counted_user=counted_user))


# ── counting ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_tally_keeps_only_who_has_some() -> None:
    tally = UsageCounter(2)
    assert [tally.add("a"), tally.add("a"), tally.add("a"), tally.add("b")] == [True, True, False, True]
    tally.drop("a")
    assert tally.add("a")
    for key in "aab":
        tally.drop(key)
    assert len(tally) == 0
    boundless = UsageCounter(0)
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
async def test_beyond_a_cap_one_is_told_so(
    workspace: FakeWorkspace, limits: dict[str, int], cap: Cap, wanted: int
) -> None:
    async with capped(workspace, **limits) as proxy:
        first, second, third = [await proxy.connect() for _ in range(3)]
        third.write(get("/", "Content-Length: 100000", method="POST") + b"x" * 100_000)
        answer = await third.rest()
        assert status(answer) == wanted
        assert f'"code": "{cap.value}"'.encode() in answer
        assert b"Connection: close" in answer
        third.close()
        first.close()
        await eventually(lambda: proxy.server.connections == 1)
        assert status(await proxy.ask(get())) == 200
        second.close()
        assert proxy.server.rejected == {**dict.fromkeys(Cap, 0), cap: 1}
        assert f'"{cap.name.lower()}": 1'.encode() in worker_report(proxy.server)
        await eventually(lambda: counted(proxy.server) == 0 and not proxy.server._overloaded)
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
    workspace: FakeWorkspace, sent: bytes, begins: bytes, ends: bytes
) -> None:
    async with capped(workspace, per_address=1, linger_seconds=0.2) as proxy:
        first, second = await proxy.connect(), await proxy.connect()
        second.write(sent)
        answer = await second.rest()
        assert answer.startswith(begins)
        assert answer.endswith(ends)
        assert answer.count(b"HTTP/1.1") == 1
        for raw in (first, second):
            raw.close()


async def test_a_rejected_client_that_stays_is_cut_off(workspace: FakeWorkspace) -> None:
    async with capped(workspace, per_address=1, linger_seconds=0.1) as proxy:
        first, second = await proxy.connect(), await proxy.connect()
        second.write(get())
        await second.rest()
        await eventually(lambda: not proxy.server._overloaded)
        for raw in (first, second):
            raw.close()


async def test_few_are_told_at_once(workspace: FakeWorkspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MOST_AT_ONCE", 1)
    async with capped(workspace, per_address=1) as proxy:
        raws = [await proxy.connect() for _ in range(3)]
        assert await raw_end(raws[2]) == b""
        raws[1].write(get())
        assert status(await raws[1].rest()) == 429
        assert proxy.server.rejected[Cap.ADDRESS] == 2
        for raw in raws:
            raw.close()


async def test_an_authorizer_that_cannot_explain_an_overload_leaves_it_to_the_server(workspace: FakeWorkspace) -> None:
    class Speechless(StubAuthorizer):
        def overloaded(self, head: RequestHead, cap: Cap) -> Respond:
            raise RuntimeError("no words")

    proxy = capped(workspace, per_address=1)
    proxy.authorizer = Speechless(Forward(workspace.endpoint))
    async with proxy:
        first = await proxy.connect()
        assert status(await proxy.ask(get())) == 429
        first.close()


async def test_a_trusted_proxy_is_no_single_address(workspace: FakeWorkspace) -> None:
    proxy = capped(workspace, per_address=1)
    proxy.trusted_proxies = networks("127.0.0.1")
    async with proxy:
        raws = [await proxy.connect() for _ in range(5)]
        for raw in raws:
            raw.write(get("/", "X-Forwarded-For: 203.0.113.9"))
            assert status((await raw.answer())[0]) == 200
            raw.close()


async def test_who_comes_over_a_unix_socket_is_nobody_s_count(workspace: FakeWorkspace) -> None:
    async with capped(workspace, per_address=1) as proxy:
        raws = []
        for _ in range(3):
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            await asyncio.get_running_loop().connect_accepted_socket(lambda: Downstream(proxy.server), ours)
            raws.append(raw := RawConnection(*await asyncio.open_unix_connection(sock=theirs)))
            raw.write(get())
            assert status((await raw.answer())[0]) == 200
        for raw in raws:
            raw.close()


# ── leaving ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def close(raw: RawConnection) -> None:
    raw.close()


def abort(raw: RawConnection) -> None:
    raw.writer.transport.abort()


def reset(raw: RawConnection) -> None:
    option = (1).to_bytes(4, "little") + bytes(4)
    raw.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, option)
    raw.writer.transport.abort()


@pytest.mark.parametrize("leave", [close, abort, reset])
@pytest.mark.parametrize("is_socket", [False, True], ids=["a request", "a socket"])
async def test_who_leaves_is_counted_no_longer(
    workspace: FakeWorkspace, leave: Callable[[RawConnection], None], is_socket: bool
) -> None:
    workspace.handler = both
    async with capped(workspace, counted_user="ann", per_address=1, per_person=1) as proxy:
        for _ in range(3):
            if is_socket:
                raw = await upgraded(proxy, "/ws")
            else:
                raw = await proxy.connect()
                raw.write(get())
                await raw.answer()
            assert counted(proxy.server) == 2
            leave(raw)
            await eventually(lambda: counted(proxy.server) == 0)
        assert proxy.server.rejected == dict.fromkeys(Cap, 0)


async def test_after_many_ways_to_go_nobody_is_counted(workspace: FakeWorkspace) -> None:
    workspace.handler = both
    dice = random.Random(11)

    async def leave(raw: RawConnection) -> None:
        path = dice.choice(["/", "/ws", "/later"])
        raw.write(get(path, *(OFFER if path == "/ws" else ()))[: dice.choice([None, None, 9])])
        for _ in range(dice.randrange(20)):
            await asyncio.sleep(0)
        if dice.random() < 0.5:
            with suppress(ConnectionError):
                await in_time(raw.reader.read(20))
        dice.choice([close, abort, reset])(raw)

    async with capped(
        workspace, counted_user="ann", per_address=8, per_person=6, linger_seconds=0.2, head_seconds=0.2
    ) as proxy:
        for _ in range(20):
            raws = await asyncio.gather(*(proxy.connect() for _ in range(12)))
            await asyncio.gather(*map(leave, raws))
        await eventually(lambda: proxy.server.connections == 0 and not proxy.server._overloaded)
        assert counted(proxy.server) == 0
        assert proxy.server.rejected[Cap.ADDRESS] > 0


# ── one person ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_connection_is_whose_request_it_carried_last(workspace: FakeWorkspace) -> None:
    async with capped(workspace, per_person=1) as proxy:
        for name in ("ann", "bob"):
            proxy.authorizer.verdicts[f"/{name}".encode()] = lambda name=name: Forward(  # type: ignore[misc]
                workspace.endpoint, counted_user=name
            )
        one, other = await proxy.connect(), await proxy.connect()

        async def asks(raw: RawConnection, name: str) -> int:
            raw.write(get(f"/{name}"))
            return status((await raw.answer())[0])

        assert [await asks(one, "ann"), await asks(one, "ann"), await asks(one, "")] == [200] * 3
        assert await asks(one, "bob") == 200
        assert await asks(other, "ann") == 200
        assert await asks(other, "bob") == 429
        assert await other.rest() == b""
        await eventually(lambda: counted(proxy.server) == 2)  # the address, and bob
        assert proxy.server.rejected[Cap.PERSON] == 1
        for raw in (one, other):
            raw.close()


async def test_a_user_is_the_same_by_an_equal_id(workspace: FakeWorkspace) -> None:
    """A user who is looked up anew is an equal object, no other user."""
    async with capped(workspace, per_person=1) as proxy:
        key = uuid4()
        proxy.authorizer.verdicts[b"/"] = lambda: Forward(workspace.endpoint, counted_user=UUID(int=key.int))
        raw = await proxy.connect()
        for _ in range(3):
            raw.write(get())
            assert status((await raw.answer())[0]) == 200
        assert counted(proxy.server) == 2
        raw.close()
        await eventually(lambda: counted(proxy.server) == 0)


@pytest.fixture
async def deployment() -> AsyncIterator[Deployment]:
    async with deployed(proxy_limits=replace(LIMITS, per_person=2, per_address=4)) as opened:
        opened.ide.handler = handshake_and_echo
        yield opened


async def test_a_person_s_next_socket_is_refused_in_plain_words(deployment: Deployment) -> None:
    ann, bob = await deployment.person(), await deployment.person("bob")
    demo, own = await deployment.workspace(ann), await deployment.workspace(bob)
    opened = [await deployment.open_socket(demo, ann) for _ in range(2)]
    assert (await refused_socket(deployment, demo, ann)) == 429
    other = await deployment.open_socket(own, bob)
    for socket_ in (*opened, other):
        socket_.raw.close()
    await eventually(lambda: deployment.proxy.server.upgraded == 0)
    again = await deployment.open_socket(demo, ann)
    assert deployment.proxy.server.upgraded == 1
    again.raw.close()


async def refused_socket(deployment: Deployment, workspace: Row, who: SignedInUser) -> int:
    """The status that an upgrade is refused with: accepted and closed at once, it would look like a connection."""
    host, secret = deployment.host(workspace), await deployment.visit(who, workspace)
    return (await deployment.socket(f"Origin: http://{host}", f"Cookie: {VISIT_COOKIE}={secret}", host=host)).status


async def test_a_person_s_next_request_gets_a_page(deployment: Deployment) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    opened = [await deployment.open_socket(demo, ann) for _ in range(2)]
    page = await deployment.get(demo, "/", ann, {"accept": "text/html", "accept-language": "ko"})
    assert (page.status_code, page.headers["codehub-page"]) == (429, "too_many_of_person")
    assert "연결이 너무 많습니다" in page.text
    told = await deployment.get(demo, "/", ann)
    assert (told.status_code, told.json()["code"], told.headers["retry-after"]) == (429, "too_many_of_person", "30")
    for socket_ in opened:
        socket_.raw.close()


async def test_an_address_s_next_connection_gets_a_page_or_a_refusal(deployment: Deployment) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    raws = [RawConnection(*await asyncio.open_connection("127.0.0.1", deployment.port)) for _ in range(4)]
    await eventually(lambda: deployment.proxy.server.connections == 4)
    page = await deployment.get(demo, "/", ann, {"accept": "text/html"})
    assert (page.status_code, page.headers["codehub-page"]) == (429, "too_many_from_address")
    assert "Too many connections are open from your address." in page.text
    assert (await refused_socket(deployment, demo, ann)) == 429
    for raw in raws:
        raw.close()
