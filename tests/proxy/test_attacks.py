"""Attacks on the proxy, each as somebody would try it."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from codehub.adapters.memory.fault_injection import Fault, FaultKind
from codehub.domain.identity import Role, changed_role
from codehub.domain.workspace import Desired, Phase
from codehub.ports.stores import Actor
from codehub.proxy.access.session_cache import VISIT_COOKIE
from codehub.proxy.http import parser
from codehub.usecases.revocations import AUTH_CHANNEL
from tests.eventually import eventually
from tests.proxy.deployment import (
    BASE,
    DIRECT,
    FROM_ELSEWHERE,
    Deployment,
    SignedInUser,
    deployed,
    handshake_and_echo,
    session_of,
)


@pytest.fixture
async def deployment() -> AsyncIterator[Deployment]:
    async with deployed() as opened:
        yield opened


# ── into somebody's IDE ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", ["/proxy/7777/x?y=1", "/Proxy/7777/x?y=1", "/absproxy/7777/x?y=1"])
async def test_a_port_of_the_machine_is_no_page_of_the_ide(deployment: Deployment, path: str) -> None:
    """A neighbour listens on 7777 and sends Ann a link: what it serves must not run as her IDE."""
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    for headers in (DIRECT, FROM_ELSEWHERE):
        await deployment.get(demo, "/", ann, headers)  # a pass for these very headers
        led = await deployment.get(demo, path, ann, headers)
        assert (led.status_code, led.headers["location"]) == (303, f"http://7777--{demo.slug}.{BASE}/x?y=1")
    assert (await deployment.get(demo, path, ann)).status_code == 404
    by_path = {"host": "hub.test", "cookie": f"__Host-codehub={ann.session}"}
    assert (await deployment.http.get(f"/w/{demo.id}{path}", headers=by_path)).status_code == 404
    assert {seen.target for seen in deployment.ide.seen} == {"/"}


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_no_link_from_elsewhere_leads_to_its_pages_at_the_platform_s_origin(
    deployment: Deployment, site: str
) -> None:
    """A page of the workspace's own host sends its visitor to `/w/{id}/`, where its scripts would be the platform's."""
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    await deployment.platform(f"/w/{demo.id}/", ann, {**DIRECT, "sec-fetch-site": "same-origin"})
    led = await deployment.platform(f"/w/{demo.id}//evil?x=1", ann, {**DIRECT, "sec-fetch-site": site})
    assert (led.status_code, led.headers["location"]) == (303, f"http://{demo.slug}.{BASE}//evil?x=1")
    assert [seen.target for seen in deployment.ide.seen] == ["/"]


async def test_without_hosts_of_their_own_links_lead_there() -> None:
    async with deployed(workspace_url="http://hub.test/w/{id}/") as deployment:
        ann = await deployment.person()
        demo = await deployment.workspace(ann)
        assert (await deployment.platform(f"/w/{demo.id}/", ann, FROM_ELSEWHERE)).status_code == 200


async def test_a_kept_connection_to_one_s_port_never_serves_another_s(deployment: Deployment) -> None:
    """On one machine port 3000 is Bob's now and Ann's a moment later; what Bob accepted before, he still holds."""
    ann, bob = await deployment.person(), await deployment.person("bob")
    anns, bobs = await deployment.workspace(ann), await deployment.workspace(bob, name="trap")
    for workspace, who in ((bobs, bob), (anns, ann)):
        deployment.runtime.state.listen(workspace.id, 3000, deployment.ide.endpoint)
        for _ in range(2):
            assert (await deployment.get(workspace, "/", who, port=3000)).status_code == 200
    assert deployment.ide.connections == 2


async def test_opening_what_is_not_yours_by_path_tells_nothing_of_it() -> None:
    async with deployed(workspace_url="http://hub.test/w/{id}/") as deployment:
        ann, bob = await deployment.person(), await deployment.person("bob")
        demo = await deployment.workspace(ann)
        theirs = await deployment.platform(f"/open/{demo.slug}", bob)
        nobody = await deployment.platform("/open/no-such-thing", bob)
        assert theirs.status_code == nobody.status_code == 404
        assert theirs.content == nobody.content


async def test_another_program_at_the_same_name_is_another_site(deployment: Deployment) -> None:
    """`http://demo.ws.test:9999` is served by whoever listens on 9999, not by us."""
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    deployment.runtime.state.listen(demo.id, 3000, deployment.api.endpoint)
    for origin, status in ((deployment.host(demo), 200), (f"{deployment.host(demo)}:9999", 403)):
        sent = await deployment.get(demo, "/", ann, {"origin": f"http://{origin}"}, port=3000, method="POST")
        assert sent.status_code == status, origin


# ── in somebody's name ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_workspace_s_pages_stop_nobody_else_s_in_an_admin_s_name(deployment: Deployment) -> None:
    """An admin looks into Bob's workspace; its pages ask the reserved endpoints on their host to stop Ann's."""
    ann, bob, root = (
        await deployment.person(),
        await deployment.person("bob"),
        await deployment.person("root", Role.ADMIN),
    )
    anns, bobs = await deployment.workspace(ann), await deployment.workspace(bob, Phase.STANDBY, name="trap")
    asked = await deployment.wake(bobs, root, f"?instead={anns.id}")
    assert asked.status_code == 404
    assert deployment.row(anns.id).desired_state is Desired.RUNNING


async def test_a_running_workspace_s_pages_stop_no_other(deployment: Deployment) -> None:
    ann = await deployment.person()
    running, other = await deployment.workspace(ann), await deployment.workspace(ann, name="other")
    assert (await deployment.wake(running, ann, f"?instead={other.id}")).status_code == 202
    assert deployment.row(other.id).desired_state is Desired.RUNNING


async def test_an_admin_who_needs_no_ticket_leaves_a_trace_too(deployment: Deployment) -> None:
    ann, root = await deployment.person(), await deployment.person("root", Role.ADMIN)
    demo = await deployment.workspace(ann)
    for who in (ann, root):
        for path in ("/one", "/two"):
            answer = await deployment.get(demo, path, headers={"authorization": f"Bearer {who.token}"})
            assert answer.status_code == 200
    looks = [entry for entry in deployment.database.state.accounts.audit if entry.action == "enter_workspace"]
    assert [(entry.subject, entry.details) for entry in looks] == [
        (f"workspace:{demo.id}", {"owner": "ann", "workspace": "demo"})
    ]


# ── after one may no longer ──────────────────────────────────────────────────────────────────────────────────────────


async def sign_out(deployment: Deployment, who: SignedInUser) -> None:
    await deployment.workspace_access.identity.accounts.end_session(who.user.id, session_of(who), Actor("test"))
    heard = deployment.proxy.authorizer._sessions
    before = heard.announcements
    await deployment.workspace_access.identity.revocations.signed_out(who.user.id, [session_of(who)])
    await eventually(lambda: heard.announcements > before)


@pytest.mark.parametrize("slow", ["sign_in_state.visit", "views.by_slug"])
async def test_who_is_signed_out_while_we_look_gets_neither_in_nor_a_pass(deployment: Deployment, slow: str) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    await deployment.visit(ann, demo)
    deployment.outages.asked.clear()
    deployment.outages.faults[slow] = Fault(FaultKind.OLD_NEWS, 0.5)
    asking = asyncio.ensure_future(deployment.get(demo, "/", ann))
    await eventually(lambda: slow in deployment.outages.asked)
    await sign_out(deployment, ann)
    assert (await asking).status_code == 401
    assert (await deployment.get(demo, "/", ann)).status_code == 401
    assert deployment.ide.seen == []


async def test_who_is_signed_out_while_we_look_for_a_port_gets_no_socket(deployment: Deployment) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    deployment.ide.handler = handshake_and_echo
    deployment.runtime.state.listen(demo.id, 3000, deployment.ide.endpoint)
    host, secret = deployment.host(demo, 3000), await deployment.visit(ann, demo, 3000)
    deployment.outages.faults["runtime.port_endpoint"] = Fault(FaultKind.SLOW, 0.5)
    lines = (f"Origin: http://{host}", f"Cookie: {VISIT_COOKIE}={secret}")
    asking = asyncio.ensure_future(deployment.socket(*lines, host=host))
    await eventually(lambda: "runtime.port_endpoint" in deployment.outages.asked)
    await sign_out(deployment, ann)
    assert (await asking).status == 401


async def test_no_pass_outlives_what_it_was_given_for(deployment: Deployment) -> None:
    """Another header each time gets a new permission, for as long as the first, or asking could be put off again and
    again."""
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    parser._remembered.clear()
    await deployment.get(demo, "/", ann)
    then = deployment.proxy.authorizer.now
    await eventually(lambda: deployment.proxy.authorizer.now > then)
    await deployment.get(demo, "/", ann, {"x-other": "1"})
    passes = [
        fields.cached_authorization.until for fields in parser._remembered.values() if fields.cached_authorization
    ]
    assert len(passes) == 2
    assert passes[0] == passes[1]


async def test_who_cannot_hear_of_sign_outs_asks_again(deployment: Deployment) -> None:
    """The events of workspaces are still heard: only the other subscription was lost."""
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    assert (await deployment.get(demo, "/", ann)).status_code == 200
    deployment.outages.away = ("bus.subscribe",)
    (listener,) = deployment.bus.state.listeners[AUTH_CHANNEL]
    listener.put_nowait(None)
    await eventually(lambda: not deployment.proxy.authorizer._sessions.is_current)
    await deployment.workspace_access.identity.accounts.end_session(ann.user.id, session_of(ann), Actor("test"))
    assert (await deployment.get(demo, "/", ann)).status_code == 401


async def test_one_workspace_is_one_entry_by_whichever_name(deployment: Deployment) -> None:
    """The workspace is asked for by host and by path at once: were there two entries, events would reach one, and the
    other's permissions stay."""
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    deployment.outages.faults["runtime.endpoint"] = Fault(FaultKind.SLOW, 0.2)
    found = deployment.proxy.authorizer._workspaces
    by_slug, by_id = await asyncio.gather(found.find(demo.slug), found.find(demo.id))
    assert by_slug is not None
    assert by_slug is by_id is found.known(demo.slug) is found.known(demo.id)


async def test_sockets_of_a_former_admin_end_though_the_revocation_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codehub.proxy.app.RECHECK_SECONDS", 0.1)
    monkeypatch.setattr("codehub.proxy.access.session_cache.TRUST_SECONDS", 0.1)
    async with deployed() as deployment:
        deployment.ide.handler = handshake_and_echo
        ann, root = await deployment.person(), await deployment.person("root", Role.ADMIN)
        await deployment.person("other", Role.ADMIN)
        socket = await deployment.open_socket(await deployment.workspace(ann), root)
        accounts = deployment.workspace_access.identity.accounts
        await accounts.change_user(root.user.id, lambda u, n, _: changed_role(u, Role.USER, n), Actor("test"), "test")
        async with asyncio.timeout(30):
            assert await socket.close_code() == 1008
