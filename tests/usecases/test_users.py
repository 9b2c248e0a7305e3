"""What admins do with accounts."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codehub.domain.errors import Conflict, Forbidden, Invalid, NotFound, Unauthenticated
from codehub.domain.identity import Caller, Role
from tests.simulation.virtual_time import run
from tests.usecases.accounts_harness import ADDRESS, AGENT, AccountsHarness


async def test_a_generated_password_is_returned_once_and_a_given_one_never(
    harness: AccountsHarness, admin: Caller
) -> None:
    ann, password = await harness.people.create(admin, "Ann", max_running=3)
    assert password
    assert (ann.username, ann.role, ann.max_running) == ("ann", Role.USER, 3)
    await harness.identity.sign_in("ann", password, ADDRESS, AGENT)
    _bob, shown = await harness.people.create(admin, "bob", password="correct horse battery")
    assert shown is None
    await harness.identity.sign_in("bob", "correct horse battery", ADDRESS, AGENT)


@pytest.mark.parametrize(
    ("username", "password"),
    [("", None), ("a b", None), ("x" * 65, None), ("ärger", None), ("ann", "short"), ("longname", "LongName ")],
)
async def test_bad_input_creates_nobody(
    harness: AccountsHarness, admin: Caller, username: str, password: str | None
) -> None:
    with pytest.raises(Invalid):
        await harness.people.create(admin, username, password=password)
    with pytest.raises(Conflict):
        await harness.people.create(admin, "ROOT")
    page, _cursor = await harness.people.list(admin)
    assert [user.username for user in page] == ["root"]


async def test_pages_hold_everybody_once(harness: AccountsHarness, admin: Caller) -> None:
    for number in range(7):
        await harness.people.create(admin, f"user{number}")
    names: list[str] = []
    cursor: str | None = None
    while True:
        page, cursor = await harness.people.list(admin, cursor, 3)
        names += [user.username for user in page]
        if cursor is None:
            break
    assert names == ["root", *(f"user{number}" for number in range(7))]


async def test_a_disabled_user_is_out_at_once_and_back_when_enabled(harness: AccountsHarness, admin: Caller) -> None:
    ann, password, secret = await harness.member(admin)
    await harness.people.disable(admin, ann.user.id)
    with pytest.raises(Unauthenticated):
        await harness.identity.caller(session_token=secret)
    with pytest.raises(Unauthenticated):
        await harness.identity.sign_in("ann", password, ADDRESS, AGENT)
    assert harness.messages() == [{"type": "user_disabled", "user_id": ann.user.owner_id}]
    await harness.people.enable(admin, ann.user.id)
    with pytest.raises(Unauthenticated):
        await harness.identity.caller(session_token=secret)
    await harness.identity.sign_in("ann", password, ADDRESS, AGENT)


async def test_a_reset_password_is_returned_once_and_ends_sessions(harness: AccountsHarness, admin: Caller) -> None:
    ann, old, secret = await harness.member(admin)
    password = await harness.people.reset_password(admin, ann.user.id)
    with pytest.raises(Unauthenticated):
        await harness.identity.caller(session_token=secret)
    with pytest.raises(Unauthenticated):
        await harness.identity.sign_in("ann", old, ADDRESS, AGENT)
    await harness.identity.sign_in("ann", password, ADDRESS, AGENT)
    assert harness.messages()[0]["session_ids"] == [ann.session_id]


async def test_limits_are_set_and_checked(harness: AccountsHarness, admin: Caller) -> None:
    ann, _password, _secret = await harness.member(admin)
    assert (await harness.people.set_max_running(admin, ann.user.id, 5)).max_running == 5
    assert (await harness.people.set_max_running(admin, ann.user.id, None)).max_running is None
    with pytest.raises(Invalid):
        await harness.people.set_max_running(admin, ann.user.id, -1)


async def test_ordinary_people_see_themselves_and_change_nobody(harness: AccountsHarness, admin: Caller) -> None:
    ann, _password, _secret = await harness.member(admin)
    people, someone = harness.people, admin.user.id
    assert await people.get(ann, ann.user.id) == ann.user
    forbidden: list[Callable[[], Awaitable[object]]] = [
        lambda: people.get(ann, someone),
        lambda: people.list(ann),
        lambda: people.create(ann, "eve"),
        lambda: people.disable(ann, someone),
        lambda: people.enable(ann, someone),
        lambda: people.set_role(ann, ann.user.id, Role.ADMIN),
        lambda: people.reset_password(ann, someone),
        lambda: people.set_max_running(ann, ann.user.id, 99),
    ]
    before = repr(harness.state)
    for ask in forbidden:
        with pytest.raises(Forbidden, match="Only an admin"):
            await ask()
    assert repr(harness.state) == before


async def test_nobody_is_nobody(harness: AccountsHarness, admin: Caller) -> None:
    for ask in (harness.people.get, harness.people.disable, harness.people.reset_password):
        with pytest.raises(NotFound):
            await ask(admin, uuid4())


STEPS = st.lists(st.tuples(st.sampled_from(["disable", "enable", "demote", "promote"]), st.integers(0, 2)), max_size=12)


@given(STEPS)
def test_there_is_always_an_admin(steps: list[tuple[str, int]]) -> None:
    async def story() -> None:
        harness = AccountsHarness()
        root = await harness.admin()
        others = [(await harness.people.create(root, name, Role.ADMIN))[0].id for name in ("ann", "bob")]
        ids: list[UUID] = [root.user.id, *others]
        for verb, number in steps:
            with suppress(Conflict):
                match verb:
                    case "disable":
                        await harness.people.disable(root, ids[number])
                    case "enable":
                        await harness.people.enable(root, ids[number])
                    case _:
                        role = Role.ADMIN if verb == "promote" else Role.USER
                        await harness.people.set_role(root, ids[number], role)
            people = harness.state.users.values()
            assert any(user.role is Role.ADMIN and user.disabled_at is None for user in people)

    run(story())
