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
from tests.proxy.hub import Hub, Somebody, handshake_and_echo, hub_on, session_of

KEY = b"\x01\x02\x03\x04"


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with hub_on() as opened:
        opened.ide.handler = handshake_and_echo
        yield opened


def masked(payload: bytes) -> bytes:
    return bytes((0x82, 0x80 | len(payload))) + KEY + bytes(b ^ KEY[n % 4] for n, b in enumerate(payload))


# ── let in ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_messages_pass_both_ways(hub: Hub) -> None:
    ann = await hub.person()
    socket = await hub.open_socket(await hub.workspace(ann), ann)
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
async def test_a_socket_needs_its_exact_origin(hub: Hub, origin: str, status: int) -> None:
    ann = await hub.person()
    demo = await hub.workspace(ann)
    host, secret = hub.host(demo), await hub.visit(ann, demo)
    asked = await hub.socket(origin.format(host=host), f"Cookie: {VISIT_COOKIE}={secret}", host=host)
    assert asked.status == status
    asked.raw.close()


async def test_a_token_s_socket_needs_none(hub: Hub) -> None:
    ann = await hub.person()
    demo = await hub.workspace(ann)
    asked = await hub.socket(f"Authorization: Bearer {ann.token}", host=hub.host(demo))
    assert asked.status == 101
    asked.raw.close()


async def test_the_ports_of_a_workspace_may_use_each_other(hub: Hub) -> None:
    ann = await hub.person()
    demo = await hub.workspace(ann)
    hub.api.handler = handshake_and_echo
    hub.runtime.world.listen(demo.id, 3000, hub.api.endpoint)
    host, secret = hub.host(demo, 3000), await hub.visit(ann, demo, 3000)
    for origin, status in ((hub.host(demo, 4000), 101), (host, 101), ("4000--other.ws.test", 403)):
        asked = await hub.socket(f"Origin: http://{origin}", f"Cookie: {VISIT_COOKIE}={secret}", host=host)
        assert asked.status == status, origin
        asked.raw.close()


Credential = Callable[[Hub, Workspace], Awaitable[str]]


async def nothing(hub: Hub, demo: Workspace) -> str:
    return "X-None: 1"


async def garbage(hub: Hub, demo: Workspace) -> str:
    return f"Cookie: {VISIT_COOKIE}=garbage"


async def anothers(hub: Hub, demo: Workspace) -> str:
    bob = await hub.person("bob")
    return f"Cookie: {VISIT_COOKIE}={await hub.visit(bob, await hub.workspace(bob, name='own'))}"


async def of_a_port(hub: Hub, demo: Workspace) -> str:
    return f"Cookie: {VISIT_COOKIE}={await hub.visit(await _owner(hub, demo), demo, 3000)}"


async def signed_out(hub: Hub, demo: Workspace) -> str:
    ann = await _owner(hub, demo)
    secret = await hub.visit(ann, demo)
    await hub.entrance.identity.accounts.end_session(ann.user.id, session_of(ann), Actor("test"))
    return f"Cookie: {VISIT_COOKIE}={secret}"


async def of_a_reader(hub: Hub, demo: Workspace) -> str:
    owner = await _owner(hub, demo)
    maker = owner.user
    _, token = await hub.tokens.create(Caller(maker, f"session:{'0' * 64}", is_fresh=True), "reads", [Scope.READ])
    return f"Authorization: Bearer {token}"


async def _owner(hub: Hub, demo: Workspace) -> Somebody:
    user = next(u for u in hub.database.world.people.users.values() if u.owner_id == demo.owner_id)
    _, session = await hub.entrance.identity.open_session(user, "192.0.2.1", "test")
    return Somebody(user, session, "")


@pytest.mark.parametrize("credential", [nothing, garbage, anothers, of_a_port, signed_out, of_a_reader])
async def test_what_lets_no_request_in_lets_no_socket_in(hub: Hub, credential: Credential) -> None:
    demo = await hub.workspace(await hub.person())
    line, host = await credential(hub, demo), hub.host(demo)
    asked = await hub.socket(f"Origin: http://{host}", line, host=host)
    assert asked.status in (401, 404)
    name, _, value = line.partition(": ")
    plain = await hub.get(demo, "/", headers={name: value})
    assert plain.status_code == asked.status
    assert hub.ide.connections == 0
    asked.raw.close()


