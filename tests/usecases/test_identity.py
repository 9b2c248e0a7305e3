"""Signing in and out, sessions, passwords, and the first run."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from codehub.adapters.memory import FaultyNetwork, MemoryBus, MemoryPasswords
from codehub.adapters.memory.fault_injection import Fault, FaultKind
from codehub.adapters.system import SystemClock
from codehub.domain.credentials import LONGEST_WAIT_SECONDS, PACE_ANYWHERE_SECONDS, TRIES_PER_ACCOUNT_ANYWHERE
from codehub.domain.errors import (
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    TooManyTries,
    Unauthenticated,
)
from codehub.domain.identity import Caller, Role, Scope
from codehub.ports.stores import Actor
from codehub.usecases.identity import WRONG
from tests.usecases.accounts_harness import ADDRESS, AGENT, RULES, AccountsHarness


async def test_signing_in_gives_a_session_that_says_who_asks(harness: AccountsHarness, admin: Caller) -> None:
    caller, password, secret = await harness.member(admin)
    assert await harness.identity.caller(session_token=secret, address=ADDRESS) == caller
    assert caller.session_id
    assert secret not in repr(harness.state)
    assert password not in repr(harness.state)
    [session] = await harness.identity.sessions(caller)
    assert (session.id, session.address, session.agent) == (caller.session_id, ADDRESS, AGENT)
    assert [entry.actor for entry in harness.audit("sign_in")] == ["root", "ann"]


async def test_case_and_blanks_around_a_username_do_not_matter(harness: AccountsHarness, admin: Caller) -> None:
    _caller, password, _secret = await harness.member(admin, "Ann")
    again, _secret = await harness.identity.sign_in("  ANN ", password, ADDRESS, AGENT)
    assert again.user.username == "ann"


@pytest.mark.parametrize("token", [None, "", "x", "é" * 5000, "\ud800"])
async def test_a_secret_of_nobody_is_nobody(harness: AccountsHarness, token: str | None) -> None:
    with pytest.raises(Unauthenticated):
        await harness.identity.caller(session_token=token)
    with pytest.raises(Unauthenticated):
        await harness.identity.caller(bearer=token or "")


async def test_waiting_grows_with_failures_and_ends_with_success(harness: AccountsHarness, admin: Caller) -> None:
    _caller, password, _secret = await harness.member(admin)
    for _ in range(5):
        with pytest.raises(Unauthenticated):
            await harness.identity.sign_in("ann", "wrong password", ADDRESS, AGENT)
    for wait in (1, 2, 4):
        with pytest.raises(TooManyTries, match=f"Wait {wait} second") as refused:
            await harness.identity.sign_in("ann", password, ADDRESS, AGENT)
        assert refused.value.retry_after == wait
        harness.clock.pass_by(wait)
        with pytest.raises(Unauthenticated):
            await harness.identity.sign_in("ann", "wrong password", ADDRESS, AGENT)
    harness.clock.pass_by(8)
    await harness.identity.sign_in("ann", password, ADDRESS, AGENT)
    with pytest.raises(Unauthenticated):
        await harness.identity.sign_in("ann", "wrong password", ADDRESS, AGENT)


async def test_nobody_waits_longer_than_a_quarter_of_an_hour(harness: AccountsHarness) -> None:
    waits = []
    for _ in range(40):
        try:
            await harness.identity.sign_in("ann", "wrong password", ADDRESS, AGENT)
        except TooManyTries as refused:
            waits.append(refused.retry_after)
            harness.clock.pass_by(refused.retry_after)
        except Unauthenticated:
            pass
    assert max(waits) == LONGEST_WAIT_SECONDS


async def test_one_address_cannot_try_many_accounts(harness: AccountsHarness, admin: Caller) -> None:
    _caller, password, _secret = await harness.member(admin)
    for number in range(20):
        with pytest.raises(Unauthenticated):
            await harness.identity.sign_in(f"guess{number}", "wrong password", "2001:db8::1", AGENT)
    with pytest.raises(TooManyTries):
        await harness.identity.sign_in("ann", password, "2001:db8::2", AGENT)
    await harness.identity.sign_in("ann", password, "2001:db8:1::2", AGENT)


async def guess(harness: AccountsHarness, username: str, address: str) -> float:
    """What is left to wait; 0: it was tried, and was wrong."""
    try:
        await harness.identity.sign_in(username, "wrong password", address, AGENT)
    except TooManyTries as refused:
        return refused.retry_after
    except Unauthenticated:
        return 0
    raise AssertionError("a guess was right")


async def test_a_stranger_who_guesses_all_day_keeps_nobody_out(harness: AccountsHarness, admin: Caller) -> None:
    """From another address the owner waits no longer than a second, and a session changes the password at any time."""
    caller, password, _secret = await harness.member(admin)
    guesses, until = 0, harness.clock.at + timedelta(days=1)
    while harness.clock.at < until:
        wait = await guess(harness, "ann", "203.0.113.9")
        guesses += not wait
        await harness.identity.change_password(caller, password, password)
        harness.clock.pass_by(PACE_ANYWHERE_SECONDS)
        if wait > 60:
            await harness.identity.sign_in("ann", password, ADDRESS, AGENT)
        harness.clock.pass_by(wait)
    assert TRIES_PER_ACCOUNT_ANYWHERE < guesses < 150


async def test_guesses_from_many_addresses_are_one_a_second(harness: AccountsHarness, admin: Caller) -> None:
    await harness.member(admin)
    guesses = 0
    for _ in range(60):
        for _ in range(20):
            address = f"198.51.{guesses // 250}.{guesses % 250}"
            guesses += not await guess(harness, "ann", address)
        harness.clock.pass_by(1)
    assert guesses == TRIES_PER_ACCOUNT_ANYWHERE + 57, "fifty in three seconds, then one in each"
    assert await guess(harness, "bob", "198.51.0.1") == 0


async def test_behind_one_address_a_guesser_is_slowed_as_anybody(harness: AccountsHarness, admin: Caller) -> None:
    """As when a proxy's word on who asks is not believed: the owner waits too, and is told how long."""
    _caller, password, _secret = await harness.member(admin)
    while not (wait := await guess(harness, "ann", ADDRESS)):
        pass
    with pytest.raises(TooManyTries):
        await harness.identity.sign_in("ann", password, ADDRESS, AGENT)
    harness.clock.pass_by(wait)
    await harness.identity.sign_in("ann", password, ADDRESS, AGENT)


