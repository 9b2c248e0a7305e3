"""A backup and its restore on a real PostgreSQL: every row, all or nothing, and refused before anything changes."""

import asyncio
import io
import json
import signal
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
import zstandard

from codehub.adapters.backup import MANIFEST, back_up, checked_manifest, inspect, restore, settings_of
from codehub.adapters.memory import MemoryArchives, MemoryRuntime
from codehub.adapters.memory.archives import ArchivesState, StoredArchive
from codehub.adapters.postgres import PostgresDatabase, SchemaMismatch
from codehub.adapters.postgres.backup import LEFT_OUT, Copying, Sink, Table
from codehub.adapters.postgres.schema import migrate
from codehub.coordinator.gc_runner import GcScanner
from codehub.domain.authorized_keys import PublicKey
from codehub.domain.errors import Refused, Stale
from codehub.domain.gc_rules import Retention
from codehub.domain.gc_safety import GcLimits
from codehub.domain.identity import Scope
from codehub.domain.naming import Backend
from codehub.domain.secrets import GitIdentity, SecretKind, SecretName, template_owner, user_owner
from codehub.domain.workspace import Desired, Workspace
from codehub.ports.accounts import NewToken, SessionRules, Ticket
from codehub.ports.authorized_keys import NewAuthorizedKey
from codehub.ports.secrets import Sealed, StoredSecret
from tests.contracts.account_stores import ROOT, person
from tests.contracts.databases import ANN, new_term, restore_point, setting, stored
from tests.eventually import eventually
from tests.real_services import ServiceLoop, temporary_database

pytestmark = pytest.mark.system

STAMPED_BY_RESTORE = {"installation": ("backup_at", "restored_at")}
Rows = dict[str, list[str]]


async def connected(url: str) -> "asyncpg.Connection[Any]":
    return await asyncpg.connect(url)


async def everything(url: str) -> Rows:
    """Each table's rows, generated columns too."""
    connection = await connected(url)
    try:
        names = [
            record["relname"]
            for record in await connection.fetch(
                "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
            )
        ]
        found: Rows = {}
        for name in names:
            without = "".join(f" - '{column}'" for column in STAMPED_BY_RESTORE.get(name, ()))
            told = " WHERE action <> 'restore'" if name == "audit" else ""
            statement = f"SELECT (to_jsonb(t){without})::text AS row FROM {name} t{told}"
            found[name] = sorted(record["row"] for record in await connection.fetch(statement))
        return found
    finally:
        await connection.close()


async def filled(database: PostgresDatabase, workspaces: int = 3) -> None:
    """Something in every table."""
    ann = await person(database)
    accounts = database.accounts()
    session = "ab" * 32
    await accounts.open_session(session, ann.id, SessionRules(), ROOT)
    await database.sign_in_state().issue_ticket(b"k" * 32, Ticket(ann.id, uuid4(), session), 60)
    await database.traffic().add(1, 2.0)
    key = PublicKey("ssh-ed25519", bytes(range(32)), "ann@laptop")
    await database.authorized_keys().add(NewAuthorizedKey(uuid4(), ann.id, "laptop", key), 5, ROOT)
    await database.backend_identities().adopt(Backend.RUNTIME, "docker A", 0)
    await database.sign_in_state().open_visit(b"v" * 32, Ticket(ann.id, uuid4(), session), 3600)
    await accounts.create_token(NewToken(uuid4(), ann.id, "ci \t\n\\N \\. ü", b"t" * 32, frozenset(Scope)), 5, ROOT)
    await database.idempotency_keys().claim(ann.id, "key", b"hash", uuid4())
    await database.sign_in_state().begin_try([])
    name = SecretName(user_owner(ann.id), SecretKind.VARIABLE, "A")
    await database.secrets().put(StoredSecret(name, "", Sealed("key", bytes(range(256)))), ROOT)
    await database.secrets().put(
        StoredSecret(replace(name, owner=template_owner("default")), "", Sealed("key", b"\\N\t\n")), ROOT
    )
    await database.profiles().set_git_identity(ann.id, GitIdentity("Ann", "ann@example.com"), ROOT)
    for number in range(workspaces):
        row = await stored(
            database, owner_id=str(ann.id), memo="tabs\tand\nlines \\. \\N 한국어" * 5, desired_state=Desired.RUNNING
        )
        await database.specs().change(row.id, setting(desired_state=Desired.ARCHIVED), ANN, reason=f"wish {number}")
        await database.specs().hold(row.id, "ann", datetime.now(UTC) + timedelta(hours=1))
        leader = await database.leadership(_NoClock()).leader()
        statuses = database.statuses(leader.epoch if leader else 0)
        current = await database.specs().get(row.id)
        assert current
        await statuses.record(
            current, replace(current, archive_key=f"{row.id}/a"), point=restore_point(row, f"{row.id}/a")
        )


