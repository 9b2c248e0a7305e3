"""Sockets are let in by the rule that lets requests in, by their exact Origin, and for as long as that holds."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest

from codehub.domain.identity import Caller, Role, Scope, changed_role, disabled
from codehub.domain.workspace import Desired, Operation, Phase, Workspace
from codehub.ports.stores import Actor
from codehub.proxy.access.session_cache import VISIT_COOKIE
from codehub.usecases.identity import digest
from tests.eventually import eventually
from tests.proxy.deployment import Deployment, SignedInUser, deployed, handshake_and_echo, session_of

KEY = b"\x01\x02\x03\x04"


@pytest.fixture
async def deployment() -> AsyncIterator[Deployment]:
    async with deployed() as opened:
        opened.ide.handler = handshake_and_echo
        yield opened


def masked(payload: bytes) -> bytes:
    return bytes((0x82, 0x80 | len(payload))) + KEY + bytes(b ^ KEY[n % 4] for n, b in enumerate(payload))


# ── let in ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_messages_pass_both_ways(deployment: Deployment) -> None:
    ann = await deployment.person()
    socket = await deployment.open_socket(await deployment.workspace(ann), ann)
    socket.raw.write(masked(b"hello"))
    assert await socket.raw.reader.readexactly(7) == b"\x82\x05hello"
    socket.raw.close()


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("Origin: http://{host}", 101),
        ("Origin: https://{host}", 403),
        ("Origin: http://{host}.evil.test", 403),
        ("Origin: http://evil.test", 403),
        ("Origin: http://hub.test", 403),
        ("Origin: http://3000--{host}", 403),
        ("Origin: null", 403),
        ("X-None: 1", 403),
    ],
)
async def test_a_socket_needs_its_exact_origin(deployment: Deployment, origin: str, status: int) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    host, secret = deployment.host(demo), await deployment.visit(ann, demo)
    asked = await deployment.socket(origin.format(host=host), f"Cookie: {VISIT_COOKIE}={secret}", host=host)
    assert asked.status == status
    asked.raw.close()


async def test_a_token_s_socket_needs_none(deployment: Deployment) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    asked = await deployment.socket(f"Authorization: Bearer {ann.token}", host=deployment.host(demo))
    assert asked.status == 101
    asked.raw.close()


async def test_the_ports_of_a_workspace_may_use_each_other(deployment: Deployment) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    deployment.api.handler = handshake_and_echo
    deployment.runtime.state.listen(demo.id, 3000, deployment.api.endpoint)
    host, secret = deployment.host(demo, 3000), await deployment.visit(ann, demo, 3000)
    for origin, status in ((deployment.host(demo, 4000), 101), (host, 101), ("4000--other.ws.test", 403)):
        asked = await deployment.socket(f"Origin: http://{origin}", f"Cookie: {VISIT_COOKIE}={secret}", host=host)
        assert asked.status == status, origin
        asked.raw.close()


Credential = Callable[[Deployment, Workspace], Awaitable[str]]


async def nothing(deployment: Deployment, demo: Workspace) -> str:
    return "X-None: 1"


async def garbage(deployment: Deployment, demo: Workspace) -> str:
    return f"Cookie: {VISIT_COOKIE}=garbage"


async def anothers(deployment: Deployment, demo: Workspace) -> str:
    bob = await deployment.person("bob")
    return f"Cookie: {VISIT_COOKIE}={await deployment.visit(bob, await deployment.workspace(bob, name='own'))}"


async def of_a_port(deployment: Deployment, demo: Workspace) -> str:
    return f"Cookie: {VISIT_COOKIE}={await deployment.visit(await _owner(deployment, demo), demo, 3000)}"


async def signed_out(deployment: Deployment, demo: Workspace) -> str:
    ann = await _owner(deployment, demo)
    secret = await deployment.visit(ann, demo)
    await deployment.workspace_access.identity.accounts.end_session(ann.user.id, session_of(ann), Actor("test"))
    return f"Cookie: {VISIT_COOKIE}={secret}"


async def of_a_reader(deployment: Deployment, demo: Workspace) -> str:
    owner = await _owner(deployment, demo)
    maker = owner.user
    _, token = await deployment.tokens.create(
        Caller(maker, f"session:{'0' * 64}", is_fresh=True), "reads", [Scope.READ]
    )
    return f"Authorization: Bearer {token}"


async def _owner(deployment: Deployment, demo: Workspace) -> SignedInUser:
    user = next(u for u in deployment.database.state.accounts.users.values() if u.owner_id == demo.owner_id)
    _, session = await deployment.workspace_access.identity.open_session(user, "192.0.2.1", "test")
    return SignedInUser(user, session, "")


@pytest.mark.parametrize("credential", [nothing, garbage, anothers, of_a_port, signed_out, of_a_reader])
async def test_what_lets_no_request_in_lets_no_socket_in(deployment: Deployment, credential: Credential) -> None:
    demo = await deployment.workspace(await deployment.person())
    line, host = await credential(deployment, demo), deployment.host(demo)
    asked = await deployment.socket(f"Origin: http://{host}", line, host=host)
    assert asked.status in (401, 404)
    name, _, value = line.partition(": ")
    plain = await deployment.get(demo, "/", headers={name: value})
    assert plain.status_code == asked.status
    assert deployment.ide.connections == 0
    asked.raw.close()


# ── and out ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def sign_out(deployment: Deployment, ann: SignedInUser) -> None:
    caller = await deployment.workspace_access.identity.caller(session_token=ann.session)
    await deployment.workspace_access.identity.sign_out(caller)


async def disable(deployment: Deployment, ann: SignedInUser) -> None:
    accounts = deployment.workspace_access.identity.accounts
    await accounts.change_user(ann.user.id, lambda u, _n, now: disabled(u, now, 1), Actor("test"), "disable_user")
    await deployment.workspace_access.identity.revocations.user_disabled(ann.user.id)


@pytest.mark.parametrize("leaves", [sign_out, disable])
async def test_sockets_end_with_the_right_to_them(
    deployment: Deployment, leaves: Callable[[Deployment, SignedInUser], Awaitable[None]]
) -> None:
    ann = await deployment.person()
    socket = await deployment.open_socket(await deployment.workspace(ann), ann)
    await leaves(deployment, ann)
    assert await socket.close_code() == 1008
    await eventually(lambda: deployment.ide.open == 0)


async def test_a_revoked_token_s_sockets_end(deployment: Deployment) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    socket = await deployment.socket(f"Authorization: Bearer {ann.token}", host=deployment.host(demo))
    assert socket.status == 101
    found = await deployment.workspace_access.identity.accounts.token(digest(ann.token))
    assert found is not None
    caller = await deployment.workspace_access.identity.caller(session_token=ann.session)
    await deployment.tokens.revoke(caller, found[0].id)
    assert await socket.close_code() == 1008


async def test_a_former_admin_s_sockets_end(deployment: Deployment) -> None:
    ann, root = await deployment.person(), await deployment.person("root", Role.ADMIN)
    socket = await deployment.open_socket(await deployment.workspace(ann), root)
    accounts = deployment.workspace_access.identity.accounts
    await accounts.change_user(root.user.id, lambda u, _n, _t: changed_role(u, Role.USER, 1), Actor("x"), "change_role")
    await deployment.workspace_access.identity.revocations.role_changed(root.user.id)
    assert await socket.close_code() == 1008


async def test_a_lost_announcement_is_made_good(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session ended and nobody told us: the next look finds out."""
    monkeypatch.setattr("codehub.proxy.app.RECHECK_SECONDS", 0.1)
    monkeypatch.setattr("codehub.proxy.access.session_cache.TRUST_SECONDS", 0.1)
    async with deployed() as short:
        short.ide.handler = handshake_and_echo
        ann = await short.person()
        socket = await short.open_socket(await short.workspace(ann), ann)
        await short.workspace_access.identity.accounts.end_session(ann.user.id, session_of(ann), Actor("test"))
        assert await socket.close_code() == 1008