async def test_who_signs_in_does_not_forgive_the_others_guesses(harness: AccountsHarness, admin: Caller) -> None:
    _caller, password, _secret = await harness.member(admin)
    for number in range(TRIES_PER_ACCOUNT_ANYWHERE):
        assert await guess(harness, "ann", f"198.51.100.{number}") == 0
    harness.clock.pass_by(1)
    await harness.identity.sign_in("ann", password, ADDRESS, AGENT)
    assert await guess(harness, "ann", "203.0.113.9") == 1


async def test_sessions_slide_and_end(harness: AccountsHarness, admin: Caller) -> None:
    _caller, _password, secret = await harness.member(admin)
    for _ in range(13):
        harness.clock.pass_by(RULES.idle_seconds * 0.9)
        await harness.identity.caller(session_token=secret)
    harness.clock.pass_by(RULES.idle_seconds * 0.9)
    with pytest.raises(Unauthenticated):
        await harness.identity.caller(session_token=secret)


async def test_signing_out_ends_that_session_alone_and_says_so(harness: AccountsHarness, admin: Caller) -> None:
    caller, password, secret = await harness.member(admin)
    _other, other_secret = await harness.identity.sign_in("ann", password, ADDRESS, AGENT)
    await harness.identity.sign_out(caller)
    await harness.identity.sign_out(caller)
    with pytest.raises(Unauthenticated):
        await harness.identity.caller(session_token=secret)
    await harness.identity.caller(session_token=other_secret)
    assert harness.messages() == [
        {"type": "signed_out", "user_id": caller.user.owner_id, "session_ids": [caller.session_id]}
    ]


async def test_a_session_is_revoked_by_its_owner_only(harness: AccountsHarness, admin: Caller) -> None:
    caller, password, secret = await harness.member(admin)
    other, other_secret = await harness.identity.sign_in("ann", password, ADDRESS, AGENT)
    assert other.session_id
    with pytest.raises(NotFound):
        await harness.identity.revoke_session(admin, other.session_id)
    await harness.identity.revoke_session(caller, other.session_id)
    with pytest.raises(Unauthenticated):
        await harness.identity.caller(session_token=other_secret)
    await harness.identity.caller(session_token=secret)
    assert harness.messages()[-1]["session_ids"] == [other.session_id]


async def test_a_bus_that_is_down_does_not_keep_anybody_signed_in(harness: AccountsHarness, admin: Caller) -> None:
    caller, _password, secret = await harness.member(admin)
    harness.bus._network = FaultyNetwork(SystemClock(), lambda _name: Fault(FaultKind.FAIL))
    assert isinstance(harness.bus, MemoryBus)
    await harness.identity.sign_out(caller)
    with pytest.raises(Unauthenticated):
        await harness.identity.caller(session_token=secret)


async def test_a_changed_password_ends_the_other_sessions(harness: AccountsHarness, admin: Caller) -> None:
    caller, old, secret = await harness.member(admin)
    other, other_secret = await harness.identity.sign_in("ann", old, ADDRESS, AGENT)
    await harness.identity.change_password(caller, old, "correct horse battery")
    await harness.identity.caller(session_token=secret)
    with pytest.raises(Unauthenticated):
        await harness.identity.caller(session_token=other_secret)
    with pytest.raises(Unauthenticated):
        await harness.identity.sign_in("ann", old, ADDRESS, AGENT)
    await harness.identity.sign_in("ann", "correct horse battery", ADDRESS, AGENT)
    assert harness.messages()[-1]["session_ids"] == [other.session_id]


