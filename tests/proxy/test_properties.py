"""Any valid request arrives as it was sent, and no bytes whatever make the proxy fall or smuggle.

What the workspace gets is read by two parsers that are not ours (h11 and llhttp): they must agree with what was sent,
or with each other on how many requests there are.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

import httptools
import uvloop
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.proxy.fake_workspace import OK, FakeWorkspace
from tests.proxy.harness import ProxyHarness

TOKEN = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
VALUE = "".join(map(chr, range(0x21, 0x7F))) + "\u00e9\u00ff"
PATH = "abcXYZ019-._~!$&'()*+,;=:@%/?"
TAKEN = (
    "connection",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "content-length",
    "upgrade",
    "host",
    "expect",
)
TAKEN_TOO = (
    "cookie",
    "authorization",
    "origin",
    "forwarded",
    "proxy",
    "x-real-ip",
    "x-request-id",
    "http2-settings",
    "sec-websocket-extensions",
)
RESERVED = ("x-forwarded-", "x-codehub-", "proxy-")


def passes(name: str) -> bool:
    dashed = name.lower().replace("_", "-")
    return dashed not in (*TAKEN, *TAKEN_TOO) and not dashed.startswith(RESERVED)


@dataclass(frozen=True)
class Sent:
    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    chunks: list[int] | None

    def on_the_wire(self) -> bytes:
        lines = [f"{self.method} {self.target} HTTP/1.1", "Host: w.localhost"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        body = self.body
        if self.chunks is not None:
            lines.append("Transfer-Encoding: chunked")
            body = self.coded(self.chunks)
        elif body or self.method in ("POST", "PUT", "PATCH"):
            lines.append(f"Content-Length: {len(body)}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body

    def coded(self, sizes: list[int]) -> bytes:
        coded, left = b"", self.body
        for size in [*sizes, len(self.body)]:
            piece, left = left[:size], left[size:]
            if piece:
                coded += b"%x\r\n%b\r\n" % (len(piece), piece)
        return coded + b"0\r\n\r\n"


names = st.text(TOKEN, min_size=1, max_size=12).filter(passes)
values = st.text(VALUE + " \t", max_size=30).map(lambda text: text.strip(" \t"))
requests = st.builds(
    Sent,
    method=st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]),
    target=st.text(PATH, max_size=30).map(lambda text: "/" + text),
    headers=st.lists(st.tuples(names, values), max_size=8),
    body=st.binary(max_size=200),
    chunks=st.none() | st.lists(st.integers(1, 50), max_size=5),
)
cuts = st.lists(st.integers(1, 60), max_size=6)


async def deliver(data: bytes, cuts: list[int], answers: int) -> tuple[FakeWorkspace, bytes]:
    """Send bytes through a proxy of its own, cut into pieces as told."""
    async with FakeWorkspace() as workspace, ProxyHarness(workspace.endpoint) as proxy:
        raw = await proxy.connect()
        for cut in cuts:
            piece, data = data[:cut], data[cut:]
            raw.write(piece)
            await asyncio.sleep(0)
        raw.write(data)
        for _ in range(answers):
            await raw.answer()
        raw.writer.write_eof()
        rest = await raw.rest()
        raw.close()
        return workspace, rest


@settings(max_examples=150)
@given(st.lists(requests, min_size=1, max_size=3), cuts)
def test_valid_requests_arrive_as_they_were_sent(sent: list[Sent], cuts: list[int]) -> None:
    data = b"".join(request.on_the_wire() for request in sent)
    workspace, rest = uvloop.run(deliver(data, cuts, len(sent)))
    assert rest == b""
    assert [(seen.method, seen.target, seen.body) for seen in workspace.seen] == [
        (request.method, request.target, request.body) for request in sent
    ]
    for request, seen in zip(sent, workspace.seen, strict=True):
        assert [pair for pair in seen.headers if passes(pair[0])] == request.headers


pieces = st.sampled_from(
    [
        b"GET / HTTP/1.1\r\n",
        b"POST /x HTTP/1.1\r\n",
        b"Host: a\r\n",
        b"Content-Length: 5\r\n",
        b"Content-Length: 0\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: close\r\n",
        b"Connection: Upgrade\r\nUpgrade: websocket\r\n",
        b"X: y\r\n",
        b"\r\n",
        b"\n",
        b"\r",
        b" ",
        b"\t",
        b"\0",
        b":",
        b"0\r\n\r\n",
        b"5\r\nhello\r\n",
        b"hello",
        b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n",
    ]
)
anything = st.lists(pieces | st.binary(max_size=8), max_size=14).map(b"".join)


class Counted:
    def __init__(self) -> None:
        self.targets: list[bytes] = []
        self.bodies: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        self.targets.append(url)
        self.bodies.append(b"")

    def on_body(self, body: bytes) -> None:
        self.bodies[-1] += body


def read_by_llhttp(raw: bytes) -> Counted:
    counted = Counted()
    with suppress(httptools.HttpParserUpgrade):
        httptools.HttpRequestParser(counted).feed_data(raw)
    return counted


@settings(max_examples=300)
@given(anything, cuts)
@example(
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    [],
)
def test_no_bytes_make_it_fall_or_smuggle(data: bytes, cuts: list[int]) -> None:
    async def survive() -> tuple[FakeWorkspace, list[bytes]]:
        async with FakeWorkspace() as workspace, ProxyHarness(workspace.endpoint) as proxy:
            raw = await proxy.connect()
            rest = data
            for cut in cuts:
                raw.write(rest[:cut])
                rest = rest[cut:]
                await asyncio.sleep(0)
            raw.write(rest)
            raw.writer.write_eof()
            await raw.rest()
            raw.close()
            asked = [head.target for head in proxy.authorizer.asked]
            assert (await proxy.ask(b"GET /alive HTTP/1.1\r\nHost: a\r\n\r\n")).endswith(OK[-2:])
            return workspace, asked

    workspace, asked = uvloop.run(survive())
    seen = [request.target.encode() for request in workspace.seen[:-1]]
    begun = [target for received in workspace.received for target in read_by_llhttp(bytes(received)).targets]
    # Neither parser sees a request that the authorizer was not asked about, nor another order.
    assert seen == asked[: len(seen)]
    assert begun[: len(asked)] == asked[: len(begun)]
    assert set(begun[len(asked) :]) <= {b"/alive"}
