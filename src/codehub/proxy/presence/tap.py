"""Taps that tell a person at work from a tab left open, by what passes through an upgraded socket and by plain
requests.

Of VS Code the protocol is read, and known background messages do not count. Of everything else, an IDE or an
application at a port, what a page says at a steady period does not count (`periodic`). What cannot be read counts. The
taps read along between reading and writing. The one for VS Code rests: for a while after something counted, short
frames that come whole are only followed, not read. It never loses its place in the stream.
"""

from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Final

from codehub.proxy.presence import idle_messages
from codehub.proxy.presence.periodic import PeriodicTraffic, kind_of_message
from codehub.proxy.presence.vscode import SUBSCRIPTION, Conversation, OuterFrames
from codehub.proxy.websocket.frames import FrameReader

REST_SECONDS: Final = 5.0
_BINARY: Final = 0x82
_BEGINNING: Final = 256
"""How much is looked at of a message whose protocol is not known."""
_MOST_KINDS: Final = 16
"""How many kinds of messages one socket's tap remembers, in each direction."""


def may_be_activity(method: bytes, target: bytes) -> bool:
    """Whether a plain request to the IDE may be somebody's doing. The target is as the workspace sees it. HEAD is what
    our own pages ask with, to see whether something else answers by now."""
    return method != b"HEAD" and idle_messages.HTTP.match(target) is None


def ide_tap(target: bytes, seen: Callable[[], None]) -> "IdePresence | AppPresence":
    """The tap for a socket to the IDE that was asked for by this target. Only the protocol of VS Code is known here."""
    return IdePresence(seen) if idle_messages.SOCKET.search(target) else AppPresence(seen, output=True)


class _Side(FrameReader):
    """One direction of a VS Code socket, and whether it may be followed without being read."""

    __slots__ = ("clock", "even", "opaque", "outer", "until")

    def __init__(self, unreadable: Callable[[], None], outer: OuterFrames | None, clock: Callable[[], float]) -> None:
        super().__init__(unreadable)
        self.clock = clock
        self.outer = outer
        self.take = outer.take if outer else None
        self.opaque = outer is None
        """Whether frames are all that is known: what is in them follows no rule."""
        self.even = True
        """Whether the stream stands between two frames, VS Code's own included."""
        self.until = 0.0
        """Until when nothing need be read."""

    def read(self, data: bytes) -> None:
        super().read(data)
        self.even = self.between_frames and not (self.outer is not None and self.outer.unfinished)

    def give_up(self) -> None:
        """Count each frame from now on: what is in them cannot be read."""
        self.began, self.take, self.outer, self.opaque = self.unreadable, None, None, True

    def close(self) -> None:
        self.unreadable, self.began, self.take, self.outer = _ignored, None, None, None


class _FromClient(_Side):
    """The client's direction. Its frames are masked, so what is looked for is compared with the mask instead."""

    __slots__ = ()

    def follow(self, data: bytes) -> None:
        size = len(data)
        if self.even and size > 24 and data[0] == _BINARY:
            if data[1] == size + 122 and size < 132:
                # One outer frame fills it (its length ends in byte 12), and is no subscription (byte 16). A message
                # does not begin in so short a frame and end in another: the IDE cuts them at 256 KiB.
                key = data[2]
                whole = self.opaque or (data[18] ^ key == size - 19 and data[22] ^ key != SUBSCRIPTION)
            elif data[1] == 0xFE and data[2] << 8 | data[3] == size - 8:
                whole = self.opaque or (
                    (data[19] ^ data[7]) << 8 | data[20] ^ data[4] == size - 21
                    and data[17:19] == data[5:7]
                    and data[24] ^ data[4] != SUBSCRIPTION
                )
            else:
                whole = False
            if whole and self.until > self.clock():
                return
        self.read(data)


class _FromUpstream(_Side):
    __slots__ = ()

    def follow(self, data: bytes) -> None:
        size = len(data)
        if self.even and size > 16 and data[0] == _BINARY:
            if data[1] == size - 2 and size < 128:
                whole = self.opaque or data[14] == size - 15
            elif data[1] == 126 and data[2] << 8 | data[3] == size - 4:
                whole = self.opaque or int.from_bytes(data[13:17], "big") == size - 17
            else:
                whole = False
            if whole and self.until > self.clock():
                return
        self.read(data)


