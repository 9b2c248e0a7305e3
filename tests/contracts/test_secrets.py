"""Secrets and profiles on every database, and every keyring."""

import asyncio
import base64
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg
import pytest
import zstandard

from codehub.adapters.backup import back_up
from codehub.adapters.encryption import AesKeyring, new_key, new_ssh_key, parse_keys
from codehub.adapters.memory import MemoryKeyring
from codehub.adapters.postgres import PostgresDatabase
from codehub.domain.errors import Conflict, LimitReached, NotFound, Stale
from codehub.domain.identity import Caller, Role
from codehub.domain.secrets import (
    SECRETS_PER_OWNER,
    SSH_KEYS_PER_OWNER,
    VALUE_BYTES,
    Dotfiles,
    GitIdentity,
    SecretKind,
    SecretName,
    SecretOwner,
    template_owner,
    user_owner,
)
from codehub.ports.secrets import CannotOpen, Keyring, Profile, Sealed, StoredSecret
from codehub.ports.stores import Actor
from codehub.usecases.secrets import SecretKeeping
from tests.contracts.account_stores import ROOT, AccountStores, person

TEMPLATE = template_owner("default")
PLANTED = "planted-7f3a"


def stored(owner: SecretOwner, name: str = "A", kind: SecretKind = SecretKind.VARIABLE, size: int = 40) -> StoredSecret:
    return StoredSecret(SecretName(owner, kind, name), "", Sealed("key", uuid4().bytes + bytes(size)))


# ── the store ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_is_put_is_shown_without_its_value_and_replaced(stores: AccountStores) -> None:
    secrets, owner = stores.secrets(), user_owner((await person(stores)).id)
    first = await secrets.put(stored(owner), ROOT)
    assert (first.name.name, first.key_id, first.public) == ("A", "key", "")
    again = await secrets.put(replace(stored(owner), public="p", sealed=Sealed("other", b"x")), ROOT)
    assert await secrets.shown(owner) == [again]
    assert (again.public, again.key_id) == ("p", "other")
    assert again.updated_at >= first.updated_at
    assert await secrets.shown(TEMPLATE) == []


async def test_a_start_reads_those_of_two_owners_in_order(stores: AccountStores) -> None:
    secrets = stores.secrets()
    ann, bob = [user_owner((await person(stores, name)).id) for name in ("ann", "bob")]
    mine = [stored(ann, "b.c", SecretKind.GIT_TOKEN), stored(ann, "A"), stored(ann, "b")]
    theirs = stored(TEMPLATE, "A")
    for one in (*reversed(mine), theirs, stored(bob, "A")):
        await secrets.put(one, ROOT)
    assert await secrets.of_owners([ann, TEMPLATE]) == [theirs, *mine]
    assert await secrets.of_owners([SecretOwner(ann.kind, "nobody")]) == []


async def test_a_secret_is_deleted_once_and_only_of_its_owner(stores: AccountStores) -> None:
    secrets = stores.secrets()
    ann, bob = [user_owner((await person(stores, name)).id) for name in ("ann", "bob")]
    await secrets.put(stored(ann), ROOT)
    assert not await secrets.delete(SecretName(bob, SecretKind.VARIABLE, "A"), ROOT)
    assert not await secrets.delete(SecretName(ann, SecretKind.SSH_KEY, "A"), ROOT)
    assert await secrets.delete(SecretName(ann, SecretKind.VARIABLE, "A"), ROOT)
    assert not await secrets.delete(SecretName(ann, SecretKind.VARIABLE, "A"), ROOT)
    assert await secrets.shown(ann) == []


@pytest.mark.system
async def test_who_deletes_locks_the_owner_before_the_secret(postgres: PostgresDatabase, database_url: str) -> None:
    """As who puts does: otherwise the two could wait for each other."""
    await postgres.secrets().put(stored(TEMPLATE), ROOT)
    connection, onlooker = await asyncpg.connect(database_url), await asyncpg.connect(database_url)
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    try:
        async with asyncio.timeout(30), connection.transaction():
            await connection.execute("SELECT name FROM templates WHERE name = 'default' FOR NO KEY UPDATE")
            deletion = asyncio.create_task(
                postgres.secrets().delete(SecretName(TEMPLATE, SecretKind.VARIABLE, "A"), ROOT)
            )
            while not await onlooker.fetchval(waiting):
                await asyncio.sleep(0.01)
            await connection.execute("SELECT name FROM secrets FOR UPDATE NOWAIT")
        assert await deletion
    finally:
        await connection.close()
        await onlooker.close()


