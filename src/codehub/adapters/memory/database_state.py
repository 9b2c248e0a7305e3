"""What the database in memory holds, accounts and workspaces, and what every store on it shares: the rules about
sessions and tokens, publishing changes, and fenced writes.

A fenced write is a transaction that holds the leadership row shared from the epoch's check to its commit. A bump of
the epoch ends the transactions that are open, as the rival does on PostgreSQL by ending the old leader's backends.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import wraps
from itertools import count
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar
from uuid import UUID

from codehub.adapters.memory.fault_injection import Network
from codehub.adapters.memory.leadership import LeadershipState
from codehub.domain.authorized_keys import AuthorizedKey
from codehub.domain.credentials import SEEN_EVERY_SECONDS
from codehub.domain.errors import NotFound
from codehub.domain.gc_rules import RestorePoint
from codehub.domain.history import TrafficMinute
from codehub.domain.identity import ApiToken, Session, User
from codehub.domain.ledger import LedgerEntry, entries
from codehub.domain.naming import Backend
from codehub.domain.secrets import SecretName
from codehub.domain.template import Template
from codehub.domain.usage import UsageSample
from codehub.domain.workspace import PUBLISHED_FIELDS, WAKING_FIELDS, Workspace
from codehub.ports.accounts import AuditEntry, SessionRules, Ticket
from codehub.ports.collector import CollectionRequest, Mark, RestoredDatabase
from codehub.ports.secrets import Profile, StoredSecret
from codehub.ports.signals import Change, Channel
from codehub.ports.stores import Actor, BackendRecord

T = TypeVar("T")
P = ParamSpec("P")

_SEEN_EVERY = timedelta(seconds=SEEN_EVERY_SECONDS)


def _wall_clock() -> datetime:
    return datetime.now(UTC)


@dataclass(slots=True)
class StoredTicket:
    ticket: Ticket
    expires_at: datetime
    used: bool = False


@dataclass(slots=True)
class StoredVisit:
    ticket: Ticket
    expires_at: datetime


@dataclass(slots=True)
class Failures:
    count: int
    at: datetime


@dataclass(slots=True)
class StoredKey:
    request_hash: bytes
    workspace_id: UUID
    created_at: datetime
    response: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class StoredSecretRow:
    secret: StoredSecret
    updated_at: datetime


@dataclass(slots=True)
class AccountTables:
    now: Callable[[], datetime] = _wall_clock
    users: dict[UUID, User] = field(default_factory=dict)
    password_hashes: dict[UUID, str] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)
    proven: dict[str, datetime] = field(default_factory=dict)
    """When the person of each session proved who they are."""
    tokens: dict[bytes, ApiToken] = field(default_factory=dict)
    tickets: dict[bytes, StoredTicket] = field(default_factory=dict)
    visits: dict[bytes, StoredVisit] = field(default_factory=dict)
    provider_sign_ins: dict[bytes, tuple[str, datetime]] = field(default_factory=dict)
    failures: dict[str, Failures] = field(default_factory=dict)
    audit: list[AuditEntry] = field(default_factory=list)
    audit_numbers: "count[int]" = field(default_factory=lambda: count(1))
    templates: dict[str, Template] = field(default_factory=dict)
    keys: dict[tuple[UUID, str], StoredKey] = field(default_factory=dict)
    secrets: dict[SecretName, StoredSecretRow] = field(default_factory=dict)
    profiles: dict[UUID, Profile] = field(default_factory=dict)
    authorized_keys: dict[UUID, AuthorizedKey] = field(default_factory=dict)
    leadership: LeadershipState = field(default_factory=LeadershipState)

    def __post_init__(self) -> None:
        now = self.now()
        ours = Template("default", "The runtime's own image.", created_at=now, updated_at=now)
        self.templates.setdefault(ours.name, ours)

    def append_audit(self, actor: Actor, action: str, subject: str, details: Mapping[str, Any] | None = None) -> None:
        entry = AuditEntry(
            next(self.audit_numbers), self.now(), actor.name, action, subject, dict(details or {}), actor.address
        )
        self.audit.append(entry)

    def of_owner(self, owner_id: str) -> User | None:
        """The user whose id, as text, a workspace names as its owner."""
        return next((user for user in self.users.values() if user.owner_id == owner_id), None)

    def name_of(self, owner_id: str) -> str:
        found = self.of_owner(owner_id)
        return found.username if found else owner_id

    def limit_of(self, owner_id: str) -> int | None:
        found = self.of_owner(owner_id)
        return found.max_running if found else None

    def user(self, user_id: UUID) -> User:
        found = self.users.get(user_id)
        if found is None:
            raise NotFound(f"There is no user {user_id}, or it is disabled.")
        return found

    def enabled_user(self, user_id: UUID, password_hash: str | None = None) -> User:
        """The user, if not disabled and if their password still has `password_hash`; None asks for no password.
        Raises NotFound."""
        found = self.user(user_id)
        if found.disabled_at or password_hash not in (None, self.password_hashes.get(user_id)):
            raise NotFound(f"There is no user {user_id}, or it is disabled.")
        return found

    def lives(self, session: Session, rules: SessionRules) -> bool:
        now = self.now()
        return session.expires_at > now and session.last_seen_at > now - timedelta(seconds=rules.idle_seconds)

    def is_fresh(self, session_id: str, rules: SessionRules) -> bool:
        return self.proven[session_id] > self.now() - timedelta(seconds=rules.fresh_seconds)

    def token(self, token_id: UUID) -> tuple[bytes, ApiToken] | None:
        """The token of that id, with the hash that it is kept under."""
        return next(((key, token) for key, token in self.tokens.items() if token.id == token_id), None)

    def token_lives(self, token: ApiToken) -> bool:
        return token.revoked_at is None and (token.expires_at is None or token.expires_at > self.now())

    def still_good(self, ticket: Ticket) -> bool:
        """Whether the ticket's maker may still come in: neither disabled nor signed out, nor is the token revoked."""
        user = self.users.get(ticket.user_id)
        if user is None or user.disabled_at:
            return False
        if ticket.session_id is not None:
            session = self.sessions.get(ticket.session_id)
            if session is None or session.user_id != user.id or session.expires_at <= self.now():
                return False
        if ticket.token_id is not None:
            found = self.token(ticket.token_id)
            return found is not None and found[1].user_id == user.id and self.token_lives(found[1])
        return True

    def see_session(self, session_id: str) -> None:
        """Moves the session's last_seen_at, at most once in SEEN_EVERY_SECONDS, as the real store does."""
        session, now = self.sessions[session_id], self.now()
        if session.last_seen_at < now - _SEEN_EVERY:
            self.sessions[session_id] = replace(session, last_seen_at=now)

    def use_token(self, token_hash: bytes) -> None:
        """Moves the token's last_used_at, at most once in SEEN_EVERY_SECONDS, as the real store does."""
        token, now = self.tokens[token_hash], self.now()
        if token.last_used_at is None or token.last_used_at < now - _SEEN_EVERY:
            self.tokens[token_hash] = replace(token, last_used_at=now)

    def end_session(self, session_id: str) -> None:
        """The session's tickets and visits go with it."""
        del self.sessions[session_id]
        self.proven.pop(session_id, None)
        for kept in (self.tickets, self.visits):
            for key in [k for k, stored in kept.items() if stored.ticket.session_id == session_id]:
                del kept[key]


