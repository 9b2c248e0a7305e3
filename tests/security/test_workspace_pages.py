"""What a workspace's programs try against the platform, other workspaces and whoever looks at their pages."""

from collections.abc import AsyncIterator

import pytest

from tests.proxy.hub import DIRECT, Hub, hub_on


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with hub_on() as opened:
        yield opened


# ── a port of the machine as a page of the IDE ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "path",
    [
        "/proxy/",
        "/proxy/22abc/",
        "/proxy/%32%32/",
        "/proxy/%2532%2532/",
        "/PROXY/x",
        "/absproxy/+22/",
        "/AbsProxy/0x16/a",
        "/%70roxy/22/",
        "/%2570roxy/22/",
        "/proxy%2f22/",
        "/proxy%5c22/",
        "/proxy\\22/",
        "//proxy/22/",
        "/./proxy/22/",
        "/%2e/proxy/22/",
        "/static/../proxy/22/",
        "/static/%2e%2e/proxy/22/",
        "/proxy;x=1/22/",
        "/proxy/22/?x=%32",
    ],
)
async def test_the_ide_s_port_proxy_is_out_of_reach_however_it_is_spelled(hub: Hub, path: str) -> None:
    ann = await hub.person()
    demo = await hub.workspace(ann)
    cookie = f"__Host-codehub-visit={await hub.visit(ann, demo)}"
    assert (await hub.get(demo, "/", headers={"cookie": cookie})).status_code == 200  # headers that are known now
    for prefix, host, proof in (
        ("", hub.host(demo), cookie),
        (f"/w/{demo.id}", "hub.test", f"__Host-codehub={ann.session}"),
    ):
        raw = await hub.raw(f"GET {prefix}{path} HTTP/1.1", f"Host: {host}", f"Cookie: {proof}")
        assert raw.startswith(b"HTTP/1.1 404 "), (prefix, raw)
        sent = f"Sec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: navigate\r\nAccept: text/html\r\nCookie: {proof}"
        raw = await hub.raw(f"GET {prefix}{path} HTTP/1.1", f"Host: {host}", sent)
        assert raw.startswith((b"HTTP/1.1 404 ", b"HTTP/1.1 303 ")), (prefix, raw)
    told = await hub.socket(f"Origin: http://{hub.host(demo)}", f"Cookie: {cookie}", host=hub.host(demo), path=path)
    assert told.status == 404
    assert {seen.target for seen in hub.ide.seen} == {"/"}


@pytest.mark.parametrize("path", ["/proxy", "/src/proxy/3000/", "/proxyman/22/", "/a%20b/proxy/1/", "/?to=/proxy/22/"])
async def test_what_only_looks_like_the_port_proxy_is_the_ide_s(hub: Hub, path: str) -> None:
    ann = await hub.person()
    demo = await hub.workspace(ann)
    assert (await hub.get(demo, path, ann, DIRECT)).status_code == 200
    assert [seen.target for seen in hub.ide.seen] == [path]