class _NoClock:
    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None: ...


@pytest.fixture
def other_url(postgres_url: str, service_loop: ServiceLoop) -> Any:
    with temporary_database(postgres_url, service_loop) as url:
        yield url


@pytest.fixture
async def backed_up(postgres: PostgresDatabase, tmp_path: Path) -> Path:
    await filled(postgres)
    path = tmp_path / "codehub.tar.zst"
    await back_up(postgres, path, None, {"CODEHUB_WEBHOOK_URL": "https://hooks/it's secret"})
    return path


async def test_every_table_comes_back_as_it_was(
    postgres: PostgresDatabase, database_url: str, other_url: str, backed_up: Path
) -> None:
    before = await everything(database_url)
    manifest = checked_manifest(backed_up)
    async with await PostgresDatabase.open(other_url) as other:
        assert (await inspect(other, backed_up))[1] == (await inspect(other, backed_up))[1]
        await restore(other, other_url, backed_up, replace_all=False)
        assert await other.installation_id() == await postgres.installation_id()
        assert manifest.install_id == (await postgres.installation_id()).hex
        after = await everything(other_url)
        kept = {part.table for part in manifest.parts if part.table}
        assert kept | (LEFT_OUT.keys() & before.keys()) == before.keys() == after.keys()
        assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
        assert {part.table: part.rows for part in manifest.parts if part.table} == {n: len(before[n]) for n in kept}
        assert all(before[name] for name in kept), "an empty table proves nothing"
        assert all(before[name] for name in ("sessions", "tickets", "visits", "traffic", "backend_identities"))
        assert after["sessions"] == after["gc_marks"] == after["tickets"] == after["visits"] == after["traffic"] == []
        assert after["backend_identities"] == [], "it adopts the backends that it finds"
        # Numbers go on after the highest, and what is generated still is.
        await other.audit().append(ROOT, "act", "thing")
        row = await stored(other)
        assert [entry.actor for entry in await other.ledger().entries(row.id)] == ["ann"]
    assert settings_of(backed_up) == "CODEHUB_WEBHOOK_URL='https://hooks/it'\"'\"'s secret'\n"


async def test_old_leaders_are_fenced_and_a_new_one_leads(
    postgres: PostgresDatabase, other_url: str, backed_up: Path, tmp_path: Path
) -> None:
    await migrate(other_url)
    async with await PostgresDatabase.open(other_url) as other:
        for _ in range(3):
            async with new_term(other):
                pass
        epoch = 3
        await restore(other, other_url, backed_up, replace_all=False)
        with pytest.raises(Stale):
            await other.ledger().forget_older(0, epoch)
        async with new_term(other) as newer:
            assert newer > epoch + 1


async def test_the_file_is_private_and_never_overwritten(postgres: PostgresDatabase, backed_up: Path) -> None:
    assert stat.S_IMODE(backed_up.stat().st_mode) == 0o600
    before = backed_up.read_bytes()
    with pytest.raises(Refused, match="exists already"):
        await back_up(postgres, backed_up, None, {})
    assert backed_up.read_bytes() == before
    assert [path.name for path in backed_up.parent.iterdir()] == [backed_up.name]


