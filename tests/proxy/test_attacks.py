"""Attacks on the front door, each as somebody would try it."""

from collections.abc import AsyncIterator

import pytest

from codehub.domain.identity import Role
from codehub.domain.workspace import Desired, Phase
from tests.proxy.hub import BASE, DIRECT, FROM_ELSEWHERE, Hub, hub_on


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with hub_on() as opened:
        yield opened


# ── into somebody's IDE ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", ["/proxy/7777/x?y=1", "/Proxy/7777/x?y=1", "/absproxy/7777/x?y=1"])
async def test_a_port_of_the_machine_is_no_page_of_the_ide(hub: Hub, path: str) -> None:
    """A neighbour listens on 7777 and sends Ann a link: what it serves must not run as her IDE."""
    ann = await hub.person()
    demo = await hub.workspace(ann)
    for headers in (DIRECT, FROM_ELSEWHERE):
        await hub.get(demo, "/", ann, headers)  # a pass for these very headers
        led = await hub.get(demo, path, ann, headers)
        assert (led.status_code, led.headers["location"]) == (303, f"http://7777--{demo.slug}.{BASE}/x?y=1")
    assert (await hub.get(demo, path, ann)).status_code == 404
    by_path = {"host": "hub.test", "cookie": f"__Host-codehub={ann.session}"}
    assert (await hub.http.get(f"/w/{demo.id}{path}", headers=by_path)).status_code == 404
    assert {seen.target for seen in hub.ide.seen} == {"/"}


async def test_what_only_looks_like_such_a_port_is_the_ide_s(hub: Hub) -> None:
    ann = await hub.person()
    demo = await hub.workspace(ann)
    for path in ("/proxy", "/proxy/", "/proxy/70x/", "/src/proxy/3000/"):
        assert (await hub.get(demo, path, ann, DIRECT)).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_no_link_from_elsewhere_leads_to_its_pages_at_the_platform_s_origin(hub: Hub, site: str) -> None:
    """A page of the workspace's own host sends its visitor to `/w/{id}/`, where its scripts would be the platform's."""
    ann = await hub.person()
    demo = await hub.workspace(ann)
    await hub.platform(f"/w/{demo.id}/", ann, DIRECT)
    led = await hub.platform(f"/w/{demo.id}//evil?x=1", ann, {**DIRECT, "sec-fetch-site": site})
    assert (led.status_code, led.headers["location"]) == (303, f"http://{demo.slug}.{BASE}//evil?x=1")
    assert [seen.target for seen in hub.ide.seen] == ["/"]


async def test_without_hosts_of_their_own_links_lead_there() -> None:
    async with hub_on(workspace_url="http://hub.test/w/{id}/") as hub:
        ann = await hub.person()
        demo = await hub.workspace(ann)
        assert (await hub.platform(f"/w/{demo.id}/", ann, FROM_ELSEWHERE)).status_code == 200


async def test_a_kept_connection_to_one_s_port_never_serves_another_s(hub: Hub) -> None:
    """On one machine port 3000 is Bob's now and Ann's a moment later; what Bob accepted before, he still holds."""
    ann, bob = await hub.person(), await hub.person("bob")
    anns, bobs = await hub.workspace(ann), await hub.workspace(bob, name="trap")
    for workspace, who in ((bobs, bob), (anns, ann)):
        hub.runtime.world.listen(workspace.id, 3000, hub.ide.endpoint)
        for _ in range(2):
            assert (await hub.get(workspace, "/", who, port=3000)).status_code == 200
    assert hub.ide.connections == 2


# ── in somebody's name ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_workspace_s_pages_stop_nobody_else_s_in_an_admin_s_name(hub: Hub) -> None:
    """An admin looks into Bob's workspace; its pages ask our own desk on their host to stop Ann's."""
    ann, bob, root = await hub.person(), await hub.person("bob"), await hub.person("root", Role.ADMIN)
    anns, bobs = await hub.workspace(ann), await hub.workspace(bob, Phase.STANDBY, name="trap")
    asked = await hub.wake(bobs, root, f"?instead={anns.id}")
    assert asked.status_code == 404
    assert hub.row(anns.id).desired_state is Desired.RUNNING


async def test_a_running_workspace_s_pages_stop_no_other(hub: Hub) -> None:
    ann = await hub.person()
    running, other = await hub.workspace(ann), await hub.workspace(ann, name="other")
    assert (await hub.wake(running, ann, f"?instead={other.id}")).status_code == 202
    assert hub.row(other.id).desired_state is Desired.RUNNING
