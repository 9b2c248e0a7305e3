"""Personal tokens: never more than whoever made them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codehub.domain.credentials import TOKENS_PER_USER
from codehub.domain.errors import Conflict, Forbidden, Invalid, LimitReached, NotFound, Unauthenticated
from codehub.domain.identity import Caller, Role, Scope
from tests.simulation.virtual_time import run
from tests.usecases.accounts_harness import AccountsHarness

ALL = [Scope.READ, Scope.WRITE, Scope.ADMIN]


async def test_a_token_s_secret_is_shown_once_and_kept_nowhere(harness: AccountsHarness, admin: Caller) -> None:
    token, secret = await harness.tokens.create(admin, " ci ", [Scope.READ])
    assert secret.startswith("chub_")
    assert len(secret) >= len("chub_") + 32
    assert secret not in repr(harness.state)
    assert token.name == "ci"
    caller = await harness.identity.caller(bearer=secret)
    assert (caller.user, caller.scopes, caller.credential) == (admin.user, {Scope.READ}, f"token:{token.id}")
    assert caller.session_id is None
    assert [listed.id for listed in await harness.tokens.list(caller)] == [token.id]


async def test_a_reader_writes_nothing(harness: AccountsHarness, admin: Caller) -> None:
    _token, secret = await harness.tokens.create(admin, "ci", [Scope.READ])
    reader = await harness.identity.caller(bearer=secret)
    with pytest.raises(Forbidden, match="lacks the scope write"):
        await harness.tokens.create(reader, "more", [Scope.READ])
    with pytest.raises(Forbidden):
        await harness.people.list(reader)


async def test_only_an_admin_s_token_may_be_an_admin_s(harness: AccountsHarness, admin: Caller) -> None:
    ann, _password, _secret = await harness.member(admin)
    with pytest.raises(Forbidden, match="Only an admin"):
        await harness.tokens.create(ann, "ci", ALL)
    _token, secret = await harness.tokens.create(admin, "ci", ALL)
    await harness.people.list(await harness.identity.caller(bearer=secret))


@given(st.sets(st.sampled_from(ALL), min_size=1))
def test_a_token_makes_no_other_whatever_it_may(scopes: set[Scope]) -> None:
    """One that it made would live on when the first is revoked."""

    async def story() -> None:
        harness = AccountsHarness()
        _token, secret = await harness.tokens.create(await harness.admin(), "ci", scopes)
        caller = await harness.identity.caller(bearer=secret)
        assert set(caller.scopes) == scopes
        with pytest.raises(Conflict if Scope.WRITE in scopes else Forbidden) as refused:
            await harness.tokens.create(caller, "more", [Scope.READ])
        assert refused.value.code == ("needs_session" if Scope.WRITE in scopes else "forbidden")
        assert len(harness.state.tokens) == 1

    run(story())


async def test_a_token_ends(harness: AccountsHarness, admin: Caller) -> None:
    _token, secret = await harness.tokens.create(admin, "ci", ALL, 3600)
    await harness.identity.caller(bearer=secret)
    harness.clock.pass_by(3601)
    with pytest.raises(Unauthenticated):
        await harness.identity.caller(bearer=secret)


@pytest.mark.parametrize("seconds", [0, 59, -1, 366 * 24 * 3600 + 1])
async def test_lifetimes_are_bounded(harness: AccountsHarness, admin: Caller, seconds: int) -> None:
    with pytest.raises(Invalid):
        await harness.tokens.create(admin, "ci", [Scope.READ], seconds)


@pytest.mark.parametrize("name", ["", "  ", "x" * 101, "two\nlines", "\ud800"])
async def test_names_are_printable(harness: AccountsHarness, admin: Caller, name: str) -> None:
    with pytest.raises(Invalid):
        await harness.tokens.create(admin, name, [Scope.READ])


async def test_a_token_can_do_something_and_there_are_not_too_many(harness: AccountsHarness, admin: Caller) -> None:
    with pytest.raises(Forbidden, match="at least 'read'"):
        await harness.tokens.create(admin, "ci", [])
    for _ in range(TOKENS_PER_USER):
        await harness.tokens.create(admin, "ci", [Scope.READ])
    with pytest.raises(LimitReached):
        await harness.tokens.create(admin, "ci", [Scope.READ])


async def test_a_revoked_token_is_out_at_once_and_said_so(harness: AccountsHarness, admin: Caller) -> None:
    ann, _password, _secret = await harness.member(admin)
    token, secret = await harness.tokens.create(ann, "ci", [Scope.READ])
    with pytest.raises(NotFound):
        await harness.tokens.revoke(admin, token.id)
    await harness.tokens.revoke(ann, token.id)
    with pytest.raises(Unauthenticated):
        await harness.identity.caller(bearer=secret)
    with pytest.raises(NotFound):
        await harness.tokens.revoke(ann, token.id)
    assert harness.messages() == [{"type": "token_revoked", "user_id": ann.user.owner_id, "token_id": str(token.id)}]


async def test_a_demoted_admin_s_token_is_demoted_too(harness: AccountsHarness, admin: Caller) -> None:
    bob, _password, _secret = await harness.member(admin, "bob", Role.ADMIN)
    _token, secret = await harness.tokens.create(bob, "ci", ALL)
    await harness.people.set_role(admin, bob.user.id, Role.USER)
    with pytest.raises(Forbidden):
        await harness.people.list(await harness.identity.caller(bearer=secret))