async def test_one_moment_is_backed_up(
    postgres: PostgresDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written while it runs is not in it, whichever table comes next."""
    await filled(postgres, 1)
    copy = Copying.copy

    async def copy_while_people_work(self: Copying, table: Table, sink: Sink) -> int:
        rows = await copy(self, table, sink)
        await stored(postgres)
        return rows

    monkeypatch.setattr(Copying, "copy", copy_while_people_work)
    before = [entry for row in await workspaces(postgres) for entry in await postgres.ledger().entries(row.id)]
    manifest = await back_up(postgres, tmp_path / "b", None, {})
    rows = {part.table: part.rows for part in manifest.parts}
    assert (rows["workspaces"], rows["workspace_events"]) == (1, len(before))
    assert len(await workspaces(postgres)) > 1


async def workspaces(database: PostgresDatabase) -> Sequence[Workspace]:
    return (await database.collector().read()).workspaces


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def refused(other_url: str, path: Path, match: str, *, replace_all: bool = False) -> None:
    before = await everything(other_url)
    async with await PostgresDatabase.open(other_url) as other:
        with pytest.raises((Refused, SchemaMismatch), match=match):
            await restore(other, other_url, path, replace_all=replace_all)
    assert await everything(other_url) == before


async def test_a_database_in_use_is_given_up_only_by_name(other_url: str, backed_up: Path, database_url: str) -> None:
    await migrate(other_url)
    async with await PostgresDatabase.open(other_url) as other:
        await person(other, "bob")
        await refused(other_url, backed_up, "1 users and 0 workspaces")
        await restore(other, other_url, backed_up, replace_all=True)
        assert {user.username for user in await other.accounts().users()} == {"ann"}
    assert (await everything(other_url))["workspaces"] == (await everything(database_url))["workspaces"]


async def test_not_under_a_leader(other_url: str, backed_up: Path) -> None:
    await migrate(other_url)
    async with await PostgresDatabase.open(other_url) as other, new_term(other):
        with pytest.raises(Refused, match="A coordinator leads"):
            await restore(other, other_url, backed_up, replace_all=True)
    rows = await everything(other_url)
    assert rows["users"] == rows["workspaces"] == []


def rewritten(path: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """The same file with other contents, compressed as well as ours."""
    with tarfile.open(fileobj=io.BytesIO(zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read())) as old:
        members = {member.name: (old.extractfile(member) or io.BytesIO()).read() for member in old}
    change(members)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as new:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            new.addfile(info, io.BytesIO(data))
    forged = path.with_name("forged")
    forged.write_bytes(zstandard.ZstdCompressor().compress(out.getvalue()))
    return forged


def described(**changes: object) -> Callable[[dict[str, bytes]], None]:
    def change(members: dict[str, bytes]) -> None:
        members[MANIFEST] = json.dumps(json.loads(members[MANIFEST]) | changes).encode()

    return change


def one_byte(members: dict[str, bytes]) -> None:
    data = bytearray(members["tables/workspaces.copy"])
    data[len(data) // 2] ^= 1
    members["tables/workspaces.copy"] = bytes(data)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (described(schema="0001", program="0.0.1"), r"schema 0001.*Restore it with CodeHub 0\.0\.1"),
        (described(format=99), "has format 99"),
        (described(parts=[]), "more in it than it says"),
        (one_byte, "workspaces.copy is not what was written"),
        (lambda members: members.pop("tables/users.copy"), "users.copy is missing"),
        (lambda members: members.pop(MANIFEST), "does not begin with a manifest"),
    ],
    ids=["schema", "format", "parts", "one byte", "a part", "manifest"],
)
async def test_what_is_not_ours_changes_nothing(
    change: Callable[[dict[str, bytes]], None], why: str, other_url: str, backed_up: Path
) -> None:
    await migrate(other_url)
    await refused(other_url, rewritten(backed_up, change), why)


async def test_a_file_that_is_cut_changes_nothing(other_url: str, backed_up: Path) -> None:
    whole = backed_up.read_bytes()
    await migrate(other_url)
    cut = backed_up.with_name("cut")
    for length in (0, 1, 10, len(whole) // 2, len(whole) * 9 // 10):
        cut.write_bytes(whole[:length])
        await refused(other_url, cut, "damaged")
    await refused(other_url, backed_up.with_name("nothing"), "no file")


# ── killed ───────────────────────────────────────────────────────────────────────────────────────────────────────────

RESTORE = """
import asyncio, sys
from pathlib import Path
from codehub.adapters.backup import restore
from codehub.adapters.postgres import PostgresDatabase
from codehub.adapters.postgres.schema import migrate
from codehub.adapters.postgres.backup import Loading

load, kill_after = Loading.load, int(sys.argv[3])
loaded = 0

async def dying(self, name, columns, rows, chunks):
    global loaded
    if loaded == kill_after:
        async def half():
            async for chunk in chunks:
                yield chunk[: len(chunk) // 2]
                print("now", flush=True)
                sys.stdin.read()
        return await load(self, name, columns, rows, half())
    await load(self, name, columns, rows, chunks)
    loaded += 1

Loading.load = dying

async def main():
    async with await PostgresDatabase.open(sys.argv[1]) as database:
        await restore(database, sys.argv[1], Path(sys.argv[2]), replace_all=True)
        print("done", flush=True)
        sys.stdin.read()

asyncio.run(main())
"""


@pytest.mark.parametrize("kill_after", [0, 1, 5, 100], ids=["first", "second", "middle", "after the commit"])
async def test_killed_on_the_way_it_is_the_old_one_or_the_new(
    kill_after: int, other_url: str, backed_up: Path, database_url: str
) -> None:
    await migrate(other_url)
    async with await PostgresDatabase.open(other_url) as other:
        await filled(other, 2)
    before, wanted = await everything(other_url), await everything(database_url)
    process = subprocess.Popen(
        [sys.executable, "-c", RESTORE, other_url, str(backed_up), str(kill_after)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    said = await asyncio.to_thread(process.stdout.readline)
    process.send_signal(signal.SIGKILL)
    process.communicate()

    async def nobody_restores() -> bool:
        connection = await connected(other_url)
        try:
            restoring = "application_name = 'codehub restore' AND datname = current_database()"
            return not await connection.fetchval(f"SELECT count(*) FROM pg_stat_activity WHERE {restoring}")
        finally:
            await connection.close()

    await eventually(nobody_restores, 30)
    after = await everything(other_url)
    if said.strip() == b"done":
        assert kill_after == 100
        assert after["workspaces"] == wanted["workspaces"]
    else:
        assert said.strip() == b"now"
        assert after == before
    # Whichever it is, it works: numbers go on, and a restore can be run again.
    async with await PostgresDatabase.open(other_url) as other:
        await stored(other)
        await restore(other, other_url, backed_up, replace_all=True)
    assert (await everything(other_url))["workspaces"] == wanted["workspaces"]


async def test_a_backup_that_is_killed_leaves_no_file(database_url: str, backed_up: Path, tmp_path: Path) -> None:
    path = tmp_path / "later.tar.zst"
    script = (
        "import asyncio, os, sys, signal; from pathlib import Path\n"
        "from codehub.adapters import backup; from codehub.adapters.postgres import PostgresDatabase\n"
        "os.fsync = lambda fd: os.kill(os.getpid(), signal.SIGKILL)\n"
        "async def main():\n"
        "    async with await PostgresDatabase.open(sys.argv[1]) as database:\n"
        "        await backup.back_up(database, Path(sys.argv[2]), None, {})\n"
        "asyncio.run(main())\n"
    )
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", script, database_url, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not path.exists()
    async with await PostgresDatabase.open(database_url) as database:
        await back_up(database, path, None, {})
    checked_manifest(path)
    assert sorted(found.name for found in tmp_path.iterdir()) == [backed_up.name, path.name]


# ── the collector afterwards ─────────────────────────────────────────────────────────────────────────────────────────


async def test_what_is_newer_than_the_backup_is_not_swept(
    postgres: PostgresDatabase, other_url: str, backed_up: Path
) -> None:
    """An archive made after the backup is unknown to the restored database, and the collector refuses to judge."""
    async with await PostgresDatabase.open(other_url) as other:
        await restore(other, other_url, backed_up, replace_all=False)
        state = ArchivesState()
        later = datetime.now(UTC) + timedelta(hours=1.5)
        known = (await other.collector().read()).workspaces[0].id
        state.objects[f"{known}/{uuid4()}/home.tar.zst"] = StoredArchive((1,), later, committed=True)
        survey = GcScanner(other.collector(), MemoryArchives(state), MemoryRuntime(), Retention(), GcLimits(), "test")
        report = await survey.report()
        assert len(report.candidates) == 1
        assert {"ledger-behind", "restored"} <= {refusal.check for refusal in report.refusals}
        # The ledger goes on and says no more; that the database was restored is not forgotten.
        await age_ledger(other_url, -timedelta(hours=3))
        assert [refusal.check for refusal in (await survey.report()).refusals] == ["restored"]
        found = (await other.collector().read()).restored
        # And one of a workspace that is younger than the backup is a doubt of its own.
        state.objects[f"{uuid4()}/{uuid4()}/home.tar.zst"] = StoredArchive((1,), later, committed=True)
        assert {refusal.check for refusal in (await survey.report()).refusals} == {"restored", "database-older"}
    assert found is not None
    assert checked_manifest(backed_up).created_at == found.backup_at < found.restored_at


async def age_ledger(url: str, by: timedelta) -> None:
    connection = await connected(url)
    try:
        await connection.execute("ALTER TABLE workspace_events DISABLE TRIGGER append_only")
        await connection.execute("UPDATE workspace_events SET at = at - $1::interval", by)
    finally:
        await connection.close()