async def test_changing_a_password_takes_the_old_one_and_guessing_it_waits(
    harness: AccountsHarness, admin: Caller
) -> None:
    caller, old, _secret = await harness.member(admin)
    for _ in range(5):
        with pytest.raises(Forbidden):
            await harness.identity.change_password(caller, "wrong password", "correct horse battery")
    with pytest.raises(TooManyTries):
        await harness.identity.change_password(caller, old, "correct horse battery")
    await harness.identity.sign_in("ann", old, ADDRESS, AGENT)


@pytest.mark.parametrize("password", ["", "short", "x" * 1025, "long-name"])
async def test_a_bad_new_password_changes_nothing(harness: AccountsHarness, admin: Caller, password: str) -> None:
    caller, old, _secret = await harness.member(admin, "long-name")
    with pytest.raises(Invalid):
        await harness.identity.change_password(caller, old, password)
    await harness.identity.sign_in("long-name", old, ADDRESS, AGENT)


async def test_a_token_changes_no_password_and_signs_nobody_out(harness: AccountsHarness, admin: Caller) -> None:
    caller, old, _secret = await harness.member(admin)
    _token, secret = await harness.tokens.create(caller, "ci", [Scope.READ, Scope.WRITE])
    by_token = await harness.identity.caller(bearer=secret)
    with pytest.raises(Conflict):
        await harness.identity.change_password(by_token, old, "correct horse battery")
    with pytest.raises(Conflict):
        await harness.identity.sign_out(by_token)


async def test_an_old_hash_is_renewed_at_sign_in(harness: AccountsHarness, admin: Caller) -> None:
    caller, password, _secret = await harness.member(admin)
    before = harness.state.password_hashes[caller.user.id]
    harness.passwords.generation = 2
    await harness.identity.sign_in("ann", password, ADDRESS, AGENT)
    renewed = harness.state.password_hashes[caller.user.id]
    assert renewed != before
    assert not harness.passwords.outdated(renewed)
    await harness.identity.sign_in("ann", password, ADDRESS, AGENT)
    assert harness.state.password_hashes[caller.user.id] == renewed


class SlowPasswords(MemoryPasswords):
    """Something happens while a password is compared."""

    meanwhile: Callable[[], Awaitable[object]] | None = None

    async def verify(self, stored: str | None, password: str) -> bool:
        good = await super().verify(stored, password)
        happens, self.meanwhile = self.meanwhile, None
        if happens:
            await happens()
        return good


@pytest.fixture
def slow() -> AccountsHarness:
    return AccountsHarness(passwords=SlowPasswords())


def meanwhile(harness: AccountsHarness, happens: Callable[[], Awaitable[object]]) -> None:
    assert isinstance(harness.passwords, SlowPasswords)
    harness.passwords.meanwhile = happens


async def test_who_signs_in_while_the_password_changes_is_not_left_over(slow: AccountsHarness) -> None:
    admin = await slow.admin()
    caller, old, _secret = await slow.member(admin)
    for changed in (
        lambda: slow.identity.change_password(caller, old, "correct horse battery"),
        lambda: slow.people.reset_password(admin, caller.user.id),
        lambda: slow.people.disable(admin, caller.user.id),
    ):
        await slow.directory.accounts().set_password(
            caller.user.id,
            await slow.passwords.hash(old),
            Actor("test"),
            "reset_password",
            keep_session=caller.session_id,
        )
        meanwhile(slow, changed)
        with pytest.raises(Unauthenticated, match=WRONG):
            await slow.identity.sign_in("ann", old, ADDRESS, AGENT)
        assert {s.id for s in slow.state.sessions.values() if s.user_id == caller.user.id} <= {caller.session_id}
        assert slow.audit()[-1].action == "sign_in_failed"


async def test_losing_that_race_is_no_guess(slow: AccountsHarness) -> None:
    admin = await slow.admin()
    caller, password, _secret = await slow.member(admin)
    for _ in range(30):
        meanwhile(slow, lambda: slow.people.reset_password(admin, caller.user.id))
        with pytest.raises(Unauthenticated):
            await slow.identity.sign_in("ann", password, ADDRESS, AGENT)
        password = await slow.people.reset_password(admin, caller.user.id)
    await slow.identity.sign_in("ann", password, ADDRESS, AGENT)


async def test_sign_ins_at_once_renew_an_old_hash_and_all_come_in(slow: AccountsHarness) -> None:
    """One of them renews it; for the others it is still the same password."""
    _caller, password, _secret = await slow.member(await slow.admin())
    slow.passwords.generation = 2
    meanwhile(slow, lambda: slow.identity.sign_in("ann", password, ADDRESS, AGENT))
    await slow.identity.sign_in("ann", password, ADDRESS, AGENT)
    assert len(slow.audit("sign_in")) == 4


async def test_the_first_run_makes_one_admin(harness: AccountsHarness) -> None:
    made = await asyncio.gather(*(harness.identity.ensure_admin("root") for _ in range(4)))
    [password] = [answer for answer in made if answer]
    caller, _secret = await harness.identity.sign_in("root", password, ADDRESS, AGENT)
    assert caller.user.role is Role.ADMIN
    assert await harness.identity.ensure_admin("another") is None
