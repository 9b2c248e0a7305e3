"""Tickets, sign-ins that are away at a provider, and failed tries, in memory."""

from collections.abc import Collection
from datetime import timedelta

from codehub.adapters.memory.people import Failures, PeopleWorld, StoredTicket
from codehub.adapters.memory.wire import Wire
from codehub.domain.credentials import FAILURES_FADE_SECONDS, wait_seconds
from codehub.domain.errors import NotFound
from codehub.ports.accounts import Ticket, TryKey


class MemoryTickets:
    def __init__(self, world: PeopleWorld, wire: Wire) -> None:
        self._world = world
        self._wire = wire

    async def issue(self, ticket_hash: bytes, ticket: Ticket, lifetime_seconds: float) -> None:
        def insert() -> None:
            session = ticket.session_id is None or ticket.session_id in self._world.sessions
            token = ticket.token_id is None or self._world.token(ticket.token_id) is not None
            if ticket.user_id not in self._world.users or not session or not token:
                raise NotFound("There is no such user, session or token (any more). Sign in again.")
            end = self._world.now() + timedelta(seconds=lifetime_seconds)
            self._world.tickets[ticket_hash] = StoredTicket(ticket, end)

        await self._wire.call("tickets.issue", insert)

    async def redeem(self, ticket_hash: bytes) -> Ticket | None:
        def use() -> Ticket | None:
            stored, now = self._world.tickets.get(ticket_hash), self._world.now()
            if stored is None or stored.used or stored.expires_at <= now:
                return None
            if not self._world.still_good(stored.ticket):
                return None
            stored.used = True
            return stored.ticket

        return await self._wire.call("tickets.redeem", use)


class MemoryProviderSignIns:
    def __init__(self, world: PeopleWorld, wire: Wire) -> None:
        self._world = world
        self._wire = wire

    async def begin(self, attempt_hash: bytes, next_path: str, lifetime_seconds: float) -> None:
        def insert() -> None:
            end = self._world.now() + timedelta(seconds=lifetime_seconds)
            self._world.provider_sign_ins[attempt_hash] = (next_path, end)

        await self._wire.call("provider_sign_ins.begin", insert)

    async def finish(self, attempt_hash: bytes) -> str | None:
        def take() -> str | None:
            next_path, end = self._world.provider_sign_ins.pop(attempt_hash, (None, self._world.now()))
            return next_path if end > self._world.now() else None

        return await self._wire.call("provider_sign_ins.finish", take)


class MemorySignInTries:
    def __init__(self, world: PeopleWorld, wire: Wire) -> None:
        self._world = world
        self._wire = wire

    async def begin(self, keys: Collection[TryKey]) -> float:
        def count() -> float:
            wait = max((self._left(key) for key in keys), default=0.0)
            if wait > 0:
                return wait
            now = self._world.now()
            for key in keys:
                self._world.failures[key.key] = Failures(self._failures(key.key) + 1, now)
            return 0.0

        return await self._wire.call("sign_in_tries.begin", count)

    def _failures(self, key: str) -> int:
        found = self._world.failures.get(key)
        faded = self._world.now() - timedelta(seconds=FAILURES_FADE_SECONDS)
        return found.count if found and found.at > faded else 0

    def _left(self, key: TryKey) -> float:
        found = self._world.failures.get(key.key)
        if found is None:
            return 0.0
        age = (self._world.now() - found.at).total_seconds()
        return wait_seconds(self._failures(key.key), key.free_tries, key.longest_seconds) - max(age, 0.0)

    async def succeeded(self, cleared: str, given_back: Collection[str] = ()) -> None:
        def forget() -> None:
            if cleared in self._world.failures:
                self._world.failures[cleared].count = 0
            for key in given_back:
                if key in self._world.failures:
                    self._world.failures[key].count = max(self._world.failures[key].count - 1, 0)

        await self._wire.call("sign_in_tries.succeeded", forget)
