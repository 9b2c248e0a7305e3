"""One server's directory and its rules: one owner, private, and only `data` belongs to the account that serves.

<data_dir>/logs/<name>.log
<data_dir>/<name>/owner.lock    held by the process that runs the server, with its pid inside
<data_dir>/<name>/server.lock   held by the server itself and every child of it, with the server's pid and start inside
<data_dir>/<name>/password
<data_dir>/<name>/data/         the server's working directory, named nowhere: its parents may be closed to it

The server's unix socket is beside its data, or, when that path is too long for a socket or cannot be written in a URL,
in a short private directory made from its hash.
"""

import fcntl
import hashlib
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from signal import Signals

from codehub.adapters.embedded.errors import EmbeddedError, explained
from codehub.adapters.embedded.programs import Account, make_private, require_owner, service_account
from codehub.job.filesystem import sync

_LONGEST_SOCKET = 107  # bytes, of the kernel's 108 with the closing zero
_NAMES = 8  # in a shared directory, somebody else may sit on one
_SEPARATORS = frozenset(",:")  # of hosts and ports, in PostgreSQL's URLs


@dataclass(frozen=True)
class Service:
    name: str
    title: str
    process: str  # as the kernel names it
    accounts: tuple[str, ...]
    stop: tuple[tuple[Signals, float], ...]  # from gentle to final, each with the seconds it is given


@dataclass(frozen=True)
class Home:
    service: Service
    data_dir: Path
    account: Account | None

    @property
    def root(self) -> Path:
        return self.data_dir / self.service.name

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def log(self) -> Path:
        return self.data_dir / "logs" / f"{self.service.name}.log"

    @property
    def server_lock(self) -> Path:
        return self.root / "server.lock"


@contextmanager
def owned(data_dir: Path, service: Service) -> Iterator[Home]:
    data_dir = data_dir.absolute()
    root = data_dir / service.name
    with explained(data_dir):
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make_ours(root)
        lock = _own(root / "owner.lock", data_dir, service)
    try:
        with explained(data_dir):
            home = Home(service, data_dir, service_account(root / "data", service.accounts))
            root.chmod(0o700)
            _make_ours(home.log.parent)
        yield home
    finally:
        os.close(lock)


def try_lock(path: Path) -> int | None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def saved_password(home: Home) -> str | None:
    try:
        return (home.root / "password").read_text().strip() or None
    except FileNotFoundError:
        return None


def new_password() -> str:
    return secrets.token_urlsafe(32)


def save_password(home: Home, password: str) -> None:
    draft = home.root / "password.new"
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{password}\n")
        file.flush()
        os.fsync(descriptor)
    draft.rename(home.root / "password")
    sync(home.root)


def _make_ours(directory: Path) -> None:
    directory.mkdir(mode=0o700, exist_ok=True)
    if not stat.S_ISDIR(directory.lstat().st_mode):
        raise EmbeddedError(f"{directory} is a link: replace it with a directory, or choose another data directory")
    require_owner(directory, None)


def _own(path: Path, data_dir: Path, service: Service) -> int:
    lock = try_lock(path)
    if lock is None:
        pid = path.read_text().strip() or "unknown"
        raise EmbeddedError(
            f"{service.title} in {data_dir} is already run by another codehub (process {pid}): "
            "stop that one first, or choose another data directory"
        )
    try:
        path.write_text(f"{os.getpid()}\n")
    except BaseException:
        os.close(lock)
        raise
    return lock


def socket_directory(home: Home, socket: str) -> Path:
    if _usable(home.data / socket):
        return home.data
    digest = hashlib.sha256(os.fsencode(home.data)).hexdigest()[:16]
    for parent, number in product(_short_parents(), range(_NAMES)):
        directory = parent / f"codehub-{digest}-{number}"
        if _usable(directory / socket) and _made_or_ours(directory, home):
            return directory
    raise EmbeddedError(f"{home.data / socket} is too long a name for a unix socket: choose a shorter data directory")


def leave_socket_directory(home: Home, directory: Path) -> None:
    if directory != home.data:
        with suppress(OSError):  # a server that was killed left its socket there, for the next one to replace
            directory.rmdir()


def _usable(path: Path) -> bool:
    try:
        name = str(path).encode()
    except UnicodeEncodeError:
        return False
    return len(name) <= _LONGEST_SOCKET and not _SEPARATORS.intersection(str(path))


def _short_parents() -> Iterator[Path]:
    if os.geteuid() == 0:
        yield Path("/run")
    elif runtime := os.environ.get("XDG_RUNTIME_DIR"):
        yield Path(runtime)
    if os.geteuid() != 0:  # root's may be closed to the account that serves
        yield Path(tempfile.gettempdir())
    yield Path("/tmp")  # noqa: S108 - the directory in it is private, and refused if somebody else made it


def _made_or_ours(directory: Path, home: Home) -> bool:
    try:
        make_private(directory, home.account)
    except FileExistsError:
        found = directory.lstat()
        uid = home.account.uid if home.account else os.geteuid()
        return stat.S_ISDIR(found.st_mode) and found.st_uid == uid and not found.st_mode & 0o077
    except OSError:
        return False
    return True
