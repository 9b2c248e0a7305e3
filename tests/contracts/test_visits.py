"""Visits: who was let in at a workspace's own host, and when that is over, on every database."""

import asyncio
import os
from dataclasses import replace
from datetime import datetime
from uuid import UUID, uuid4

import asyncpg
import pytest

from codehub.adapters.postgres import PostgresDatabase
from codehub.domain.credentials import SEEN_EVERY_SECONDS
from codehub.domain.identity import ALL_SCOPES, Role, Scope, User, disabled, enabled
from codehub.ports.accounts import NewToken, SessionRules, Ticket, Visit
from codehub.ports.stores import Actor
from tests.contracts.account_stores import ROOT, AccountStores, Later, person
from tests.eventually import eventually

RULES = SessionRules(idle_seconds=3600, absolute_seconds=24 * 3600)
LONG = 7 * 24 * 3600.0
PLACE = UUID(int=7)


async def session_ticket(stores: AccountStores, user: User) -> Ticket:
    session_id = os.urandom(32).hex()
    await stores.accounts().open_session(session_id, user.id, RULES, Actor(user.username))
    return Ticket(user.id, PLACE, session_id, port=8080, wakes=True)


CHANGES = frozenset({Scope.WRITE})


async def token_ticket(
    stores: AccountStores, user: User, lifetime: int | None = None, scopes: frozenset[Scope] = CHANGES
) -> Ticket:
    new = NewToken(uuid4(), user.id, "ci", os.urandom(32), scopes, lifetime)
    await stores.accounts().create_token(new, 10, ROOT)
    return Ticket(user.id, PLACE, token_id=new.id)


def sorted_names(scopes: frozenset[Scope]) -> str:
    return "+".join(sorted(scopes))


async def opened(stores: AccountStores, ticket: Ticket, seconds: float = LONG) -> bytes:
    secret = os.urandom(32)
    assert await stores.sign_in_state().open_visit(secret, ticket, seconds)
    return secret


async def disable(stores: AccountStores, user: User) -> None:
    await stores.accounts().change_user(user.id, lambda u, _others, now: disabled(u, now, 1), ROOT, "disable_user")


# ── coming in ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_visit_says_who_came_and_where_to(stores: AccountStores) -> None:
    ann = await person(stores)
    by_session, by_token = await session_ticket(stores, ann), await token_ticket(stores, ann)
    visits = [await opened(stores, ticket) for ticket in (by_session, by_token, Ticket(ann.id, PLACE, port=1))]
    assert [await stores.sign_in_state().visit(secret, RULES) for secret in visits] == [
        Visit(ann, PLACE, 8080, by_session.session_id, None),
        Visit(ann, PLACE, None, None, by_token.token_id, CHANGES),
        Visit(ann, PLACE, 1),
    ]
    assert await stores.sign_in_state().visit(os.urandom(32), RULES) is None


@pytest.mark.parametrize("scopes", [ALL_SCOPES, CHANGES, frozenset({Scope.READ, Scope.ADMIN})], ids=sorted_names)
async def test_a_visit_may_what_its_token_may(stores: AccountStores, scopes: frozenset[Scope]) -> None:
    root = await person(stores, "root", Role.ADMIN)
    by_token = await opened(stores, await token_ticket(stores, root, scopes=scopes))
    by_session = await opened(stores, await session_ticket(stores, root))
    found = [await stores.sign_in_state().visit(secret, RULES) for secret in (by_token, by_session)]
    assert [visit.scopes for visit in found if visit] == [scopes, ALL_SCOPES]


async def test_nobody_s_visit_is_not_opened(stores: AccountStores, later: Later) -> None:
    ann, bob = await person(stores), await person(stores, "bob")
    hers, revoked, short = [await token_ticket(stores, ann, lifetime) for lifetime in (None, None, 30)]
    assert revoked.token_id
    await stores.accounts().revoke_token(ann.id, revoked.token_id, ROOT)
    ended = await session_ticket(stores, ann)
    assert ended.session_id
    await stores.accounts().end_session(ann.id, ended.session_id, ROOT)
    await later(31)
    for ticket in (
        Ticket(uuid4(), PLACE),
        Ticket(ann.id, PLACE, os.urandom(32).hex()),
        Ticket(ann.id, PLACE, "no hexadecimal"),
        Ticket(ann.id, PLACE, token_id=uuid4()),
        replace(hers, user_id=bob.id),
        replace(await session_ticket(stores, ann), user_id=bob.id),
        revoked,
        short,
        ended,
    ):
        secret = os.urandom(32)
        assert not await stores.sign_in_state().open_visit(secret, ticket, LONG), ticket
        assert await stores.sign_in_state().visit(secret, RULES) is None
    await disable(stores, ann)
    assert not await stores.sign_in_state().open_visit(os.urandom(32), hers, LONG)


# ── going ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_visit_ends_by_itself(stores: AccountStores, later: Later) -> None:
    ticket = await token_ticket(stores, await person(stores))
    short, long = await opened(stores, ticket, 60), await opened(stores, ticket, 120)
    await later(61)
    assert await stores.sign_in_state().visit(short, RULES) is None
    assert await stores.sign_in_state().visit(long, RULES)
    assert await stores.accounts().forget_expired(RULES) == 1
    assert await stores.sign_in_state().visit(long, RULES)
    assert await stores.accounts().forget_expired(RULES) == 0


