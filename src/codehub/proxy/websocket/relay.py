"""The relay of an upgraded WebSocket: two ends that pass each other's bytes on, untouched.

Each end is the protocol of one transport and writes to the other. A full buffer on one side stops reading on the other.
One side that has ended (half-close) may still read; the relay ends when both have ended, or one is lost.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog

from codehub.proxy.access.verdicts import Forward, Tap
from codehub.proxy.websocket.frames import close_frame

log = structlog.get_logger()


class RelayOwner(Protocol):
    """Counts relays, and ends those that stay half-closed or stalled for too long."""

    def relay_half_closed(self, relay: "WebSocketRelay") -> None:
        """One side of the relay has ended or is gone; the other gets a bounded time."""
        ...

    def relay_stalled(self, relay: "WebSocketRelay") -> None:
        """One side of the relay does not read what the other sends: it gets a bounded time to go on."""
        ...

    def relay_flows(self, relay: "WebSocketRelay") -> None: ...

    def relay_gone(self, relay: "WebSocketRelay") -> None:
        """Both sides of the relay are gone. This is called once."""
        ...


class WebSocketRelay:
    """The two ends of an upgraded connection, as the server knows the pair."""

    __slots__ = ("_lost", "_owner", "_tap", "client", "ended", "forward", "upstream")

    def __init__(
        self, forward: Forward, owner: RelayOwner, client: asyncio.Transport, upstream: asyncio.Transport
    ) -> None:
        self.forward = forward
        self.client = client
        self.upstream = upstream
        self.ended = 0
        """How many sides have ended."""
        self._owner = owner
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
        """Close both sides, once what is buffered is sent."""
        self.client.close()
        self.upstream.close()

    def end(self, code: int) -> None:
        """Close both sides. The client is told why, if it can be: between two frames of what the workspace sends."""
        if self._tap is not None and self._tap.at_boundary and not self.client.is_closing():
            self.client.write(close_frame(code))
        self.close()

    def abort(self) -> None:
        self.client.abort()
        self.upstream.abort()

    def half_closed(self) -> None:
        self._owner.relay_half_closed(self)

    def stalled(self) -> None:
        if not self.ended and not self._lost:
            self._owner.relay_stalled(self)

    def flows(self) -> None:
        if not self.ended and not self._lost:
            self._owner.relay_flows(self)

    def lost(self) -> None:
        """Count one end as gone. The other may still have to send what it holds, as long as a half-closed one may."""
        self._lost += 1
        if self._lost == 1:
            self.close()
            self._owner.relay_half_closed(self)
        else:
            self._owner.relay_gone(self)
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
