"""Who gets where: sessions, owners, phases, hosts and paths, asked of a whole proxy."""

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from codehub.domain.credentials import SESSION_COOKIE
from codehub.domain.errors import ErrorReason
from codehub.domain.identity import ALL_SCOPES, Caller, Role, Scope, changed_role, disabled
from codehub.domain.workspace import Desired, Phase, Workspace
from codehub.ports.accounts import Ticket
from codehub.ports.runtime import Endpoint
from codehub.ports.stores import Actor
from codehub.proxy.access.session_cache import VISIT_COOKIE
from codehub.proxy.access.verdicts import Pending
from codehub.proxy.http.parser import parse_request
from codehub.usecases.identity import digest
from tests.eventually import eventually
from tests.proxy.deployment import BASE, DIRECT, HTML, PLATFORM, Deployment, SignedInUser, deployed, problem, session_of
from tests.proxy.harness import get


@pytest.fixture
async def deployment() -> AsyncIterator[Deployment]:
    async with deployed() as opened:
        yield opened


# ── in ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_owner_gets_to_the_ide_and_ours_does_not(deployment: Deployment) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    answer = await deployment.get(demo, "/some/file?x=1", ann, DIRECT)
    assert (answer.status_code, answer.text) == (200, "ok")
    (seen,) = deployment.ide.seen
    assert (seen.target, seen.one("host")) == ("/some/file?x=1", deployment.host(demo))
    assert seen.all("cookie") == []


async def test_a_token_opens_it_too_and_stays_here(deployment: Deployment) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    answer = await deployment.get(demo, "/", headers={"authorization": f"Bearer {ann.token}"})
    assert answer.status_code == 200
    assert deployment.ide.seen[0].all("authorization") == []
    reader = await deployment.person("bob", scopes=frozenset({Scope.READ}))
    own = await deployment.workspace(reader)
    assert (await deployment.get(own, "/", headers={"authorization": f"Bearer {reader.token}"})).status_code == 401


async def test_an_admin_stands_where_the_owner_stands_until_no_longer_one(deployment: Deployment) -> None:
    ann, root = await deployment.person(), await deployment.person("root", Role.ADMIN)
    await deployment.person("other", Role.ADMIN)
    demo = await deployment.workspace(ann)
    assert (await deployment.get(demo, "/", root)).status_code == 200
    accounts = deployment.workspace_access.identity.accounts
    await accounts.change_user(
        root.user.id, lambda u, n, _: changed_role(u, Role.USER, n), Actor("test"), "change_role"
    )
    await deployment.workspace_access.identity.revocations.role_changed(root.user.id)
    await eventually(lambda: _status_is(deployment, demo, root, 404), 30)


READER, CHANGER = frozenset({Scope.READ}), frozenset({Scope.READ, Scope.WRITE})


@pytest.mark.parametrize(
    ("scopes", "status"),
    [(ALL_SCOPES, 200), (CHANGER, 404), (READER | {Scope.ADMIN}, 401), (READER, 401)],
    ids=["all", "no admin", "no write", "read"],
)
async def test_an_admin_s_token_opens_others_workspaces_only_with_the_scope_for_it(
    deployment: Deployment, scopes: frozenset[Scope], status: int
) -> None:
    ann, root = await deployment.person(), await deployment.person("root", Role.ADMIN, scopes)
    demo = await deployment.workspace(ann)
    token = {"authorization": f"Bearer {root.token}"}
    assert (await deployment.get(demo, "/", headers=token)).status_code == status
    assert (await deployment.get(demo, "/", headers=token)).status_code == status, "nor once it is known"
    socket = await deployment.socket(f"Authorization: Bearer {root.token}", host=deployment.host(demo))
    assert socket.status == status
    assert bool(deployment.ide.seen) == (status == 200)
    way = await deployment.platform(f"/open/{demo.slug}", headers=token)
    assert ("ticket=" in way.headers.get("location", "")) == (status == 200)
    told = [
        entry.action for entry in await deployment.directory.audit().entries() if entry.subject.startswith("workspace:")
    ]
    assert told == (["issue_ticket", "enter_workspace"] if status == 200 else []), "what was refused is no look"
    await deployment.becomes(demo.id, phase=Phase.STANDBY, desired_state=Desired.STANDBY)
    waking = await deployment.get(demo, "/_codehub/wake", headers=token, method="POST")
    assert waking.status_code == (202 if status == 200 else status)
    assert deployment.row(demo.id).desired_state is (Desired.RUNNING if status == 200 else Desired.STANDBY)


