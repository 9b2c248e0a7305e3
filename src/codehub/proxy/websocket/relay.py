"""An upgraded socket: two ends that pass each other's bytes on, untouched.

Each end is the protocol of one transport and writes to the other. A full buffer on one side stops reading on the other.
One side that has said all it has to say (half-close) may still listen; the relay ends when both have, or one is lost.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog

from codehub.proxy.access.verdicts import Forward, Tap
from codehub.proxy.websocket.frames import close_frame

log = structlog.get_logger()


class Keeper(Protocol):
    """Who counts relays and bounds the half-closed ones."""

    def relay_half_closed(self, relay: "WebSocketRelay") -> None:
        """One side has ended or is gone; the other gets a bounded time."""
        ...

    def relay_stalled(self, relay: "WebSocketRelay") -> None:
        """One side does not read what the other sends: it gets a bounded time to go on."""
        ...

    def relay_flows(self, relay: "WebSocketRelay") -> None: ...

    def relay_gone(self, relay: "WebSocketRelay") -> None:
        """Both ends are. Told once."""
        ...


class WebSocketRelay:
    """What the two ends share, and by what the server knows the pair."""

    __slots__ = ("_keeper", "_lost", "_tap", "client", "ended", "forward", "upstream")

    def __init__(
        self, forward: Forward, keeper: Keeper, client: asyncio.Transport, upstream: asyncio.Transport
    ) -> None:
        self.forward = forward
        self.client = client
        self.upstream = upstream
        self.ended = 0
        """How many sides have said all they have to say."""
        self._keeper = keeper
        self._lost = 0
        self._tap: Tap | None = None

    def start(self, from_client: bytes, from_upstream: bytes, *, client_full: bool) -> None:
        """Take both transports over from the protocols that made the handshake, and pass on what came behind it."""
        tap = self._tap = self._make_tap()
        client_end = RelayEnd(self, self.upstream, tap.from_client if tap else None)
        upstream_end = RelayEnd(self, self.client, tap.from_upstream if tap else None)
        self.client.set_protocol(client_end)
        self.upstream.set_protocol(upstream_end)
        self.client.resume_reading()
        if not client_full:
            self.upstream.resume_reading()
        if from_client:
            client_end.data_received(from_client)
        if from_upstream:
            upstream_end.data_received(from_upstream)

    def _make_tap(self) -> Tap | None:
        if self.forward.tap is None:
            return None
        try:
            return self.forward.tap()
        except Exception:
            log.exception("tap failed")
            return None

    def close(self) -> None:
        """What is buffered is still sent; then both sides are closed."""
        self.client.close()
        self.upstream.close()

    def end(self, code: int) -> None:
        """The client is told why, if it can be: between two frames of what the workspace sends."""
        if self._tap is not None and self._tap.at_boundary and not self.client.is_closing():
            self.client.write(close_frame(code))
        self.close()

    def abort(self) -> None:
        self.client.abort()
        self.upstream.abort()

    def half_closed(self) -> None:
        self._keeper.relay_half_closed(self)

    def stalled(self) -> None:
        if not self.ended and not self._lost:
            self._keeper.relay_stalled(self)

    def flows(self) -> None:
        if not self.ended and not self._lost:
            self._keeper.relay_flows(self)

    def lost(self) -> None:
        """One end is gone. The other may still have to send what it holds, for as long as half-closed ones may."""
        self._lost += 1
        if self._lost == 1:
            self.close()
            self._keeper.relay_half_closed(self)
        else:
            self._keeper.relay_gone(self)
            if self._tap is not None:
                self._tap.close()


class RelayEnd(asyncio.Protocol):
    __slots__ = ("_ended", "_other", "_relay", "_tap")

    def __init__(self, relay: WebSocketRelay, other: asyncio.Transport, tap: Callable[[bytes], None] | None) -> None:
        self._relay = relay
        self._other = other
        self._tap = tap
        self._ended = False

    def data_received(self, data: bytes) -> None:
        self._other.write(data)
        if self._tap is not None:
            try:
                self._tap(data)
            except Exception:
                # The bytes have been passed on; who watches them must not end them.
                self._tap = None
                log.exception("tap failed")

    def pause_writing(self) -> None:
        # Nothing is read from the other side now, so neither is its end: this must not last.
        self._other.pause_reading()
        self._relay.stalled()

    def resume_writing(self) -> None:
        self._relay.flows()
        if self._relay.ended == self._ended:
            self._other.resume_reading()

    def eof_received(self) -> bool:
        self._ended = True
        self._relay.ended += 1
        if self._other.is_closing() or self._relay.ended > 1:
            self._relay.close()
            return False
        self._other.write_eof()
        self._relay.half_closed()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._relay.lost()
