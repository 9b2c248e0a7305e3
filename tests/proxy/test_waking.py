"""What wakes a workspace, and what does not: a POST of our page does; no GET, socket, prefetch or other site."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from codehub.domain.admission import RunningLimits
from codehub.domain.errors import ErrorReason
from codehub.domain.ledger import LedgerKind
from codehub.domain.workspace import Desired, Operation, Phase, Workspace
from codehub.ports.accounts import Ticket
from codehub.proxy.access.session_cache import VISIT_COOKIE
from codehub.usecases.identity import digest
from tests.eventually import eventually
from tests.proxy.deployment import DIRECT, FROM_ELSEWHERE, HTML, Deployment, SignedInUser, deployed, problem, session_of
from tests.proxy.harness import in_time

WAKES = "&quot;wakes&quot;: true"
UNLESS_RELOADED = "&quot;unless_reloaded&quot;: true"
BY_A_PERSON = {"sec-fetch-user": "?1"}
SAME_ORIGIN = {**HTML, "sec-fetch-site": "same-origin"}


@pytest.fixture
async def deployment() -> AsyncIterator[Deployment]:
    async with deployed() as opened:
        yield opened


async def asleep(deployment: Deployment) -> tuple[SignedInUser, Workspace]:
    ann = await deployment.person()
    return ann, await deployment.workspace(ann, Phase.STANDBY)


# ── what does ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_our_page_wakes_it_by_a_post(deployment: Deployment) -> None:
    ann, demo = await asleep(deployment)
    woken = await deployment.wake(demo, ann)
    assert (woken.status_code, woken.json()["name"]) == (202, "waiting")
    row = deployment.row(demo.id)
    assert (row.desired_state, row.desired_by) == (Desired.RUNNING, "ann")


async def test_many_tabs_are_one_start(deployment: Deployment) -> None:
    ann, demo = await asleep(deployment)
    answers = await asyncio.gather(*(deployment.wake(demo, ann) for _ in range(20)))
    assert {answer.status_code for answer in answers} == {202}
    entries = await deployment.database.views().entries(demo.id, 100)
    assert sum(entry.after == "RUNNING" for _, entry in entries if entry.kind is LedgerKind.WISH) == 1


async def test_a_token_wakes_it_without_a_page(deployment: Deployment) -> None:
    ann, demo = await asleep(deployment)
    headers = {"authorization": f"Bearer {ann.token}"}
    assert (await deployment.get(demo, "/_codehub/wake", headers=headers, method="POST")).status_code == 202
    assert deployment.row(demo.id).desired_state is Desired.RUNNING


@pytest.mark.parametrize(
    ("headers", "by_itself"),
    [
        (DIRECT, True),
        ({**DIRECT, **BY_A_PERSON}, True),
        ({**SAME_ORIGIN, **BY_A_PERSON}, True),
        (SAME_ORIGIN, False),
        ({**SAME_ORIGIN, "sec-fetch-user": "?0"}, False),
        ({**SAME_ORIGIN, **BY_A_PERSON, "sec-fetch-dest": "iframe"}, False),
        (FROM_ELSEWHERE, False),
        ({**FROM_ELSEWHERE, **BY_A_PERSON}, False),
        ({**HTML, **BY_A_PERSON, "sec-fetch-site": "same-site"}, False),
        ({"accept": "text/html"}, False),
        ({**DIRECT, "sec-purpose": "prefetch"}, False),
        ({**DIRECT, "sec-purpose": "prefetch;prerender"}, False),
        ({**DIRECT, "sec-fetch-dest": "iframe", "sec-fetch-mode": "no-cors"}, False),
    ],
)
async def test_the_page_wakes_by_itself_when_a_person_came_on_purpose(
    deployment: Deployment, headers: dict[str, str], by_itself: bool
) -> None:
    ann, demo = await asleep(deployment)
    page = await deployment.get(demo, "/deep", ann, headers)
    assert (WAKES in page.text) is by_itself
    assert (UNLESS_RELOADED in page.text) is (by_itself and "sec-fetch-user" not in headers)
    assert deployment.row(demo.id).desired_state is Desired.STANDBY


@pytest.mark.parametrize("port", [None, 3000])
async def test_a_page_that_reloads_itself_after_a_stop_wakes_nothing(deployment: Deployment, port: int | None) -> None:
    """The page reloads two seconds later, as Next's dev client does, and our own page where nothing listens."""
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    deployment.runtime.state.listen(demo.id, 3000, deployment.ide.endpoint)
    assert (await deployment.get(demo, "/", ann, {**DIRECT, **BY_A_PERSON}, port=port)).text == "ok"
    await deployment.becomes(demo.id, phase=Phase.STANDBY, desired_state=Desired.STANDBY)
    await eventually(lambda: deployment.knows(demo.slug, Phase.STANDBY))
    told = await deployment.get(demo, "/", ann, SAME_ORIGIN, port=port)
    assert told.headers["codehub-page"] == "asleep"
    assert 'data-action="wake"' in told.text, "a person may still start it"
    assert WAKES not in told.text