@pytest.mark.parametrize(
    ("scopes", "status"), [(ALL_SCOPES, 200), (CHANGER, 404), (READER, 401)], ids=["all", "no admin", "read"]
)
async def test_a_visit_is_worth_what_the_token_behind_it_is(
    deployment: Deployment, scopes: frozenset[Scope], status: int
) -> None:
    """However the ticket came about, the token is looked at each time."""
    ann, root = await deployment.person(), await deployment.person("root", Role.ADMIN, scopes)
    demo = await deployment.workspace(ann)
    found = await deployment.workspace_access.identity.accounts.token(digest(root.token))
    assert found
    await deployment.directory.sign_in_state().issue_ticket(
        b"t" * 32, Ticket(root.user.id, demo.id, token_id=found[0].id), 60
    )
    ticket = await deployment.directory.sign_in_state().redeem_ticket(b"t" * 32)
    assert ticket
    assert await deployment.directory.sign_in_state().open_visit(digest("a visit"), ticket, 60)
    cookie = {"cookie": f"{VISIT_COOKIE}=a visit"}
    assert (await deployment.get(demo, "/", headers=cookie)).status_code == status
    ours = {**cookie, "origin": f"http://{deployment.host(demo)}", "content-type": "application/json"}
    await deployment.becomes(demo.id, phase=Phase.STANDBY, desired_state=Desired.STANDBY)
    waking = await deployment.get(demo, "/_codehub/wake", headers=ours, method="POST")
    assert waking.status_code == (202 if status == 200 else status)


async def test_one_token_s_pass_is_no_other_s(deployment: Deployment) -> None:
    ann, root = await deployment.person(), await deployment.person("root", Role.ADMIN)
    demo = await deployment.workspace(ann)
    _, narrow = await deployment.tokens.create(
        Caller(root.user, f"session:{'0' * 64}", is_fresh=True), "narrow", CHANGER
    )
    for token, status in (root.token, 200), (narrow, 404), (root.token, 200), (narrow, 404):
        assert (await deployment.get(demo, "/", headers={"authorization": f"Bearer {token}"})).status_code == status


async def _status_is(deployment: Deployment, demo: Workspace, who: SignedInUser, status: int) -> bool:
    return (await deployment.get(demo, "/", who)).status_code == status


async def test_what_is_not_yours_does_not_exist(deployment: Deployment) -> None:
    ann, bob = await deployment.person(), await deployment.person("bob")
    demo = await deployment.workspace(ann)
    bobs = await deployment.workspace(bob, name="own")
    secret = await deployment.visit(bob, bobs)
    for accept in ({}, HTML):
        headers = {"cookie": f"{VISIT_COOKIE}={secret}", **accept}
        theirs = await deployment.get(demo, "/", headers=headers)
        nobody = await deployment.http.get("/", headers={"host": f"no-such-thing.{BASE}", **headers})
        assert theirs.status_code == nobody.status_code == 404
        assert theirs.content == nobody.content
    by_path = {"host": PLATFORM, "cookie": f"{SESSION_COOKIE}={bob.session}"}
    theirs = await deployment.http.get(f"/w/{demo.id}/", headers=by_path)
    nobody = await deployment.http.get(f"/w/{'0' * 8}-0000-4000-8000-{'0' * 12}/", headers=by_path)
    assert theirs.status_code == nobody.status_code == 404
    assert theirs.content == nobody.content
    assert deployment.ide.seen == []


