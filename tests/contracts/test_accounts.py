"""Accounts: users, their sessions and tokens, on every database."""

import asyncio
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from codehub.adapters.postgres import PostgresDatabase
from codehub.domain.credentials import SEEN_EVERY_SECONDS
from codehub.domain.errors import Conflict, LimitReached, NotFound, Refused
from codehub.domain.identity import Role, Scope, User, changed_role, disabled
from codehub.ports.accounts import EndedCredentials, NewToken, NewUser, SessionRules, UserDecision
from codehub.ports.stores import Actor
from tests.contracts.account_stores import ROOT, AccountStores, Later, person
from tests.eventually import eventually

RULES = SessionRules(idle_seconds=3600, absolute_seconds=24 * 3600)
READ = frozenset({Scope.READ})


def some_id() -> str:
    return os.urandom(32).hex()


def new_token(user: User, **changes: Any) -> NewToken:
    return replace(NewToken(uuid4(), user.id, "ci", os.urandom(32), READ), **changes)


async def opened(stores: AccountStores, user: User, rules: SessionRules = RULES) -> str:
    session_id = some_id()
    await stores.accounts().open_session(session_id, user.id, rules, Actor(user.username))
    return session_id


async def actions(stores: AccountStores) -> list[str]:
    return [entry.action for entry in await stores.audit().entries()]


# ── users ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_user_is_found_again_by_all_its_names(stores: AccountStores) -> None:
    accounts = stores.accounts()
    new = NewUser(uuid4(), "ann", Role.ADMIN, None, "https://issuer", "sub-1", 3)
    ann = await accounts.create_user(new, ROOT)
    assert (ann.username, ann.role, ann.max_running, ann.has_password) == ("ann", Role.ADMIN, 3, False)
    assert await accounts.user(ann.id) == ann == await accounts.user_of_identity("https://issuer", "sub-1")
    assert await accounts.with_password("ann") == (ann, None)
    assert await accounts.user(uuid4()) is None
    assert await accounts.with_password("") is None
    assert await accounts.user_of_identity("https://other", "sub-1") is None


async def test_names_and_identities_are_one_person_s(stores: AccountStores) -> None:
    accounts = stores.accounts()
    await accounts.create_user(NewUser(uuid4(), "ann", issuer="i", subject="s"), ROOT)
    with pytest.raises(Conflict) as taken:
        await accounts.create_user(NewUser(uuid4(), "ann"), ROOT)
    assert taken.value.code == "username_taken"
    with pytest.raises(Conflict) as taken:
        await accounts.create_user(NewUser(uuid4(), "bob", issuer="i", subject="s"), ROOT)
    assert taken.value.code == "identity_taken"
    await accounts.create_user(NewUser(uuid4(), "carl"), ROOT)
    await accounts.create_user(NewUser(uuid4(), "dora"), ROOT)  # two without an identity are no clash
    assert [user.username for user in await accounts.users()] == ["ann", "carl", "dora"]


async def test_the_first_user_is_made_once_however_many_ask(stores: AccountStores) -> None:
    news = [NewUser(uuid4(), f"admin{n}", Role.ADMIN) for n in range(6)]
    made = await asyncio.gather(*(stores.accounts().create_first_user(new, ROOT) for new in news))
    assert sum(user is not None for user in made) == 1
    assert len(await stores.accounts().users()) == 1
    assert await actions(stores) == ["create_user"]


async def test_pages_go_on_where_the_last_one_ended(stores: AccountStores) -> None:
    names = ["a-b", "a.b", "a0", "a_b", "ab", "b"]
    for name in reversed(names):
        await person(stores, name)
    assert [user.username for user in await stores.accounts().users(limit=4)] == names[:4]
    assert [user.username for user in await stores.accounts().users(after=names[3])] == names[4:]


async def test_the_last_admin_stays_also_when_all_go_at_once(stores: AccountStores) -> None:
    people = [await person(stores, f"admin{number}", Role.ADMIN) for number in range(5)]

    def becoming(role: Role) -> UserDecision:
        return lambda user, others, _now: changed_role(user, role, others)

    async def all_become(role: Role) -> list[User | BaseException]:
        change = stores.accounts().change_user
        return await asyncio.gather(
            *(change(user.id, becoming(role), ROOT, "set_role") for user in people), return_exceptions=True
        )

    for _ in range(5):
        answers = await all_become(Role.USER)
        assert sum(isinstance(answer, Conflict) for answer in answers) == 1
        assert [user.role for user in await stores.accounts().users()].count(Role.ADMIN) == 1
        await all_become(Role.ADMIN)


