"""One file, or one folder as a tar of its own, out of an archive's stream, which is read once and only forward.

A file of the folder whose first name lies outside it has its content further up in the stream. It is given when the
stream comes by, under its first name inside the folder; its other names there become hard links to that one.
"""

from collections.abc import Iterable, Iterator

from codehub.adapters.archive_index import ArchiveIndex
from codehub.job.tar_format import END_OF_ARCHIVE, HARD_LINK, Member, encode, padding
from codehub.job.tar_reader import TarReader

CHUNK = 1 << 18
_HOLE = bytes(1 << 20)

Bytes = bytes | memoryview


def file_bytes(reader: TarReader, index: ArchiveIndex, number: int) -> Iterator[bytes]:
    return _gathered(_file(reader, index, number))


def folder_tar(reader: TarReader, index: ArchiveIndex, folder: int) -> Iterator[bytes]:
    return _gathered(_folder(reader, index, folder))


def _file(reader: TarReader, index: ArchiveIndex, number: int) -> Iterator[Bytes]:
    member = reader.member_at(index.offset(index.holder(number)))
    if member.real_size is None:
        yield from reader.content()
        return
    position = 0
    for offset, length in reader.sparse_map(member):
        yield from _zeros(offset - position)
        yield from reader.part(length)
        position = offset + length
    yield from _zeros(member.real_size - position)


def _zeros(size: int) -> Iterator[Bytes]:
    for _ in range(size // len(_HOLE)):
        yield _HOLE
    yield _HOLE[: size % len(_HOLE)]


def _folder(reader: TarReader, index: ArchiveIndex, folder: int) -> Iterator[Bytes]:
    inside = range(folder, index.end(folder))
    names = _names_of_outsiders(index, inside)
    for holder, name in sorted(names.items()):
        member = reader.member_at(index.offset(holder))
        yield from _stored(reader, member._replace(path=index.path(name, folder)))
    cut = len(index.path(folder)) + 1 if folder else 0
    for number in inside if index.root_is_stored or folder else inside[1:]:
        holder = index.holder(number)
        if names.get(holder) == number:
            continue
        member = reader.member_at(index.offset(number))
        link = member.link if holder == number else index.path(names.get(holder, holder), folder)
        yield from _stored(reader, member._replace(path=member.path[cut:], link=link))
    yield END_OF_ARCHIVE


def _names_of_outsiders(index: ArchiveIndex, inside: range) -> dict[int, int]:
    """The first name inside of each file whose content lies outside."""
    names: dict[int, int] = {}
    for number in inside:
        if index.kind(number) == HARD_LINK and (holder := index.holder(number)) not in inside:
            names.setdefault(holder, number)
    return names


def _stored(reader: TarReader, member: Member) -> Iterator[Bytes]:
    yield encode(member)
    yield from reader.content()
    yield padding(member.size)


def _gathered(parts: Iterable[Bytes]) -> Iterator[bytes]:
    """Small parts together: handing one over costs more than copying it."""
    held = bytearray()
    for part in parts:
        if not held and len(part) >= CHUNK:
            yield bytes(part)
            continue
        held += part
        if len(held) >= CHUNK:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)
