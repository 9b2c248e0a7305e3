"""The command line as people meet it: wrong input ends in one clear line and its exit code, and changes nothing."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from urllib.error import HTTPError
from uuid import UUID, uuid4

import psutil
import pytest

from codehub.adapters.postgres import PostgresDatabase
from codehub.adapters.postgres.schema import migrate
from codehub.cli.output import FAILED, INTERRUPTED, SCHEMA, UNREACHABLE, USAGE
from codehub.domain.admission import RunningLimits
from codehub.domain.naming import Backend
from codehub.domain.workspace import Desired, Operation, Phase
from codehub.usecases.workspace_commands import CreateWorkspace, WorkspaceCommands
from tests.eventually import eventually
from tests.real_services import free_port
from tests.system import controlled_ide
from tests.system.deployment import ANN, CODEHUB, TIMEOUT_SECONDS
from tests.system.local_instance import Up, temporary_data_dir, those_of, up
from tests.system.write_log import connected

pytestmark = pytest.mark.system

NEEDS_A_DATABASE = (
    ("coordinator",),
    ("admin", "leader"),
    ("admin", "gc", "--dry-run"),
    ("admin", "recover", "6f1c2b54-8d0e-4a7b-9f57-0c1d6b0f2a11"),
)
VERBS = (("migrate",), *NEEDS_A_DATABASE)
EACH_VERB = pytest.mark.parametrize("verb", VERBS, ids=" ".join)
EACH_WITH_DATABASE = pytest.mark.parametrize("verb", NEEDS_A_DATABASE, ids=" ".join)
NOBODY_THERE = "postgresql://codehub:secret-word@127.0.0.1:1/codehub"


def codehub(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [CODEHUB, *words],
        env={"PATH": os.environ["PATH"], "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


@pytest.fixture
def elsewhere() -> Iterator[dict[str, str]]:
    # Not tmp_path: below so long a name the sockets would be outside.
    with tempfile.TemporaryDirectory(prefix="codehub-test-") as name:
        yield {"CODEHUB_REDIS_URL": "redis://127.0.0.1:1/0", "CODEHUB_DATA_DIR": f"{name}/data"}


def assert_one_line(done: subprocess.CompletedProcess[str], code: int, *parts: str) -> None:
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith("codehub: ")
    for part in parts:
        assert part in line
    assert "secret-word" not in line


async def contents(url: str) -> dict[str, list[str]]:
    async with connected(url) as connection:
        tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
        return {
            name: [str(row) for row in await connection.fetch(f'SELECT t::text FROM "{name}" t ORDER BY 1')]
            for (name,) in tables
        }


# ── settings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@EACH_VERB
def test_a_broken_setting(verb: tuple[str, ...], elsewhere: dict[str, str]) -> None:
    done = codehub(*verb, **elsewhere, CODEHUB_DATABASE_URL=NOBODY_THERE, COORDINATOR_IDLE_INTERVAL="soon")
    assert_one_line(done, USAGE, "COORDINATOR_IDLE_INTERVAL='soon'", "for example COORDINATOR_IDLE_INTERVAL=15")
    assert not Path(elsewhere["CODEHUB_DATA_DIR"]).exists()


@pytest.mark.parametrize("verb", ["migrate", "coordinator", "api"])
def test_a_missing_setting(verb: str, elsewhere: dict[str, str]) -> None:
    done = codehub(verb, **elsewhere)
    assert_one_line(done, USAGE, "CODEHUB_DATABASE_URL is not set", "for example CODEHUB_DATABASE_URL=postgresql://")


@pytest.mark.parametrize("verb", [verb for verb in NEEDS_A_DATABASE if verb[0] == "admin"], ids=" ".join)
def test_no_installation_on_this_machine(verb: tuple[str, ...], elsewhere: dict[str, str]) -> None:
    """An operator's verbs look for a `codehub up` that runs here."""
    done = codehub(*verb, **elsewhere)
    assert_one_line(done, USAGE, "CODEHUB_DATABASE_URL", f"no `codehub up` runs on {elsewhere['CODEHUB_DATA_DIR']}")


