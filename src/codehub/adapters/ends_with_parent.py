"""Runs a program that ends when its parent ends: `ends_with_parent.py PARENT SIGNAL LOCK ACCOUNT PROGRAM…`.

A program of its own between fork and exec, because code there may deadlock in a process with threads, and because the
kernel forgets the parent-death signal when the user id changes. LOCK is a descriptor that PROGRAM and all it starts
inherit: it stays taken until the last of them is gone, even of those that no signal reaches. ACCOUNT is `-` for a tool
that runs as we do, `self` for a server, or `UID:GID` for a server under another account. Only the standard library.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

_SET_PDEATHSIG = 1
_SET_NO_NEW_PRIVS = 38
_libc = ctypes.CDLL(None)


def command(
    program: str | Path, *words: str | Path, number: signal.Signals, lock: int, account: str = "-"
) -> list[str]:
    """The command that runs `program` under this module; whoever starts it passes the descriptor `lock` on."""
    tied = (__file__, str(os.getpid()), str(int(number)), str(lock), account)
    return [sys.executable, "-I", "-S", *tied, str(program), *map(str, words)]


def interpreter_environment() -> dict[str, str]:
    """The least in which our interpreter runs: nothing of the caller's, whose variables hold passwords and would change
    what a server does, but the path of the libraries that the interpreter itself may be linked with."""
    kept = {name: value for name in ("LD_LIBRARY_PATH",) if (value := os.environ.get(name))}
    return {"PATH": os.defpath, **kept}


def main() -> None:
    parent, number, lock = map(int, sys.argv[1:4])
    if sys.argv[4] != "-":
        _become_server(lock, sys.argv[4])
    _libc.prctl(_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the owner ended before its program began")
    for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored_by_python, signal.SIG_DFL)
    os.set_inheritable(lock, True)
    os.execv(sys.argv[5], sys.argv[5:])  # noqa: S606 - that is the whole purpose


def _become_server(lock: int, account: str) -> None:
    _record(lock)
    if account != "self":
        uid, gid = map(int, account.split(":"))
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    _libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.umask(0o077)


def _record(lock: int) -> None:
    """Pid and start time name a process for ever. The server inherits the lock read-only and cannot change it."""
    started = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    Path(f"/proc/self/fd/{lock}").write_text(f"{os.getpid()} {started}\n")


if __name__ == "__main__":
    main()