class _Presence:
    """A tap on both directions of one socket."""

    __slots__ = ("_client", "_upstream", "from_client", "from_upstream")

    _client: "_Side | _Messages"
    _upstream: "_Side | _Messages"

    @property
    def at_boundary(self) -> bool:
        """Whether a frame to the client may be put in here."""
        return self._upstream.at_boundary

    def close(self) -> None:
        self._client.close()
        self._upstream.close()


class IdePresence(_Presence):
    """Tells `seen` of what passes a VS Code socket, either way, and is not a known background message."""

    __slots__ = ("_conversation", "_rest", "_seen")

    _client: "_FromClient"
    _upstream: "_FromUpstream"

    def __init__(
        self, seen: Callable[[], None], *, rest: float = REST_SECONDS, clock: Callable[[], float] = monotonic
    ) -> None:
        self._seen = seen
        self._rest = rest
        self._conversation = Conversation()
        self._client = _FromClient(self._counted, OuterFrames(self._heard_client), clock)
        self._upstream = _FromUpstream(self._counted, OuterFrames(self._heard_upstream), clock)
        self.from_client = self._client.follow
        self.from_upstream = self._upstream.follow

    def _heard_client(self, kind: int, message: bytes) -> None:
        self._judged(self._conversation.from_client(kind, message))

    def _heard_upstream(self, kind: int, message: bytes) -> None:
        if self._upstream.until <= self._upstream.clock():
            self._judged(self._conversation.from_upstream(kind, message))

    def _judged(self, may_be_activity: bool) -> None:  # noqa: FBT001  # the verdict is the argument
        if may_be_activity:
            self._counted()
            if self._conversation.lost:
                self._client.give_up()
                self._upstream.give_up()

    def _counted(self) -> None:
        now = self._client.clock()
        if self._client.until <= now:
            self._client.until = self._upstream.until = now + self._rest
            self._seen()


class _Messages(FrameReader):
    """One direction of a socket whose protocol is not known: `heard` gets the beginning of each data frame."""

    __slots__ = ("_heard", "_held", "_open")

    def __init__(self, unreadable: Callable[[], None], heard: Callable[[bytes], None]) -> None:
        super().__init__(unreadable)
        self._heard = heard
        self._held = b""
        self._open = False
        self.began, self.take = self._begin, self._more

    def read(self, data: bytes) -> None:
        super().read(data)
        if self._open and not self._left:
            self._end()

    def close(self) -> None:
        self.unreadable, self._heard, self.began, self.take = _ignored, _unheard, None, None

    def _begin(self) -> None:
        if self._open:
            self._end()
        self._open = True

    def _more(self, piece: bytes) -> int:
        self._held += piece[: _BEGINNING - len(self._held)]
        return 0 if len(self._held) < _BEGINNING else self._left - len(piece)

    def _end(self) -> None:
        held, self._held, self._open = self._held, b"", False
        self._heard(held)


class AppPresence(_Presence):
    """Tells `seen` of each message from the client that is not one of a periodic series. Pings, pongs and closing are
    no messages. With `output`, what the server sends counts too, unless it is the very same at a steady period: so it
    is for an IDE, in which a terminal or a kernel at work is somebody's."""

    __slots__ = ("_clock", "_heard", "_output", "_seen")

    def __init__(
        self, seen: Callable[[], None], *, output: bool = False, clock: Callable[[], float] = monotonic
    ) -> None:
        self._seen = seen
        self._clock = clock
        self._heard = PeriodicTraffic(_MOST_KINDS)
        self._client = _Messages(seen, self._from_client)
        self.from_client = self._client.read
        if output:
            self._output = PeriodicTraffic(_MOST_KINDS)
            self._upstream = _Messages(seen, self._from_upstream)
            self.from_upstream = self._upstream.read
        else:
            self._upstream = _FromUpstream(_ignored, None, clock)
            self._upstream.until = inf
            self.from_upstream = self._upstream.follow

    def _from_client(self, message: bytes) -> None:
        if not self._heard.is_periodic(kind_of_message(message), self._clock()):
            self._seen()

    def _from_upstream(self, message: bytes) -> None:
        if not self._output.is_periodic(hash(message), self._clock()):
            self._seen()


def _ignored() -> None: ...


def _unheard(_: bytes) -> None: ...
