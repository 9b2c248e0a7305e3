"""Workspaces that misbehave, clients that dawdle, too many of either: a clear answer or a clean end, and no leak."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from codehub.ports.runtime import Endpoint
from codehub.proxy.access.verdicts import Forward, Pending, Respond, UpstreamFailure
from codehub.proxy.http.limits import ProxyLimits
from codehub.proxy.http.parser import RequestHead
from tests.eventually import eventually
from tests.proxy.fake_workspace import OK, FakeWorkspace
from tests.proxy.harness import LIMITS, ProxyHarness, RawConnection, StubAuthorizer, get, in_time, status


def hurried(workspace: FakeWorkspace, **seconds: float) -> ProxyHarness:
    """Limits with one short deadline, the one that is tested: on a slow machine no other may come first."""
    return ProxyHarness(workspace.endpoint, replace(LIMITS, **seconds))  # type: ignore[arg-type]  # all of these are floats


def saying(data: bytes, *, after_head: bool = True) -> "Handling":
    return Handling(data, after_head=after_head)


class Handling:
    """A workspace that says these bytes and closes."""

    def __init__(self, data: bytes, *, after_head: bool) -> None:
        self.data, self.after_head = data, after_head

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.after_head:
            await reader.readuntil(b"\r\n\r\n")
        writer.write(self.data)
        await writer.drain()
        writer.close()


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


GARBAGE = {
    "not HTTP": b"SSH-2.0-OpenSSH_9.2\r\n",
    "no status": b"HTTP/1.1 OK\r\n\r\n",
    "a status of four digits": b"HTTP/1.1 2000 OK\r\n\r\n",
    "HTTP/2": b"HTTP/2 200\r\n\r\n",
    "an endless head": b"HTTP/1.1 200 OK\r\nX: " + b"a" * 140_000,
    "bare LF": b"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
    "a folded header": b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 0\r\n\r\n",
    "a bare CR": b"HTTP/1.1 200 OK\r\nX: a\rSet-Cookie: x\r\nContent-Length: 0\r\n\r\n",
    "NUL": b"HTTP/1.1 200 OK\r\nX: \0\r\nContent-Length: 0\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "length and chunks": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "another coding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-",
}


@pytest.mark.parametrize("case", GARBAGE)
async def test_garbage_is_a_bad_gateway(proxy: ProxyHarness, workspace: FakeWorkspace, case: str) -> None:
    workspace.handler = saying(GARBAGE[case])
    raw = await proxy.connect()
    raw.write(get())
    head, body = await raw.answer()
    assert status(head) == 502
    assert b'"code": "garbage"' in body
    raw.write(get())
    assert status((await raw.answer())[0]) == 502
    raw.close()
    await eventually(lambda: workspace.open == 0)


async def test_a_workspace_that_closes_at_once_is_told_of(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    workspace.handler = saying(b"")
    assert status(await proxy.ask(get())) == 502
    assert proxy.authorizer.failures == [UpstreamFailure.CLOSED_EARLY]


@pytest.mark.parametrize(
    "half",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly some",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nonly some\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nonly some\r\nnonsense",
    ],
)
async def test_half_an_answer_does_not_look_whole(proxy: ProxyHarness, workspace: FakeWorkspace, half: bytes) -> None:
    workspace.handler = saying(half)
    raw = await proxy.connect()
    raw.write(get())
    head = await raw.head()
    rest = await raw.rest()
    raw.close()
    assert b"only some" in rest
    assert b"Content-Length: 100" in head or not rest.endswith(b"0\r\n\r\n")


async def test_half_an_answer_to_http_1_0_ends_in_a_reset(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    workspace.handler = saying(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nonly some\r\nnonsense")
    raw = await proxy.connect()
    raw.write(b"GET / HTTP/1.0\r\nHost: w\r\n\r\n")
    with pytest.raises(ConnectionResetError):
        await raw.rest()
    raw.close()


async def test_an_answer_longer_than_it_says_does_not_answer_the_next_request(
    proxy: ProxyHarness, workspace: FakeWorkspace
) -> None:
    workspace.answer = lambda seen: OK + b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"
    raw = await proxy.connect()
    for _ in range(3):
        raw.write(get())
        assert (await raw.answer())[1] == b"ok"
    raw.close()
    assert workspace.connections == 3


async def test_a_kept_connection_that_speaks_unasked_is_dropped(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    said = asyncio.Event()

    async def chatty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await asyncio.sleep(0.05)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged")
        said.set()
        await reader.read()

    workspace.handler = chatty
    raw = await proxy.connect()
    raw.write(get())
    await raw.answer()
    await in_time(said.wait())
    await eventually(lambda: workspace.open == 0)
    raw.write(get())
    assert (await raw.answer())[1] == b"ok"
    raw.close()


async def one_answer_then_close_on_the_next(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(OK)
    await reader.readuntil(b"\r\n\r\n")
    writer.transport.abort()


@pytest.mark.parametrize(("method", "wanted"), [("GET", 200), ("HEAD", 200), ("DELETE", 200), ("POST", 502)])
async def test_a_stale_connection_is_tried_again_once_if_that_is_safe(
    proxy: ProxyHarness, workspace: FakeWorkspace, method: str, wanted: int
) -> None:
    workspace.handler = one_answer_then_close_on_the_next
    raw = await proxy.connect()
    raw.write(get())
    await raw.answer()
    raw.write(get(method=method))
    assert status(await raw.head()) == wanted
    raw.close()
    assert workspace.connections == (2 if wanted == 200 else 1)


async def test_a_fresh_connection_that_closes_is_not_tried_again(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    workspace.handler = saying(b"")
    await proxy.ask(get())
    assert workspace.connections == 1


async def test_what_must_not_be_repeated_takes_no_connection_that_may_be_stale(workspace: FakeWorkspace) -> None:
    async with ProxyHarness(workspace.endpoint, replace(LIMITS, unrepeatable_idle_seconds=0.1)) as proxy:
        await proxy.ask(get())
        since = proxy.server.now
        await eventually(lambda: proxy.server.now > since + 0.3)
        await proxy.ask(get("/", "Content-Length: 1", method="POST") + b"x")
        assert workspace.connections == 2


async def test_kept_connections_close_when_idle(workspace: FakeWorkspace) -> None:
    async with ProxyHarness(workspace.endpoint, replace(LIMITS, pool_idle_seconds=0.1)) as proxy:
        await proxy.ask(get())
        await eventually(lambda: workspace.open == 0)


async def test_nobody_listens(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    await workspace.stop_listening()
    answer = await proxy.ask(get())
    assert status(answer) == 502
    assert proxy.authorizer.failures == [UpstreamFailure.UNREACHABLE]


async def test_an_endpoint_that_names_nothing_is_unreachable() -> None:
    async with ProxyHarness(Endpoint()) as proxy:
        assert status(await proxy.ask(get())) == 502


async def test_an_endpoint_that_cannot_even_be_tried_is_unreachable() -> None:
    async with ProxyHarness(Endpoint(host="a" * 300, port=80)) as proxy:
        assert status(await proxy.ask(get())) == 502
        assert proxy.authorizer.failures == [UpstreamFailure.UNREACHABLE]


async def test_an_authorizer_that_cannot_explain_a_failure_leaves_it_to_the_server(workspace: FakeWorkspace) -> None:
    class Speechless(StubAuthorizer):
        def failed(self, head: RequestHead, forward: Forward, failure: UpstreamFailure) -> Respond:
            raise RuntimeError("no words")

    workspace.handler = saying(b"")
    proxy = ProxyHarness(workspace.endpoint)
    proxy.authorizer = Speechless(Forward(workspace.endpoint))
    async with proxy:
        assert status(await proxy.ask(get())) == 502


# ── deadlines ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_slow_head_times_out_however_it_drips(workspace: FakeWorkspace) -> None:
    async with hurried(workspace, head_seconds=0.2) as proxy:
        raw = await proxy.connect()

        async def drip() -> None:
            for byte in get("/" + "a" * 2000):
                raw.write(bytes([byte]))
                await asyncio.sleep(0.01)

        dripping = asyncio.create_task(drip())
        assert status(await raw.head()) == 408
        dripping.cancel()
        raw.close()


async def test_an_idle_connection_closes_without_a_word(workspace: FakeWorkspace) -> None:
    async with hurried(workspace, keep_alive_seconds=1.0) as proxy:
        raw = await proxy.connect()
        assert await raw.rest() == b""
        raw.close()
        raw = await proxy.connect()
        raw.write(get())
        await raw.answer()
        assert await raw.rest() == b""
        raw.close()


async def test_a_workspace_that_never_answers(workspace: FakeWorkspace) -> None:
    workspace.handler = silent
    async with hurried(workspace, response_seconds=0.2) as proxy:
        raw = await proxy.connect()
        raw.write(get())
        head, body = await raw.answer()
        assert status(head) == 504
        assert b"too long" in body
        raw.close()
        await eventually(lambda: workspace.open == 0)


async def test_a_body_that_stops_coming(workspace: FakeWorkspace) -> None:
    workspace.handler = silent
    async with hurried(workspace, body_idle_seconds=0.2) as proxy:
        raw = await proxy.connect()
        raw.write(get("/", "Content-Length: 10", method="POST") + b"half")
        assert status(await raw.head()) == 408
        raw.close()
        await eventually(lambda: workspace.open == 0)


async def test_an_answer_that_stops_coming(workspace: FakeWorkspace) -> None:
    async def stuck(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
        await reader.read()

    workspace.handler = stuck
    async with hurried(workspace, response_seconds=0.2) as proxy:
        raw = await proxy.connect()
        raw.write(get())
        await raw.head()
        assert await raw.rest() == b"half"
        raw.close()
        await eventually(lambda: workspace.open == 0)


async def test_an_authorizer_that_never_decides(workspace: FakeWorkspace) -> None:
    async with hurried(workspace, wait_seconds=0.2) as proxy:
        proxy.authorizer.verdicts[b"/"] = lambda: Pending(asyncio.Event().wait())  # type: ignore[arg-type]
        raw = await proxy.connect()
        raw.write(get())
        assert status(await raw.head()) == 504
        raw.close()


async def test_a_refused_client_that_sends_on_is_ended(workspace: FakeWorkspace) -> None:
    async with hurried(workspace, linger_seconds=0.2) as proxy:
        raw = await proxy.connect()
        raw.write(b"nonsense\n")
        assert status(await raw.head()) == 400

        async def send_on() -> None:
            while True:
                raw.write(b"x" * 1000)
                await raw.writer.drain()
                await asyncio.sleep(0.01)

        with pytest.raises(ConnectionError):
            await in_time(send_on())
        raw.close()


# ── caps ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def busy(
    workspace: FakeWorkspace, limits: ProxyLimits
) -> AsyncIterator[tuple[ProxyHarness, RawConnection, asyncio.Event]]:
    """One request holds the only connection there may be, until the event is set."""
    go_on = asyncio.Event()

    async def held(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            await go_on.wait()
            writer.write(OK)

    workspace.handler = held
    async with ProxyHarness(workspace.endpoint, replace(limits, per_target=1)) as proxy:
        first = await proxy.connect()
        first.write(get())
        await eventually(lambda: workspace.open == 1)
        yield proxy, first, go_on
        first.close()


async def test_who_comes_beyond_a_target_s_cap_waits_in_line(workspace: FakeWorkspace) -> None:
    async with busy(workspace, LIMITS) as (proxy, first, go_on):
        others = [await proxy.connect() for _ in range(5)]
        for raw in others:
            raw.write(get())
        await eventually(lambda: len(proxy.authorizer.asked) == 6)
        others[2].close()
        go_on.set()
        for raw in (first, *others[:2], *others[3:]):
            assert (await raw.answer())[1] == b"ok"
            raw.close()
    assert workspace.connections == 1


async def test_who_waits_too_long_is_told_that_it_is_busy(workspace: FakeWorkspace) -> None:
    async with busy(workspace, replace(LIMITS, connect_seconds=0.5)) as (proxy, first, go_on):
        raw = await proxy.connect()
        raw.write(get())
        assert status(await raw.head()) == 503
        assert proxy.authorizer.failures == [UpstreamFailure.BUSY]
        raw.close()
        go_on.set()
        assert (await first.answer())[1] == b"ok"


async def test_a_failed_connection_lets_the_next_in_line_try(workspace: FakeWorkspace) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.05)

    workspace.handler = refuse
    async with ProxyHarness(workspace.endpoint, replace(LIMITS, per_target=1)) as proxy:
        raws = [await proxy.connect() for _ in range(3)]
        for raw in raws:
            raw.write(get())
        assert [status((await raw.answer())[0]) for raw in raws] == [502, 502, 502]
        for raw in raws:
            raw.close()
    assert workspace.connections == 3


# ── unix sockets ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_unix_socket_is_served(tmp_path: Path) -> None:
    path = tmp_path / "s"
    server = await asyncio.start_unix_server(saying(OK), path)
    async with ProxyHarness(Endpoint(socket=str(path))) as proxy:
        assert (await proxy.ask(get())).endswith(b"\r\n\r\nok")
    server.close()


async def test_no_link_leads_to_another_s_socket(tmp_path: Path) -> None:
    other, link = tmp_path / "other", tmp_path / "s"
    reached: list[bool] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append(True)
        writer.close()

    server = await asyncio.start_unix_server(note, other)
    link.symlink_to(other)
    async with ProxyHarness(Endpoint(socket=str(link))) as proxy:
        assert status(await proxy.ask(get())) == 502
        link.unlink()
        link.write_text("no socket")
        assert status(await proxy.ask(get())) == 502
        link.unlink()
        assert status(await proxy.ask(get())) == 502
        assert proxy.authorizer.failures == [UpstreamFailure.UNREACHABLE] * 3
    assert reached == []
    server.close()


async def test_a_connect_that_never_ends_is_given_up() -> None:
    """A listener whose backlog is full lets clients wait for ever."""
    with socket.socket(socket.AF_INET) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        async with ProxyHarness(
            Endpoint(host="127.0.0.1", port=listener.getsockname()[1]), replace(LIMITS, connect_seconds=0.3)
        ) as proxy:
            raw = await proxy.connect()
            raw.write(get())
            assert status(await raw.head()) == 504
            raw.close()
        for filler in fillers:
            filler.close()


async def test_a_process_that_was_held_up_blames_nobody_else(workspace: FakeWorkspace) -> None:
    """Time has passed for all of them at once; what came meanwhile is looked at before anybody is late."""

    def held_up() -> Forward:
        time.sleep(1.0)
        return Forward(workspace.endpoint)

    async with ProxyHarness(workspace.endpoint, replace(LIMITS, connect_seconds=0.2, tick=0.02)) as proxy:
        proxy.authorizer.verdicts[b"/"] = held_up
        assert status(await proxy.ask(get())) == 200