async def test_a_visit_ends_with_its_session_and_no_other(stores: AccountStores) -> None:
    ann = await person(stores)
    tickets = [await session_ticket(stores, ann) for _ in range(2)]
    gone, kept = [await opened(stores, ticket) for ticket in tickets]
    assert tickets[0].session_id
    await stores.accounts().end_session(ann.id, tickets[0].session_id, ROOT)
    assert await stores.sign_in_state().visit(gone, RULES) is None
    assert await stores.sign_in_state().visit(kept, RULES)
    await stores.accounts().set_password(ann.id, "new", ROOT, "reset_password")
    assert await stores.sign_in_state().visit(kept, RULES) is None


async def test_a_visit_ends_with_its_token_and_no_other(stores: AccountStores, later: Later) -> None:
    ann = await person(stores)
    tickets = [await token_ticket(stores, ann, lifetime) for lifetime in (None, None, 600)]
    revoked, kept, short = [await opened(stores, ticket) for ticket in tickets]
    assert tickets[0].token_id
    await stores.accounts().revoke_token(ann.id, tickets[0].token_id, ROOT)
    assert await stores.sign_in_state().visit(revoked, RULES) is None
    assert await stores.sign_in_state().visit(short, RULES)
    await later(601)
    assert await stores.sign_in_state().visit(short, RULES) is None
    assert await stores.sign_in_state().visit(kept, RULES)


async def test_who_is_disabled_visits_no_more(stores: AccountStores) -> None:
    ann = await person(stores)
    by_session = await opened(stores, await session_ticket(stores, ann))
    by_token = await opened(stores, await token_ticket(stores, ann))
    await disable(stores, ann)
    for secret in (by_session, by_token):
        assert await stores.sign_in_state().visit(secret, RULES) is None
    await stores.accounts().change_user(ann.id, lambda user, _others, _now: enabled(user), ROOT, "enable_user")
    assert await stores.sign_in_state().visit(by_session, RULES) is None, "its session has ended"


async def test_what_goes_with_a_session_is_forgotten_with_it(stores: AccountStores, later: Later) -> None:
    secret = await opened(stores, await session_ticket(stores, await person(stores)))
    await later(RULES.idle_seconds + 1)
    assert await stores.sign_in_state().visit(secret, RULES) is None
    assert await stores.accounts().forget_expired(RULES) == 1
    assert await stores.sign_in_state().visit(secret, SessionRules()) is None
    await later(LONG)
    assert await stores.accounts().forget_expired(RULES) == 0, "it went with its session"


# ── being seen ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_who_only_works_in_a_workspace_is_not_signed_out(stores: AccountStores, later: Later) -> None:
    ann = await person(stores)
    ticket = await session_ticket(stores, ann)
    secret = await opened(stores, ticket)
    for _ in range(23):
        await later(RULES.idle_seconds - 10)
        assert await stores.sign_in_state().visit(secret, RULES)
    assert [session.id for session in await stores.accounts().sessions(ann.id, RULES)] == [ticket.session_id]
    for _ in range(2):
        await later(RULES.idle_seconds - 10)
    assert await stores.sign_in_state().visit(secret, RULES) is None, "no session outlives its absolute end"


@pytest.mark.parametrize("kind", ["session", "token"])
async def test_being_seen_at_a_workspace_is_written_once_a_minute(
    stores: AccountStores, later: Later, kind: str
) -> None:
    ann, accounts = await person(stores), stores.accounts()
    ticket = await (session_ticket if kind == "session" else token_ticket)(stores, ann)
    secret = await opened(stores, ticket)

    async def last() -> datetime | None:
        assert await stores.sign_in_state().visit(secret, RULES)
        if kind == "session":
            return (await accounts.sessions(ann.id, RULES))[0].last_seen_at
        return (await accounts.tokens(ann.id))[0].last_used_at

    at_first = await last()
    assert at_first
    assert await last() == at_first
    await later(SEEN_EVERY_SECONDS + 1)
    seen = await last()
    assert seen
    assert seen > at_first
    assert await last() == seen


async def test_opening_and_looking_leave_nothing_in_the_audit(stores: AccountStores) -> None:
    ticket = await token_ticket(stores, await person(stores))
    before = await stores.audit().entries()
    await stores.sign_in_state().visit(await opened(stores, ticket), RULES)
    assert await stores.audit().entries() == before


@pytest.mark.system
async def test_a_session_that_ends_while_a_visit_opens_takes_it_along(
    postgres: PostgresDatabase, database_url: str
) -> None:
    """The visit waits for the session's row, and then finds it gone."""
    ann = await person(postgres)
    ticket, secret = await session_ticket(postgres, ann), os.urandom(32)
    ending = await asyncpg.connect(database_url)

    async def waiting() -> bool:
        return bool(await ending.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))

    try:
        async with ending.transaction():
            await ending.execute("DELETE FROM sessions")
            opening = asyncio.ensure_future(postgres.sign_in_state().open_visit(secret, ticket, LONG))
            await eventually(waiting)
        assert await opening is False
    finally:
        await ending.close()
    assert await postgres.sign_in_state().visit(secret, RULES) is None