async def test_a_visit_is_for_its_own_host_alone(deployment: Deployment) -> None:
    ann = await deployment.person()
    one, two = await deployment.workspace(ann), await deployment.workspace(ann, name="two")
    deployment.runtime.state.listen(one.id, 3000, deployment.ide.endpoint)
    secret = {"cookie": f"{VISIT_COOKIE}={await deployment.visit(ann, one)}"}
    assert (await deployment.get(one, "/", headers=secret)).status_code == 200
    assert (await deployment.get(two, "/", headers=secret)).status_code == 404
    assert (await deployment.get(one, "/", headers=secret, port=3000)).status_code == 404
    for_port = {"cookie": f"{VISIT_COOKIE}={await deployment.visit(ann, one, 3000)}"}
    assert (await deployment.get(one, "/", headers=for_port, port=3000)).status_code == 200
    assert (await deployment.get(one, "/", headers=for_port)).status_code == 404
    by_path = await deployment.http.get(f"/w/{one.id}/", headers={"host": PLATFORM, **secret})
    assert by_path.status_code == 401


async def test_whoever_is_not_signed_in_is_shown_the_way(deployment: Deployment) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    browser = await deployment.get(demo, "/deep/link?folder=/srv/ann", headers=DIRECT)
    assert browser.status_code == 303
    way = browser.headers["location"]
    assert way == f"http://{PLATFORM}/open/{demo.slug}?to=%2Fdeep%2Flink%3Ffolder%3D%2Fsrv%2Fann"
    script = await deployment.get(demo, "/deep/link")
    assert (script.status_code, problem(script)) == (401, "unauthenticated")
    unknown = await deployment.http.get("/deep/link", headers={"host": f"no-such-thing.{BASE}"})
    assert unknown.status_code == 401
    at_the_platform = await deployment.platform(way.removeprefix(f"http://{PLATFORM}"))
    assert at_the_platform.status_code == 303
    assert at_the_platform.headers["location"].startswith("/signin?next=%2Fopen%2F")
    assert (await deployment.platform("/signin", headers=HTML)).status_code == 200


# ── the hand-over ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_signed_in_person_is_handed_over_with_the_deep_link(deployment: Deployment) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    handed = await deployment.platform(f"/open/{demo.slug}?to=/deep/link", ann)
    entry = handed.headers["location"]
    host = f"http://{deployment.host(demo)}"
    assert entry.startswith(f"{host}/_codehub/enter?ticket=")
    assert entry.endswith("&to=%2Fdeep%2Flink")
    entered = await deployment.get(demo, entry.removeprefix(host))
    cookie = entered.headers["set-cookie"]
    assert cookie.startswith(f"{VISIT_COOKIE}=")
    assert all(part in cookie for part in ("; Path=/", "; Secure", "; HttpOnly", "; SameSite=Lax"))
    assert "Domain" not in cookie
    kept = {"cookie": cookie.partition(";")[0]}
    arrived = await deployment.get(demo, entered.headers["location"], headers=kept)
    assert (arrived.status_code, arrived.headers["location"]) == (303, "/deep/link")
    assert (await deployment.get(demo, "/deep/link", headers=kept)).status_code == 200
    again = await deployment.get(demo, entry.removeprefix(host))
    assert "set-cookie" not in again.headers
    assert again.headers["location"].startswith(f"http://{PLATFORM}/open/{demo.slug}")
    not_kept = await deployment.get(demo, entered.headers["location"], headers=HTML)
    assert not_kept.status_code == 403
    assert "cookie" in not_kept.text