def test_a_secret_that_is_wrong_is_not_shown(elsewhere: dict[str, str]) -> None:
    done = codehub("coordinator", **elsewhere, CODEHUB_DATABASE_URL="mysql://codehub:secret-word@db/codehub")
    assert_one_line(done, USAGE, "CODEHUB_DATABASE_URL: must be the address of a PostgreSQL database")


def test_up_checks_the_settings_before_it_makes_anything(elsewhere: dict[str, str]) -> None:
    done = codehub("up", CODEHUB_DATA_DIR=elsewhere["CODEHUB_DATA_DIR"], TTL_STANDBY_SECONDS="5")
    assert_one_line(done, USAGE, "TTL_STANDBY_SECONDS=5", "raise it")
    assert not Path(elsewhere["CODEHUB_DATA_DIR"]).exists()


async def test_a_data_directory_that_cannot_be(fresh_database: str, elsewhere: dict[str, str], tmp_path: Path) -> None:
    await migrate(fresh_database)
    (tmp_path / "file").touch()
    elsewhere["CODEHUB_DATA_DIR"] = str(tmp_path / "file" / "data")
    done = codehub("coordinator", **elsewhere, CODEHUB_DATABASE_URL=fresh_database)
    assert_one_line(done, FAILED, str(tmp_path / "file" / "data"), "Not a directory")


# ── the database ─────────────────────────────────────────────────────────────────────────────────────────────────────


@EACH_VERB
def test_an_unreachable_database(verb: tuple[str, ...], elsewhere: dict[str, str]) -> None:
    done = codehub(*verb, **elsewhere, CODEHUB_DATABASE_URL=NOBODY_THERE)
    assert_one_line(done, UNREACHABLE, "PostgreSQL does not answer", "is its address right (CODEHUB_DATABASE_URL")


@EACH_VERB
def test_a_database_that_does_not_exist(verb: tuple[str, ...], elsewhere: dict[str, str], postgres_url: str) -> None:
    done = codehub(*verb, **elsewhere, CODEHUB_DATABASE_URL=postgres_url.replace("/postgres?", "/nosuch?"))
    assert_one_line(done, UNREACHABLE, '"nosuch" does not exist', "is its address right (CODEHUB_DATABASE_URL")


@EACH_WITH_DATABASE
async def test_a_database_without_schema(verb: tuple[str, ...], elsewhere: dict[str, str], fresh_database: str) -> None:
    done = codehub(*verb, **elsewhere, CODEHUB_DATABASE_URL=fresh_database)
    assert_one_line(done, SCHEMA, "run `codehub migrate`")
    assert await contents(fresh_database) == {}
    assert not Path(elsewhere["CODEHUB_DATA_DIR"]).exists()


@EACH_VERB
async def test_a_schema_from_the_future(verb: tuple[str, ...], elsewhere: dict[str, str], fresh_database: str) -> None:
    await migrate(fresh_database)
    async with connected(fresh_database) as connection:
        await connection.execute("UPDATE alembic_version SET version_num = '9999'")
    before = await contents(fresh_database)
    done = codehub(*verb, **elsewhere, CODEHUB_DATABASE_URL=fresh_database)
    assert_one_line(done, SCHEMA, "schema 9999", "upgrade CodeHub")
    assert await contents(fresh_database) == before


async def test_migrate_twice(elsewhere: dict[str, str], fresh_database: str) -> None:
    """Without any Redis: a schema needs none."""
    first = codehub("migrate", CODEHUB_DATABASE_URL=fresh_database)
    assert (first.returncode, first.stderr) == (0, "")
    assert "Migrated from an empty database to" in first.stdout
    before = await contents(fresh_database)
    second = codehub("migrate", CODEHUB_DATABASE_URL=fresh_database)
    assert (second.returncode, second.stderr) == (0, "")
    assert "up to date" in second.stdout
    assert await contents(fresh_database) == before


# ── usage ────────────────────────────────────────────────────────────────────────────────────────────────────────────

