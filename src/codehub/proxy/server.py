"""The server of the proxy: it listens, counts connections, keeps time, and drains.

Time is read once per tick, not per request: a connection carries its deadline, and one sweep over all of them ends
those that are late. Of a connection beyond a cap the first request is read, so that it can be answered in its own
terms, and it is closed. It has a moment for that and no more, and there are few of them at once: whoever exhausts us on
purpose gets no answer.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

import structlog

from codehub.ports.runtime import Endpoint
from codehub.proxy.access.verdicts import Cap, Forward, Respond, Route, UpstreamFailure, Verdict
from codehub.proxy.access_log import AccessLog
from codehub.proxy.http.connection import BACKLOG, listener
from codehub.proxy.http.downstream import UNDECIDED, Downstream, DownstreamServer
from codehub.proxy.http.headers import Network
from codehub.proxy.http.limits import ProxyLimits, UsageCounter
from codehub.proxy.http.parser import BadMessage, RequestHead, parse_request
from codehub.proxy.http.pool import Pool
from codehub.proxy.http.responses import date_line, failure_problem, overload_problem, serialised
from codehub.proxy.http.upstream import ConnectionOwner, Upstream
from codehub.proxy.websocket.relay import WebSocketRelay

log = structlog.get_logger()

_LATE_TICKS: Final = 4
GOING_AWAY: Final = 1001
RESTARTING: Final = 1012
"""The close codes of a WebSocket: GOING_AWAY when its workspace ends, RESTARTING when another worker takes over."""
MOST_AT_ONCE: Final = 256
"""How many rejected connections are answered at once."""


class OverloadedConnection(asyncio.Protocol):
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
        except BadMessage:
            self._answer(overload_problem(self._cap))
            return
        answer = self._server.overloaded(head, self._cap)
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
            self._answer(overload_problem(self._cap))

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._timer.cancel()
        self._server.overload_ended(self)


class _Upgraded(NamedTuple):
    """What a relay holds: the pool of its upstream connection, and whom the client is counted for."""

    pool: ConnectionOwner
    counted_address: bytes | None
    counted_user: object


class RequestAuthorizer(Protocol):
    @property
    def routes(self) -> Sequence[Route]:
        """The routes of its verdicts, whose answers are counted."""
        ...

    def decide(self, head: RequestHead) -> Verdict: ...

    def failed(self, head: RequestHead, forward: Forward, failure: UpstreamFailure) -> Respond:
        """The answer for a client whose workspace gave none."""
        ...

    def overloaded(self, head: RequestHead, cap: Cap) -> Respond:
        """The answer for a client that comes beyond a cap."""
        ...


class ProxyServer(DownstreamServer):
    def __init__(
        self,
        authorizer: RequestAuthorizer,
        limits: ProxyLimits | None = None,
        *,
        scheme: str = "http",
        access_log: AccessLog | None = None,
        trusted_proxies: Iterable[Network] = (),
    ) -> None:
        """`trusted_proxies`: the proxies in front of this one that are trusted to say who asks."""
        super().__init__(limits or ProxyLimits(), scheme.encode(), trusted_proxies)
        self.authorizer = authorizer
        self._access_log = access_log
        self.own_answers = Route("front_door")
        """The route of what the proxy answers itself."""
        self._decide = authorizer.decide
        self._clients: set[Downstream] = set()
        self._relays: dict[WebSocketRelay, _Upgraded] = {}
        self._bounded: dict[WebSocketRelay, float] = {}
        """Relays that are half-closed or stalled, and until when they may be."""
        self._addresses, self._users = (
            UsageCounter(self.limits.per_address),
            UsageCounter(self.limits.per_person),
        )
        self._overloaded: set[OverloadedConnection] = set()
        self._pools: dict[tuple[Endpoint, object], Pool] = {}
        self._listeners: list[asyncio.Server] = []
        self._timer: asyncio.TimerHandle | None = None
        self._held_up = False
        self._emptied = asyncio.Event()

    # ── life ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def listen(self, host: str, port: int) -> int:
        """Serve on this address too; returns the port."""
        return await self.listen_on(listener(host, port))

    async def listen_on(self, sock: socket.socket) -> int:
        self._tick()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Downstream(self), sock=sock, backlog=BACKLOG)
        self._listeners.append(server)
        return int(sock.getsockname()[1])

    async def drain(self, requests_seconds: float = 30.0, upgraded_seconds: float = 10.0) -> None:
        """Accept no more connections, let requests and upgraded sockets finish for as long as each may, and end what is
        left."""
        self.draining = True
        for server in self._listeners:
            server.close()
        for client in list(self._clients):
            client.drain()
        await self._wait_for(lambda: not self._clients and not self._relays, min(requests_seconds, upgraded_seconds))
        if upgraded_seconds <= requests_seconds:
            self._close_relays()
        await self._wait_for(lambda: not self._clients, requests_seconds - upgraded_seconds)
        for client in list(self._clients):
            client.end()
        await self._wait_for(lambda: not self._relays, upgraded_seconds - requests_seconds)
        self._close_relays()
        await self._wait_for(lambda: not self._clients and not self._relays, 1.0)
        for client in list(self._clients):
            client.abort()
        for relay in list(self._relays):
            relay.abort()
        for pool in list(self._pools.values()):
            pool.close()
        await self._wait_for(lambda: not self._clients and not self._relays and not self._pools, 1.0)
        if self._timer is not None:
            self._timer.cancel()

    async def _wait_for(self, condition: Callable[[], bool], seconds: float) -> None:
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                while not condition():
                    self._emptied.clear()
                    await self._emptied.wait()
        except TimeoutError:
            pass

    def _close_relays(self) -> None:
        for relay in list(self._relays):
            relay.end(RESTARTING)

    def abort_sockets(self, predicate: Callable[[Forward], bool], code: int = GOING_AWAY) -> int:
        """End every request and upgraded socket whose verdict the predicate chooses. Returns how many. A request that
        has no answer yet gets one; a WebSocket is told `code`, if it stands between two frames."""
        clients = [client for client in self._clients if client.forward is not None and predicate(client.forward)]
        relays = [relay for relay in self._relays if predicate(relay.forward)]
        for client in clients:
            client.end()
        for relay in relays:
            self._bounded[relay] = self.now + self.limits.linger_seconds
            relay.end(code)
        return len(clients) + len(relays)

    def forwards(self) -> set[Forward]:
        """The verdicts on all open requests and upgraded sockets."""
        return {client.forward for client in self._clients if client.forward} | {
            relay.forward for relay in self._relays
        }

    @property
    def routes(self) -> list[Route]:
        return [*self.authorizer.routes, self.own_answers]

    @property
    def upgraded(self) -> int:
        return len(self._relays)

    @property
    def connections(self) -> int:
        """How many connections clients have, upgraded ones included."""
        return len(self._clients) + len(self._relays)

    @property
    def kept_connections(self) -> int:
        """How many idle connections to workspaces are kept."""
        return sum(pool.idle for pool in self._pools.values())

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        now, late = loop.time(), False
        if self._timer is not None:
            self._timer.cancel()
            # We were held up ourselves: what came meanwhile has not been read, so nobody is blamed for it, this once.
            late = not self._held_up and now - self.now > _LATE_TICKS * self.limits.tick
        self.now, self._held_up = now, late
        self.date = date_line(time.time())
        self._timer = loop.call_later(self.limits.tick, self._tick)
        if not late:
            self._sweep()

    def _sweep(self) -> None:
        now = self.now
        for client in [client for client in self._clients if client.deadline < now]:
            try:
                client.expire()
            except Exception:
                log.exception("a connection could not be ended well")
                client.transport.abort()
        for relay in [relay for relay, until in self._bounded.items() if until < now]:
            relay.abort()
        for pool in list(self._pools.values()):
            pool.sweep(now - self.limits.pool_idle_seconds)

    # ── what connections ask of it ───────────────────────────────────────────────────────────────────────────────────

    def admit(self, client: Downstream, address: bytes | None) -> None:
        if self.connections >= self.limits.connections:
            self._reject(client, Cap.ALL)
        elif address is not None and not self._addresses.add(address):
            self._reject(client, Cap.ADDRESS)
        else:
            client.counted_address = address
            self._clients.add(client)

    def _reject(self, client: Downstream, cap: Cap) -> None:
        self.rejected[cap] += 1
        if len(self._overloaded) >= MOST_AT_ONCE:
            client.transport.abort()
            return
        overloaded = OverloadedConnection(self, client.transport, cap)
        self._overloaded.add(overloaded)
        client.transport.set_protocol(overloaded)

    def overload_ended(self, overloaded: OverloadedConnection) -> None:
        self._overloaded.discard(overloaded)

    def count_for_user(self, client: Downstream, counted_user: object) -> bool:
        if client.counted_user != counted_user:
            if not self._users.add(counted_user):
                self.rejected[Cap.PERSON] += 1
                return False
            if client.counted_user is not None:
                self._users.drop(client.counted_user)
        client.counted_user = counted_user  # this very object: the next request's is compared with it
        return True

    def _release(self, address: bytes | None, counted_user: object) -> None:
        if address is not None:
            self._addresses.drop(address)
        if counted_user is not None:
            self._users.drop(counted_user)

    def decide(self, head: RequestHead) -> Verdict:
        try:
            return self._decide(head)
        except Exception:
            log.exception("authorizer failed", request_id=head.request_id.decode())
            return UNDECIDED

    def explain(self, head: RequestHead, forward: Forward, failure: UpstreamFailure) -> Respond:
        try:
            return self.authorizer.failed(head, forward, failure)
        except Exception:
            log.exception("authorizer failed", request_id=head.request_id.decode())
            return failure_problem(failure)

    def overloaded(self, head: RequestHead, cap: Cap) -> Respond:
        try:
            return self.authorizer.overloaded(head, cap)
        except Exception:
            log.exception("authorizer failed", request_id=head.request_id.decode())
            return overload_problem(cap)

    def note(self, head: RequestHead, forward: Forward | None, status: int) -> None:
        route = self.own_answers if forward is None else forward.route
        route.answers[status // 100] += 1
        if self._access_log is not None:
            self._access_log.note(head, forward, status)

    def leave(self, client: Downstream) -> None:
        if client in self._clients:
            self._clients.remove(client)
            self._release(client.counted_address, client.counted_user)
        self._emptied.set()

    def pool(self, forward: Forward) -> Pool:
        key = forward.endpoint, forward.pool_key
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = Pool(
                forward.endpoint, self, lambda pool: self._forget_pool(key, pool), forward.confirm
            )
        return pool

    def _forget_pool(self, key: tuple[Endpoint, object], pool: Pool) -> None:
        if self._pools.get(key) is pool:
            del self._pools[key]
            self._emptied.set()

    def upgrade(
        self, client: Downstream, upstream: Upstream, forward: Forward, from_client: bytes, from_upstream: bytes
    ) -> None:
        relay = WebSocketRelay(forward, self, client.transport, upstream.transport)
        self._relays[relay] = _Upgraded(upstream.pool, client.counted_address, client.counted_user)
        self._clients.discard(client)
        relay.start(from_client, from_upstream, client_full=client.write_paused)

    def relay_half_closed(self, relay: WebSocketRelay) -> None:
        self._bounded[relay] = self.now + self.limits.half_closed_seconds

    def relay_stalled(self, relay: WebSocketRelay) -> None:
        self._bounded[relay] = self.now + self.limits.body_idle_seconds

    def relay_flows(self, relay: WebSocketRelay) -> None:
        self._bounded.pop(relay, None)

    def relay_gone(self, relay: WebSocketRelay) -> None:
        self._bounded.pop(relay, None)
        upgraded = self._relays.pop(relay)
        upgraded.pool.gone(None)
        self._release(upgraded.counted_address, upgraded.counted_user)
        self._emptied.set()
