"""Tickets, sign-ins away at a provider, failed tries: what lives for minutes, on every database."""

import asyncio
import os
from uuid import uuid4

import pytest

from codehub.domain.errors import NotFound
from codehub.domain.identity import Scope, User, disabled
from codehub.ports.accounts import NewToken, SessionRules, Ticket, TryKey
from codehub.ports.stores import Actor
from tests.contracts.account_stores import ROOT, AccountStores, Later, person

RULES = SessionRules(3600, 24 * 3600)
ACCOUNT = TryKey("account:ann", 5)
ADDRESS = TryKey("address:192.0.2.9", 20)


async def issued(stores: AccountStores, user: User, seconds: float = 60) -> tuple[bytes, Ticket]:
    session_id, secret = os.urandom(32).hex(), os.urandom(32)
    await stores.accounts().open_session(session_id, user.id, RULES, Actor(user.username))
    ticket = Ticket(user.id, uuid4(), session_id, port=8080, wakes=True)
    await stores.sign_in_state().issue_ticket(secret, ticket, seconds)
    return secret, ticket


# ── tickets ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_ticket_opens_once_however_many_try(stores: AccountStores) -> None:
    secret, ticket = await issued(stores, await person(stores))
    answers = await asyncio.gather(*(stores.sign_in_state().redeem_ticket(secret) for _ in range(8)))
    assert [answer for answer in answers if answer] == [ticket]
    assert await stores.sign_in_state().redeem_ticket(os.urandom(32)) is None


async def test_a_ticket_ends_soon(stores: AccountStores, later: Later) -> None:
    secret, _ticket = await issued(stores, await person(stores))
    await later(61)
    assert await stores.sign_in_state().redeem_ticket(secret) is None
    assert await stores.accounts().forget_expired(RULES) == 1


async def test_a_ticket_ends_with_its_session(stores: AccountStores) -> None:
    ann = await person(stores)
    secret, ticket = await issued(stores, ann)
    assert ticket.session_id
    await stores.accounts().end_session(ann.id, ticket.session_id, ROOT)
    assert await stores.sign_in_state().redeem_ticket(secret) is None


async def test_a_ticket_of_a_token_ends_with_it(stores: AccountStores, later: Later) -> None:
    accounts, ann = stores.accounts(), await person(stores)
    kept, revoked, short = [uuid4() for _ in range(3)]
    secrets = {token_id: os.urandom(32) for token_id in (kept, revoked, short)}
    for token_id, secret in secrets.items():
        lifetime = 30 if token_id == short else None
        new = NewToken(token_id, ann.id, "ci", os.urandom(32), frozenset({Scope.WRITE}), lifetime)
        await accounts.create_token(new, 10, ROOT)
        await stores.sign_in_state().issue_ticket(secret, Ticket(ann.id, uuid4(), token_id=token_id), 60)
    await accounts.revoke_token(ann.id, revoked, ROOT)
    await later(31)
    found = {token_id: await stores.sign_in_state().redeem_ticket(secret) for token_id, secret in secrets.items()}
    assert [ticket.token_id for ticket in found.values() if ticket] == [kept]


async def test_a_ticket_of_nothing_in_particular_ends_with_its_user(stores: AccountStores) -> None:
    ann, secrets = await person(stores), [os.urandom(32) for _ in range(2)]
    ticket = Ticket(ann.id, uuid4())
    for secret in secrets:
        await stores.sign_in_state().issue_ticket(secret, ticket, 60)
    assert await stores.sign_in_state().redeem_ticket(secrets[0]) == ticket
    await stores.accounts().change_user(ann.id, lambda u, others, now: disabled(u, now, 1), ROOT, "disable_user")
    assert await stores.sign_in_state().redeem_ticket(secrets[1]) is None


async def test_nobody_s_ticket_is_not_issued(stores: AccountStores) -> None:
    ann = await person(stores)
    for ticket in (
        Ticket(uuid4(), uuid4()),
        Ticket(ann.id, uuid4(), os.urandom(32).hex()),
        Ticket(ann.id, uuid4(), token_id=uuid4()),
    ):
        with pytest.raises(NotFound):
            await stores.sign_in_state().issue_ticket(os.urandom(32), ticket, 60)


