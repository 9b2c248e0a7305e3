"""The use cases about people on memory adapters, with a clock that stands until it is turned."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from codehub.adapters.memory import AccountTables, MemoryAccountDatabase, MemoryBus, MemoryPasswords, MemoryProvider
from codehub.adapters.system import RandomIds
from codehub.domain.identity import Caller, Role
from codehub.ports.accounts import AuditEntry, SessionRules
from codehub.usecases.identity import Identity, Tokens
from codehub.usecases.oidc import Oidc
from codehub.usecases.revocations import AUTH_CHANNEL, Revocations
from codehub.usecases.users import Users

RULES = SessionRules(idle_seconds=3600, absolute_seconds=12 * 3600)
ADDRESS = "192.0.2.10"
AGENT = "Browser 1"


@dataclass
class Clock:
    at: datetime = datetime(2026, 5, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.at

    def pass_by(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


@dataclass
class AccountsHarness:
    clock: Clock = field(default_factory=Clock)
    passwords: MemoryPasswords = field(default_factory=MemoryPasswords)
    provider: MemoryProvider = field(default_factory=MemoryProvider)
    bus: MemoryBus = field(default_factory=MemoryBus)

    def __post_init__(self) -> None:
        self.state = AccountTables(now=self.clock)
        self.directory = MemoryAccountDatabase(self.state)
        accounts, ids = self.directory.accounts(), RandomIds()
        revocations = Revocations(self.bus)
        self.identity = Identity(
            accounts,
            self.directory.sign_in_state(),
            self.directory.audit(),
            self.passwords,
            revocations,
            ids,
            RULES,
        )
        self.tokens = Tokens(accounts, revocations, ids)
        self.people = Users(accounts, self.passwords, revocations, ids)
        self.oidc = Oidc(self.provider, self.identity)
        self.heard: asyncio.Queue[Mapping[str, Any] | None] = asyncio.Queue()
        self.bus.state.listeners.setdefault(AUTH_CHANNEL, []).append(self.heard)

    async def admin(self) -> Caller:
        password = await self.identity.ensure_admin("root")
        assert password
        return (await self.identity.sign_in("root", password, ADDRESS, AGENT))[0]

    async def member(self, admin: Caller, name: str = "ann", role: Role = Role.USER) -> tuple[Caller, str, str]:
        """The caller, the password and the session's secret."""
        _user, password = await self.people.create(admin, name, role)
        assert password
        caller, secret = await self.identity.sign_in(name, password, ADDRESS, AGENT)
        return caller, password, secret

    def messages(self) -> list[Mapping[str, Any]]:
        heard = []
        while not self.heard.empty():
            message = self.heard.get_nowait()
            assert message is not None
            heard.append(message)
        return heard

    def audit(self, action: str | None = None) -> list[AuditEntry]:
        return [entry for entry in self.state.audit if action is None or entry.action == action]
