"""The file of a backup: a zstd-compressed tar whose first member says what the others must be, to the byte.

It holds password hashes and settings with their secrets, so it is its owner's alone. It appears under its name when it
is whole, and is read to its end and compared before anything is done with it.
"""

import hashlib
import io
import json
import os
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import zstandard

from codehub.domain.errors import Refused

FORMAT = 1
MANIFEST = "manifest.json"
SETTINGS = "settings.env"
_CHUNK = 1 << 20
_LARGEST_MANIFEST = 16 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """`table`, `columns` and `rows` are empty for what is no table."""

    name: str
    bytes: int
    sha256: str
    table: str = ""
    columns: tuple[str, ...] = ()
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Manifest:
    """`install_id`: what resources are labelled with; `database_id`: the database's own, the same unless settings
    named another."""

    program: str
    schema: str
    created_at: datetime
    install_id: str
    database_id: str
    epoch: int
    server: str
    parts: tuple[Part, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)
    format: int = FORMAT


class Spool:
    """One part on its way: written once, then read once. Its file has no name, so nothing is left of it."""

    def __init__(self, directory: Path, name: str) -> None:
        self.name = name
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - closed by close()
        self._hash = hashlib.sha256()
        self._bytes = 0

    async def write(self, data: bytes) -> None:
        self._hash.update(data)
        self._bytes += len(data)
        self._file.write(data)

    def part(self, table: str = "", columns: Sequence[str] = (), rows: int = 0) -> Part:
        return Part(self.name, self._bytes, self._hash.hexdigest(), table, tuple(columns), rows)

    def rewound(self) -> IO[bytes]:
        self._file.seek(0)
        return self._file

    def close(self) -> None:
        self._file.close()


def write_backup(path: Path, manifest: Manifest, spools: Sequence[Spool]) -> None:
    draft = path.with_name(f".{path.name}.part")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)
        compressor = zstandard.ZstdCompressor(9, write_checksum=True)
        with (
            compressor.stream_writer(file, closefd=False) as compressed,
            tarfile.open(fileobj=compressed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
        ):
            described = json.dumps(asdict(manifest), indent=1, default=datetime.isoformat).encode()
            _add(archive, MANIFEST, len(described), io.BytesIO(described), manifest.created_at)
            for part, spool in zip(manifest.parts, spools, strict=True):
                _add(archive, part.name, part.bytes, spool.rewound(), manifest.created_at)
        file.flush()
        os.fsync(descriptor)
    draft.rename(path)
    _sync(path.parent)


def checked_manifest(path: Path) -> Manifest:
    """Reads the whole file. Refused if a single byte is not what was written."""
    with _members(path) as (manifest, members):
        for part, member in zip(manifest.parts, members, strict=True):
            for _ in _checked(path, part, member):
                pass
    return manifest


@contextmanager
def contents(path: Path) -> "Iterator[Iterator[tuple[Part, AsyncIterator[bytes]]]]":
    """The parts one after the other, each checked again as it is read."""
    with _members(path) as (manifest, members):
        yield ((part, _slowly(_checked(path, part, m))) for part, m in zip(manifest.parts, members, strict=True))


def settings_of(path: Path) -> str:
    with _members(path) as (manifest, members):
        for part, member in zip(manifest.parts, members, strict=True):
            data = b"".join(_checked(path, part, member)) if part.name == SETTINGS else b""
            if data:
                return data.decode()
    return ""


@contextmanager
def _members(path: Path) -> Iterator[tuple[Manifest, Iterator[IO[bytes]]]]:
    with _undamaged(path), path.open("rb") as file:
        decompressed = zstandard.ZstdDecompressor().stream_reader(file, closefd=False)
        with tarfile.open(fileobj=decompressed, mode="r|") as archive:
            first = archive.next()
            if first is None or first.name != MANIFEST or first.size > _LARGEST_MANIFEST:
                raise _damaged(path, "it does not begin with a manifest")
            described = json.loads(_stream(archive, first).read())
            if described.get("format") != FORMAT:
                raise Refused(
                    f"{path} has format {described.get('format')!r}, this program reads {FORMAT}: "
                    f"use CodeHub {described.get('program', 'of its time')}. Nothing was changed."
                )
            manifest = _manifest(described)
            yield manifest, _following(path, archive, manifest)


def _following(path: Path, archive: tarfile.TarFile, manifest: Manifest) -> Iterator[IO[bytes]]:
    for part in manifest.parts:
        member = archive.next()
        if member is None or not member.isfile() or (member.name, member.size) != (part.name, part.bytes):
            raise _damaged(path, f"{part.name} is missing or cut")
        yield _stream(archive, member)
    if archive.next() is not None:
        raise _damaged(path, "there is more in it than it says")


def _checked(path: Path, part: Part, member: IO[bytes]) -> Iterator[bytes]:
    seen = hashlib.sha256()
    while chunk := member.read(_CHUNK):
        seen.update(chunk)
        yield chunk
    if seen.hexdigest() != part.sha256:
        raise _damaged(path, f"{part.name} is not what was written")


async def _slowly(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


def _manifest(described: dict[str, Any]) -> Manifest:
    parts = tuple(Part(**{**part, "columns": tuple(part["columns"])}) for part in described["parts"])
    return Manifest(**{**described, "created_at": datetime.fromisoformat(described["created_at"]), "parts": parts})


def _add(archive: tarfile.TarFile, name: str, size: int, data: IO[bytes], at: datetime) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, 0o600, int(at.astimezone(UTC).timestamp())
    archive.addfile(member, data)


def _stream(archive: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    found = archive.extractfile(member)
    if found is None:
        raise tarfile.ReadError(member.name)
    return found


@contextmanager
def _undamaged(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise Refused(f"There is no file {path}.") from None
    except OSError as error:
        if isinstance(error, tarfile.ReadError):
            raise _damaged(path, "it ends too early") from error
        raise Refused(f"{path} cannot be read: {error.strerror or error}.") from error
    except (zstandard.ZstdError, tarfile.TarError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, "it is no backup of ours, or cut") from error


def _damaged(path: Path, why: str) -> Refused:
    return Refused(f"{path} is damaged: {why}. Nothing was changed; use another backup.")


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
