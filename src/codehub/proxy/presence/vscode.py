"""VS Code's own protocol inside a WebSocket, read as far as it takes to tell background messages from somebody's work.

Data frames of one direction are one stream of outer frames: type, id, acknowledged id, length (13 bytes), then the
message. A tab has two sockets. On the management one, messages are calls, subscriptions, results and events in a small
tagged encoding; on the extension host's they are requests that carry their names in clear, and replies. Only the
beginning of a message is looked at, and only that much is ever held.
"""

import re
from collections.abc import Callable
from typing import Final

from codehub.proxy.presence import idle_messages

HEADER: Final = 13
PREFIX: Final = 512
"""How much of a message is held: its names and the beginning of what it carries, which may be a long path."""

SUBSCRIPTION: Final = 102
_REGULAR: Final = 1
_CONTROL: Final = 2
_SILENT: Final = frozenset((3, 5, 6, 7, 8, 9))
"""The types Ack, Disconnect, ReplayRequest, Pause, Resume and KeepAlive, which are nobody's doing."""
_KNOWN: Final = _SILENT | {_REGULAR, _CONTROL}

_CONNECTION: Final = re.compile(rb'"desiredConnectionType":([123])\b')
_MANAGEMENT: Final = b"1"
_EXTENSION_HOST: Final = b"2"

_NUMBER: Final = rb"\x06([\x80-\xff]*[\0-\x7f])"
_NAMED: Final = re.compile(rb"\x04\x04\x06([\x64\x66])" + _NUMBER + rb"\x01[\x01-\x7f]([!-~]+)\x01[\x01-\x7f]([!-~]+)")
"""[100, id, channel, method] is a call, [102, id, channel, event] a subscription."""
_UNDONE: Final = re.compile(rb"\x04\x02\x06[\x65\x67]" + _NUMBER)
"""[101, id] cancels a call, [103, id] ends a subscription."""
_RESULTS: Final = (b"\x04\x02\x06\xc9\x01", b"\x04\x02\x06\xca\x01", b"\x04\x02\x06\xcb\x01")
"""[201, id], [202, id] and [203, id]: what became of a call."""
_FIRED: Final = re.compile(rb"\x04\x02\x06\xcc\x01" + _NUMBER)
"""[204, id]: an event of that subscription."""
_MOST_REMEMBERED: Final = 32

_REQUESTS: Final = frozenset((1, 2, 3, 4))
_REPLIES: Final = frozenset((5, 6, 7, 8, 9, 10, 11, 12))
"""The types of replies: acknowledged, cancelled, and the kinds of results."""


class OuterFrames:
    """Reads the outer frames of one direction. `message` gets the type and the beginning of each that may mean
    something, and what is no type at once: nothing that follows it can be read."""

    __slots__ = ("_held", "_message")

    def __init__(self, message: Callable[[int, bytes], None]) -> None:
        self._message = message
        self._held = b""

    @property
    def unfinished(self) -> bool:
        return bool(self._held)

    def take(self, piece: bytes) -> int:
        """Read a piece of the stream. Returns how many of the following bytes are not wanted."""
        if self._held:
            piece = self._held + piece
        at, end = 0, len(piece)
        while at < end:
            kind = piece[at]
            if kind not in _KNOWN:
                self._held = b""
                self._message(kind, b"")
                return 0
            if end - at < HEADER:
                break
            length = int.from_bytes(piece[at + 9 : at + HEADER], "big")
            if kind not in _SILENT:
                wanted = min(length, PREFIX)
                if end - at - HEADER < wanted:
                    break
                self._message(kind, piece[at + HEADER : at + HEADER + wanted])
            at += HEADER + length
        self._held = piece[at:]
        return max(at - end, 0)


class Conversation:
    """The protocol of one socket, both ways. Each method answers whether the message counts as presence."""

    __slots__ = ("_quiet", "lost", "speaks")

    def __init__(self) -> None:
        self.speaks = b""
        """Which of the two protocols is spoken, as the handshake says, which is repeated on each reconnection."""
        self.lost = False
        """Whether what came is no outer frame, so that what follows cannot be told apart."""
        self._quiet: dict[bytes, None] = {}
        """Ids of subscriptions whose events do not count, oldest first."""

    def from_client(self, kind: int, message: bytes) -> bool:
        if kind == _REGULAR:
            if self.speaks == _MANAGEMENT:
                return self._called(message)
            return self.speaks != _EXTENSION_HOST or requests_work(message)
        if kind == _CONTROL:
            if found := _CONNECTION.search(message):
                self.speaks = found[1]
            return False
        self.lost = True
        return True

    def from_upstream(self, kind: int, message: bytes) -> bool:
        if kind == _REGULAR:
            if self.speaks == _MANAGEMENT:
                return self._answered(message)
            return self.speaks != _EXTENSION_HOST or requests_work(message)
        if kind == _CONTROL:
            return False
        self.lost = True
        return True

    def _called(self, message: bytes) -> bool:
        named = _NAMED.match(message)
        if named is None:
            undone = _UNDONE.match(message)
            if undone is None:
                return True
            self._quiet.pop(undone[1], None)
            return False
        what, number, channel, name = named.groups()
        if what[0] == SUBSCRIPTION:
            return not self._subscribed(number, channel, name)
        if channel == b"remoteFilesystem":
            return idle_messages.OWN_FILES.search(message) is None
        return channel not in idle_messages.CHANNELS and (channel, name) not in idle_messages.CALLS

    def _subscribed(self, number: bytes, channel: bytes, event: bytes) -> bool:
        """Whether this subscribes to background messages. It is remembered: an event bears only the subscription's
        number."""
        if (channel, event) not in idle_messages.EVENTS:
            return False
        self._quiet[number] = None
        if len(self._quiet) > _MOST_REMEMBERED:
            del self._quiet[next(iter(self._quiet))]
        return True

    def _answered(self, message: bytes) -> bool:
        if message.startswith(_RESULTS):
            return False
        fired = _FIRED.match(message)
        if fired is None:
            return True
        if fired[1] in self._quiet:
            return False
        # Subscribed to on an earlier socket, perhaps before this process began: only what the event carries can tell.
        return idle_messages.EVENT_SHAPES.match(message, fired.end()) is None


def requests_work(message: bytes) -> bool:
    """Whether a message on the extension host's socket counts: its type, a request id, then for a request the actor and
    its method."""
    if len(message) < 8:
        return len(message) > 1 and message[0] not in _REPLIES
    if message[0] in _REQUESTS:
        name = message[7 : 7 + message[6]]
        return name not in idle_messages.REQUESTS and idle_messages.REQUEST_SHAPES.match(message, 7) is None
    return message[0] not in _REPLIES
