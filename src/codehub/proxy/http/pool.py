"""A pool of connections to one target, kept for the next request; newest first, so that a burst's surplus goes idle and
closes.

There are no more than `per_target` at once, upgraded sockets included; whoever comes later waits in line.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

import structlog

from codehub.ports.runtime import Endpoint
from codehub.proxy.access.verdicts import UpstreamFailure
from codehub.proxy.http.connection import ServerState
from codehub.proxy.http.upstream import Upstream
from codehub.usecases.workspace_connection import Confirm, connect

log = structlog.get_logger()


class ConnectionWaiter(Protocol):
    """A client that waits for a connection, until `awaits_connection` is false again."""

    awaits_connection: bool

    def connected(self, upstream: Upstream) -> None: ...

    def fail(self, failure: UpstreamFailure) -> None: ...


class Pool:
    __slots__ = ("_confirm", "_connecting", "_forget", "_idle", "_open", "_queue", "_server", "endpoint")

    def __init__(
        self,
        endpoint: Endpoint,
        server: ServerState,
        forget: Callable[["Pool"], None],
        confirm: Confirm | None = None,
    ) -> None:
        self.endpoint = endpoint
        self._server = server
        self._forget = forget
        self._confirm = confirm
        self._idle: list[Upstream] = []
        self._queue: deque[ConnectionWaiter] = deque()
        self._open = 0
        self._connecting: set[asyncio.Task[None]] = set()

    @property
    def idle(self) -> int:
        return len(self._idle)

    def take(self, *, may_repeat: bool) -> Upstream | None:
        """An idle connection, or None. A request that must not be sent twice gets one that has only just gone idle."""
        if not self._idle:
            return None
        limits = self._server.limits
        since = self._server.now - (limits.pool_idle_seconds if may_repeat else limits.unrepeatable_idle_seconds)
        while self._idle and self._idle[-1].idle_since >= since:
            upstream = self._idle.pop()
            if not upstream.transport.is_closing():
                return upstream
        return None

    def request(self, client: ConnectionWaiter) -> None:
        """Find a connection for this client, which is told by `connected` or `fail`."""
        if self._open < self._server.limits.per_target:
            self._connect(client)
        else:
            self._queue.append(client)

    def release(self, upstream: Upstream) -> None:
        while self._queue:
            client = self._queue.popleft()
            if client.awaits_connection:
                client.connected(upstream)
                return
        if self._server.draining or len(self._idle) >= self._server.limits.pool_idle:
            upstream.transport.close()
            return
        upstream.idle_since = self._server.now
        self._idle.append(upstream)

    def gone(self, upstream: Upstream | None) -> None:
        """Count a connection, or an attempt at one, as ended."""
        self._open -= 1
        if upstream in self._idle:
            self._idle.remove(upstream)
        while self._queue and self._open < self._server.limits.per_target:
            client = self._queue.popleft()
            if client.awaits_connection:
                self._connect(client)
        if not self._open:
            self._forget(self)

    def sweep(self, before: float) -> None:
        """Close the connections that have been idle since before that time: the oldest stand first."""
        for upstream in self._idle:
            if upstream.idle_since >= before:
                break
            upstream.transport.close()

    def close(self) -> None:
        for task in self._connecting:
            task.cancel()
        for upstream in self._idle:
            upstream.transport.close()

    def _connect(self, client: ConnectionWaiter) -> None:
        self._open += 1
        task = asyncio.get_running_loop().create_task(self._connect_for(client))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect_for(self, client: ConnectionWaiter) -> None:
        try:
            async with asyncio.timeout(self._server.limits.connect_seconds):
                upstream = await connect(self.endpoint, lambda: Upstream(self, self._server.limits), self._confirm)
        except asyncio.CancelledError:
            self.gone(None)
            raise
        except Exception as error:
            if not isinstance(error, OSError):
                log.exception("no connection could be tried")
            self.gone(None)
            if client.awaits_connection:
                client.fail(
                    UpstreamFailure.TOO_SLOW if isinstance(error, TimeoutError) else UpstreamFailure.UNREACHABLE
                )
        else:
            if client.awaits_connection:
                client.connected(upstream)
            else:
                self.release(upstream)
