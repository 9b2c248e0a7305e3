"""What two parsers could read in two ways is refused, its connection closed, and nothing of it reaches a workspace."""

import pytest

from tests.proxy.fake_workspace import FakeWorkspace
from tests.proxy.harness import ProxyHarness, get, status

HOST = b"Host: w.localhost\r\n"
SECOND = b"GET /smuggled HTTP/1.1\r\nHost: w.localhost\r\n\r\n"


def post(*lines: bytes) -> bytes:
    return b"POST / HTTP/1.1\r\n" + HOST + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


CHUNKED = b"Transfer-Encoding: chunked"
REFUSED: dict[str, tuple[int, bytes]] = {
    "Content-Length and Transfer-Encoding": (400, post(b"Content-Length: 4", CHUNKED) + b"0\r\n\r\n"),
    "Transfer-Encoding and Content-Length": (400, post(CHUNKED, b"Content-Length: 4") + b"0\r\n\r\n"),
    "two different lengths": (400, post(b"Content-Length: 0", b"Content-Length: 46")),
    "two equal lengths": (400, post(b"Content-Length: 2", b"Content-Length: 2") + b"ab"),
    "a list of lengths": (400, post(b"Content-Length: 2, 2") + b"ab"),
    "a signed length": (400, post(b"Content-Length: +2") + b"ab"),
    "a negative length": (400, post(b"Content-Length: -1")),
    "a hexadecimal length": (400, post(b"Content-Length: 0x2") + b"ab"),
    "a length with an underscore": (400, post(b"Content-Length: 1_0")),
    "a length in other digits": (400, post("Content-Length: ²".encode())),
    "an empty length": (400, post(b"Content-Length: ")),
    "a huge length": (400, post(b"Content-Length: 99999999999999999999999")),
    "two Transfer-Encodings": (400, post(CHUNKED, CHUNKED) + b"0\r\n\r\n"),
    "chunked, then another": (400, post(CHUNKED, b"Transfer-Encoding: x") + b"0\r\n\r\n"),
    "identity": (400, post(b"Transfer-Encoding: identity")),
    "gzip, chunked": (400, post(b"Transfer-Encoding: gzip, chunked") + b"0\r\n\r\n"),
    "chunked, identity": (400, post(b"Transfer-Encoding: chunked, identity") + b"0\r\n\r\n"),
    "xchunked": (400, post(b"Transfer-Encoding: xchunked") + b"0\r\n\r\n"),
    "quoted chunked": (400, post(b'Transfer-Encoding: "chunked"') + b"0\r\n\r\n"),
    "chunked behind a vertical tab": (400, post(b"Transfer-Encoding: \x0bchunked") + b"0\r\n\r\n"),
    "chunked in HTTP/1.0": (400, b"POST / HTTP/1.0\r\n" + HOST + CHUNKED + b"\r\n\r\n0\r\n\r\n"),
    "a space before the colon": (400, post(b"Content-Length : 4") + b"abcd"),
    "a tab before the colon": (400, post(b"Transfer-Encoding\t: chunked") + b"0\r\n\r\n"),
    "a folded line": (400, post(b"X: a", b" b")),
    "a folded Transfer-Encoding": (400, post(b"Transfer-Encoding:", b" chunked") + b"0\r\n\r\n"),
    "a tab-folded line": (400, post(b"X: a", b"\tb")),
    "a bare LF between headers": (400, b"GET / HTTP/1.1\r\n" + HOST + b"X: a\nY: b\r\n\r\n"),
    "bare LFs only": (400, b"GET / HTTP/1.1\nHost: w.localhost\n\n"),
    "a bare CR in a value": (400, post(b"X: a\rContent-Length: 4")),
    "a bare CR at the end of a line": (400, post(b"X: a\r")),
    "NUL in a value": (400, post(b"X: a\0b")),
    "NUL in a name": (400, post(b"X\0: a")),
    "DEL in a value": (400, post(b"X: a\x7fb")),
    "no colon": (400, post(b"Nonsense")),
    "no colon after a name seen before": (400, post(b"Accept: a", b"Accept")),
    "no name": (400, post(b": value")),
    "a name with a space": (400, post(b"X Y: a")),
    "a name beyond ASCII": (400, post("É: a".encode())),
    "no Host": (400, b"GET / HTTP/1.1\r\nX: a\r\n\r\n"),
    "no Host in HTTP/1.0": (400, b"GET / HTTP/1.0\r\n\r\n"),
    "an empty Host": (400, b"GET / HTTP/1.1\r\nHost: \r\n\r\n"),
    "two Hosts": (400, b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n"),
    "a Host that is none": (400, b"GET / HTTP/1.1\r\nHost: a/b@c\r\n\r\n"),
    "two hosts in one": (400, b"GET / HTTP/1.1\r\nHost: a, b\r\n\r\n"),
    "an absolute target": (400, b"GET http://w.localhost/ HTTP/1.1\r\n" + HOST + b"\r\n"),
    "an authority as target": (400, b"GET w.localhost:80 HTTP/1.1\r\n" + HOST + b"\r\n"),
    "an asterisk for GET": (400, b"GET * HTTP/1.1\r\n" + HOST + b"\r\n"),
    "an empty target": (400, b"GET  HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a target with a space": (400, b"GET /a b HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a target with a tab": (400, b"GET /a\tb HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a target beyond ASCII": (400, "GET /é HTTP/1.1\r\n".encode() + HOST + b"\r\n"),
    "a fragment": (400, b"GET /#a HTTP/1.1\r\n" + HOST + b"\r\n"),
    "two spaces": (400, b"GET  / HTTP/1.1\r\n" + HOST + b"\r\n"),
    "no version": (400, b"GET /\r\n" + HOST + b"\r\n"),
    "a version of its own": (400, b"GET / HTTQ/1.1\r\n" + HOST + b"\r\n"),
    "a lower-case version": (400, b"GET / http/1.1\r\n" + HOST + b"\r\n"),
    "HTTP/1.2": (505, b"GET / HTTP/1.2\r\n" + HOST + b"\r\n"),
    "HTTP/0.9": (505, b"GET / HTTP/0.9\r\n" + HOST + b"\r\n"),
    "HTTP/2's first words": (505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "TLS": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    "CONNECT": (405, b"CONNECT w.localhost:80 HTTP/1.1\r\n" + HOST + b"\r\n"),
    "TRACE": (405, b"TRACE / HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a lower-case method": (501, b"get / HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a method in two cases": (501, b"Head / HTTP/1.1\r\n" + HOST + b"\r\n"),
    "TRACE in another case": (405, b"trace / HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a method that is no token": (400, b"GE(T / HTTP/1.1\r\n" + HOST + b"\r\n"),
    "an unknown expectation": (417, post(b"Expect: a miracle")),
    "two Authorizations": (400, post(b"Authorization: a", b"Authorization: b")),
    "two Origins": (400, post(b"Origin: http://a", b"Origin: http://b")),
    "an upgrade with a body": (
        400,
        get("/", "Connection: Upgrade", "Upgrade: websocket", "Content-Length: 4") + b"abcd",
    ),
    "an upgrade by POST": (400, post(b"Connection: Upgrade", b"Upgrade: websocket")),
    "a Connection that is no list": (400, post(b"Connection: a b")),
    "two empty lines first": (400, b"\r\n\r\n" + SECOND),
    "an oversize head": (431, b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 33_000 + b"\r\n\r\n"),
    "an oversize head without an end": (431, b"GET /" + b"a" * 40_000),
    "too many headers": (431, b"GET / HTTP/1.1\r\n" + HOST + b"X: a\r\n" * 300 + b"\r\n"),
}
BAD_CHUNKS: dict[str, bytes] = {
    "no size": b"\r\nab\r\n0\r\n\r\n",
    "a size that is none": b"xy\r\nab\r\n0\r\n\r\n",
    "a signed size": b"+2\r\nab\r\n0\r\n\r\n",
    "a negative size": b"-2\r\nab\r\n0\r\n\r\n",
    "a size with 0x": b"0x2\r\nab\r\n0\r\n\r\n",
    "a size with an underscore": b"0_2\r\nab\r\n0\r\n\r\n",
    "a space before the size": b" 2\r\nab\r\n0\r\n\r\n",
    "a space behind the size": b"2 \r\nab\r\n0\r\n\r\n",
    "an overflowing size": b"f" * 17 + b"\r\nab\r\n0\r\n\r\n",
    "LF behind the size": b"2\nab\r\n0\r\n\r\n",
    "CR behind the size": b"2\rab\r\n0\r\n\r\n",
    "LF behind the data": b"2\r\nab\n0\r\n\r\n",
    "data longer than its size": b"2\r\nabc\r\n0\r\n\r\n",
    "data shorter than its size": b"4\r\nab\r\n0\r\n\r\n",
    "no line end behind the data": b"2\r\nab--0\r\n\r\n",
    "LF in an extension": b"2;a\nb\r\nab\r\n0\r\n\r\n",
    "CR in an extension": b"2;a\rb\r\nab\r\n0\r\n\r\n",
    "NUL in an extension": b"2;a\0b\r\nab\r\n0\r\n\r\n",
    "an endless extension": b"2;" + b"a" * 5000 + b"\r\nab\r\n0\r\n\r\n",
    "LF at the end": b"2\r\nab\r\n0\r\n\n",
    "a folded trailer": b"0\r\nX: a\r\n b\r\n\r\n",
    "endless trailers": b"0\r\n" + b"X: a\r\n" * 5000 + b"\r\n",
}


@pytest.mark.parametrize("case", REFUSED)
async def test_refused_and_closed(proxy: ProxyHarness, workspace: FakeWorkspace, case: str) -> None:
    wanted, request = REFUSED[case]
    answer = await proxy.ask(request + SECOND)
    assert status(answer) == wanted, answer
    assert answer.count(b"\r\n\r\n") == 1, answer
    assert b"Connection: close\r\n" in answer
    assert workspace.seen == []
    assert proxy.authorizer.asked == []


@pytest.mark.parametrize("case", BAD_CHUNKS)
async def test_a_bad_chunk_ends_it(proxy: ProxyHarness, workspace: FakeWorkspace, case: str) -> None:
    answer = await proxy.ask(post(CHUNKED) + BAD_CHUNKS[case] + SECOND)
    assert status(answer) == 400, answer
    assert answer.count(b"\r\n\r\n") == 1, answer
    assert workspace.seen == []
    assert b"smuggled" not in workspace.raw


@pytest.mark.parametrize("name", ["Transfer_Encoding", "Content_Length", "X_Forwarded_For", "x-FORWARDED_proto"])
async def test_an_underscore_does_not_pass_for_a_dash(proxy: ProxyHarness, workspace: FakeWorkspace, name: str) -> None:
    await proxy.ask(get("/", f"{name}: chunked"))
    assert workspace.seen[0].all(name) == []


async def test_a_plain_request_that_offers_another_protocol_is_a_plain_request(
    proxy: ProxyHarness, workspace: FakeWorkspace
) -> None:
    """Some parsers (llhttp) stop at any Upgrade: what follows would be nobody's."""
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
    answer = await proxy.ask(get("/1", *offer, "Content-Length: 3", method="POST") + b"abc" + get("/2"))
    assert answer.count(b"HTTP/1.1 200") == 2
    assert [(seen.target, seen.body) for seen in workspace.seen] == [("/1", b"abc"), ("/2", b"")]
    assert workspace.seen[0].all("upgrade") + workspace.seen[0].all("http2-settings") == []


async def test_one_empty_line_before_a_request_is_read_over(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    answer = await proxy.ask(get("/1") + b"\r\n" + get("/2"))
    assert answer.count(b"HTTP/1.1 200") == 2


async def test_the_head_sent_on_is_ours(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    await proxy.ask(b"GET /a?b=%20c HTTP/1.1\r\nhOsT:w.localhost\r\nX-Odd:   spaced  \r\nconnection:close\r\n\r\n")
    raw = bytes(workspace.raw)
    assert raw.startswith(b"GET /a?b=%20c HTTP/1.1\r\nHost: w.localhost\r\n")
    assert b"onnection" not in raw
    assert workspace.seen[0].one("X-Odd") == "spaced"