# ── sign-ins at a provider ───────────────────────────────────────────────────────────────────────────────────────────


async def test_a_provider_sign_in_finishes_once(stores: AccountStores, later: Later) -> None:
    sign_ins, secret, late = stores.sign_in_state(), os.urandom(32), os.urandom(32)
    await sign_ins.begin_provider_sign_in(secret, "/w/demo", 600)
    answers = await asyncio.gather(*(sign_ins.finish_provider_sign_in(secret) for _ in range(5)))
    assert sorted(answers, key=str) == ["/w/demo", None, None, None, None]
    await sign_ins.begin_provider_sign_in(late, "/", 600)
    await later(601)
    assert await sign_ins.finish_provider_sign_in(late) is None
    assert await sign_ins.finish_provider_sign_in(os.urandom(32)) is None


# ── failed tries ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def fail(stores: AccountStores, times: int, *keys: TryKey) -> None:
    for _ in range(times):
        assert await stores.sign_in_state().begin_try(keys) == 0


async def test_waiting_doubles_after_the_free_tries(stores: AccountStores, later: Later) -> None:
    tries = stores.sign_in_state()
    await fail(stores, 5, ACCOUNT)
    for longest in (1, 2, 4, 8):
        assert longest - 1 < await tries.begin_try([ACCOUNT]) <= longest
        await later(longest)
        assert await tries.begin_try([ACCOUNT]) == 0
    assert await tries.begin_try([TryKey("account:bob", 5)]) == 0


async def test_guesses_at_once_are_all_counted(stores: AccountStores) -> None:
    answers = await asyncio.gather(*(stores.sign_in_state().begin_try([ACCOUNT, ADDRESS]) for _ in range(20)))
    assert sum(answer == 0 for answer in answers) == 5


async def test_a_refused_try_is_counted_nowhere(stores: AccountStores) -> None:
    await fail(stores, 5, ACCOUNT)
    for _ in range(30):
        assert await stores.sign_in_state().begin_try([ACCOUNT, ADDRESS]) > 0
    assert await stores.sign_in_state().begin_try([ADDRESS]) == 0


async def test_success_clears_the_account_and_gives_the_address_its_try_back(stores: AccountStores) -> None:
    tries = stores.sign_in_state()
    await fail(stores, 19, ADDRESS)
    for _ in range(3):
        await fail(stores, 1, ACCOUNT, ADDRESS)
        await tries.clear_tries(ACCOUNT.key, [ADDRESS.key])
    await fail(stores, 4, ACCOUNT)
    await tries.clear_tries(ACCOUNT.key)
    await fail(stores, 5, ACCOUNT)
    assert await tries.begin_try([ACCOUNT]) > 0
    await fail(stores, 1, ADDRESS)
    assert await tries.begin_try([ADDRESS]) > 0


async def test_a_key_s_wait_has_its_own_bound(stores: AccountStores, later: Later) -> None:
    tries, paced = stores.sign_in_state(), TryKey("anywhere:ann", 3, longest_seconds=1)
    await fail(stores, 3, paced)
    for _ in range(12):
        assert 0 < await tries.begin_try([paced]) <= 1
        await later(1)
        await fail(stores, 1, paced)


async def test_tries_that_end_at_once_do_not_stand_in_each_other_s_way(stores: AccountStores) -> None:
    """Whatever their keys are called: those that come in hold the same ones as those that are done."""
    tries, names = stores.sign_in_state(), [f"{letter}:ann" for letter in "abcd"]

    async def come_and_go(number: int) -> None:
        for turn in range(10):
            cleared = names[(number + turn) % len(names)]
            assert await tries.begin_try([TryKey(name, 10_000) for name in names]) == 0
            await tries.clear_tries(cleared, [name for name in names if name != cleared])

    await asyncio.gather(*(come_and_go(number) for number in range(8)))


async def test_old_failures_fade(stores: AccountStores, later: Later) -> None:
    await fail(stores, 5, ACCOUNT)
    await later(24 * 3600 + 1)
    await fail(stores, 5, ACCOUNT)
    assert await stores.sign_in_state().begin_try([ACCOUNT]) > 0
    await later(24 * 3600 + 1)
    assert await stores.accounts().forget_expired(RULES) == 1