@pytest.mark.parametrize("owner", [user_owner(UUID(int=7)), template_owner("none")], ids=str)
async def test_nobody_s_secrets_are_not_kept(stores: AccountStores, owner: SecretOwner) -> None:
    with pytest.raises(NotFound):
        await stores.secrets().put(stored(owner), ROOT)
    assert not await stores.secrets().delete(SecretName(owner, SecretKind.VARIABLE, "A"), ROOT)
    assert await stores.audit().entries() == []


async def test_every_change_is_audited_by_name_alone(stores: AccountStores) -> None:
    ann = await person(stores)
    secrets, name = stores.secrets(), SecretName(user_owner(ann.id), SecretKind.VARIABLE, "A")
    await secrets.put(stored(name.owner), ROOT)
    await secrets.put(stored(TEMPLATE, "B"), ROOT)
    await secrets.delete(name, ROOT)
    told = [(entry.action, entry.subject, entry.details) for entry in await stores.audit().entries(3)]
    assert told == [
        ("delete_secret", "user:ann", {"kind": "variable", "name": "A"}),
        ("put_secret", "template:default", {"kind": "variable", "name": "B"}),
        ("put_secret", "user:ann", {"kind": "variable", "name": "A"}),
    ]


async def test_the_bounds_are_exact_also_for_many_at_once(stores: AccountStores) -> None:
    secrets, owner = stores.secrets(), user_owner((await person(stores)).id)
    hosts = [f"{number}.example.com" for number in range(SSH_KEYS_PER_OWNER + 3)]
    puts = [secrets.put(stored(owner, host, SecretKind.SSH_KEY), ROOT) for host in hosts]
    outcomes = await asyncio.gather(*puts, return_exceptions=True)
    assert sum(isinstance(one, LimitReached) for one in outcomes) == 3
    kept = await secrets.shown(owner)
    assert len(kept) == SSH_KEYS_PER_OWNER
    await secrets.put(stored(owner, kept[0].name.name, SecretKind.SSH_KEY), ROOT)
    with pytest.raises(LimitReached, match="512 KiB"):
        await secrets.put(stored(owner, size=512 << 10), ROOT)


async def test_a_thousand_and_not_one_more(stores: AccountStores) -> None:
    secrets, owner = stores.secrets(), user_owner((await person(stores)).id)
    for number in range(SECRETS_PER_OWNER):
        await secrets.put(stored(owner, f"N{number}"), ROOT)
    with pytest.raises(LimitReached, match="1000"):
        await secrets.put(stored(owner, "ONE_MORE"), ROOT)
    await secrets.put(stored(owner, "N0"), ROOT)
    assert len(await secrets.of_owners([owner])) == SECRETS_PER_OWNER
    assert await secrets.count_by_key() == {"key": SECRETS_PER_OWNER}


async def test_pages_go_through_everybody_s(stores: AccountStores) -> None:
    secrets, owner = stores.secrets(), user_owner((await person(stores)).id)
    every = [stored(TEMPLATE, "A"), stored(TEMPLATE, "B"), stored(owner, "a.b", SecretKind.SSH_KEY), stored(owner, "A")]
    for one in every:
        await secrets.put(one, ROOT)
    first = await secrets.page(None, 3)
    assert [*first, *await secrets.page(first[-1].name, 3)] == every
    assert await secrets.reseal(every[1], Sealed("new", b"n"))
    assert [one.name.name for one in await secrets.page(None, 9, other_than="new")] == ["A", "a.b", "A"]


async def test_what_was_put_meanwhile_is_not_resealed(stores: AccountStores) -> None:
    secrets, before = stores.secrets(), stored(TEMPLATE)
    await secrets.put(before, ROOT)
    await secrets.put(after := stored(TEMPLATE), ROOT)
    assert not await secrets.reseal(before, Sealed("new", b"n"))
    assert await secrets.of_owners([TEMPLATE]) == [after]
    assert await secrets.reseal(after, Sealed("new", b"n"))
    assert [one.sealed for one in await secrets.of_owners([TEMPLATE])] == [Sealed("new", b"n")]


