"""The ports of one workspace use each other, for who may be there; no other page and nobody else uses them."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from codehub.domain.workspace import Workspace
from codehub.proxy.access.session_cache import JOINED_COOKIE, VISIT_COOKIE
from codehub.usecases.workspace_access import WorkspaceCaller
from tests.proxy.deployment import BASE, DIRECT, Deployment, SignedInUser, deployed, problem
from tests.proxy.fake_workspace import FakeWorkspace

CORS = {"sec-fetch-mode": "cors", "sec-fetch-dest": "empty", "sec-fetch-site": "cross-site"}
IMAGE = {"sec-fetch-mode": "no-cors", "sec-fetch-dest": "image", "sec-fetch-site": "cross-site"}
NAVIGATION = {**DIRECT, "sec-fetch-user": "?1"}


@pytest.fixture
async def deployment() -> AsyncIterator[Deployment]:
    async with deployed() as opened:
        yield opened


@pytest.fixture
async def api(deployment: Deployment) -> AsyncIterator[FakeWorkspace]:
    """The server that listens on port 4000."""
    async with AsyncExitStack() as stack:
        yield await stack.enter_async_context(FakeWorkspace())


async def front_end(deployment: Deployment, api: FakeWorkspace) -> tuple[SignedInUser, Workspace]:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    deployment.runtime.state.listen(demo.id, 3000, deployment.api.endpoint)
    deployment.runtime.state.listen(demo.id, 4000, api.endpoint)
    return ann, demo


def page_of(deployment: Deployment, workspace: Workspace, port: int | None = 3000) -> str:
    return f"http://{deployment.host(workspace, port)}"


async def joined(deployment: Deployment, ann: SignedInUser, demo: Workspace, use: str = "4000") -> dict[str, str]:
    """The cookie that pages of port 3000 send to port 4000, as our page at 3000 gets it."""
    page = await deployment.get(demo, f"/_codehub/ports?use={use}&to=/app", ann, NAVIGATION, port=3000)
    assert page.status_code == 200
    address = (
        page.text.partition('data-joins="[&quot;')[2].partition("&quot;")[0].partition(deployment.host(demo, 4000))[2]
    )
    answer = await deployment.get(demo, address, headers={**CORS, "origin": page_of(deployment, demo)}, port=4000)
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == page_of(deployment, demo)
    cookies = [cookie for cookie in answer.headers.get_list("set-cookie") if cookie.startswith(JOINED_COOKIE)]
    assert all(
        word in cookies[0] for word in ("; Secure", "; HttpOnly", "; SameSite=None", "; Partitioned", "; Path=/")
    )
    return {"cookie": cookies[0].partition(";")[0]}


# ── what works ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_preflight_between_ports_is_answered_and_reaches_nobody(
    deployment: Deployment, api: FakeWorkspace
) -> None:
    _, demo = await front_end(deployment, api)
    asked = {**CORS, "access-control-request-method": "PUT", "access-control-request-headers": "content-type,x-own"}
    answer = await deployment.get(
        demo, "/x", headers={**asked, "origin": page_of(deployment, demo)}, port=4000, method="OPTIONS"
    )
    assert answer.status_code == 204
    told = {
        name: answer.headers[f"access-control-allow-{name}"] for name in ("origin", "credentials", "methods", "headers")
    }
    assert told == {
        "origin": page_of(deployment, demo),
        "credentials": "true",
        "methods": "PUT",
        "headers": "content-type,x-own",
    }
    for origin in (
        page_of(deployment, demo, None),
        "http://evil.test",
        "null",
        f"http://3000--other.{BASE}",
        page_of(deployment, demo, 4000),
    ):
        refused = await deployment.get(demo, "/x", headers={**asked, "origin": origin}, port=4000, method="OPTIONS")
        assert refused.status_code == (204 if origin == page_of(deployment, demo, None) else 401), origin
    for_the_ide = await deployment.get(
        demo, "/x", headers={**asked, "origin": page_of(deployment, demo)}, method="OPTIONS"
    )
    assert for_the_ide.status_code == 401
    assert api.seen == deployment.ide.seen == []


@pytest.mark.parametrize("said", ["*", "{page}"])
async def test_who_joined_reads_what_the_app_lets_anybody_read(
    deployment: Deployment, api: FakeWorkspace, said: str
) -> None:
    ann, demo = await front_end(deployment, api)
    cookie, origin = await joined(deployment, ann, demo), page_of(deployment, demo)
    allow = said.replace("{page}", origin)
    api.answer = lambda _: (
        f"HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: {allow}\r\nContent-Length: 2\r\n\r\nok".encode()
    )
    for method in ("GET", "POST"):
        answer = await deployment.get(
            demo, "/api", headers={**CORS, **cookie, "origin": origin}, port=4000, method=method
        )
        assert (answer.status_code, answer.text) == (200, "ok")
        assert answer.headers.get_list("access-control-allow-origin") == [origin]
        assert answer.headers.get_list("access-control-allow-credentials") == ["true"]
    assert all(seen.all("cookie") == [] for seen in api.seen), "ours stays here"
    image = await deployment.get(demo, "/a.png", headers={**IMAGE, **cookie, "referer": f"{origin}/"}, port=4000)
    assert image.status_code == 200
    host = deployment.host(demo, 4000)
    socket = await deployment.socket(f"Origin: {origin}", f"Cookie: {cookie['cookie']}", host=host)
    assert socket.status != 401


async def test_what_the_app_lets_nobody_read_stays_so(deployment: Deployment, api: FakeWorkspace) -> None:
    ann, demo = await front_end(deployment, api)
    cookie = await joined(deployment, ann, demo)
    answer = await deployment.get(demo, "/", headers={**CORS, **cookie, "origin": page_of(deployment, demo)}, port=4000)
    assert (answer.status_code, answer.text) == (200, "ok")
    assert not [name for name in answer.headers if name.startswith("access-control-")]


async def test_a_page_that_asked_in_vain_joins_when_it_is_opened_next(
    deployment: Deployment, api: FakeWorkspace
) -> None:
    ann, demo = await front_end(deployment, api)
    assert (await deployment.get(demo, "/app", ann, NAVIGATION, port=3000)).text == "ok"
    in_vain = await deployment.get(demo, "/api", headers={**CORS, "origin": page_of(deployment, demo)}, port=4000)
    assert (in_vain.status_code, in_vain.headers["access-control-allow-origin"]) == (401, page_of(deployment, demo))
    assert "/_codehub/ports?use=4000" in in_vain.json()["detail"]
    led = await deployment.get(demo, "/app?x=1", ann, NAVIGATION, port=3000)
    assert (led.status_code, led.headers["location"]) == (303, "/_codehub/ports?use=4000&to=%2Fapp%3Fx%3D1")
    assert (await deployment.get(demo, "/app?x=1", ann, NAVIGATION, port=3000)).text == "ok", "once"


# ── what does not ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_cookie_of_one_pair_serves_no_other_page(deployment: Deployment, api: FakeWorkspace) -> None:
    ann, demo = await front_end(deployment, api)
    cookie = await joined(deployment, ann, demo)
    other = await deployment.workspace(ann, name="other")
    for origin in (
        page_of(deployment, other),
        "http://evil.test",
        "null",
        "http://hub.test",
        f"{page_of(deployment, demo)}:9999",
    ):
        for method in ("GET", "POST"):
            refused = await deployment.get(
                demo, "/", headers={**CORS, **cookie, "origin": origin}, port=4000, method=method
            )
            assert (refused.status_code, problem(refused)) == (403, "cross_site"), origin
        seen_by = await deployment.get(demo, "/", headers={**IMAGE, **cookie, "referer": f"{origin}/x"}, port=4000)
        assert seen_by.status_code == 403, origin
    assert (await deployment.get(demo, "/", headers={**IMAGE, **cookie}, port=4000)).status_code == 403, (
        "nobody says who asks"
    )
    same_site = {**IMAGE, **cookie, "sec-fetch-site": "same-site"}
    assert (await deployment.get(demo, "/", headers=same_site, port=4000)).status_code == 403
    assert (
        await deployment.get(demo, "/", headers={**CORS, **cookie, "origin": page_of(deployment, demo)}, port=5000)
    ).status_code == 404
    assert (
        await deployment.get(other, "/", headers={**CORS, **cookie, "origin": page_of(deployment, other)}, port=4000)
    ).status_code == 404
    assert (await deployment.get(demo, "/", headers=cookie)).status_code == 401, "nor the IDE's host"
    assert api.seen == deployment.ide.seen == []


async def test_nobody_joins_who_is_not_there_already(deployment: Deployment, api: FakeWorkspace) -> None:
    ann, demo = await front_end(deployment, api)
    bob = await deployment.person("bob")
    bobs = await deployment.workspace(bob, name="bobs")
    visit = {"cookie": f"{VISIT_COOKIE}={await deployment.visit(bob, bobs, 3000)}"}
    theirs = await deployment.get(demo, "/_codehub/ports?use=4000", headers={**NAVIGATION, **visit}, port=3000)
    assert theirs.status_code == 404
    nobody = await deployment.get(demo, "/_codehub/ports?use=4000", headers=NAVIGATION, port=3000)
    assert nobody.headers["location"].startswith("http://hub.test/open/")
    assert (await deployment.get(demo, "/_codehub/ports?use=4000", ann, NAVIGATION)).status_code == 404, (
        "not from the IDE"
    )
    fetched = await deployment.get(
        demo, "/_codehub/ports?use=4000", ann, {**CORS, "sec-fetch-site": "same-origin"}, port=3000
    )
    assert fetched.status_code == 404, "a script reads no ticket"
    for origin in (page_of(deployment, bobs), "http://evil.test", page_of(deployment, demo)):
        refused = await deployment.get(
            demo, "/_codehub/join?ticket=guess", headers={**CORS, "origin": origin}, port=4000
        )
        assert (refused.status_code, "set-cookie" in refused.headers) == (401, False)


async def test_a_ticket_for_one_port_opens_no_other(deployment: Deployment, api: FakeWorkspace) -> None:
    ann, demo = await front_end(deployment, api)
    ticket = await deployment.workspace_access.ticket_beside(await _visitor(deployment, ann, demo), demo.slug, 5000)
    sent = {**CORS, "origin": page_of(deployment, demo)}
    assert (await deployment.get(demo, f"/_codehub/join?ticket={ticket}", headers=sent, port=4000)).status_code == 401


async def _visitor(deployment: Deployment, ann: SignedInUser, demo: Workspace) -> WorkspaceCaller:
    visitor = await deployment.workspace_access.visiting(await deployment.visit(ann, demo, 3000))
    assert visitor
    return visitor


async def test_the_ide_s_own_port_is_no_port_that_others_may_use(deployment: Deployment, api: FakeWorkspace) -> None:
    """In a container it listens on the address of the container: at a port's host, pages of ports could use it."""
    ann, demo = await front_end(deployment, api)
    deployment.runtime.state.listen(demo.id, 8080, deployment.ide.endpoint)
    origin = page_of(deployment, demo)
    for headers in ({**CORS, "origin": origin}, {**IMAGE, "referer": f"{origin}/"}):
        assert (await deployment.get(demo, "/", ann, headers, port=8080)).status_code == 403
    cookie = f"Cookie: {VISIT_COOKIE}={await deployment.visit(ann, demo, 8080)}"
    assert (await deployment.socket(f"Origin: {origin}", cookie, host=deployment.host(demo, 8080))).status == 403
    assert deployment.ide.seen == []
