"""Names of what we make in the backends, and the message about a backend that is not ours. Pure.

Names are derived from the immutable id, never from what a person may rename. Volumes have incarnations, so that a
delete which arrives late hits a name that is gone. Homes and archives are looked for in the backend that the database
remembers, and in no other: an empty directory below a lost mount, another engine, a bucket of a like name each say
definitely that nothing is there, and nobody's home may be called lost for that.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

ARCHIVE_FILE = "home.tar.zst"
META_SUFFIX = ".meta"
OWNER_MARK = "codehub-owner"
INSTALL_LABEL = "codehub.install"
WORKSPACE_LABEL = "codehub.workspace"
OPERATION_LABEL = "codehub.operation"
SLUG_LENGTH = 40

_SLUG = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
_LATER_HOME = re.compile(r"[2-9]|[1-9][0-9]+")
_HEX = "[0-9a-f]"
_UUID = f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}"
_STORED = re.compile(
    rf"((?P<id>{_UUID})/(?P<op>{_UUID})/{re.escape(ARCHIVE_FILE)})(?:{re.escape(META_SUFFIX)})?(?P<cut>#\d+)?"
)


class Backend(StrEnum):
    RUNTIME = "runtime"
    ARCHIVES = "archives"


_WRONG = {
    Backend.RUNTIME: "the runtime is not the one that holds this installation's homes",
    Backend.ARCHIVES: "the archive store is not the one that holds this installation's archives",
}
_UNIDENTIFIED = {
    Backend.RUNTIME: "one that has no identity",
    Backend.ARCHIVES: "one without the mark codehub-owner",
}
_ADVICE = {
    Backend.RUNTIME: "Is its disk mounted? Are CODEHUB_RUNTIME, DOCKER_HOST, CODEHUB_INSTALL_ID and CODEHUB_DATA_DIR "
    "those of the other coordinators?",
    Backend.ARCHIVES: "Is its disk mounted? Are CODEHUB_ARCHIVE_URL and CODEHUB_ARCHIVE_PREFIX right?",
}


def container_name(workspace_id: UUID) -> str:
    return f"ws-{workspace_id}"


def job_name(workspace_id: UUID) -> str:
    return f"ws-{workspace_id}-job"


def volume_name(workspace_id: UUID, incarnation: int) -> str:
    home = f"ws-{workspace_id}-home"
    return home if incarnation <= 1 else f"{home}-{incarnation}"


def incarnation_of(workspace_id: UUID, name: str) -> int | None:
    """The number in a home's name; None if it is not a name that we give to a home of that workspace."""
    first = volume_name(workspace_id, 1)
    if name == first:
        return 1
    number = name.removeprefix(f"{first}-")
    return int(number) if number != name and _LATER_HOME.fullmatch(number) else None


def archive_key(prefix: str, workspace_id: UUID, archive_op_id: UUID) -> str:
    return f"{prefix}{workspace_id}/{archive_op_id}/{ARCHIVE_FILE}"


def is_archive_of(key: str | None, workspace_id: UUID, archive_op_id: UUID | None) -> bool:
    return key is not None and key.endswith(f"{workspace_id}/{archive_op_id}/{ARCHIVE_FILE}")


def owner_key(prefix: str) -> str:
    """The key of the object that says which installation the store belongs to."""
    return prefix + OWNER_MARK


def meta_key(key: str) -> str:
    return key + META_SUFFIX


@dataclass(frozen=True, slots=True)
class StoredName:
    """What an object's name in the store says. `unfinished`: the object is the rest of an upload into a directory that
    was cut off."""

    workspace_id: UUID
    op_id: UUID
    key: str
    unfinished: bool


def stored_name(prefix: str, name: str) -> StoredName | None:
    """What an object's name says; None if it is not a name that we give, so not ours to judge."""
    found = _STORED.fullmatch(name.removeprefix(prefix)) if name.startswith(prefix) else None
    if found is None:
        return None
    return StoredName(UUID(found["id"]), UUID(found["op"]), prefix + found[1], found["cut"] is not None)


def is_slug(text: str) -> bool:
    """Whether the text is a DNS label without `--`, which the proxy keeps for port names."""
    return "--" not in text and _SLUG.fullmatch(text) is not None


def slug_from(name: str, workspace_id: UUID) -> str:
    """A readable slug, unique by the id's tail, so that two people may both have a `demo`."""
    words = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    tail = workspace_id.hex[-6:]
    head = words[: SLUG_LENGTH - len(tail) - 1].strip("-")
    return f"{head}-{tail}" if head else f"ws-{tail}"


def wrong_backend_message(backend: Backend, expected: str, found: str | None) -> str:
    """The message for people: which identity is expected, which is found, and what to do."""
    present = _UNIDENTIFIED[backend] if found is None else repr(found)
    return (
        f"{_WRONG[backend]}: expected {expected!r}, found {present}. Nothing is done there. {_ADVICE[backend]} "
        f"If it was moved on purpose: `codehub admin backends --forget {backend}`"
    )