# ── and out ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def sign_out(hub: Hub, ann: Somebody) -> None:
    caller = await hub.entrance.identity.caller(session_token=ann.session)
    await hub.entrance.identity.sign_out(caller)


async def disable(hub: Hub, ann: Somebody) -> None:
    accounts = hub.entrance.identity.accounts
    await accounts.change_user(ann.user.id, lambda u, _n, now: disabled(u, now, 1), Actor("test"), "disable_user")
    await hub.entrance.identity.announcements.user_disabled(ann.user.id)


@pytest.mark.parametrize("leaves", [sign_out, disable])
async def test_who_may_no_longer_be_here_is_shown_out(
    hub: Hub, leaves: Callable[[Hub, Somebody], Awaitable[None]]
) -> None:
    ann = await hub.person()
    socket = await hub.open_socket(await hub.workspace(ann), ann)
    await leaves(hub, ann)
    assert await socket.close_code() == 1008
    await eventually(lambda: hub.ide.open == 0)


async def test_a_revoked_token_s_sockets_end(hub: Hub) -> None:
    ann = await hub.person()
    demo = await hub.workspace(ann)
    socket = await hub.socket(f"Authorization: Bearer {ann.token}", host=hub.host(demo))
    assert socket.status == 101
    found = await hub.entrance.identity.accounts.token(digest(ann.token))
    assert found is not None
    caller = await hub.entrance.identity.caller(session_token=ann.session)
    await hub.tokens.revoke(caller, found[0].id)
    assert await socket.close_code() == 1008


async def test_a_former_admin_s_sockets_end(hub: Hub) -> None:
    ann, root = await hub.person(), await hub.person("root", Role.ADMIN)
    socket = await hub.open_socket(await hub.workspace(ann), root)
    accounts = hub.entrance.identity.accounts
    await accounts.change_user(root.user.id, lambda u, _n, _t: changed_role(u, Role.USER, 1), Actor("x"), "change_role")
    await hub.entrance.identity.announcements.role_changed(root.user.id)
    assert await socket.close_code() == 1008


async def test_a_lost_announcement_is_made_good(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session ended and nobody told us: the next look finds out."""
    monkeypatch.setattr("codehub.proxy.app.RECHECK_SECONDS", 0.1)
    monkeypatch.setattr("codehub.proxy.access.session_cache.TRUST_SECONDS", 0.1)
    async with hub_on() as short:
        short.ide.handler = handshake_and_echo
        ann = await short.person()
        socket = await short.open_socket(await short.workspace(ann), ann)
        await short.entrance.identity.accounts.end_session(ann.user.id, session_of(ann), Actor("test"))
        assert await socket.close_code() == 1008


async def test_a_stop_ends_the_workspace_s_sockets_and_no_others(hub: Hub) -> None:
    ann = await hub.person()
    one, two = await hub.workspace(ann), await hub.workspace(ann, name="two")
    ends, stays = await hub.open_socket(one, ann), await hub.open_socket(two, ann)
    await hub.becomes(one.id, operation=Operation.STOPPING, desired_state=Desired.STANDBY)
    assert await ends.close_code() == 1001
    stays.raw.write(masked(b"x"))
    assert await stays.raw.reader.readexactly(3) == b"\x82\x01x"
    stays.raw.close()


async def test_a_restart_between_two_looks_is_another_workspace(hub: Hub) -> None:
    ann = await hub.person()
    demo = await hub.workspace(ann)
    socket = await hub.open_socket(demo, ann)
    await hub.becomes(demo.id, home=replace(demo.home, ready_instance="another"))
    assert await socket.close_code() == 1001


# ── who is at work ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_work_reaches_the_store_and_an_idle_socket_does_not(hub: Hub) -> None:
    ann = await hub.person()
    demo, idle = await hub.workspace(ann), await hub.workspace(ann, name="idle")
    hub.runtime.world.listen(demo.id, 3000, hub.ide.endpoint)
    hub.runtime.world.listen(idle.id, 3000, hub.ide.endpoint)
    await hub.open_socket(idle, ann)
    busy = await hub.open_socket(demo, ann)
    busy.raw.write(masked(b"not VS Code's, so it counts"))

    async def it_is_known() -> bool:
        await hub.door.activities.flush()
        return demo.id in await hub.activity.read()

    await eventually(it_is_known, 30)
    assert idle.id not in await hub.activity.read()
    assert hub.row(demo.id).phase is Phase.RUNNING
