"""Where a server's unix socket lives: beside its data, or, when that path is too long for a socket or cannot be
written in a URL, in a short private directory made from its hash.
"""

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path

from codehub.adapters.embedded.account import make_private
from codehub.adapters.embedded.failure import EmbeddedError
from codehub.adapters.embedded.home import Home

_LONGEST = 107  # bytes, of the kernel's 108 with the closing zero
_NAMES = 8  # in a shared directory, somebody else may sit on one
_SEPARATORS = frozenset(",:")  # of hosts and ports, in PostgreSQL's URLs


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
    return len(name) <= _LONGEST and not _SEPARATORS.intersection(str(path))


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
