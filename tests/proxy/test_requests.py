"""One request after another through the proxy: bodies both ways, keep-alive, pipelining, early answers."""

import asyncio
from dataclasses import replace

import pytest

from codehub.proxy.access.verdicts import Forward, Pending, Respond
from tests.eventually import eventually
from tests.proxy.fake_workspace import OK, FakeWorkspace, Seen
from tests.proxy.harness import LIMITS, ProxyHarness, get, in_time, status


async def test_a_connection_serves_many_requests_over_one_to_the_workspace(
    proxy: ProxyHarness, workspace: FakeWorkspace
) -> None:
    raw = await proxy.connect()
    for number in range(5):
        raw.write(get(f"/{number}"))
        head, body = await raw.answer()
        assert (status(head), body) == (200, b"ok")
    raw.close()
    assert [seen.target for seen in workspace.seen] == ["/0", "/1", "/2", "/3", "/4"]
    assert workspace.connections == 1


async def test_pipelined_requests_are_answered_in_their_order(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    workspace.answer = lambda seen: b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n" + seen.target[1:].zfill(3).encode()
    proxy.authorizer.verdicts[b"/7"] = lambda: Respond(403, body=b"no!")
    raw = await proxy.connect()
    raw.write(b"".join(get(f"/{number}") for number in range(40)))
    bodies = [(await raw.answer())[1] for _ in range(40)]
    raw.close()
    assert bodies == [b"no!" if number == 7 else b"%03d" % number for number in range(40)]


async def test_thousands_of_pipelined_requests_the_authorizer_answers_do_not_pile_up(proxy: ProxyHarness) -> None:
    proxy.authorizer.verdicts[b"/"] = lambda: Respond(204)
    answer = await proxy.ask(get() * 3000)
    assert answer.count(b"HTTP/1.1 204") == 3000


@pytest.mark.parametrize("size", [0, 1, 65536, 3_000_000])
async def test_a_sized_body_arrives(proxy: ProxyHarness, workspace: FakeWorkspace, size: int) -> None:
    body = b"b" * size
    raw = await proxy.connect()
    raw.write(get("/up", f"Content-Length: {size}", method="POST") + body)
    assert status((await raw.answer())[0]) == 200
    raw.close()
    assert workspace.seen[0].body == body
    assert workspace.seen[0].one("content-length") == str(size)


async def test_a_chunked_body_arrives_without_extensions_and_trailers(
    proxy: ProxyHarness, workspace: FakeWorkspace
) -> None:
    raw = await proxy.connect()
    raw.write(get("/up", "Transfer-Encoding: chunked", "Trailer: X-Sum", method="PUT"))
    for byte in b"5;name=value\r\nhello\r\n1\r\n!\r\n0\r\nX-Sum: 1\r\n\r\n":
        raw.write(bytes([byte]))
        await asyncio.sleep(0)
    raw.write(get("/next"))
    await raw.answer()
    await raw.answer()
    raw.close()
    assert workspace.seen[0].body == b"hello!"
    assert workspace.seen[0].trailers == []
    assert workspace.seen[0].all("trailer") == []
    assert b"name=value" not in workspace.raw
    assert workspace.seen[1].target == "/next"


async def test_a_chunked_answer_arrives_without_extensions_and_trailers(
    proxy: ProxyHarness, workspace: FakeWorkspace
) -> None:
    coded = b"3;a=b\r\nabc\r\n2\r\nde\r\n0\r\nX-Trailer: 1\r\n\r\n"
    workspace.answer = lambda _: b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + coded
    raw = await proxy.connect()
    for _ in range(2):
        raw.write(get())
        assert (await raw.answer())[1] == b"abcde"
    raw.close()
    assert workspace.connections == 1


async def test_an_answer_that_ends_with_its_connection_is_chunked_for_the_client(
    proxy: ProxyHarness, workspace: FakeWorkspace
) -> None:
    async def until_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nall there is")

    workspace.handler = until_close
    raw = await proxy.connect()
    for _ in range(2):
        raw.write(get())
        assert (await raw.answer())[1] == b"all there is"
    raw.close()
    assert workspace.connections == 2


async def test_an_http_1_0_client_gets_no_chunks_and_is_closed(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    workspace.answer = lambda _: b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"
    raw = await proxy.connect()
    raw.write(b"GET / HTTP/1.0\r\nHost: w.localhost\r\n\r\n")
    answer = await raw.rest()
    assert b"chunked" not in answer
    assert b"Connection: close" in answer
    assert answer.endswith(b"\r\n\r\nhi")
    raw.close()


async def test_head_has_the_length_and_no_body(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    workspace.answer = lambda seen: (
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n" + (b"" if seen.method == "HEAD" else b"nine byte")
    )
    raw = await proxy.connect()
    raw.write(get(method="HEAD"))
    assert b"Content-Length: 9\r\n" in await raw.head()
    raw.write(get())
    assert (await raw.answer())[1] == b"nine byte"
    raw.close()
    assert workspace.connections == 1


@pytest.mark.parametrize("code", [204, 304])
async def test_answers_without_a_body_end_at_their_head(
    proxy: ProxyHarness, workspace: FakeWorkspace, code: int
) -> None:
    workspace.answer = lambda _: b"HTTP/1.1 %d X\r\nETag: a\r\n\r\n" % code
    raw = await proxy.connect()
    for _ in range(2):
        raw.write(get())
        assert status(await raw.head()) == code
    raw.close()


async def test_the_workspace_says_when_to_go_on(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    async def careful(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert b"Expect: 100-continue" in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert await reader.readexactly(4) == b"body"
        writer.write(OK)

    workspace.handler = careful
    raw = await proxy.connect()
    raw.write(get("/", "Content-Length: 4", "Expect: 100-continue", method="POST"))
    assert await raw.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
    raw.write(b"body")
    assert (await raw.answer())[1] == b"ok"
    raw.close()


async def test_an_early_refusal_reaches_a_client_that_is_still_sending(
    proxy: ProxyHarness, workspace: FakeWorkspace
) -> None:
    async def too_large(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
        await reader.read()

    workspace.handler = too_large
    raw = await proxy.connect()
    raw.write(get("/", "Content-Length: 50000000", method="POST") + b"x" * 100_000)
    head, body = await raw.answer()
    assert (status(head), body) == (413, b"big")
    assert b"Connection: close" in head
    raw.write(b"x" * 100_000)
    assert await raw.rest() == b""
    raw.close()
    await eventually(lambda: workspace.open == 0)


async def test_a_body_that_was_refused_is_not_sent_on(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    go_on, late = asyncio.Event(), []

    async def slow_refusal(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 6\r\n\r\nabc")
        await go_on.wait()
        writer.write(b"def")
        late.append(await reader.read())

    workspace.handler = slow_refusal
    raw = await proxy.connect()
    raw.write(get("/", "Content-Length: 1000000", method="POST"))
    assert status(await raw.head()) == 413
    raw.write(b"x" * 100_000)
    await asyncio.sleep(0.1)
    go_on.set()
    assert await raw.rest() == b"abcdef"
    raw.close()
    await eventually(lambda: late == [b""])


async def test_question_and_answer_may_stream_at_the_same_time(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n")
        for _ in range(3):
            writer.write(await reader.readexactly(2))

    workspace.handler = echo
    raw = await proxy.connect()
    raw.write(get("/", "Content-Length: 6", method="POST"))
    await raw.head()
    for piece in (b"ab", b"cd", b"ef"):
        raw.write(piece)
        assert await in_time(raw.reader.readexactly(2)) == piece
    raw.close()


async def test_a_client_that_has_said_all_is_still_answered(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(3):
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(0.05)
            writer.write(OK)

    workspace.handler = slow
    answer = await proxy.ask(get("/1") + get("/2") + get("/3"))
    assert answer.count(b"HTTP/1.1 200 OK") == 3
    assert answer.count(b"Connection: close") == 1


async def test_a_client_that_leaves_takes_its_request_along(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    workspace.handler = silent
    raw = await proxy.connect()
    raw.write(get("/", "Content-Length: 10", method="POST") + b"half")
    await eventually(lambda: workspace.open == 1)
    raw.close()
    await eventually(lambda: workspace.open == 0)
    await eventually(lambda: proxy.server.connections == 0)


async def test_the_authorizer_may_answer_later(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    asked = asyncio.Event()

    async def later() -> Forward:
        asked.set()
        await asyncio.sleep(0.05)
        return proxy.authorizer.forward

    proxy.authorizer.verdicts[b"/later"] = lambda: Pending(later())
    raw = await proxy.connect()
    raw.write(get("/later", "Content-Length: 3", method="POST") + b"abc" + get("/next"))
    assert status((await raw.answer())[0]) == 200
    assert status((await raw.answer())[0]) == 200
    raw.close()
    assert [(seen.target, seen.body) for seen in workspace.seen] == [("/later", b"abc"), ("/next", b"")]


async def test_what_the_authorizer_waits_for_is_cancelled_when_the_client_leaves(workspace: FakeWorkspace) -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def endless() -> Respond:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return Respond(200)

    async with ProxyHarness(workspace.endpoint, replace(LIMITS, half_closed_seconds=0.1)) as proxy:
        proxy.authorizer.verdicts[b"/"] = lambda: Pending(endless())
        raw = await proxy.connect()
        raw.write(get())
        await in_time(began.wait())
        raw.close()
        await in_time(cancelled.wait())


async def test_an_authorizer_that_breaks_is_an_internal_error_and_lets_nobody_in(
    proxy: ProxyHarness, workspace: FakeWorkspace
) -> None:
    def broken() -> Respond:
        raise RuntimeError("no")

    async def broken_later() -> Respond:
        raise RuntimeError("no")

    proxy.authorizer.verdicts[b"/now"] = broken
    proxy.authorizer.verdicts[b"/later"] = lambda: Pending(broken_later())
    for path in ("/now", "/later"):
        assert status(await proxy.ask(get(path))) == 500
    assert workspace.seen == []


async def test_an_answer_of_the_authorizer_discards_a_small_body_and_keeps_the_connection(proxy: ProxyHarness) -> None:
    proxy.authorizer.verdicts[b"/"] = lambda: Respond(403, ((b"X-Why", b"because"),), b"no")
    raw = await proxy.connect()
    raw.write(get("/", "Content-Length: 5", method="POST") + b"hello" + get(method="HEAD"))
    head, body = await raw.answer()
    assert (status(head), body) == (403, b"no")
    assert b"X-Why: because" in head
    second = await raw.head()
    assert status(second) == 403
    raw.write(get())
    assert (await raw.answer())[1] == b"no"
    raw.close()


async def test_the_target_may_be_changed_by_the_authorizer(workspace: FakeWorkspace) -> None:
    async with ProxyHarness(workspace.endpoint, forward=Forward(workspace.endpoint, target=b"/inside")) as proxy:
        await proxy.ask(get("/w/1/inside"))
    seen: Seen = workspace.seen[0]
    assert seen.target == "/inside"
