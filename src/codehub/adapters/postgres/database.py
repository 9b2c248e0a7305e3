"""The database as one thing: opened once, it hands out the stores and what stands around them."""

from types import TracebackType
from typing import Self
from uuid import UUID

from codehub.adapters.postgres import statements as sql
from codehub.adapters.postgres.accounts import PostgresAccounts
from codehub.adapters.postgres.authorized_keys import PostgresAuthorizedKeys
from codehub.adapters.postgres.collector import PostgresCollectorMarks, PostgresCollectorView
from codehub.adapters.postgres.connections import DatabaseTimeouts, PostgresChangeFeed, Sessions
from codehub.adapters.postgres.leadership import PostgresLeadership
from codehub.adapters.postgres.secrets import PostgresProfiles, PostgresSecrets
from codehub.adapters.postgres.short_lived import (
    PostgresIdempotencyKeys,
    PostgresSignInState,
)
from codehub.adapters.postgres.stores import (
    PostgresAudit,
    PostgresBackendIdentities,
    PostgresLedger,
    PostgresSpecs,
    PostgresStatuses,
    PostgresTemplates,
)
from codehub.adapters.postgres.views import PostgresTraffic, PostgresUsageHistory, PostgresViews
from codehub.ports.signals import Clock


class PostgresDatabase:
    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions

    @classmethod
    async def open(cls, url: str, *, pool_size: int = 10, timeouts: DatabaseTimeouts | None = None) -> Self:
        """Opens the database, which is connected to on first use. Call check_schema before anything else."""
        return cls(await Sessions.open(url, pool_size, timeouts or DatabaseTimeouts()))

    async def close(self) -> None:
        await self.sessions.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def specs(self) -> PostgresSpecs:
        return PostgresSpecs(self.sessions)

    def statuses(self, epoch: int) -> PostgresStatuses:
        return PostgresStatuses(self.sessions, epoch)

    def ledger(self) -> PostgresLedger:
        return PostgresLedger(self.sessions)

    def leadership(self, clock: Clock) -> PostgresLeadership:
        return PostgresLeadership(self.sessions, clock)

    def changes(self) -> PostgresChangeFeed:
        return PostgresChangeFeed(self.sessions)

    def views(self) -> PostgresViews:
        return PostgresViews(self.sessions)

    def traffic(self) -> PostgresTraffic:
        return PostgresTraffic(self.sessions)

    def usage_history(self) -> PostgresUsageHistory:
        return PostgresUsageHistory(self.sessions)

    def collector(self) -> PostgresCollectorView:
        return PostgresCollectorView(self.sessions)

    def backend_identities(self) -> PostgresBackendIdentities:
        return PostgresBackendIdentities(self.sessions)

    def accounts(self) -> PostgresAccounts:
        return PostgresAccounts(self.sessions)

    def authorized_keys(self) -> PostgresAuthorizedKeys:
        return PostgresAuthorizedKeys(self.sessions)

    def sign_in_state(self) -> PostgresSignInState:
        return PostgresSignInState(self.sessions)

    def audit(self) -> PostgresAudit:
        return PostgresAudit(self.sessions)

    def templates(self) -> PostgresTemplates:
        return PostgresTemplates(self.sessions)

    def idempotency_keys(self) -> PostgresIdempotencyKeys:
        return PostgresIdempotencyKeys(self.sessions)

    def secrets(self) -> PostgresSecrets:
        return PostgresSecrets(self.sessions)

    def profiles(self) -> PostgresProfiles:
        return PostgresProfiles(self.sessions)

    def marks(self, epoch: int) -> PostgresCollectorMarks:
        return PostgresCollectorMarks(self.sessions, epoch)

    async def installation_id(self) -> UUID:
        """The id that was made with the schema: what we label everything with, unless the settings name another."""
        found: UUID = await self.sessions.fetchval(sql.INSTALLATION)
        return found
