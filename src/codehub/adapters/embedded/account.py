"""Whom the servers run as. PostgreSQL refuses root and Redis has no need of it: root hands both to a system account.

A numeric id of our own invention will not do: initdb insists on a name. So: `codehub` if an administrator made one,
else the server's customary account, else `nobody`. Once a server has data, the owner of that data decides, so an
account that appears later changes nothing.
"""

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from codehub.adapters.embedded.errors import EmbeddedError


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
