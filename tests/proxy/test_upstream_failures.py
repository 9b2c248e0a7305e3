"""No request goes unanswered: not the one that comes just as a kept connection is about to close, nor the one whose
workspace is taken from under it."""

import asyncio
import socket
from dataclasses import replace

import pytest

from codehub.api.server import KEEP_ALIVE_SECONDS
from codehub.proxy.access.verdicts import Pending, UpstreamFailure
from codehub.proxy.http.limits import ProxyLimits
from tests.eventually import eventually
from tests.proxy.fake_workspace import FakeWorkspace
from tests.proxy.harness import LIMITS, ProxyHarness, get, in_time, status
from tests.proxy.test_faults import one_answer_then_close_on_the_next


async def test_a_kept_connection_may_ask_once_more_while_the_server_drains(proxy: ProxyHarness) -> None:
    raw = await proxy.connect()
    raw.write(get())
    await raw.answer()
    draining = asyncio.create_task(proxy.server.drain(10.0, 10.0))
    await asyncio.sleep(0)
    assert proxy.server.draining
    raw.write(get())
    head, body = await raw.answer()
    assert (status(head), body) == (200, b"ok")
    assert b"Connection: close" in head
    assert await raw.rest() == b""
    await in_time(draining)
    raw.close()


async def test_a_kept_connection_that_asks_no_more_does_not_hold_up_the_end(workspace: FakeWorkspace) -> None:
    async with ProxyHarness(workspace.endpoint, replace(LIMITS, last_request_seconds=0.1)) as proxy:
        raw = await proxy.connect()
        raw.write(get())
        await raw.answer()
        draining = asyncio.create_task(proxy.server.drain(600.0, 600.0))
        assert await raw.rest() == b""
        await in_time(draining)
        raw.close()


@pytest.mark.parametrize("draining", [False, True])
async def test_what_has_come_but_is_not_read_yet_is_answered_before_an_idle_end(
    proxy: ProxyHarness, draining: bool
) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket() as sock:
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", proxy.port))
        await loop.sock_sendall(sock, get())
        assert status(await in_time(loop.sock_recv(sock, 65536))) == 200
        (client,) = proxy.server._clients
        client.deadline = 0.0
        proxy.server.draining = draining
        sock.send(get())  # from here to the sweep nothing is read
        proxy.server._sweep()
        assert status(await in_time(loop.sock_recv(sock, 65536))) == 200


async def test_an_idle_connection_still_ends(workspace: FakeWorkspace) -> None:
    async with ProxyHarness(workspace.endpoint, replace(LIMITS, keep_alive_seconds=0.1)) as proxy:
        raw = await proxy.connect()
        raw.write(get())
        await raw.answer()
        assert await raw.rest() == b""
        raw.close()


@pytest.mark.parametrize("body", [b"", b"whole", b"half"])
async def test_what_is_ended_before_it_is_answered_is_told_so(
    proxy: ProxyHarness, workspace: FakeWorkspace, body: bytes
) -> None:
    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del writer
        await reader.read()

    workspace.handler = never
    raw = await proxy.connect()
    raw.write(get("/", f"Content-Length: {5 if body else 0}", method="PATCH") + body)
    await eventually(lambda: workspace.open == 1)
    assert proxy.server.abort_sockets(lambda _: True) == 1
    head, _ = await raw.answer()
    assert status(head) == 502
    assert (b"Connection: close" in head) is (body == b"half")
    assert proxy.authorizer.failures == [UpstreamFailure.CLOSED_EARLY]
    raw.close()
    await eventually(lambda: workspace.open == 0 and proxy.server.connections == 0)


async def test_what_is_not_answered_when_the_time_for_it_is_over_is_told_so(
    proxy: ProxyHarness, workspace: FakeWorkspace
) -> None:
    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del writer
        await reader.read()

    workspace.handler = never
    proxy.authorizer.verdicts[b"/later"] = lambda: Pending(asyncio.Event().wait())  # type: ignore[arg-type]
    sent, waiting = await proxy.connect(), await proxy.connect()
    sent.write(get(method="POST"))
    waiting.write(get("/later"))
    await eventually(lambda: workspace.open == 1 and len(proxy.authorizer.asked) == 2)
    await in_time(proxy.server.drain(0.0, 0.0))
    for raw, wanted in ((sent, 502), (waiting, 503)):
        answer = await raw.rest()
        assert status(answer) == wanted
        assert b"Connection: close" in answer
        raw.close()


@pytest.mark.parametrize("method", ["POST", "PATCH", "PUT", "DELETE"])
@pytest.mark.parametrize("at_once", [True, False], ids=["with its body", "body later"])
async def test_a_body_sent_into_a_stale_connection_is_answered(
    proxy: ProxyHarness, workspace: FakeWorkspace, method: str, at_once: bool
) -> None:
    """The body cannot be sent again: what of it has gone is not kept."""
    workspace.handler = one_answer_then_close_on_the_next
    raw = await proxy.connect()
    raw.write(get())
    await raw.answer()
    raw.write(get("/", "Content-Length: 4", method=method) + (b"body" if at_once else b""))
    assert status(await raw.head()) == 502
    assert proxy.authorizer.failures == [UpstreamFailure.CLOSED_EARLY]
    raw.close()


def test_the_api_keeps_connections_for_longer_than_the_proxy_does() -> None:
    limits = ProxyLimits()
    assert limits.pool_idle_seconds + 2 * limits.tick < KEEP_ALIVE_SECONDS / 2