async def test_a_change_is_written_once_with_what_it_changed(stores: AccountStores) -> None:
    ann = await person(stores)
    for _ in range(2):
        after = await stores.accounts().change_user(
            ann.id, lambda user, _others, _now: replace(user, max_running=7), ROOT, "set_max_running"
        )
        assert after == replace(ann, max_running=7)
    [entry, _created] = await stores.audit().entries()
    assert (entry.actor, entry.action, entry.subject) == ("root", "set_max_running", "user:ann")
    assert (entry.details, entry.address) == ({"max_running": 7}, "192.0.2.1")


async def test_a_refused_change_leaves_no_trace(stores: AccountStores) -> None:
    ann = await person(stores)

    def refuse(_user: User, _others: int, _now: datetime) -> User:
        raise Refused("no")

    with pytest.raises(Refused):
        await stores.accounts().change_user(ann.id, refuse, ROOT, "set_role")
    with pytest.raises(NotFound):
        await stores.accounts().change_user(uuid4(), refuse, ROOT, "set_role")
    assert await stores.accounts().user(ann.id) == ann
    assert await actions(stores) == ["create_user"]


async def test_disabling_ends_sessions_and_stops_tokens(stores: AccountStores) -> None:
    accounts = stores.accounts()
    ann = await person(stores)
    session_id, token = await opened(stores, ann), new_token(ann)
    await accounts.create_token(token, 10, ROOT)
    await accounts.change_user(ann.id, lambda user, others, now: disabled(user, now, others), ROOT, "disable_user")
    assert await accounts.session(session_id, RULES) is None
    assert await accounts.sessions(ann.id, RULES) == []
    assert await accounts.token(token.token_hash) is None
    with pytest.raises(NotFound):
        await opened(stores, ann)


@pytest.mark.system
async def test_a_user_who_was_disabled_by_hand_is_out_too(postgres: PostgresDatabase, database_url: str) -> None:
    ann = await person(postgres)
    session_id = await opened(postgres, ann)
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute("UPDATE users SET disabled_at = now()")
    finally:
        await connection.close()
    assert await postgres.accounts().session(session_id, RULES) is None


# ── passwords ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_new_password_ends_the_other_sessions(stores: AccountStores) -> None:
    accounts, ann = stores.accounts(), await person(stores)
    bob = await person(stores, "bob")
    kept, *ended = [await opened(stores, ann) for _ in range(3)]
    of_bob = await opened(stores, bob)
    told = await accounts.set_password(ann.id, "new", ROOT, "change_password", keep_session=kept)
    assert told == EndedCredentials(sorted(ended), [])
    assert [session.id for session in await accounts.sessions(ann.id, RULES)] == [kept]
    assert await accounts.session(of_bob, RULES)
    assert await accounts.set_password(ann.id, "newer", ROOT, "reset_password") == EndedCredentials([kept], [])
    found = await accounts.with_password("ann")
    assert found == (ann, "newer")


async def test_a_new_password_revokes_tokens_if_told(stores: AccountStores) -> None:
    accounts, ann, bob = stores.accounts(), await person(stores), await person(stores, "bob")

    async def token(user: User) -> tuple[UUID, bytes]:
        new = new_token(user)
        return (await accounts.create_token(new, 10, ROOT)).id, new.token_hash

    made, of_bob = sorted([await token(ann) for _ in range(2)]), await token(bob)
    assert (await accounts.set_password(ann.id, "new", ROOT, "change_password")).tokens == []
    assert all([await accounts.token(secret) for _, secret in made])
    told = await accounts.set_password(ann.id, "newer", ROOT, "reset_password", revoke_tokens=True)
    assert told.tokens == [token_id for token_id, _ in made]
    assert not any([await accounts.token(secret) for _, secret in made])
    assert await accounts.token(of_bob[1])
    again = await accounts.set_password(ann.id, "newest", ROOT, "reset_password", revoke_tokens=True)
    assert again.tokens == []