async def test_a_ticket_opens_the_place_it_was_made_for(deployment: Deployment) -> None:
    ann = await deployment.person()
    one, two = await deployment.workspace(ann), await deployment.workspace(ann, name="two")
    for ticket, where, port in (
        (Ticket(ann.user.id, one.id, session_of(ann)), two, None),
        (Ticket(ann.user.id, one.id, session_of(ann)), one, 3000),
        (Ticket(ann.user.id, one.id, session_of(ann), 3000), one, None),
    ):
        secret = f"ticket {where.slug} {port} {ticket.port}"
        await deployment.directory.sign_in_state().issue_ticket(digest(secret), ticket, 60)
        answer = await deployment.get(where, f"/_codehub/enter?ticket={secret}", port=port)
        assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    "to",
    [
        "//evil.test/",
        "https://evil.test/",
        "/\\evil.test",
        "/%2fevil.test",
        "javascript:alert(1)",
        "/_codehub/enter?x=1",
    ],
)
async def test_nobody_is_sent_elsewhere(deployment: Deployment, to: str) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    handed = await deployment.http.get(
        f"/open/{demo.slug}", params={"to": to}, headers={"host": PLATFORM, "cookie": f"{SESSION_COOKIE}={ann.session}"}
    )
    assert handed.headers["location"].startswith(f"http://{deployment.host(demo)}/_codehub/enter?ticket=")
    assert handed.headers["location"].endswith("&to=%2F")
    cookie = {"host": deployment.host(demo), "cookie": f"{VISIT_COOKIE}={await deployment.visit(ann, demo)}"}
    arrived = await deployment.http.get("/_codehub/arrived", params={"to": to}, headers=cookie)
    assert arrived.headers["location"] == "/"


async def test_only_one_s_own_is_opened(deployment: Deployment) -> None:
    ann, bob = await deployment.person(), await deployment.person("bob")
    demo = await deployment.workspace(ann)
    assert (await deployment.platform(f"/open/{demo.slug}", bob)).status_code == 404
    assert (await deployment.platform("/open/no-such-thing", bob)).status_code == 404
    assert (await deployment.platform("/open/..%2f..", bob)).status_code == 404
    assert (await deployment.platform(f"/open/{demo.slug}?port=99999", ann)).status_code == 404


# ── the platform ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_platform_s_own_requests_keep_their_credentials(deployment: Deployment) -> None:
    ann = await deployment.person()
    deployment.api.answer = lambda _: (
        b"HTTP/1.1 200 OK\r\nSet-Cookie: __Host-codehub=new; Path=/; Secure\r\nContent-Length: 2\r\n\r\nok"
    )
    answer = await deployment.platform("/api/v1/workspaces", ann, {"authorization": "Bearer chub_x"})
    assert answer.status_code == 200
    assert answer.headers["set-cookie"].startswith("__Host-codehub=new")
    (seen,) = deployment.api.seen
    assert seen.one("cookie") == f"{SESSION_COOKIE}={ann.session}"
    assert seen.one("authorization") == "Bearer chub_x"
    assert seen.one("x-forwarded-for") == "127.0.0.1"


async def test_a_host_that_is_nobody_s_is_refused(deployment: Deployment) -> None:
    for host in ("evil.test", f"a.b.{BASE}", f"99999--demo.{BASE}", f"-x.{BASE}", f"x--y.{BASE}"):
        answer = await deployment.http.get("/", headers={"host": host})
        assert (answer.status_code, problem(answer)) == (421, "unknown_host"), host
    assert deployment.api.seen == []


# ── by path ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_by_path_the_prefix_is_taken_off(deployment: Deployment) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    for _ in range(3):
        answer = await deployment.platform(f"/w/{demo.id}/static/x.js?y=1", ann, {"sec-fetch-site": "same-origin"})
        assert answer.status_code == 200
    assert {seen.target for seen in deployment.ide.seen} == {"/static/x.js?y=1"}
    assert all(seen.all("cookie") == [] for seen in deployment.ide.seen)
    bare = await deployment.platform(f"/w/{demo.id}", ann)
    assert (bare.status_code, bare.headers["location"]) == (303, f"/w/{demo.id}/")
    assert (await deployment.platform("/w/nonsense/", ann)).status_code == 404
    signed_out = await deployment.platform(f"/w/{demo.id}/x", headers=DIRECT)
    assert signed_out.headers["location"] == f"/signin?next=%2Fworkspaces%2F{demo.id}"


