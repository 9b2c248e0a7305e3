"""The frames of a command's connection: what its caller and the session beside the command say to each other.

A frame is its kind, the size of its payload, and the payload. The first one of a connection is the caller's and says
what it is for: OPEN starts a command. Then come, from the caller, STDIN, STDIN_EOF, RESIZE and SIGNAL, and from the
session STDOUT, STDERR and TAKEN, and after all output one EXIT.

Input has a window, so that a command that reads nothing does not keep a signal from reaching it: the caller sends at
most WINDOW_BYTES that were not TAKEN. Output needs none: nothing but its own end comes after it.
"""

import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

HEADER = struct.Struct(">BI")
WINDOW_BYTES = 256 << 10
MOST_FRAME_BYTES = 1 << 20
"""A larger frame is a broken connection. The arguments and variables of a command are one frame."""
MOST_DATA_BYTES = 64 << 10
"""The most that a frame of input or output carries."""

_SIZE = struct.Struct(">HH")
_COUNT = struct.Struct(">I")
_LARGEST_SIZE = 0xFFFF


class Frame(IntEnum):
    OPEN = 1
    STDIN = 3
    STDIN_EOF = 4
    RESIZE = 5
    SIGNAL = 6
    STDOUT = 16
    STDERR = 17
    TAKEN = 18
    """So much of the input has reached the command, or never will."""
    EXIT = 19


class OpenFrame(NamedTuple):
    """What is run. `terminal`: its columns and rows; None: pipes. Texts are bytes: a path may be any."""

    argv: Sequence[bytes]
    env: Mapping[bytes, bytes]
    cwd: bytes
    terminal: tuple[int, int] | None


def frame(kind: Frame, payload: bytes = b"") -> bytes:
    return HEADER.pack(kind, len(payload)) + payload


def open_frame(request: OpenFrame) -> bytes:
    size = b"" if request.terminal is None else size_payload(*request.terminal)
    variables = [name + b"=" + value for name, value in request.env.items()]
    parts = [size, request.cwd, str(len(request.argv)).encode(), *request.argv, *variables]
    return frame(Frame.OPEN, b"".join(_COUNT.pack(len(part)) + part for part in parts))


def parsed_open(payload: bytes) -> OpenFrame:
    """Raises ValueError or struct.error if it is not one."""
    parts, place = [], 0
    while place < len(payload):
        begin = place + _COUNT.size
        place = begin + _COUNT.unpack(payload[place:begin])[0]
        parts.append(payload[begin:place])
    size, cwd, count, *rest = parts
    argv, variables = rest[: int(count)], rest[int(count) :]
    pairs = (variable.partition(b"=") for variable in variables)
    return OpenFrame(argv, {name: value for name, _, value in pairs}, cwd, parsed_size(size) if size else None)


def size_payload(columns: int, rows: int) -> bytes:
    return _SIZE.pack(*(min(max(number, 0), _LARGEST_SIZE) for number in (columns, rows)))


def parsed_size(payload: bytes) -> tuple[int, int]:
    columns, rows = _SIZE.unpack(payload)
    return columns, rows


def count_payload(count: int) -> bytes:
    return _COUNT.pack(count)


def parsed_count(payload: bytes) -> int:
    count: int = _COUNT.unpack(payload)[0]
    return count


def exit_payload(code: int, signal_name: str = "") -> bytes:
    return _COUNT.pack(code) + signal_name.encode()


def parsed_exit(payload: bytes) -> tuple[int, str | None]:
    return parsed_count(payload[: _COUNT.size]), payload[_COUNT.size :].decode() or None


class Frames:
    """Cuts what a connection brings into frames."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The frames that are whole now: kind and payload. Raises ValueError if one is too large."""
        held, found, place = self._held, [], 0
        held += data
        while len(held) - place >= HEADER.size:
            kind, size = HEADER.unpack_from(held, place)
            if size > MOST_FRAME_BYTES:
                raise ValueError(f"a frame of {size} bytes")
            end = place + HEADER.size + size
            if len(held) < end:
                break
            found.append((kind, bytes(held[place + HEADER.size : end])))
            place = end
        del held[:place]
        return found