async def test_a_session_is_fresh_for_a_while_after_its_person_proved_who_they_are(stores: AccountStores) -> None:
    accounts, ann = stores.accounts(), await person(stores)
    opened_now, long_ago = some_id(), datetime.now(UTC) - timedelta(hours=1)

    async def is_fresh(session_id: str, rules: SessionRules = RULES) -> bool:
        found = await accounts.session(session_id, rules)
        assert found
        return found[0].is_fresh

    assert (await accounts.open_session(opened_now, ann.id, RULES, ROOT)).is_fresh
    assert await is_fresh(opened_now)
    assert not await is_fresh(opened_now, replace(RULES, fresh_seconds=0))
    old = some_id()
    assert not (await accounts.open_session(old, ann.id, RULES, ROOT, proven_at=long_ago)).is_fresh
    assert not await is_fresh(old)
    assert not await accounts.prove_session(old, RULES, ROOT, proved_by="another")
    assert not await is_fresh(old)
    assert await accounts.prove_session(old, RULES, ROOT, proved_by="stored")
    assert await is_fresh(old)
    assert await accounts.prove_session(old, RULES, ROOT, proven_at=long_ago)
    assert not await is_fresh(old)
    assert await accounts.prove_session(old, RULES, ROOT, proven_at=datetime.now(UTC) + timedelta(days=9))
    assert not await is_fresh(old, replace(RULES, fresh_seconds=0)), "nobody proves anything in the future"
    assert not await accounts.prove_session(some_id(), RULES, ROOT)
    assert (await actions(stores)).count("prove_session") == 3


async def test_a_password_is_replaced_only_if_it_is_the_one(stores: AccountStores) -> None:
    accounts, ann = stores.accounts(), await person(stores)
    with pytest.raises(Conflict) as changed:
        await accounts.set_password(ann.id, "new", ROOT, "change_password", replacing="another")
    assert changed.value.code == "password_changed"
    await accounts.rehash_password(ann.id, "another", "lost")
    assert (await accounts.with_password("ann") or ())[1:] == ("stored",)
    await accounts.rehash_password(ann.id, "stored", "rehashed")
    assert (await accounts.with_password("ann") or ())[1:] == ("rehashed",)
    with pytest.raises(NotFound):
        await accounts.set_password(uuid4(), "new", ROOT, "reset_password")
    assert await actions(stores) == ["create_user"]


# ── sessions ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("change", ["set_password", "rehash_password"])
async def test_a_session_opens_only_with_the_password_that_is_stored(stores: AccountStores, change: str) -> None:
    accounts, ann = stores.accounts(), await person(stores)
    await accounts.open_session(some_id(), ann.id, RULES, ROOT, proved_by="stored")
    if change == "set_password":
        await accounts.set_password(ann.id, "new", ROOT, "reset_password")
    else:
        await accounts.rehash_password(ann.id, "stored", "new")
    before, sessions = await actions(stores), await accounts.sessions(ann.id, RULES)
    with pytest.raises(NotFound):
        await accounts.open_session(some_id(), ann.id, RULES, ROOT, proved_by="stored")
    assert (await actions(stores), await accounts.sessions(ann.id, RULES)) == (before, sessions)
    for proof in ("new", None):
        await accounts.open_session(some_id(), ann.id, RULES, ROOT, proved_by=proof)


async def test_nobody_proves_themselves_with_a_password_that_is_not_there(stores: AccountStores) -> None:
    accounts, ann = stores.accounts(), await person(stores, password_hash=None)
    with pytest.raises(NotFound):
        await accounts.open_session(some_id(), ann.id, RULES, ROOT, proved_by="stored")
    await accounts.open_session(some_id(), ann.id, RULES, ROOT)


@pytest.mark.system
async def test_a_session_that_opens_while_the_password_changes_is_not_left_over(
    postgres: PostgresDatabase, database_url: str
) -> None:
    """It waits for the user's row, and then finds another password."""
    accounts, ann = postgres.accounts(), await person(postgres)
    changing = await asyncpg.connect(database_url)

    async def waiting() -> bool:
        return bool(await changing.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))

    try:
        async with changing.transaction():
            await changing.execute("SELECT FROM users FOR UPDATE")
            await changing.execute("UPDATE users SET password_hash = 'new'")
            opening = asyncio.ensure_future(
                accounts.open_session(some_id(), ann.id, RULES, ROOT, proved_by="stored"),
            )
            await eventually(waiting)
        with pytest.raises(NotFound):
            await opening
    finally:
        await changing.close()
    assert await accounts.sessions(ann.id, RULES) == []


async def test_a_session_knows_its_user_and_origin(stores: AccountStores) -> None:
    ann, session_id = await person(stores), some_id()
    actor = Actor("ann", address="198.51.100.7")
    session = await stores.accounts().open_session(session_id, ann.id, RULES, actor, agent="Browser 1")
    assert (session.id, session.user_id) == (session_id, ann.id)
    assert (session.address, session.agent) == ("198.51.100.7", "Browser 1")
    assert session.expires_at - session.created_at == timedelta(seconds=RULES.absolute_seconds)
    assert await stores.accounts().session(session_id, RULES) == (session, ann)
    assert await stores.accounts().session(some_id(), RULES) is None
    assert await stores.accounts().session("no hexadecimal", RULES) is None


