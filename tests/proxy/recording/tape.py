"""A recorded tab: its WebSocket frames, its requests, and marks that say what was being done.

One JSON value a line, zstd around it. Frames are kept unmasked, and of each message inside only the beginning: the rest
is zeros when played. So a tape is small, holds no file's contents, and can be read by eye (`zstd -dc`).
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import zstandard

TAPES = Path(__file__).parent / "tapes"
Pieces = list[tuple[str, int]]
"""Bytes as text, a character a byte, and how many zeros follow it."""


@dataclass(frozen=True, slots=True)
class Frame:
    at: float
    socket: int
    client: bool
    """Whether the browser sent the frame; else the IDE did."""
    first: int
    """The first byte of the frame: FIN and opcode."""
    pieces: Pieces

    def payload(self) -> bytes:
        return b"".join(text.encode("latin-1") + bytes(zeros) for text, zeros in self.pieces)

    def wire(self) -> bytes:
        """The frame as it passes the proxy. The mask differs from frame to frame, as a browser's does."""
        payload = self.payload()
        if not self.client:
            return header(self.first, len(payload), 0) + payload
        key = bytes((len(payload) + n * 89 + int(self.at * 1000)) & 0xFF for n in range(4))
        return header(self.first, len(payload), 0x80) + key + masked(payload, key)


@dataclass(frozen=True, slots=True)
class Request:
    at: float
    method: str
    target: str
    length: int = 0
    """The length of the body, or -1 where that is not said beforehand."""


@dataclass(frozen=True, slots=True)
class Mark:
    at: float
    doing: str


Entry = Frame | Request | Mark
KINDS: dict[str, type[Entry]] = {"frame": Frame, "request": Request, "mark": Mark}


@dataclass(frozen=True)
class Tape:
    about: dict[str, str]
    entries: tuple[Entry, ...]

    def marks(self) -> dict[str, tuple[float, float]]:
        """What was done, from when until when."""
        marks = [entry for entry in self.entries if isinstance(entry, Mark)]
        ends = [mark.at for mark in marks[1:]] + [self.entries[-1].at + 1.0]
        return {mark.doing: (mark.at, end) for mark, end in zip(marks, ends, strict=True)}


def write(path: Path, about: dict[str, str], entries: Iterable[Entry]) -> None:
    names = {kind: name for name, kind in KINDS.items()}
    lines = [json.dumps(about)]
    lines += [json.dumps({"kind": names[type(entry)], **asdict(entry)}, ensure_ascii=False) for entry in entries]
    path.write_bytes(zstandard.compress("\n".join(lines).encode(), 19))


def read(path: Path) -> Tape:
    lines = zstandard.decompress(path.read_bytes()).decode().split("\n")
    values = [json.loads(line) for line in lines]
    return Tape(values[0], tuple(KINDS[value.pop("kind")](**value) for value in values[1:]))


# ── frames, as simply as can be: this is what the real reader is compared with ───────────────────────────────────────


def header(first: int, length: int, mask: int) -> bytes:
    if length < 126:
        return bytes((first, mask | length))
    if length < 65536:
        return bytes((first, mask | 126)) + length.to_bytes(2, "big")
    return bytes((first, mask | 127)) + length.to_bytes(8, "big")


def masked(payload: bytes, key: bytes) -> bytes:
    stream = (key * (len(payload) // 4 + 1))[: len(payload)]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(payload), "big")


def frames(buffer: bytearray) -> Iterator[tuple[int, bytes]]:
    """The first byte and the unmasked payload of each whole frame, which are taken out of the buffer."""
    while len(buffer) >= 2:
        length, at = buffer[1] & 0x7F, 2
        if length > 125:
            at = 4 if length == 126 else 10
            if len(buffer) < at:
                return
            length = int.from_bytes(buffer[2:at], "big")
        key = b""
        if buffer[1] & 0x80:
            key, at = bytes(buffer[at : at + 4]), at + 4
        if len(buffer) < at + length:
            return
        payload = bytes(buffer[at : at + length])
        yield buffer[0], masked(payload, key) if key else payload
        del buffer[: at + length]