WRONG_USAGE = {
    "no such verb": (("strat",), "No such command 'strat'"),
    "no such admin verb": (("admin", "leaders"), "No such command 'leaders'"),
    "too much": (("admin", "leader", "now"), "unexpected extra argument"),
    "no such option": (("admin", "gc", "--dry"), "--dry"),
    "no id": (("admin", "recover"), "Missing argument"),
    "an id that is none": (("admin", "recover", "my-workspace"), "valid UUID"),
    "an action that is none": (("admin", "recover", str(uuid4()), "--action", "pray"), "retry"),
    "a restore point by its key": (("admin", "recover", str(uuid4()), "--archive", "some/key"), "--archive"),
    "a check that is never waived": (("admin", "gc", "--force-over", "database-empty"), "cannot be waived"),
}


@pytest.mark.parametrize(("words", "part"), WRONG_USAGE.values(), ids=WRONG_USAGE.keys())
def test_wrong_usage(words: tuple[str, ...], part: str, elsewhere: dict[str, str]) -> None:
    done = codehub(*words, **elsewhere, CODEHUB_DATABASE_URL=NOBODY_THERE)
    assert_one_line(done, USAGE, part, "--help`")


@pytest.mark.parametrize(
    "verb",
    ["", "up", "coordinator", "migrate", "admin leader", "admin recover", "admin gc", "admin backends", "ide install"],
)
def test_help_has_an_example(verb: str) -> None:
    done = codehub(*verb.split(), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Example" in done.stdout
    assert f"codehub {verb}".strip() in done.stdout.partition("Example")[2]


@pytest.mark.parametrize(
    ("name", "value"), [("CODEHUB_RUNTIME", "docker"), ("CODEHUB_IDE_COMMAND", "my-ide --socket {socket}")]
)
def test_an_ide_that_is_not_ours_to_install(name: str, value: str, elsewhere: dict[str, str]) -> None:
    done = codehub("ide", "install", **{**elsewhere, "CODEHUB_IDE_COMMAND": "", name: value})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(name)


# ── admin ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_recover_what_is_not_there_or_not_broken(elsewhere: dict[str, str], fresh_database: str) -> None:
    await migrate(fresh_database)
    async with await PostgresDatabase.open(fresh_database) as database:
        key = await new_workspace(database, Desired.STANDBY)
    before = await contents(fresh_database)
    elsewhere["CODEHUB_DATABASE_URL"] = fresh_database
    assert_one_line(codehub("admin", "recover", str(uuid4()), **elsewhere), USAGE, "There is no workspace")
    assert_one_line(codehub("admin", "recover", str(key), **elsewhere), USAGE, "not in ERROR")
    assert await contents(fresh_database) == before


async def test_nobody_leads(elsewhere: dict[str, str], fresh_database: str) -> None:
    await migrate(fresh_database)
    before = await contents(fresh_database)
    elsewhere["CODEHUB_DATABASE_URL"] = fresh_database
    done = codehub("admin", "leader", **elsewhere)
    assert (done.returncode, done.stderr) == (FAILED, "")
    assert done.stdout == "Nobody leads. Start one with `codehub coordinator`.\n"
    done = codehub("admin", "leader", "--json", **elsewhere)
    assert done.returncode == FAILED
    assert json.loads(done.stdout) == {"leader": None, "alive": False}
    assert await contents(fresh_database) == before


async def test_backends_are_shown_and_forgotten_only_when_asked(elsewhere: dict[str, str], fresh_database: str) -> None:
    await migrate(fresh_database)
    elsewhere["CODEHUB_DATABASE_URL"] = fresh_database
    done = codehub("admin", "backends", **elsewhere)
    assert (done.returncode, done.stderr, done.stdout.count("none yet")) == (0, "", 2)
    async with await PostgresDatabase.open(fresh_database) as database:
        await database.backend_identities().adopt(Backend.RUNTIME, "docker ABCD", 0)
        await database.backend_identities().adopt(Backend.ARCHIVES, "this", 0)
        done = codehub("admin", "backends", **elsewhere)
        assert done.returncode == FAILED
        assert "the runtime is not the one that holds this installation's homes: expected 'docker ABCD'" in done.stdout
        assert "found one without the mark codehub-owner" in done.stdout
        told = json.loads(codehub("admin", "backends", "--json", **elsewhere).stdout)
        assert [one["remembered"] for one in told] == ["docker ABCD", "this"]
        before = await database.backend_identities().remembered()
        given_up = codehub("admin", "backends", "--forget", "runtime", **elsewhere)
        assert given_up.returncode == INTERRUPTED
        assert await database.backend_identities().remembered() == before
        done = codehub("admin", "backends", "--forget", "runtime", "--yes", **elsewhere)
        assert (done.returncode, done.stdout) == (0, "Forgotten: the leader adopts the runtime that it finds.\n")
        assert list(await database.backend_identities().remembered()) == [Backend.ARCHIVES]
        assert [entry.action for entry in await database.audit().entries()] == ["forget_backend"]
        again = codehub("admin", "backends", "--forget", "runtime", "--yes", **elsewhere)
        assert (again.returncode, again.stdout) == (0, "Nothing was remembered.\n")


async def test_gc_only_reports(elsewhere: dict[str, str], fresh_database: str) -> None:
    await migrate(fresh_database)
    stray = Path(elsewhere["CODEHUB_DATA_DIR"], "archives", str(uuid4()), str(uuid4()), "home.tar.zst")
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"whose is this?")
    before = await contents(fresh_database)
    done = codehub("admin", "gc", "--dry-run", "--json", **elsewhere, CODEHUB_DATABASE_URL=fresh_database)
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["existing"] == {"container": 0, "volume": 0, "object": 1}
    assert [refusal["check"] for refusal in report["refusals"]] == ["database-empty"]
    shown = codehub("admin", "gc", "--dry-run", **elsewhere, CODEHUB_DATABASE_URL=fresh_database)
    assert "no workspace of that id is known" in shown.stdout
    assert "A sweep would be refused. database-empty: " in shown.stdout
    assert stray.read_bytes() == b"whose is this?"
    assert await contents(fresh_database) == before


