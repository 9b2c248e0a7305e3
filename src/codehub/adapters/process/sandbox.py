"""Bubblewrap, where the machine has it and lets it work: the workspace sees the system read-only, a private `/tmp`,
its own processes, its home and its socket. What is not named here is not there, so a forgotten path is a safe one.
"""

import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

HOME_INSIDE = Path("/home/coder")
"""The same in every incarnation of the home, so that absolute paths in it survive a restore."""

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt")
_NAMESPACES = ("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent", "--cap-drop", "ALL")
"""Started by root, bubblewrap would leave all of root's powers inside."""
_PRIVATE = (
    *("--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys"),  # uid 0 may write there without any capability
    *("--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/var/tmp"),  # noqa: S108 - names inside
)
_ROOTS_OWN = ("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers")
_ROOTS_OWN_DIRECTORIES = ("/etc/ssh", "/etc/ssl/private", "/etc/sudoers.d")
"""What root may read in the system's directories and nobody else; a workspace of root's CodeHub has its user id."""
_PROBE_SECONDS = 10


def find_bubblewrap() -> str | None:
    """Blocks. Its being there proves nothing: many machines forbid what it needs, so it is tried."""
    path = shutil.which("bwrap")
    if path is None:
        return None
    trial = [path, *_NAMESPACES, *("--ro-bind", "/", "/"), *_PRIVATE, "true"]
    try:
        tried = subprocess.run(trial, capture_output=True, timeout=_PROBE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return path if tried.returncode == 0 else None


def sandboxed(
    bubblewrap: str,
    argv: Sequence[str],
    *,
    home: Path,
    sockets: Path,
    root: Path,
    readable: Iterable[Path],
    hidden: Sequence[Path] = (),
) -> list[str]:
    """`hidden`: directories of which only what is readable by name is seen, wherever they lie."""
    hidden = [path for path in hidden if not any(other in path.parents for other in hidden)]
    around, within = _parted(readable, hidden)
    return [
        bubblewrap,
        *_NAMESPACES,
        *_system(),
        *("--ro-bind-try", "/run/systemd/resolve", "/run/systemd/resolve"),
        *_PRIVATE,
        *_masked(),
        *_bound(around),
        *(word for path in hidden for word in ("--tmpfs", str(path))),
        *_bound(within),
        # After what is readable: should that include our own directory, the other homes in it stay hidden.
        *("--tmpfs", str(root)),
        *("--bind", str(sockets), str(sockets)),
        *("--bind", str(home), str(HOME_INSIDE)),
        *("--chdir", str(HOME_INSIDE)),
        "--",
        *argv,
    ]


def _masked() -> Iterator[str]:
    yield from (w for path in _ROOTS_OWN if Path(path).exists() for w in ("--ro-bind", "/dev/null", path))
    yield from (w for path in _ROOTS_OWN_DIRECTORIES if Path(path).is_dir() for w in ("--tmpfs", path))


def _parted(readable: Iterable[Path], hidden: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """What may lie around the hidden directories, and what lies within."""
    paths = list(readable)
    within = [path for path in paths if any(place in path.parents for place in hidden)]
    return [path for path in paths if path not in within], within


def _bound(paths: Iterable[Path]) -> Iterator[str]:
    return (word for path in paths for word in ("--ro-bind", str(path), str(path)))


def _system() -> Iterator[str]:
    for path in map(Path, _SYSTEM):
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
