"""What a workspace's programs try against the platform, other workspaces and whoever looks at their pages."""

from collections.abc import AsyncIterator
from dataclasses import replace
from urllib.parse import urlencode
from uuid import uuid4

import pytest

from codehub.domain.addresses import local_path, platform_path
from codehub.domain.admission import RunningLimits
from codehub.domain.identity import Role
from codehub.domain.workspace import Desired, Phase
from tests.proxy.deployment import BASE, DIRECT, Deployment, deployed
from tests.usecases.accounts_harness import ADDRESS, AGENT, AccountsHarness


@pytest.fixture
async def deployment() -> AsyncIterator[Deployment]:
    async with deployed() as opened:
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
async def test_the_ide_s_port_proxy_is_out_of_reach_however_it_is_spelled(deployment: Deployment, path: str) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    cookie = f"__Host-codehub-visit={await deployment.visit(ann, demo)}"
    assert (
        await deployment.get(demo, "/", headers={"cookie": cookie})
    ).status_code == 200  # headers that are known now
    for prefix, host, proof in (
        ("", deployment.host(demo), cookie),
        (f"/w/{demo.id}", "hub.test", f"__Host-codehub={ann.session}"),
    ):
        raw = await deployment.raw(f"GET {prefix}{path} HTTP/1.1", f"Host: {host}", f"Cookie: {proof}")
        assert raw.startswith(b"HTTP/1.1 404 "), (prefix, raw)
        sent = f"Sec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: navigate\r\nAccept: text/html\r\nCookie: {proof}"
        raw = await deployment.raw(f"GET {prefix}{path} HTTP/1.1", f"Host: {host}", sent)
        assert raw.startswith((b"HTTP/1.1 404 ", b"HTTP/1.1 303 ")), (prefix, raw)
    told = await deployment.socket(
        f"Origin: http://{deployment.host(demo)}", f"Cookie: {cookie}", host=deployment.host(demo), path=path
    )
    assert told.status == 404
    assert {seen.target for seen in deployment.ide.seen} == {"/"}


@pytest.mark.parametrize("path", ["/proxy", "/src/proxy/3000/", "/proxyman/22/", "/a%20b/proxy/1/", "/?to=/proxy/22/"])
async def test_what_only_looks_like_the_port_proxy_is_the_ide_s(deployment: Deployment, path: str) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    assert (await deployment.get(demo, path, ann, DIRECT)).status_code == 200
    assert [seen.target for seen in deployment.ide.seen] == [path]


# ── what an answer says of more than its own host ────────────────────────────────────────────────────────────────────

PARENTS = [
    f"Domain={BASE}",
    f"domain=.{BASE}",
    f"DOMAIN = {BASE.upper()}",
    "Domain=test",
    f"Domain={{host}}; Domain={BASE}",
    "Domain=hub.test",
    "Domain=other.ws.test",
    f"Path=/; Secure ;Domain\t=\t{BASE}",
]


@pytest.mark.parametrize("attributes", PARENTS)
@pytest.mark.parametrize("port", [None, 3000])
async def test_a_workspace_sets_no_cookie_beyond_its_own_host(
    deployment: Deployment, attributes: str, port: int | None
) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    deployment.runtime.state.listen(demo.id, 3000, deployment.ide.endpoint)
    host = deployment.host(demo, port)
    wide = attributes.replace("{host}", host)
    lines = (
        f"Set-Cookie: tossed=1; {wide}",
        f"Set-Cookie: exact=domain; Domain={host}",
        f"Set-Cookie: dotted=1; Domain=.{host.upper()}; Path=/",
        "Set-Cookie: plain=Domain=test; Path=/; Domain=",
    )
    deployment.ide.answer = lambda _: "\r\n".join(("HTTP/1.1 200 OK", *lines, "Content-Length: 2", "", "ok")).encode()
    answer = await deployment.get(demo, "/", ann, port=port)
    assert [kept.partition("=")[0] for kept in answer.headers.get_list("set-cookie")] == ["exact", "dotted", "plain"]


async def test_a_workspace_clears_nobody_s_cookies_and_names_no_other_server(deployment: Deployment) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    said = 'Clear-Site-Data: "*"\r\nCLEAR_SITE_DATA: "cookies"\r\nAlt-Svc: h2=":9999"\r\nService-Worker-Allowed: /'
    of_the_origin = "Strict-Transport-Security: max-age=9\r\nNEL: {}\r\nReport-To: {}\r\nAccept-CH: dpr\r\nSet-Login: x"
    deployment.ide.answer = lambda _: (
        f"HTTP/1.1 200 OK\r\n{said}\r\n{of_the_origin}\r\nContent-Length: 2\r\n\r\nok".encode()
    )
    at_its_host = await deployment.get(demo, "/", ann)
    assert not {"clear-site-data", "clear_site_data", "alt-svc"} & set(at_its_host.headers)
    assert at_its_host.headers["service-worker-allowed"] == "/", "of that origin alone, which is its own"
    below = await deployment.platform(f"/w/{demo.id}/", ann, {**DIRECT, "sec-fetch-site": "same-origin"})
    assert (below.status_code, below.text) == (200, "ok")
    assert set(below.headers) <= {"content-length", "date", "x-request-id"}


