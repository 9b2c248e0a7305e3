"""A person at work told from a tab left open, by what passes through an upgraded socket and by plain requests.

The taps read along on the relay's own time, so they rest: for a while after something counted, short frames that come
whole are only followed, not read. They never lose their place in the stream, and what they cannot read counts.
"""

from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Final

from codehub.proxy import chatter
from codehub.proxy.frames import FrameReader
from codehub.proxy.vscode import SUBSCRIPTION, Conversation, OuterFrames

REST_SECONDS: Final = 5.0
_BINARY: Final = 0x82


def counts(method: bytes, target: bytes) -> bool:
    """Whether a plain request to the IDE is somebody's doing. The target is as the workspace sees it. HEAD is what our
    own pages ask with, to see whether something else answers by now."""
    return method != b"HEAD" and chatter.HTTP.match(target) is None


class _Side(FrameReader):
    """One direction, and whether it may be followed without being read."""

    __slots__ = ("clock", "even", "opaque", "outer", "until")

    def __init__(self, unreadable: Callable[[], None], outer: OuterFrames | None, clock: Callable[[], float]) -> None:
        super().__init__(unreadable)
        self.clock = clock
        self.outer = outer
        self.take = outer.take if outer else None
        self.opaque = outer is None
        """Frames are all that is known: what is in them follows no rule."""
        self.even = True
        """It stands between two frames, those inside included."""
        self.until = 0.0
        """Until then nothing need be read."""

    def read(self, data: bytes) -> None:
        super().read(data)
        self.even = self.between_frames and not (self.outer is not None and self.outer.unfinished)

    def give_up(self) -> None:
        """What is in the frames cannot be read: each of them counts."""
        self.began, self.take, self.outer, self.opaque = self.unreadable, None, None, True

    def close(self) -> None:
        self.unreadable, self.began, self.take, self.outer = _ignored, None, None, None


class _FromClient(_Side):
    """Its frames are masked, so what is looked for is compared with the mask instead."""

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


class IdePresence:
    """Tells `seen` of what is not known background chatter of a VS Code tab, either way."""

    __slots__ = ("_client", "_conversation", "_rest", "_seen", "_upstream", "from_client", "from_upstream")

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

    @property
    def at_boundary(self) -> bool:
        """A frame to the client may be put in here."""
        return self._upstream.at_boundary

    def close(self) -> None:
        self._client.close()
        self._upstream.close()

    def _heard_client(self, kind: int, message: bytes) -> None:
        self._judged(self._conversation.from_client(kind, message))

    def _heard_upstream(self, kind: int, message: bytes) -> None:
        if self._upstream.until <= self._upstream.clock():
            self._judged(self._conversation.from_upstream(kind, message))

    def _judged(self, counts: bool) -> None:  # noqa: FBT001  # the verdict is the argument
        if counts:
            self._counted()
            if self._conversation.lost:
                self._client.give_up()
                self._upstream.give_up()

    def _counted(self) -> None:
        now = self._client.clock()
        if self._client.until <= now:
            self._client.until = self._upstream.until = now + self._rest
            self._seen()


class AppPresence:
    """Tells `seen` of each message from the client, whatever it says. Pings, pongs and closing are no messages."""

    __slots__ = ("_client", "_rest", "_seen", "_upstream", "from_client", "from_upstream")

    def __init__(
        self, seen: Callable[[], None], *, rest: float = REST_SECONDS, clock: Callable[[], float] = monotonic
    ) -> None:
        self._seen = seen
        self._rest = rest
        self._client = _FromClient(self._counted, None, clock)
        self._client.began = self._counted
        self._upstream = _FromUpstream(_ignored, None, clock)
        self._upstream.until = inf
        self.from_client = self._client.follow
        self.from_upstream = self._upstream.follow

    @property
    def at_boundary(self) -> bool:
        """A frame to the client may be put in here."""
        return self._upstream.at_boundary

    def close(self) -> None:
        self._client.close()
        self._upstream.close()

    def _counted(self) -> None:
        now = self._client.clock()
        if self._client.until <= now:
            self._client.until = now + self._rest
            self._seen()


def _ignored() -> None: ...
