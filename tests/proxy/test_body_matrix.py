"""Every way in which a request with a body can meet its connection to the workspace: each arrives whole.

The ways are multiplied, not picked: which connection is kept, when the decision falls and how the body comes are
independent of each other in a browser, and a fault may need three of them at once.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from itertools import product

import pytest

from codehub.domain.credentials import SESSION_COOKIE
from codehub.proxy.access.session_cache import VISIT_COOKIE
from codehub.proxy.access.verdicts import Forward, Pending
from tests.proxy.deployment import PLATFORM, Deployment, deployed
from tests.proxy.fake_workspace import FakeWorkspace, Seen
from tests.proxy.harness import LIMITS, ProxyHarness, RawConnection, get, status

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND")
SIZES = (0, 1, 70_000, 600_000)
YES_AND_NO = (False, True)


def payload(size: int) -> bytes:
    return (b"0123456789abcdef" * (size // 16 + 1))[:size]


def framed(body: bytes, *, chunked: bool) -> tuple[str, bytes]:
    """The header line that announces a body, and the body as it is sent."""
    if not chunked:
        return f"Content-Length: {len(body)}", body
    cut = len(body) // 3 + 1
    pieces = [body[at : at + cut] for at in range(0, len(body), cut)]
    return "Transfer-Encoding: chunked", b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in pieces) + b"0\r\n\r\n"


def answered(seen: Seen) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n" + (b"" if seen.method == "HEAD" else b"ok")


async def ask(raw: RawConnection, method: str, head: bytes, body: bytes, *, together: bool) -> int:
    raw.write(head + body if together else head)
    if not together:
        for _ in range(3):
            await asyncio.sleep(0)
        raw.write(body)
    return status(await raw.head() if method == "HEAD" else (await raw.answer())[0])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("method", METHODS)
async def test_a_body_arrives_whichever_way_it_meets_its_connection(
    workspace: FakeWorkspace, method: str, size: int
) -> None:
    workspace.answer = answered
    body = payload(size)
    for upstream_kept in YES_AND_NO:
        async with ProxyHarness(workspace.endpoint, LIMITS if upstream_kept else replace(LIMITS, pool_idle=0)) as proxy:

            async def later(forward: Forward = proxy.authorizer.forward) -> Forward:
                await asyncio.sleep(0)
                await asyncio.sleep(0.002)
                return forward

            proxy.authorizer.verdicts[b"/waited"] = lambda: Pending(later())
            for downstream_kept, waited, chunked, together in product(YES_AND_NO, repeat=4):
                way = f"{upstream_kept=} {downstream_kept=} {waited=} {chunked=} {together=}"
                line, sent = framed(body, chunked=chunked)
                head = get("/waited" if waited else "/now", line, method=method)
                with closing(await proxy.connect()) as raw, closing(await proxy.connect()) as other:
                    before = raw if downstream_kept else other
                    before.write(get("/before"))
                    await before.answer()
                    opened = workspace.connections
                    assert await ask(raw, method, head, sent, together=together) == 200, way
                    assert workspace.seen[-1].method == method
                    assert workspace.seen[-1].body == body, way
                    assert (workspace.connections == opened) is upstream_kept, way
                    raw.write(get("/after"))
                    assert (await raw.answer())[1] == b"ok", way


@pytest.fixture
async def deployment() -> AsyncIterator[Deployment]:
    async with deployed() as opened:
        yield opened


@pytest.mark.parametrize("place", ["host", "port", "path", "platform"])
async def test_a_body_arrives_at_every_place(deployment: Deployment, place: str) -> None:
    """A request is decided on at once and after a look into the database, as the proxy really does it."""
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    deployment.runtime.state.listen(demo.id, 3000, deployment.ide.endpoint)
    visit, at_port = await deployment.visit(ann, demo), await deployment.visit(ann, demo, 3000)
    host, path, cookie = {
        "host": (deployment.host(demo), "/form", f"{VISIT_COOKIE}={visit}"),
        "port": (deployment.host(demo, 3000), "/form", f"{VISIT_COOKIE}={at_port}"),
        "path": (PLATFORM, f"/w/{demo.id}/form", f"{SESSION_COOKIE}={ann.session}"),
        "platform": (PLATFORM, "/api/v1/form", f"{SESSION_COOKIE}={ann.session}"),
    }[place]
    behind = deployment.api if place == "platform" else deployment.ide
    lines = (f"Cookie: {cookie}", f"Origin: http://{host}")
    for size, downstream_kept, known, chunked, together in product((1, 70_000), *(YES_AND_NO,) * 4):
        way = f"{size=} {downstream_kept=} {known=} {chunked=} {together=}"
        line, sent = framed(payload(size), chunked=chunked)
        head = get(path, *lines, line, method="POST", host=host)
        with closing(await deployment.connect()) as raw, closing(await deployment.connect()) as other:
            before = raw if downstream_kept else other
            before.write(get(path, *lines, host=host))
            assert status((await before.answer())[0]) == 200
            if not known:
                deployment.proxy._sessions._forget_all()
                deployment.proxy._workspaces.withdraw_all()
            assert await ask(raw, "POST", head, sent, together=together) == 200, way
            assert behind.seen[-1].body == payload(size), way