# ── in an admin's name ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_page_that_an_admin_visits_neither_lists_nor_stops_what_the_admin_runs() -> None:
    """Bob's tab is open in an admin's browser when his workspace sleeps: its script asks our own pages on its host."""
    async with deployed(RunningLimits(max_running_per_user=1)) as deployment:
        bob, root = await deployment.person("bob"), await deployment.person("root", Role.ADMIN)
        admins = await deployment.workspace(root, name="secret-project")
        bobs, trap = (
            await deployment.workspace(bob, name="bobs-other"),
            await deployment.workspace(bob, Phase.STANDBY, name="trap"),
        )
        told = [
            await deployment.wake(trap, root),
            await deployment.get(trap, "/", root, {**DIRECT, "sec-fetch-user": "?1"}),
            await deployment.get(trap, "/_codehub/state", root),
        ]
        assert [answer.status_code for answer in told] == [429, 502, 200]
        for answer in told:
            assert all(
                other not in answer.text for other in (str(admins.id), "secret-project", str(bobs.id), "bobs-other")
            )
        for other in (admins, bobs):
            assert (await deployment.wake(trap, root, f"?instead={other.id}")).status_code == 404
            assert deployment.row(other.id).desired_state is Desired.RUNNING
        assert (await deployment.wake(trap, bob, f"?instead={bobs.id}")).status_code == 202, "its owner may"


# ── into the platform's own origin ───────────────────────────────────────────────────────────────────────────────────

NAVIGATION = {**DIRECT, "sec-fetch-user": "?1"}
SAME_ORIGIN = {**NAVIGATION, "sec-fetch-site": "same-origin"}
INTO_A_WORKSPACE = [
    "/w/{id}/evil",
    "/w/{id}",
    "/x/../w/{id}/evil",
    "/./w/{id}/",
    "/x/%2e%2E/w/{id}/",
    "/w/../w/{id}/",
    "/w",
]


@pytest.mark.parametrize("path", INTO_A_WORKSPACE)
def test_no_sign_in_ends_on_a_page_that_a_workspace_wrote(path: str) -> None:
    assert platform_path(path.replace("{id}", str(uuid4()))) == "/"


def test_what_only_begins_like_a_workspace_s_path_is_a_way_to_go() -> None:
    for path in ("/workspaces/1?x=/w/", "/open/demo?to=%2Fw%2F", "/w.html", "/.well-known/x", "/a..b/"):
        assert platform_path(path) == local_path(path) == path


async def test_the_sign_in_page_and_the_provider_s_lead_to_no_workspace_below_the_platform(
    deployment: Deployment,
) -> None:
    """A page of the workspace sends its owner to sign in, and on to itself within the platform's origin."""
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    page = await deployment.platform(f"/signin?next=/w/{demo.id}/evil", headers=NAVIGATION)
    assert 'data-hosts="true"' in page.text
    ours = await deployment.platform(f"/w/{demo.id}/evil", headers=NAVIGATION)
    assert (ours.status_code, ours.headers["location"]) == (303, f"/signin?next=%2Fworkspaces%2F{demo.id}")
    harness = AccountsHarness()
    oidc = replace(harness.oidc, has_hosts=True)
    for path in INTO_A_WORKSPACE:
        url, cookie = await oidc.start(path.replace("{id}", str(demo.id)))
        assert (await oidc.finish(harness.provider.approve(url, "s", "ann"), cookie, ADDRESS, AGENT)).next_path == "/"


async def test_a_typed_address_that_was_redirected_below_the_platform_ends_at_a_choice(deployment: Deployment) -> None:
    """Its owner opens a bookmark of the workspace, which redirects to `/w/{id}/`: the browser still says `none`."""
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    asked = await deployment.platform(f"/w/{demo.id}/evil?x=1", ann, NAVIGATION)
    assert (asked.status_code, asked.headers["codehub-page"]) == (403, "own_address")
    assert f'href="http://{deployment.host(demo)}/evil?x=1"' in asked.text
    assert "<script" not in asked.text, "nothing but a click leads on"
    silent = await deployment.platform(f"/w/{demo.id}/evil", ann, {"accept": "text/html"})
    assert (silent.status_code, silent.headers["location"]) == (303, f"http://{deployment.host(demo)}/evil")
    assert deployment.ide.seen == []
    assert (await deployment.platform(f"/w/{demo.id}/evil", ann, SAME_ORIGIN)).text == "ok", (
        "from our own page, by a click"
    )


@pytest.mark.parametrize("to", ["/x/../_codehub/enter?ticket=t", "/./_codehub/wake", "/%2e/_codehub/state"])
async def test_no_way_in_leads_to_what_is_asked_of_us(deployment: Deployment, to: str) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    handed = await deployment.platform(f"/open/{demo.slug}?{urlencode({'to': to})}", ann)
    assert handed.headers["location"].endswith("&to=%2F")