async def test_by_path_an_admin_has_only_their_own(deployment: Deployment) -> None:
    """Another's pages within the platform's origin could act as the admin who looks at them."""
    ann, root = await deployment.person(), await deployment.person("root", Role.ADMIN)
    demo, own = await deployment.workspace(ann), await deployment.workspace(root, name="own")
    assert (await deployment.platform(f"/w/{demo.id}/", root)).status_code == 404
    assert (await deployment.platform(f"/w/{own.id}/", root)).status_code == 200
    assert (await deployment.get(demo, "/", root)).status_code == 200


async def test_by_path_nothing_is_said_of_the_whole_origin(deployment: Deployment) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    deployment.ide.answer = lambda _: (
        b'HTTP/1.1 200 OK\r\nService-Worker-Allowed: /\r\nClear-Site-Data: "*"\r\nX-Own: 1\r\nContent-Length: 0\r\n\r\n'
    )
    by_path = await deployment.platform(f"/w/{demo.id}/sw.js", ann)
    assert by_path.headers["x-own"] == "1"
    assert not {"service-worker-allowed", "clear-site-data"} & set(by_path.headers)
    assert (await deployment.get(demo, "/sw.js", ann)).headers["service-worker-allowed"] == "/"


async def test_by_path_only_where_it_is_wanted() -> None:
    async with deployed(by_path=False) as deployment:
        ann = await deployment.person()
        demo = await deployment.workspace(ann)
        await deployment.platform(f"/w/{demo.id}/", ann)
        assert [seen.target for seen in deployment.api.seen] == [f"/w/{demo.id}/"]
        assert deployment.ide.seen == []


async def test_without_hosts_of_their_own_they_are_opened_by_path() -> None:
    async with deployed(workspace_url="http://hub.test/w/{id}/") as deployment:
        ann = await deployment.person()
        demo = await deployment.workspace(ann)
        handed = await deployment.platform(f"/open/{demo.slug}?to=/deep", ann)
        assert handed.headers["location"] == f"/w/{demo.id}/deep"


# ── ports ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_port_inside_is_reached_on_its_own_host(deployment: Deployment) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    nobody = await deployment.get(demo, "/", ann, HTML, port=3000)
    assert nobody.status_code == 502
    assert "3000" in nobody.text
    deployment.runtime.state.listen(demo.id, 3000, deployment.api.endpoint)
    assert (await deployment.get(demo, "/app", ann, HTML, port=3000)).status_code == 200
    assert [seen.target for seen in deployment.api.seen] == ["/app"]
    assert deployment.ide.seen == []


# ── phases ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("phase", "status"),
    [(Phase.STANDBY, 200), (Phase.ARCHIVED, 502), (Phase.PENDING, 502), (Phase.ERROR, 502)],
)
async def test_a_page_for_people_and_a_problem_for_programs(deployment: Deployment, phase: Phase, status: int) -> None:
    ann = await deployment.person()
    more = {"error_reason": ErrorReason.DATA_LOST} if phase is Phase.ERROR else {}
    demo = await deployment.workspace(ann, phase, **more)
    page = await deployment.get(demo, "/deep", ann, DIRECT)
    assert page.status_code == status
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    told = await deployment.get(demo, "/deep", ann)
    assert told.status_code in (502, 503)
    assert told.headers["content-type"] == "application/problem+json"
    assert deployment.row(demo.id).desired_state is demo.desired_state, "nothing is woken by looking"


async def test_a_deleted_one_is_gone(deployment: Deployment) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    assert (await deployment.get(demo, "/", ann)).status_code == 200
    await deployment.becomes(demo.id, phase=Phase.DELETED, desired_state=Desired.DELETED, deleted_at=demo.updated_at)
    await eventually(lambda: _status_is(deployment, demo, ann, 404), 30)


