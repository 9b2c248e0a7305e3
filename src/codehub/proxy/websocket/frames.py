"""A reader of WebSocket frames as they pass: where they begin and end, and as much of their payload as somebody wants.

The bytes come as the network cut them. Nothing of a frame is kept but an unfinished header; a payload is handed on in
the pieces in which it comes, and what nobody wants of it is not even unmasked.
"""

from collections.abc import Callable
from time import monotonic
from typing import Final

CLOSE: Final = 0x8
_CONTROL: Final = 0x8
_FINAL: Final = 0x80
_RESERVED: Final = 0x70
_OPCODES: Final = frozenset((0x0, 0x1, 0x2, 0x8, 0x9, 0xA))
_LONGEST_HEADER: Final = 14
_LONGEST_CONTROL: Final = 125
_LONGEST: Final = 1 << 63
MOST_FRAMES: Final = 4096
"""How many frames of one direction are read within a second. A tab has some hundreds when it loads; a client that sends
more floods us with what is cheap to send and dear to read, and is no longer read.
"""
_WINDOW: Final = 512
"""How many bytes are unmasked at once: the reader may want nothing of what follows."""


class FrameReader:
    """Reads one direction of one socket.

    `began` is told of each data frame; `take` gets their payloads, one after the other, and answers how many of the
    bytes to come it does not want. Once the bytes are no frames, or more than MOST_FRAMES of them come in a second, the
    place in the stream is lost: `unreadable` is told of each read, and nothing else.
    """

    __slots__ = (
        "_clock", "_closed", "_data", "_head", "_key", "_left", "_read_since", "_skip", "_unread", "began", "broken",
        "take", "unreadable",
    )  # fmt: skip

    def __init__(self, unreadable: Callable[[], None], clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._unread = MOST_FRAMES
        """How many frames may still be read, until the second since `_read_since` is over."""
        self._read_since = clock()
        self.unreadable = unreadable
        self.began: Callable[[], None] | None = None
        self.take: Callable[[bytes], int] | None = None
        self.broken = False
        self._closed = False
        self._head = b""
        self._left = 0
        self._key = b""
        self._data = False
        self._skip = 0

    @property
    def at_boundary(self) -> bool:
        """Whether a frame of ours may be put in here: none is under way, and none has said that it was the last."""
        return not (self._left or self._head or self._closed or self.broken)

    @property
    def between_frames(self) -> bool:
        """Whether no frame is under way, nor a payload of which `take` has said that it does not want the rest."""
        return not (self._left or self._head or self.broken or (self._skip and self.take is not None))

    def read(self, data: bytes) -> None:
        at, end = 0, len(data)
        while at < end and not self.broken:
            if self._left:
                at = self._payload(data, at, end)
            elif not self._head and end - at > 1 and data[at] == 0x82 and data[at + 1] < 126:
                # Most frames of most servers: short, unmasked and binary.
                at = self._start(0x82, data[at + 1], b"", at + 2)
            else:
                at = self._header(data, at, end)
        if self.broken:
            self.unreadable()

    def _header(self, data: bytes, at: int, end: int) -> int:
        known = len(self._head)
        head = self._head + data[at : at + _LONGEST_HEADER - known]
        needed = _header_length(head)
        if len(head) < needed:
            self._head = head
            return end
        self._head = b""
        masked = head[1] & 0x80
        length = head[1] & 0x7F
        stop = needed - 4 if masked else needed
        if length > 125:
            length = int.from_bytes(head[2:stop], "big")
        if not _possible(head[0], length):
            self.broken = True
            return end
        return self._start(head[0], length, head[stop:needed] if masked else b"", at + needed - known)

    def _start(self, first: int, length: int, key: bytes, at: int) -> int:
        self._unread -= 1
        if not self._unread:
            self._slow_down()
        self._left = length
        self._key = key
        self._data = not first & _CONTROL
        if self._data:
            if self.began is not None:
                self.began()
        elif first & 0xF == CLOSE:
            self._closed = True
        return at

    def _slow_down(self) -> None:
        now = self._clock()
        if now - self._read_since < 1.0:
            self.broken = True
        self._unread, self._read_since = MOST_FRAMES, now

    def _payload(self, data: bytes, at: int, end: int) -> int:
        here = min(self._left, end - at)
        if self._data and self.take is not None:
            unwanted = min(self._skip, here)
            self._skip -= unwanted
            if unwanted:
                here = unwanted
            elif self._key:
                here = min(here, _WINDOW)
                self._skip = self.take(unmasked(data[at : at + here], self._key))
            else:
                self._skip = self.take(data[at : at + here])
        self._left -= here
        if self._key and here & 3:
            turn = here & 3
            self._key = self._key[turn:] + self._key[:turn]
        return at + here


def unmasked(piece: bytes, key: bytes) -> bytes:
    """Applies the mask of RFC 6455 to a piece of a payload. The same operation masks and unmasks."""
    size = len(piece)
    stream = (key * (size // 4 + 1))[:size]
    return (int.from_bytes(piece, "big") ^ int.from_bytes(stream, "big")).to_bytes(size, "big")


def close_frame(code: int, reason: str = "") -> bytes:
    """A close frame as a server sends it: unmasked. A reason that is too long is cut between characters."""
    text = reason.encode()[: _LONGEST_CONTROL - 2].decode(errors="ignore").encode()
    return bytes((_FINAL | CLOSE, 2 + len(text))) + code.to_bytes(2, "big") + text


def _header_length(head: bytes) -> int:
    """The length of the frame header that begins with these bytes, as far as they tell."""
    if len(head) < 2:
        return 2
    length = head[1] & 0x7F
    return 2 + (0 if length < 126 else 2 if length == 126 else 8) + (4 if head[1] & 0x80 else 0)


def _possible(first: int, length: int) -> bool:
    if first & _RESERVED or first & 0xF not in _OPCODES or length >= _LONGEST:
        return False
    return not first & _CONTROL or (bool(first & _FINAL) and length <= _LONGEST_CONTROL)
