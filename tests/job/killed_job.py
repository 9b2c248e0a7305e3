"""The job in a child that is killed at a chosen system call.

Children come from a clean fork server that has everything imported, so that hundreds of deaths take seconds. A call
that writes may also die half way through it.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable
from typing import Any

import obstore

from codehub.job.command import main

EFFECTS = (
    *("mkdir", "rename", "link", "symlink", "mkfifo", "unlink", "rmdir", "open", "write", "ftruncate", "lseek"),
    *("chmod", "fchmod", "chown", "fchown", "utime", "setxattr", "removexattr", "fsync", "close"),
)
OBJECT_EFFECTS = ("put", "get", "get_range", "head", "delete", "open_writer")

forks = multiprocessing.get_context("forkserver")
forks.set_forkserver_preload(["tests.job.killed_job"])


class KillPoint:
    """Kills this process at call number `at` of those it wraps; before the call, or after half of it."""

    def __init__(self, at: int, *, half: bool) -> None:
        self.left = at
        self.half = half

    def wrap(self, module: Any, name: str) -> None:
        real: Callable[..., Any] = getattr(module, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            if self.left == 0:
                if self.half and name == "write":
                    real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
                elif self.half:
                    real(*arguments, **options)
                os.kill(os.getpid(), signal.SIGKILL)
            self.left -= 1
            return real(*arguments, **options)

        setattr(module, name, counted)


def _run(arguments: list[str], at: int | None, half: bool) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if at is not None:
        death = KillPoint(at, half=half)
        for name in EFFECTS:
            death.wrap(os, name)
        for name in OBJECT_EFFECTS:
            death.wrap(obstore, name)
    code = main(arguments)
    os._exit(code)


def run_until(arguments: list[str], at: int | None = None, *, half: bool = False) -> int:
    """The exit code; negative when it was killed. `at=None` lets it live."""
    child = forks.Process(target=_run, args=(arguments, at, half))
    child.start()
    child.join(timeout=60)
    assert child.exitcode is not None, "the job hangs"
    return child.exitcode