async def test_a_use_is_recorded_once_for_each_start(stores: AccountStores) -> None:
    secrets, workspace, first, second = stores.secrets(), uuid4(), uuid4(), uuid4()
    assert await secrets.record_use(workspace, first, {"variables": ["A"]}, ROOT)
    assert not await secrets.record_use(workspace, first, {"variables": ["A"]}, ROOT)
    assert await secrets.record_use(workspace, second, {"variables": ["B"]}, ROOT)
    told = await stores.audit().entries(subject=f"workspace:{workspace}")
    assert [(entry.action, entry.details) for entry in told] == [
        ("use_secrets", {"op_id": str(second), "variables": ["B"]}),
        ("use_secrets", {"op_id": str(first), "variables": ["A"]}),
    ]


async def test_an_old_leader_records_no_use(stores: AccountStores) -> None:
    with pytest.raises(Stale):
        await stores.secrets().record_use(uuid4(), uuid4(), {}, Actor("coordinator", epoch=77))
    assert await stores.audit().entries() == []


@pytest.mark.system
async def test_with_a_user_all_of_theirs_goes(postgres: PostgresDatabase, database_url: str) -> None:
    ann = await person(postgres)
    await postgres.secrets().put(stored(user_owner(ann.id)), ROOT)
    await postgres.profiles().set_git_identity(ann.id, GitIdentity("Ann", "a@b"), ROOT)
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute("DELETE FROM users")
    finally:
        await connection.close()
    assert await postgres.secrets().page(None, 9) == []
    assert await postgres.profiles().get(ann.id) == Profile()


# ── profiles ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_profile_s_parts_are_set_and_removed_apart(stores: AccountStores) -> None:
    profiles, ann, bob = stores.profiles(), await person(stores), await person(stores, "bob")
    identity, dotfiles = GitIdentity("Ann", "ann@example.com"), Dotfiles("https://a.b/c", "./in --token x")
    assert await profiles.get(ann.id) == Profile()
    await profiles.set_git_identity(ann.id, identity, ROOT)
    await profiles.set_dotfiles(ann.id, dotfiles, ROOT)
    await profiles.set_dotfiles(ann.id, dotfiles, ROOT)
    assert await profiles.get(ann.id) == Profile(identity, dotfiles)
    assert await profiles.get(bob.id) == Profile()
    await profiles.set_dotfiles(ann.id, Dotfiles("https://a.b/c"), ROOT)
    await profiles.set_git_identity(ann.id, None, ROOT)
    assert await profiles.get(ann.id) == Profile(None, Dotfiles("https://a.b/c"))
    told = [(entry.action, entry.details) for entry in await stores.audit().entries(4)]
    assert told == [
        ("set_git_identity", {}),
        ("set_dotfiles", {"url": "https://a.b/c"}),
        ("set_dotfiles", {"url": "https://a.b/c"}),
        ("set_git_identity", {"name": "Ann", "email": "ann@example.com"}),
    ]


async def test_nobody_has_no_profile(stores: AccountStores) -> None:
    with pytest.raises(NotFound):
        await stores.profiles().set_dotfiles(uuid4(), Dotfiles("https://a.b/c"), ROOT)
    with pytest.raises(NotFound):
        await stores.profiles().set_git_identity(uuid4(), None, ROOT)


# ── keyrings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=["memory", "aes"])
def keyring(request: pytest.FixtureRequest) -> Keyring:
    return MemoryKeyring("first", "second") if request.param == "memory" else AesKeyring(parse_keys(two_keys()))


@pytest.fixture(params=["memory", "aes"])
def empty_keyring(request: pytest.FixtureRequest) -> Keyring:
    return MemoryKeyring() if request.param == "memory" else AesKeyring([])


def two_keys() -> str:
    return f"{new_key()},{new_key()}"


NAME = SecretName(user_owner(UUID(int=1)), SecretKind.VARIABLE, "A")


