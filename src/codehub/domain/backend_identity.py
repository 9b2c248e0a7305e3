"""Which backend is ours: homes and archives are looked for in the one that the database remembers, and in no other.

An empty directory below a lost mount, another engine, a bucket of a like name: each says definitely that nothing is
there, and nobody's home may be called lost for that. Pure.
"""

from enum import StrEnum


class Backend(StrEnum):
    RUNTIME = "runtime"
    ARCHIVES = "archives"


_WHAT = {
    Backend.RUNTIME: "the runtime is not the one that holds this installation's homes",
    Backend.ARCHIVES: "the archive store is not the one that holds this installation's archives",
}
_NONE = {
    Backend.RUNTIME: "one that has no identity",
    Backend.ARCHIVES: "one without the mark codehub-owner",
}
_CHECK = {
    Backend.RUNTIME: "Is its disk mounted? Are CODEHUB_RUNTIME, DOCKER_HOST, CODEHUB_INSTALL_ID and CODEHUB_DATA_DIR "
    "those of the other coordinators?",
    Backend.ARCHIVES: "Is its disk mounted? Are CODEHUB_ARCHIVE_URL and CODEHUB_ARCHIVE_PREFIX right?",
}


def wrong_backend_message(backend: Backend, expected: str, found: str | None) -> str:
    """The sentence for people: which identity is expected, which is found, and what to do."""
    present = _NONE[backend] if found is None else repr(found)
    return (
        f"{_WHAT[backend]}: expected {expected!r}, found {present}. Nothing is done there. {_CHECK[backend]} "
        f"If it was moved on purpose: `codehub admin backends --forget {backend}`"
    )