async def test_use_keeps_a_session_alive_until_its_absolute_end(stores: AccountStores, later: Later) -> None:
    ann = await person(stores)
    session_id = await opened(stores, ann)
    for _ in range(23):
        await later(RULES.idle_seconds - 10)
        assert await stores.accounts().session(session_id, RULES)
    for _ in range(2):
        await later(RULES.idle_seconds - 10)
    assert await stores.accounts().session(session_id, RULES) is None


async def test_an_idle_session_ends(stores: AccountStores, later: Later) -> None:
    ann = await person(stores)
    session_id = await opened(stores, ann)
    await later(RULES.idle_seconds + 1)
    assert await stores.accounts().session(session_id, RULES) is None
    assert await stores.accounts().sessions(ann.id, RULES) == []
    assert await stores.accounts().forget_expired(RULES) == 1
    assert await stores.accounts().forget_expired(RULES) == 0


async def test_being_seen_is_written_once_a_minute(stores: AccountStores, later: Later) -> None:
    ann = await person(stores)
    session_id = await opened(stores, ann)

    async def last_seen() -> datetime:
        await stores.accounts().session(session_id, RULES)
        [session] = await stores.accounts().sessions(ann.id, RULES)
        return session.last_seen_at

    at_first = await last_seen()
    assert await last_seen() == at_first
    await later(SEEN_EVERY_SECONDS + 1)
    seen = await last_seen()
    assert seen > at_first
    assert await last_seen() == seen


async def test_only_its_owner_ends_a_session_and_only_once(stores: AccountStores) -> None:
    accounts, ann = stores.accounts(), await person(stores)
    bob, session_id = await person(stores, "bob"), await opened(stores, ann)
    assert not await accounts.end_session(bob.id, session_id, ROOT)
    assert not await accounts.end_session(ann.id, "nonsense", ROOT)
    assert await accounts.end_session(ann.id, session_id, ROOT)
    assert not await accounts.end_session(ann.id, session_id, ROOT)
    assert await accounts.session(session_id, RULES) is None
    assert (await actions(stores)).count("sign_out") == 1


# ── tokens ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_token_is_known_by_its_hash(stores: AccountStores) -> None:
    accounts, ann = stores.accounts(), await person(stores)
    new = new_token(ann, scopes=frozenset({Scope.READ, Scope.WRITE}), lifetime_seconds=3600)
    token = await accounts.create_token(new, 10, ROOT)
    assert (token.name, token.scopes, token.last_used_at) == ("ci", new.scopes, None)
    assert token.expires_at == token.created_at + timedelta(hours=1)
    assert await accounts.token(new.token_hash) == (token, ann)
    assert await accounts.token(os.urandom(32)) is None
    [used] = await accounts.tokens(ann.id)
    assert used.last_used_at is not None
    assert replace(used, last_used_at=None) == token


async def test_a_token_ends(stores: AccountStores, later: Later) -> None:
    accounts, ann = stores.accounts(), await person(stores)
    endless, short = new_token(ann), new_token(ann, lifetime_seconds=60)
    for new in (endless, short):
        await accounts.create_token(new, 10, ROOT)
    await later(61)
    assert await accounts.token(short.token_hash) is None
    assert await accounts.token(endless.token_hash)
    assert len(await accounts.tokens(ann.id)) == 2


async def test_a_revoked_token_is_gone(stores: AccountStores) -> None:
    accounts, ann, bob = stores.accounts(), await person(stores), await person(stores, "bob")
    new = new_token(ann)
    await accounts.create_token(new, 10, ROOT)
    assert not await accounts.revoke_token(bob.id, new.id, ROOT)
    assert await accounts.revoke_token(ann.id, new.id, ROOT)
    assert not await accounts.revoke_token(ann.id, new.id, ROOT)
    assert await accounts.token(new.token_hash) is None
    assert await accounts.tokens(ann.id) == []
    assert (await actions(stores))[:2] == ["revoke_token", "create_token"]


async def test_the_number_of_tokens_is_exact(stores: AccountStores) -> None:
    ann = await person(stores)
    made = await asyncio.gather(
        *(stores.accounts().create_token(new_token(ann), 3, ROOT) for _ in range(6)), return_exceptions=True
    )
    assert sum(isinstance(answer, LimitReached) for answer in made) == 3
    assert len(await stores.accounts().tokens(ann.id)) == 3