@pytest.mark.parametrize("value", [PLANTED, "lines\nof\r\ntext\n", "비" * (VALUE_BYTES // 3), "x" * VALUE_BYTES, " "])
def test_what_is_sealed_opens(keyring: Keyring, value: str) -> None:
    sealed = keyring.seal(NAME, "public", value)
    assert keyring.open(StoredSecret(NAME, "public", sealed)) == value
    assert sealed.key_id == keyring.key_ids[0]
    assert sealed.data != keyring.seal(NAME, "public", value).data
    assert PLANTED.encode() not in sealed.data
    assert len(value.encode()) <= len(sealed.data) <= len(value.encode()) + 64


@pytest.mark.parametrize(
    "elsewhere",
    [
        StoredSecret(replace(NAME, owner=user_owner(UUID(int=2))), "public", Sealed("", b"")),
        StoredSecret(replace(NAME, owner=template_owner(str(UUID(int=1)))), "public", Sealed("", b"")),
        StoredSecret(replace(NAME, kind=SecretKind.SSH_KEY), "public", Sealed("", b"")),
        StoredSecret(replace(NAME, name="B"), "public", Sealed("", b"")),
        StoredSecret(NAME, "changed", Sealed("", b"")),
    ],
    ids=["another user", "a template", "another kind", "another name", "another public part"],
)
def test_a_row_that_was_moved_or_changed_does_not_open(keyring: Keyring, elsewhere: StoredSecret) -> None:
    sealed = keyring.seal(NAME, "public", PLANTED)
    with pytest.raises(CannotOpen) as error:
        keyring.open(replace(elsewhere, sealed=sealed))
    assert PLANTED not in str(error.value)


def test_damaged_or_truncated_data_does_not_open(keyring: Keyring) -> None:
    sealed = keyring.seal(NAME, "", PLANTED)
    last = bytes([sealed.data[-1] ^ 1])
    for data in (b"", sealed.data[:5], sealed.data[:-1], sealed.data[:-1] + last, b"\x02" + sealed.data[1:], b"x" * 99):
        with pytest.raises(CannotOpen, match="damaged"):
            keyring.open(StoredSecret(NAME, "", Sealed(sealed.key_id, data)))
    with pytest.raises(CannotOpen, match="feedfeed"):
        keyring.open(StoredSecret(NAME, "", Sealed("feedfeed", sealed.data)))


def test_without_a_key_nothing_is_sealed(empty_keyring: Keyring) -> None:
    assert list(empty_keyring.key_ids) == []
    with pytest.raises(Conflict) as refused:
        empty_keyring.seal(NAME, "", PLANTED)
    assert refused.value.code == "no_secrets_key"
    with pytest.raises(CannotOpen):
        empty_keyring.open(stored(NAME.owner))


def test_no_repr_shows_what_is_sealed(keyring: Keyring) -> None:
    sealed = keyring.seal(NAME, "", PLANTED)
    secret = StoredSecret(NAME, "", sealed)
    assert PLANTED not in repr((keyring, sealed, secret))
    assert repr(sealed.data) not in repr(secret)


def test_an_ssh_key_is_one_that_openssh_reads() -> None:
    made = new_ssh_key("ann@codehub:git.example.com")
    assert made.private.startswith("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    assert made.private.endswith("-----END OPENSSH PRIVATE KEY-----\n")
    assert made.public.startswith("ssh-ed25519 AAAA")
    assert made.public.endswith(" ann@codehub:git.example.com")
    assert new_ssh_key("x").private != made.private


@pytest.mark.system
async def test_a_dump_of_the_database_and_a_backup_hold_no_value(
    postgres: PostgresDatabase, database_url: str, tmp_path: Path
) -> None:
    keyring, ann = AesKeyring(parse_keys(new_key())), await person(postgres)
    keeping = SecretKeeping(postgres.secrets(), postgres.profiles(), keyring, postgres.templates(), new_ssh_key)
    caller = Caller(replace(ann, role=Role.ADMIN), f"session:{'0' * 64}", is_fresh=True)
    await keeping.put_variable(caller, "A", PLANTED * 100)
    await keeping.put_git_token(caller, "a.b", "ann", PLANTED)
    await keeping.make_git_ssh_key(caller, "a.b")
    await keeping.put_template_variable(caller, "default", "B", PLANTED)
    await postgres.secrets().record_use(uuid4(), uuid4(), {"variables": ["A"]}, ROOT)
    [private] = [keyring.open(one) for one in await postgres.secrets().page(None, 9) if one.name.name == "a.b"][1:]
    await back_up(postgres, tmp_path / "backup", None, {})
    dumped = "\n".join(await _every_row(database_url)).encode()
    with (tmp_path / "backup").open("rb") as file:
        dumped += zstandard.ZstdDecompressor().stream_reader(file).read()
    assert b"ssh-ed25519" in dumped, "what is public is there"
    for value in (PLANTED, private, private.splitlines()[2]):
        encoded = base64.b64encode(value.encode())[:-4]
        for form in (value.encode(), value.encode().hex().encode(), encoded):
            assert form not in dumped


async def _every_row(url: str) -> list[str]:
    connection = await asyncpg.connect(url)
    try:
        tables = await connection.fetch("SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 2200")
        return [
            record["row"]
            for table in tables
            for record in await connection.fetch(f"SELECT to_jsonb(t)::text AS row FROM {table['relname']} t")
        ]
    finally:
        await connection.close()