# ── what is remembered ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_hot_request_asks_nobody(deployment: Deployment) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    await deployment.get(demo, "/", ann, DIRECT)
    await eventually(lambda: deployment.proxy.authorizer.now > 0)
    before = len(deployment.outages.asked)
    for number in range(20):
        assert (await deployment.get(demo, f"/{number}", ann, DIRECT)).status_code == 200
    assert deployment.outages.asked[before:] == []


async def test_one_that_cannot_be_looked_at_keeps_nobody_from_the_others(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a runtime may fail with, the worker that serves everybody does not end for it."""
    ann = await deployment.person()
    odd, demo = await deployment.workspace(ann, name="odd"), await deployment.workspace(ann)
    for workspace in (odd, demo):
        assert (await deployment.get(workspace, "/", ann)).status_code == 200
    whole = deployment.runtime.endpoint
    looks: list[UUID] = []

    async def endpoint(workspace_id: UUID) -> Endpoint | None:
        looks.append(workspace_id)
        if workspace_id == odd.id:
            raise KeyError("a field that was always there")
        return await whole(workspace_id)

    monkeypatch.setattr(deployment.runtime, "endpoint", endpoint)
    await deployment.becomes(odd.id, name="odder")
    await eventually(lambda: looks.count(odd.id) > 1)
    await deployment.becomes(demo.id, phase=Phase.STANDBY, desired_state=Desired.STANDBY)
    await eventually(lambda: _status_is(deployment, demo, ann, 503), 30)
    monkeypatch.undo()
    await eventually(lambda: _status_is(deployment, odd, ann, 200), 30)


async def test_a_stop_is_noticed_and_so_is_the_next_start(deployment: Deployment) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    assert (await deployment.get(demo, "/", ann)).status_code == 200
    await deployment.becomes(demo.id, phase=Phase.STANDBY, desired_state=Desired.STANDBY)
    await eventually(lambda: _status_is(deployment, demo, ann, 503), 30)
    await deployment.becomes(demo.id, phase=Phase.RUNNING, desired_state=Desired.RUNNING)
    await eventually(lambda: _status_is(deployment, demo, ann, 200), 30)


async def test_whoever_cannot_hear_asks_again(deployment: Deployment) -> None:
    """While the bus is away, sign-outs and stops are found out from the database, within a moment."""
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    assert (await deployment.get(demo, "/", ann)).status_code == 200
    deployment.outages.away = ("bus.",)
    deployment.bus.state.sever()
    await deployment.workspace_access.identity.accounts.end_session(ann.user.id, session_of(ann), Actor("test"))
    await eventually(lambda: _status_is(deployment, demo, ann, 401), 30)


async def test_a_database_that_is_away_is_said_so(deployment: Deployment) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    secret = await deployment.visit(ann, demo)
    deployment.outages.away = ("views.", "visits.")
    answer = await deployment.get(demo, "/", headers={"cookie": f"{VISIT_COOKIE}={secret}", **HTML})
    assert answer.status_code == 503
    assert "text/html" in answer.headers["content-type"]


async def test_somebody_disabled_is_out(deployment: Deployment) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    assert (await deployment.get(demo, "/", ann)).status_code == 200
    accounts = deployment.workspace_access.identity.accounts
    await accounts.change_user(ann.user.id, lambda u, _n, now: disabled(u, now, 1), Actor("test"), "disable_user")
    await deployment.workspace_access.identity.revocations.user_disabled(ann.user.id)
    await eventually(lambda: _status_is(deployment, demo, ann, 401), 30)


@pytest.mark.parametrize(("host", "target"), [(f"demo.{BASE}", "/_codehub/state"), (PLATFORM, "/open/demo")])
async def test_a_decision_that_is_cancelled_before_it_begins_leaves_nothing_unawaited(
    deployment: Deployment, host: str, target: str
) -> None:
    head = parse_request(get(target, host=host).removesuffix(b"\r\n\r\n"), 100)
    verdict = deployment.proxy.authorizer.decide(head)
    assert isinstance(verdict, Pending)
    waiting = asyncio.ensure_future(verdict.answer)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    del waiting, verdict
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        gc.collect()
    assert not seen
