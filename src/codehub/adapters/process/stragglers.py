"""Processes whose shim was killed. Normally none: the shim ends its whole tree before it lets the lock go.

What a container starts inherits its instance id in the environment, and the kernel shows that to us; a recycled pid
does not have it.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from codehub.domain.errors import BackendError

INSTANCE_VARIABLE = "CODEHUB_INSTANCE"

_PATIENCE_SECONDS = 5.0
_LOOK_AGAIN_SECONDS = 0.02


def end_stragglers(instance: str) -> None:
    """Blocks until none is left."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while found := list(stragglers(instance)):
        if time.monotonic() > deadline:
            raise BackendError(f"processes {', '.join(map(str, found))} of instance {instance} do not end")
        for pid in found:
            _kill(pid, instance)
        time.sleep(_LOOK_AGAIN_SECONDS)


def stragglers(instance: str) -> Iterator[int]:
    for name in os.listdir("/proc"):  # noqa: PTH208 - names are all we need
        if name.isdigit() and _belongs(int(name), instance):
            yield int(name)


def _belongs(pid: int, instance: str) -> bool:
    try:
        environment = Path("/proc", str(pid), "environ").read_bytes()
    except OSError:  # gone, or another user's
        return False
    return f"{INSTANCE_VARIABLE}={instance}".encode() in environment.split(b"\0")


def _kill(pid: int, instance: str) -> None:
    # The descriptor pins the process first, so what is checked is what is signalled.
    try:
        pinned = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if _belongs(pid, instance):
            with suppress(OSError):
                signal.pidfd_send_signal(pinned, signal.SIGKILL)
    finally:
        os.close(pinned)