async def test_who_arrived_at_a_running_workspace_wakes_nothing_by_a_later_reload(deployment: Deployment) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    await deployment.directory.sign_in_state().issue_ticket(
        digest("s"), Ticket(ann.user.id, demo.id, session_of(ann), wakes=True), 60
    )
    entered = await deployment.get(demo, "/_codehub/enter?ticket=s", headers=FROM_ELSEWHERE)
    kept = "; ".join(cookie.partition(";")[0] for cookie in entered.headers.get_list("set-cookie"))
    await deployment.becomes(demo.id, phase=Phase.STANDBY, desired_state=Desired.STANDBY)
    await eventually(lambda: deployment.knows(demo.slug, Phase.STANDBY))
    assert WAKES not in (await deployment.get(demo, "/", headers={**SAME_ORIGIN, "cookie": kept})).text


async def test_who_comes_with_the_dashboard_s_ticket_came_on_purpose(deployment: Deployment) -> None:
    """From the dashboard's host the browser says cross-site; the ticket is what tells."""
    ann, demo = await asleep(deployment)
    await deployment.directory.sign_in_state().issue_ticket(
        digest("s"), Ticket(ann.user.id, demo.id, session_of(ann), wakes=True), 60
    )
    entered = await deployment.get(demo, "/_codehub/enter?ticket=s&to=/deep", headers=FROM_ELSEWHERE)
    kept = "; ".join(cookie.partition(";")[0] for cookie in entered.headers.get_list("set-cookie"))
    page = await deployment.get(demo, "/deep", headers={**FROM_ELSEWHERE, "cookie": kept})
    assert WAKES in page.text
    assert "__Host-codehub-arrived=; Path=/; Max-Age=0" in page.headers["set-cookie"]
    only_visit = kept.partition(";")[0]
    assert WAKES not in (await deployment.get(demo, "/deep", headers={**FROM_ELSEWHERE, "cookie": only_visit})).text


async def test_a_link_that_was_handed_over_waits_for_a_click(deployment: Deployment) -> None:
    ann, demo = await asleep(deployment)
    handed = await deployment.platform(f"/open/{demo.slug}?to=/deep", ann, FROM_ELSEWHERE)
    entered = await deployment.get(
        demo, handed.headers["location"].partition(deployment.host(demo))[2], headers=FROM_ELSEWHERE
    )
    (cookie,) = entered.headers.get_list("set-cookie")
    page = await deployment.get(demo, "/deep", headers={**FROM_ELSEWHERE, "cookie": cookie.partition(";")[0]})
    assert page.status_code == 200
    assert WAKES not in page.text


# ── what does not ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.test"},
        {"origin": "null"},
        {"origin": "http://hub.test"},
        {"origin": "https://demo.ws.test"},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
    ],
)
async def test_another_site_s_post_does_not(deployment: Deployment, headers: dict[str, str]) -> None:
    ann, demo = await asleep(deployment)
    refused = await deployment.wake(demo, ann, **headers)
    assert (refused.status_code, problem(refused)) == (403, "cross_site")
    assert deployment.row(demo.id).desired_state is Desired.STANDBY


async def test_a_get_of_the_wake_does_not(deployment: Deployment) -> None:
    ann, demo = await asleep(deployment)
    for method in ("GET", "HEAD", "PUT", "DELETE"):
        assert (await deployment.get(demo, "/_codehub/wake", ann, DIRECT, method=method)).status_code == 404
    assert deployment.row(demo.id).desired_state is Desired.STANDBY


async def test_a_sleeping_tab_s_socket_does_not_and_sees_that_nobody_is_there(deployment: Deployment) -> None:
    """A handshake that is accepted and then closed looks like a connection: the IDE would say nothing for minutes."""
    ann, demo = await asleep(deployment)
    host, secret = deployment.host(demo), await deployment.visit(ann, demo)
    told = await deployment.socket(f"Origin: http://{host}", f"Cookie: {VISIT_COOKIE}={secret}", host=host)
    assert told.status == 503
    assert b'"code": "not_running"' in await in_time(told.raw.reader.read(4096))
    assert deployment.row(demo.id).desired_state is Desired.STANDBY


async def test_nobody_else_can(deployment: Deployment) -> None:
    ann, demo = await asleep(deployment)
    bob = await deployment.person("bob")
    token = {"authorization": f"Bearer {bob.token}"}
    assert (await deployment.get(demo, "/_codehub/wake", headers=token, method="POST")).status_code == 404
    ours = {"origin": f"http://{deployment.host(demo)}", "content-type": "application/json"}
    assert (await deployment.get(demo, "/_codehub/wake", headers=ours, method="POST")).status_code == 401
    assert deployment.row(demo.id).desired_state is Desired.STANDBY
    assert ann.user.username == "ann"