@dataclass(slots=True)
class CollectorState:
    marks: dict[tuple[str, str], Mark] = field(default_factory=dict)
    requests: list[tuple[datetime, CollectionRequest]] = field(default_factory=list)
    restored: RestoredDatabase | None = None


@dataclass(slots=True)
class DatabaseState:
    now: Callable[[], datetime] = _wall_clock
    rows: dict[UUID, Workspace] = field(default_factory=dict)
    ledger: list[LedgerEntry] = field(default_factory=list)
    points: dict[UUID, list[RestorePoint]] = field(default_factory=dict)
    leases: dict[UUID, dict[str, datetime]] = field(default_factory=dict)
    traffic: dict[datetime, TrafficMinute] = field(default_factory=dict)
    usage: dict[UUID, list[UsageSample]] = field(default_factory=dict)
    backend_identities: dict[Backend, BackendRecord] = field(default_factory=dict)
    accounts: AccountTables = field(default_factory=AccountTables)
    leadership: LeadershipState = field(default_factory=LeadershipState)
    collector: CollectorState = field(default_factory=CollectorState)
    admission: asyncio.Lock = field(default_factory=asyncio.Lock)
    listeners: list[asyncio.Queue[Change | None]] = field(default_factory=list)
    row_writes: int = 0
    watchers: list[Callable[[Workspace | None, Workspace, str, str], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.accounts.leadership = self.leadership

    def put(self, before: Workspace | None, after: Workspace, actor: str, reason: str) -> Workspace:
        now = self.now()
        row = replace(after, version=(before.version + 1 if before else 1), updated_at=now)
        self.rows[row.id] = row
        self.row_writes += 1
        self.ledger.extend(entries(before, row, actor, reason, now))
        for change in _changes(before, row):
            for listener in self.listeners:
                listener.put_nowait(change)
        for watcher in self.watchers:
            watcher(before, row, actor, reason)
        return row


def _changes(before: Workspace | None, after: Workspace) -> list[Change]:
    found = []
    if before is None or differ(before, after, PUBLISHED_FIELDS):
        found.append(Change(Channel.SSE, after.id, after.owner_id))
    if before is None or differ(before, after, WAKING_FIELDS):
        found.append(Change(Channel.WAKE, after.id, after.owner_id))
    if before is not None and before.deleted_at != after.deleted_at:
        found.append(Change(Channel.DELETED, after.id, after.owner_id))
    return found


def differ(before: Workspace, after: Workspace, names: Collection[str]) -> bool:
    return any(getattr(before, name) != getattr(after, name) for name in names)


class HasLeadership(Protocol):
    leadership: LeadershipState


State = TypeVar("State", bound=HasLeadership)


class MemoryStore(Generic[State]):
    """A store on state in memory, reached over a network that may fail."""

    def __init__(self, state: State, network: Network) -> None:
        self._state = state
        self._network = network

    async def _write(self, name: str, epoch: int | None, work: Callable[[], T]) -> T:
        """Runs `work` as a write; with `epoch`, as a transaction that the end of that term refuses."""
        if epoch is None:
            return await self._network.call(name, work)
        with self._state.leadership.shared(epoch) as transaction:
            return await self._network.call(name, lambda: transaction.commit(work))


AccountStore = MemoryStore[AccountTables]
DatabaseStore = MemoryStore[DatabaseState]


class TermStore(DatabaseStore):
    """A store that one leader writes to: the end of the leader's term refuses its writes."""

    def __init__(self, state: DatabaseState, network: Network, epoch: int) -> None:
        super().__init__(state, network)
        self.epoch = epoch


S = TypeVar("S", bound=TermStore)


def fenced_effect(
    name: str,
) -> Callable[[Callable[Concatenate[S, P], T]], Callable[Concatenate[S, P], Coroutine[Any, Any, T]]]:
    """Decorates a plain method as `effect` does, for a write that the end of the store's term refuses."""

    def decorate(work: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
        @wraps(work)
        async def call(store: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
            return await store._write(name, store.epoch, lambda: work(store, *args, **kwargs))  # noqa: SLF001 - its own

        return call

    return decorate
