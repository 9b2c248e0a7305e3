"""Signing in, in memory: visits, tickets, sign-ins that are away at a provider, failed tries, passwords, a provider.

Passwords are hashed quickly, for tests only, and counted, so that a test can see that the same work was done. Whoever
holds a code that the OpenID provider issued is who it says.
"""

import base64
import hashlib
import secrets
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from urllib.parse import parse_qs, urlencode, urlsplit

from codehub.adapters.memory.database_state import AccountStore, Failures, StoredTicket, StoredVisit
from codehub.adapters.memory.fault_injection import Network, effect
from codehub.domain.credentials import FAILURES_FADE_SECONDS, wait_seconds
from codehub.domain.errors import NotFound, Unauthenticated
from codehub.domain.identity import ALL_SCOPES
from codehub.ports.accounts import ProviderIdentity, SessionRules, Ticket, TryKey, Visit


class MemorySignInState(AccountStore):
    @effect("sign_in_state.begin_try")
    def begin_try(self, keys: Collection[TryKey]) -> float:
        wait = max((self._left(key) for key in keys), default=0.0)
        if wait > 0:
            return wait
        now = self._state.now()
        for key in keys:
            self._state.failures[key.key] = Failures(self._failures(key.key) + 1, now)
        return 0.0

    def _failures(self, key: str) -> int:
        found = self._state.failures.get(key)
        faded = self._state.now() - timedelta(seconds=FAILURES_FADE_SECONDS)
        return found.count if found and found.at > faded else 0

    def _left(self, key: TryKey) -> float:
        found = self._state.failures.get(key.key)
        if found is None:
            return 0.0
        age = (self._state.now() - found.at).total_seconds()
        return wait_seconds(self._failures(key.key), key.free_tries, key.longest_seconds) - max(age, 0.0)

    @effect("sign_in_state.clear_tries")
    def clear_tries(self, cleared: str, given_back: Collection[str] = ()) -> None:
        if cleared in self._state.failures:
            self._state.failures[cleared].count = 0
        for key in given_back:
            if key in self._state.failures:
                self._state.failures[key].count = max(self._state.failures[key].count - 1, 0)

    @effect("sign_in_state.begin_provider_sign_in")
    def begin_provider_sign_in(self, attempt_hash: bytes, next_path: str, lifetime_seconds: float) -> None:
        end = self._state.now() + timedelta(seconds=lifetime_seconds)
        self._state.provider_sign_ins[attempt_hash] = (next_path, end)

    @effect("sign_in_state.finish_provider_sign_in")
    def finish_provider_sign_in(self, attempt_hash: bytes) -> str | None:
        next_path, end = self._state.provider_sign_ins.pop(attempt_hash, (None, self._state.now()))
        return next_path if end > self._state.now() else None

    @effect("sign_in_state.issue_ticket")
    def issue_ticket(self, ticket_hash: bytes, ticket: Ticket, lifetime_seconds: float) -> None:
        session = ticket.session_id is None or ticket.session_id in self._state.sessions
        token = ticket.token_id is None or self._state.token(ticket.token_id) is not None
        if ticket.user_id not in self._state.users or not session or not token:
            raise NotFound("There is no such user, session or token (any more). Sign in again.")
        end = self._state.now() + timedelta(seconds=lifetime_seconds)
        self._state.tickets[ticket_hash] = StoredTicket(ticket, end)

    @effect("sign_in_state.redeem_ticket")
    def redeem_ticket(self, ticket_hash: bytes) -> Ticket | None:
        stored, now = self._state.tickets.get(ticket_hash), self._state.now()
        if stored is None or stored.used or stored.expires_at <= now:
            return None
        if not self._state.still_good(stored.ticket):
            return None
        stored.used = True
        return stored.ticket

    @effect("sign_in_state.open_visit")
    def open_visit(self, visit_hash: bytes, ticket: Ticket, lifetime_seconds: float) -> bool:
        if not self._state.still_good(ticket):
            return False
        end = self._state.now() + timedelta(seconds=lifetime_seconds)
        self._state.visits[visit_hash] = StoredVisit(ticket, end)
        return True

    @effect("sign_in_state.visit")
    def visit(self, visit_hash: bytes, rules: SessionRules) -> Visit | None:
        stored = self._state.visits.get(visit_hash)
        if stored is None or stored.expires_at <= self._state.now() or not self._state.still_good(stored.ticket):
            return None
        ticket = stored.ticket
        if ticket.session_id is not None:
            if not self._state.lives(self._state.sessions[ticket.session_id], rules):
                return None
            self._state.see_session(ticket.session_id)
        token = self._state.token(ticket.token_id) if ticket.token_id else None
        if token is not None:
            self._state.use_token(token[0])
        user, scopes = self._state.users[ticket.user_id], token[1].scopes if token else ALL_SCOPES
        return Visit(user, ticket.workspace_id, ticket.port, ticket.session_id, ticket.token_id, scopes)


class MemoryPasswords:
    """Quick hashes of passwords. `generation`: as if the parameters had changed. `verified`: how often a password was
    compared."""

    def __init__(self, generation: int = 1) -> None:
        self.generation = generation
        self.verified = 0

    async def hash(self, password: str) -> str:
        return self._hashed(password, secrets.token_hex(8), self.generation)

    async def verify(self, stored: str | None, password: str) -> bool:
        self.verified += 1
        parts = (stored or "memory:1::").split(":")
        if len(parts) != 4 or parts[0] != "memory":
            return False
        return stored is not None and secrets.compare_digest(stored, self._hashed(password, parts[2], int(parts[1])))

    def outdated(self, stored: str) -> bool:
        return not stored.startswith(f"memory:{self.generation}:")

    @staticmethod
    def _hashed(password: str, salt: str, generation: int) -> str:
        text = f"{salt}{password}".encode("utf-8", "surrogatepass")
        return f"memory:{generation}:{salt}:{hashlib.sha256(text).hexdigest()}"


@dataclass(slots=True)
class MemoryProvider:
    issuer: str = "https://issuer.example"
    network: Network = field(default_factory=Network)
    codes: dict[str, tuple[ProviderIdentity, str, str]] = field(default_factory=dict)

    async def authorization_url(self, *, state: str, nonce: str, challenge: str, anew: bool = False) -> str:
        asks = {"prompt": "login", "max_age": "0"} if anew else {}
        query = urlencode({"state": state, "nonce": nonce, "code_challenge": challenge, **asks})
        return await self.network.call("oidc.authorization_url", lambda: f"{self.issuer}/authorize?{query}")

    async def identify(self, *, code: str, verifier: str, nonce: str) -> ProviderIdentity:
        def redeem() -> ProviderIdentity:
            who, challenge, asked_nonce = self.codes.pop(code, (None, "", ""))
            proof = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
            if who is None or (proof, nonce) != (challenge, asked_nonce):
                raise Unauthenticated("The provider refused this sign-in. Begin again.")
            return who

        return await self.network.call("oidc.identify", redeem)

    def approve(
        self,
        url: str,
        subject: str,
        preferred_username: str | None = None,
        email: str | None = None,
        *,
        email_verified: bool = True,
        authenticated_at: datetime | None = None,
    ) -> dict[str, str]:
        """Does what a person does at the provider; returns the query that the browser is sent back with."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        code = secrets.token_urlsafe(8)
        who = ProviderIdentity(self.issuer, subject, preferred_username, email, email_verified, authenticated_at)
        self.codes[code] = (who, query["code_challenge"], query["nonce"])
        return {"code": code, "state": query["state"]}