async def test_a_stop_ends_the_workspace_s_sockets_and_no_others(deployment: Deployment) -> None:
    ann = await deployment.person()
    one, two = await deployment.workspace(ann), await deployment.workspace(ann, name="two")
    ends, stays = await deployment.open_socket(one, ann), await deployment.open_socket(two, ann)
    await deployment.becomes(one.id, operation=Operation.STOPPING, desired_state=Desired.STANDBY)
    await eventually(lambda: deployment.knows(one.slug, Phase.RUNNING))
    ends.raw.write(masked(b"x"))  # while it is stopping, editors save
    assert await ends.raw.reader.readexactly(3) == b"\x82\x01x"
    await deployment.becomes(one.id, operation=Operation.NONE, phase=Phase.STANDBY)
    assert await ends.close_code() == 1001
    stays.raw.write(masked(b"x"))
    assert await stays.raw.reader.readexactly(3) == b"\x82\x01x"
    stays.raw.close()


async def test_a_restart_between_two_looks_is_another_workspace(deployment: Deployment) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    socket = await deployment.open_socket(demo, ann)
    await deployment.becomes(demo.id, home=replace(demo.home, ready_instance="another"))
    assert await socket.close_code() == 1001


# ── who is at work ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_work_reaches_the_store_and_an_idle_socket_does_not(deployment: Deployment) -> None:
    ann = await deployment.person()
    demo, idle = await deployment.workspace(ann), await deployment.workspace(ann, name="idle")
    deployment.runtime.state.listen(demo.id, 3000, deployment.ide.endpoint)
    deployment.runtime.state.listen(idle.id, 3000, deployment.ide.endpoint)
    await deployment.open_socket(idle, ann)
    busy = await deployment.open_socket(demo, ann)
    busy.raw.write(masked(b"not VS Code's, so it counts"))

    async def it_is_known() -> bool:
        await deployment.proxy.activities.flush()
        return demo.id in await deployment.activity.read()

    await eventually(it_is_known, 30)
    assert idle.id not in await deployment.activity.read()
    assert deployment.row(demo.id).phase is Phase.RUNNING


async def test_somebody_who_comes_back_is_known_at_once_and_who_stays_a_flush_later(deployment: Deployment) -> None:
    """Else who comes back in the last half minute before an idle stop would be stopped all the same."""
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    activities = deployment.proxy.activities

    async def it_is_known() -> bool:
        return demo.id in await deployment.activity.read()

    await deployment.get(demo, "/somewhere", ann)
    await eventually(it_is_known)
    await deployment.activity.forget(await deployment.activity.read())
    await deployment.get(demo, "/elsewhere", ann)
    await eventually(lambda: demo.id in activities._times)
    assert not await it_is_known()
    await activities.flush()
    assert await it_is_known()
