"""A connection beyond a cap: its first request is read, so that it can be answered in its own terms, and it is closed.

It has a moment for that and no more, and there are few of them at once: whoever exhausts us on purpose gets no answer.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from codehub.proxy.gate import Cap, Respond
from codehub.proxy.head import Refused
from codehub.proxy.request import parse_request
from codehub.proxy.responses import plain_crowded, serialised

if TYPE_CHECKING:
    from codehub.proxy.server import ProxyServer

MOST_AT_ONCE: Final = 256


class TurnedAway(asyncio.Protocol):
    __slots__ = ("_answered", "_cap", "_held", "_server", "_timer", "_transport")

    def __init__(self, server: "ProxyServer", transport: asyncio.Transport, cap: Cap) -> None:
        self._server = server
        self._transport = transport
        self._cap = cap
        self._held = b""
        self._answered = False
        self._timer = self._in_a_moment()

    def _in_a_moment(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self._server.limits.linger_seconds, self._late)

    def data_received(self, data: bytes) -> None:
        if self._answered:
            return  # read over: a reset would take our answer with it
        self._held += data
        limits = self._server.limits
        end = self._held.find(b"\r\n\r\n")
        if end < 0 and len(self._held) <= limits.head_bytes:
            return
        try:
            head = parse_request(self._held[:end], limits.header_lines)
        except Refused:
            self._answer(plain_crowded(self._cap))
            return
        answer = self._server.crowded(head, self._cap)
        self._server.note(head, None, answer.status)
        self._answer(answer, head.request_id, body=head.method != b"HEAD")

    def _answer(self, answer: Respond, request_id: bytes = b"", *, body: bool = True) -> None:
        self._answered = True
        self._held = b""
        self._timer.cancel()
        self._timer = self._in_a_moment()
        self._transport.write(serialised(answer, self._server.date, request_id, body=body, close=True))
        self._transport.write_eof()

    def _late(self) -> None:
        if self._answered:
            self._transport.abort()
        else:
            self._answer(plain_crowded(self._cap))

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._timer.cancel()
        self._server.saw_off(self)
