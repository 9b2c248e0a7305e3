"""Counts of the traffic for the dashboard's charts, written to the database every so often.

Only sums are written, which add up whichever workers come and go: requests answered, and for how many seconds
WebSockets were open. A worker that dies loses one batch at most.
"""

import structlog

from codehub.domain.errors import CodeHubError
from codehub.ports.signals import Clock
from codehub.ports.stores import Traffic
from codehub.proxy.presence.activity import flush_regularly
from codehub.proxy.server import ProxyServer

log = structlog.get_logger()


class TrafficCount:
    def __init__(self, server: ProxyServer, traffic: Traffic, clock: Clock, flush_seconds: float) -> None:
        self._server = server
        self._traffic = traffic
        self._clock = clock
        self._flush_seconds = flush_seconds
        self._looked = clock.monotonic()
        self._socket_seconds = 0.0
        self._written = 0
        """How many requests have been written."""

    def tick(self) -> None:
        now = self._clock.monotonic()
        self._socket_seconds += self._server.upgraded * (now - self._looked)
        self._looked = now

    async def run(self) -> None:
        await flush_regularly(self.flush, self._clock, self._flush_seconds)

    async def flush(self) -> None:
        self.tick()
        answered = sum(sum(route.answers) for route in self._server.routes)
        requests, seconds = answered - self._written, self._socket_seconds
        if not requests and not seconds:
            return
        try:
            await self._traffic.add(requests, seconds)
        except CodeHubError as error:
            log.warning("traffic waits to be written", requests=requests, error=str(error))
        else:
            self._written = answered
            self._socket_seconds -= seconds
