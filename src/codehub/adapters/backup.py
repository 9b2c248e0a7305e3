"""A backup of CodeHub itself, the database and the settings, in one file, and its restore. Homes are not in it.

The file is a zstd-compressed tar whose first member says what the others must be, to the byte. It holds password hashes
and settings with their secrets, so only its owner may read it; it appears under its name when it is whole, and is read
to its end and compared before anything is done with it. All that can be refused is refused before anything is changed,
and the change is one transaction: whoever is killed on the way leaves either the old database or the restored one.
"""

import hashlib
import io
import json
import os
import shlex
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import zstandard

from codehub.adapters.postgres import PostgresDatabase, SchemaMismatch
from codehub.adapters.postgres.backup import LEFT_OUT, InUse, in_use, replacing, snapshot
from codehub.adapters.postgres.schema import check_schema, migrate, schema_head
from codehub.domain.errors import Refused
from codehub.job.filesystem import sync

__all__ = ["InUse", "Manifest", "back_up", "checked_manifest", "inspect", "restore", "settings_of"]

FORMAT = 1
MANIFEST = "manifest.json"
SETTINGS = "settings.env"
_CHUNK = 1 << 20
_LARGEST_MANIFEST = 16 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """A member of the backup. `table`, `columns` and `rows` are empty for what is no table."""

    name: str
    bytes: int
    sha256: str
    table: str = ""
    columns: tuple[str, ...] = ()
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Manifest:
    """The backup's first member. `install_id`: what resources are labelled with; `database_id`: the database's own, the
    same unless settings named another."""

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


class PartFile:
    """A temporary file that one part is written to once and read from once. It has no name, so nothing is left of
    it."""

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


def write_backup(path: Path, manifest: Manifest, part_files: Sequence[PartFile]) -> None:
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
            for part, part_file in zip(manifest.parts, part_files, strict=True):
                _add(archive, part.name, part.bytes, part_file.rewound(), manifest.created_at)
        file.flush()
        os.fsync(descriptor)
    draft.rename(path)
    sync(path.parent)


def checked_manifest(path: Path) -> Manifest:
    """Reads the whole file and returns its manifest. Refused if a single byte is not what was written."""
    with _members(path) as (manifest, members):
        for part, member in zip(manifest.parts, members, strict=True):
            for _ in _checked(path, part, member):
                pass
    return manifest


@contextmanager
def contents(path: Path) -> "Iterator[Iterator[tuple[Part, AsyncIterator[bytes]]]]":
    """Yields the parts one after the other, each checked again as it is read."""
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


async def back_up(
    database: PostgresDatabase, path: Path, install_id: str | None, environment: Mapping[str, str]
) -> Manifest:
    """Writes a snapshot of one moment. The file appears when it is whole; one that is there already stays as it is."""
    _must_be_free(path)
    await check_schema(database)
    database_id = (await database.installation_id()).hex
    parts = []
    with ExitStack() as part_files:
        kept: list[PartFile] = []

        def part_file(name: str) -> PartFile:
            kept.append(part_files.enter_context(closing(PartFile(path.parent, name))))
            return kept[-1]

        settings = part_file(SETTINGS)
        await settings.write(_as_lines(environment).encode())
        parts.append(settings.part())
        async with snapshot(database) as copying:
            created_at, found = datetime.now(UTC), copying.snapshot
            for table in copying.tables:
                part = part_file(f"tables/{table.name}.copy")
                rows = await copying.copy(table, part.write)
                parts.append(part.part(table.name, table.columns, rows))
        manifest = Manifest(
            program=version("codehub"),
            schema=found.schema,
            created_at=created_at,
            install_id=install_id or database_id,
            database_id=database_id,
            epoch=found.epoch,
            server=found.server,
            parts=tuple(parts),
            left_out=dict(LEFT_OUT),
        )
        write_backup(path, manifest, kept)
    return manifest


async def inspect(database: PostgresDatabase, path: Path) -> tuple[Manifest, InUse]:
    """Says what a restore would bring and what it would replace. Refused or SchemaMismatch if it cannot be done."""
    manifest = checked_manifest(path)
    if manifest.schema != schema_head():
        raise SchemaMismatch(
            f"{path} is of schema {manifest.schema}, this program has {schema_head()}. Restore it with CodeHub "
            f"{manifest.program}, which made it; then install this one and run `codehub migrate`. Nothing was changed."
        )
    found = await in_use(database)
    if found:
        await check_schema(database)
    return manifest, found


async def restore(database: PostgresDatabase, url: str, path: Path, *, replace_all: bool) -> Manifest:
    """Restores all or nothing. An empty database gets its schema first, as `codehub migrate` would give it."""
    manifest, _found = await inspect(database, path)
    await migrate(url)
    details = {"backup_at": manifest.created_at.isoformat(), "made_by": manifest.program}
    with contents(path) as parts:
        async with replacing(database, manifest.epoch, manifest.created_at, details, replace=replace_all) as loading:
            loading.must_hold({part.table: part.columns for part in manifest.parts if part.table})
            for part, chunks in parts:
                if part.table:
                    await loading.load(part.table, part.columns, part.rows, chunks)
                else:
                    async for _chunk in chunks:
                        pass
    return manifest


def _must_be_free(path: Path) -> None:
    if path.exists():
        raise Refused(f"{path} exists already. Name another file, or remove that one.")
    if not path.parent.is_dir():
        raise Refused(f"There is no directory {path.parent}. Make it first.")


def _as_lines(environment: Mapping[str, str]) -> str:
    """The settings as lines for a shell to read: `set -a; . FILE`."""
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in sorted(environment.items()))