async def test_gc_in_earnest_needs_a_leader(elsewhere: dict[str, str], fresh_database: str) -> None:
    await migrate(fresh_database)
    before = await contents(fresh_database)
    done = codehub("admin", "gc", **elsewhere, CODEHUB_DATABASE_URL=fresh_database)
    assert done.returncode == FAILED
    assert "nobody leads" in done.stdout
    assert await contents(fresh_database) == before


async def new_workspace(database: PostgresDatabase, desired: Desired) -> UUID:
    key = uuid4()
    await WorkspaceCommands(database.specs(), RunningLimits()).create(
        CreateWorkspace("demo", "ann", desired), key, ANN, datetime.now(UTC)
    )
    return key


# ── up ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def data_dir() -> Iterator[Path]:
    with temporary_data_dir() as directory:
        yield directory


def embedded_addresses(directory: Path) -> dict[str, str]:
    word = {name: (directory / name / "password").read_text().strip() for name in ("postgres", "redis")}
    return {
        "CODEHUB_DATABASE_URL": f"postgresql://codehub:{word['postgres']}@/postgres?host={directory}/postgres/data",
        "CODEHUB_REDIS_URL": f"unix://:{word['redis']}@{directory}/redis/data/redis.sock",
        "CODEHUB_DATA_DIR": str(directory),
    }


@contextmanager
def running_up(directory: Path, **environment: str) -> Iterator[Up]:
    """Running when it yields."""
    (directory / "bin").mkdir(exist_ok=True)
    (directory / "gates").mkdir(exist_ok=True)
    if not (directory / "bin" / "bwrap").exists():
        (directory / "bin" / "bwrap").symlink_to("/bin/false")  # a sandbox would hide our interpreter
    given = {
        "PATH": f"{directory / 'bin'}:{os.environ['PATH']}",
        "CODEHUB_IDE_COMMAND": f"{sys.executable} {controlled_ide.__file__} {{socket}} {directory / 'gates'}",
    }
    with up(directory, free_port(), given | environment) as running:
        yield running


