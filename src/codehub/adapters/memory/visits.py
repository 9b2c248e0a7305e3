"""Who was let in at a workspace's own host, in memory."""

from datetime import timedelta

from codehub.adapters.memory.people import PeopleWorld, StoredVisit
from codehub.adapters.memory.wire import Wire
from codehub.domain.identity import ALL_SCOPES
from codehub.ports.accounts import SessionRules, Ticket, Visit


class MemoryVisits:
    def __init__(self, world: PeopleWorld, wire: Wire) -> None:
        self._world = world
        self._wire = wire

    async def open(self, visit_hash: bytes, ticket: Ticket, lifetime_seconds: float) -> bool:
        def insert() -> bool:
            if not self._world.still_good(ticket):
                return False
            end = self._world.now() + timedelta(seconds=lifetime_seconds)
            self._world.visits[visit_hash] = StoredVisit(ticket, end)
            return True

        return await self._wire.call("visits.open", insert)

    async def visit(self, visit_hash: bytes, rules: SessionRules) -> Visit | None:
        def look() -> Visit | None:
            stored = self._world.visits.get(visit_hash)
            if stored is None or stored.expires_at <= self._world.now() or not self._world.still_good(stored.ticket):
                return None
            ticket = stored.ticket
            if ticket.session_id is not None:
                if not self._world.lives(self._world.sessions[ticket.session_id], rules):
                    return None
                self._world.see_session(ticket.session_id)
            token = self._world.token(ticket.token_id) if ticket.token_id else None
            if token is not None:
                self._world.use_token(token[0])
            user, scopes = self._world.users[ticket.user_id], token[1].scopes if token else ALL_SCOPES
            return Visit(user, ticket.workspace_id, ticket.port, ticket.session_id, ticket.token_id, scopes)

        return await self._wire.call("visits.visit", look)
