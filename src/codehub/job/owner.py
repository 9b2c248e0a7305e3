"""Whose the store is: an object in it says so, and a job may be told whose it must be.

A directory that has lost its mount, or another bucket, would take an archive as well as the right one, and nobody would
find it there again.
"""

from dataclasses import dataclass

import obstore

from codehub.job.exit_codes import ExitCode
from codehub.job.failure import JobFailed
from codehub.job.store import ArchiveStore
from codehub.job.store_errors import translated


@dataclass(frozen=True)
class Owner:
    """`key`: the object that names the owner."""

    key: str
    name: str


def refuse_anothers(store: ArchiveStore, owner: Owner | None) -> None:
    if owner is None:
        return
    try:
        with translated("reading whose the archive store is"):
            found = bytes(obstore.get(store.store, owner.key).bytes()).decode(errors="replace").strip()
    except FileNotFoundError as error:
        message = f"the archive store has no mark {owner.key}, and should be {owner.name}'s: is its disk mounted?"
        raise JobFailed(ExitCode.OTHER_STORE, message) from error
    if found != owner.name:
        raise JobFailed(ExitCode.OTHER_STORE, f"the archive store is {found[:100]}'s, and should be {owner.name}'s")