async def test_up_and_up_again(data_dir: Path) -> None:
    with running_up(data_dir) as running:
        addresses = embedded_addresses(data_dir)
        async with await PostgresDatabase.open(addresses["CODEHUB_DATABASE_URL"]) as database:
            key = await new_workspace(database, Desired.RUNNING)
            await reaches(database, key, Phase.RUNNING)
        said = codehub("admin", "leader", "--json", CODEHUB_DATA_DIR=str(data_dir))  # found by its own file
        assert (said.returncode, said.stderr) == (0, "")
        leader = json.loads(said.stdout)
        assert leader["alive"] is True
        assert leader["leader"]["holder"] == f"{socket.gethostname()}:{running.process.pid}"
        [ide] = ides(data_dir)
        second = codehub("up", "--data-dir", str(data_dir), "--port", str(free_port()))
        assert second.returncode == FAILED
        assert "already run by another codehub" in second.stderr
        assert running.ended(signal.SIGINT) == 0

    # The databases and the coordinator are gone; the person's IDE and what runs beside it are not.
    supervisor = ide.parents()[-2]
    left = {one.pid for one in those_of(data_dir)}
    assert ide.pid in left <= {supervisor.pid, *(one.pid for one in supervisor.children(recursive=True))}
    with running_up(data_dir) as running:
        async with await PostgresDatabase.open(addresses["CODEHUB_DATABASE_URL"]) as database:
            await reaches(database, key, Phase.RUNNING)
            assert codehub("admin", "leader", **addresses).returncode == 0
            assert ides(data_dir) == [ide]
            await WorkspaceCommands(database.specs(), RunningLimits()).want(key, Desired.STANDBY, ANN)
            await reaches(database, key, Phase.STANDBY)
        assert running.ended(signal.SIGTERM) == 0
    assert those_of(data_dir) == []


async def reaches(database: PostgresDatabase, key: UUID, phase: Phase) -> None:
    async def is_there() -> bool:
        row = await database.specs().get(key)
        return row is not None and row.phase is phase and row.operation is Operation.NONE

    await eventually(is_there)


def ides(directory: Path) -> list[psutil.Process]:
    return [one for one in those_of(directory) if controlled_ide.__file__ in one.cmdline()]


def test_a_port_that_is_taken(data_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = codehub("up", "--data-dir", str(data_dir / "data"), "--port", str(port))
    assert_one_line(done, USAGE, f"port {port} cannot be used", "choose another with --port")
    assert not (data_dir / "data").exists()


def test_what_up_says_of_itself(data_dir: Path) -> None:
    with running_up(data_dir) as running:
        found = re.search(r"http://localhost:(\d+)", running.screen)
        assert found is not None
        address = f"127.0.0.1:{found[1]}"
        leads(lambda: page(address, "readyz")[0] == 200)
        assert page(address, "healthz")[0] == 200
        assert json.loads(page(address, "readyz")[1])["controller_age_seconds"] < 60
        assert running.ended(signal.SIGINT) == 0
    assert those_of(data_dir) == []


async def test_status_of_a_coordinator(elsewhere: dict[str, str], fresh_database: str, fresh_redis: str) -> None:
    await migrate(fresh_database)
    address = f"127.0.0.1:{free_port()}"
    given = elsewhere | {
        "PATH": os.environ["PATH"],
        "CODEHUB_DATABASE_URL": fresh_database,
        "CODEHUB_REDIS_URL": fresh_redis,
        "CODEHUB_IDE_COMMAND": "true {socket}",
        "COORDINATOR_STATUS_ADDRESS": address,
    }
    with subprocess.Popen([CODEHUB, "coordinator"], env=given, stdout=subprocess.DEVNULL) as process:
        try:
            leads(lambda: json.loads(page(address, "readyz")[1])["leads"])
            assert json.loads(page(address, "readyz")[1])["epoch"] >= 1
            assert page(address, "healthz")[0] == 200
            status, metrics = page(address, "metrics")
            assert status == 200
            assert "codehub_is_leader 1.0" in metrics
            assert page(address, "nothing")[0] == 404

            other = codehub("coordinator", **given)
            assert_one_line(other, USAGE, f"COORDINATOR_STATUS_ADDRESS={address}", "choose a free port")
            process.send_signal(signal.SIGINT)
            assert process.wait(TIMEOUT_SECONDS) == 0
        finally:
            process.kill()


def leads(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        with contextlib.suppress(OSError):  # nobody listens yet, hangs up, or is slow to answer
            if check():
                return
        assert time.monotonic() < deadline
        time.sleep(0.05)


def page(address: str, name: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}/{name}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()