async def test_an_error_is_not_woken_away(deployment: Deployment) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann, Phase.ERROR, error_reason=ErrorReason.DATA_LOST)
    told = await deployment.wake(demo, ann)
    assert told.json()["name"] == "error"
    entries = await deployment.database.views().entries(demo.id, 100)
    assert sum(entry.kind is LedgerKind.WISH for _, entry in entries) <= 1


# ── waiting ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_page_hears_of_each_change(deployment: Deployment) -> None:
    ann, demo = await asleep(deployment)
    first = (await deployment.get(demo, "/_codehub/state", ann)).json()
    assert first["name"] == "asleep"
    asked = asyncio.ensure_future(deployment.get(demo, f"/_codehub/state?seen={first['version']}", ann))
    await asyncio.sleep(0.05)
    assert not asked.done()
    await deployment.becomes(demo.id, desired_state=Desired.RUNNING, operation=Operation.STARTING)
    second = (await asked).json()
    assert second["version"] != first["version"]
    assert (await deployment.get(demo, "/_codehub/state")).status_code == 401


# ── limits ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_at_the_limit_another_may_give_way() -> None:
    async with deployed(RunningLimits(max_running_per_user=1)) as deployment:
        ann = await deployment.person()
        runs = await deployment.workspace(ann, name="runs")
        demo = await deployment.workspace(ann, Phase.STANDBY)
        full = await deployment.wake(demo, ann)
        assert (full.status_code, full.json()["name"]) == (429, "limit")
        assert f"instead:{runs.id}" in [action["id"] for action in full.json()["actions"]]
        assert deployment.row(demo.id).desired_state is Desired.STANDBY
        making = await deployment.wake(demo, ann, f"?instead={runs.id}")
        assert (making.status_code, making.json()["name"]) == (202, "making_room")
        assert deployment.row(runs.id).desired_state is Desired.STANDBY
        deployment.runtime.state.containers.pop(runs.id)
        await deployment.becomes(runs.id, phase=Phase.STANDBY)
        assert (await deployment.wake(demo, ann)).status_code == 202


@pytest.mark.parametrize(
    "limits", [RunningLimits(max_running_per_user=1), RunningLimits(max_running_global=1)], ids=["own", "installation"]
)
async def test_beyond_the_limit_the_first_page_says_so_and_lists_what_runs(limits: RunningLimits) -> None:
    async with deployed(limits) as deployment:
        ann = await deployment.person()
        runs = await deployment.workspace(ann, name="runs")
        demo = await deployment.workspace(ann, Phase.STANDBY)
        page = await deployment.get(demo, "/deep", ann, {**DIRECT, **BY_A_PERSON})
        assert (page.status_code, page.headers["codehub-page"]) == (502, "limit")
        assert f"instead:{runs.id}" in page.text
        assert WAKES not in page.text
        below = await deployment.platform(f"/w/{demo.id}/", ann, {**SAME_ORIGIN, **BY_A_PERSON})
        assert (below.status_code, below.headers["codehub-page"]) == (502, "limit")
        link = await deployment.get(demo, "/deep", ann, FROM_ELSEWHERE)
        assert (link.status_code, link.headers["codehub-page"]) == (200, "asleep"), "nobody asked to start it"
        assert (await deployment.wake(demo, ann)).status_code == 429
        assert {deployment.row(runs.id).desired_state, deployment.row(demo.id).desired_state} == {
            Desired.RUNNING,
            Desired.STANDBY,
        }


async def test_what_holds_its_own_place_is_not_beyond_the_limit() -> None:
    """The workspace is stopping: its container counts still, and is its own."""
    async with deployed(RunningLimits(max_running_per_user=1, max_running_global=1)) as deployment:
        ann = await deployment.person()
        demo = await deployment.workspace(ann, desired_state=Desired.STANDBY, operation=Operation.STOPPING)
        page = await deployment.get(demo, "/", ann, {**DIRECT, **BY_A_PERSON})
        assert page.status_code == 200
        assert WAKES in page.text


async def test_only_one_s_own_gives_way() -> None:
    async with deployed(RunningLimits(max_running_per_user=1)) as deployment:
        ann, bob = await deployment.person(), await deployment.person("bob")
        theirs = await deployment.workspace(bob, name="theirs")
        demo = await deployment.workspace(ann, Phase.STANDBY)
        assert (await deployment.wake(demo, ann, f"?instead={theirs.id}")).status_code == 404
        assert (await deployment.wake(demo, ann, "?instead=nonsense")).status_code == 422
        assert deployment.row(theirs.id).desired_state is Desired.RUNNING
