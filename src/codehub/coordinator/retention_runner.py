"""The retention runner: deletes records that have served their time, in the name of the leader.

A kind that cannot be deleted does not keep the others from being deleted; a term that is over stops all (contract 3).
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import structlog

from codehub.domain.errors import CodeHubError, Stale
from codehub.ports.accounts import Accounts, Audit, SessionRules
from codehub.ports.stores import IdempotencyKeys, Ledger
from codehub.telemetry import ROWS_FORGOTTEN, Metrics

log = structlog.get_logger()

A_DAY = 24 * 3600


@dataclass(frozen=True, slots=True)
class Records:
    """The stores whose rows only grow with time."""

    accounts: Accounts
    audit: Audit
    keys: IdempotencyKeys
    ledger: Ledger


@dataclass(frozen=True, slots=True)
class RecordAges:
    """How long each kind of record is kept, in seconds; 0 is for ever."""

    ledger: float = 180 * A_DAY
    audit: float = 365 * A_DAY
    idempotency_keys: float = A_DAY
    sessions: SessionRules = field(default_factory=SessionRules)


class RetentionRunner:
    def __init__(self, records: Records, ages: RecordAges, epoch: int, metrics: Metrics) -> None:
        self._records = records
        self._ages = ages
        self._epoch = epoch
        self._metrics = metrics

    async def tick(self) -> Mapping[str, int]:
        """Delete old rows; returns how many of each kind, without the kinds that failed."""
        gone: dict[str, int] = {}
        for kind, forget in self._sweeps().items():
            try:
                gone[kind] = await forget()
            except Stale:
                raise
            except CodeHubError as error:
                log.warning("old records are kept this time", kind=kind, error=str(error))
            else:
                self._metrics.add(ROWS_FORGOTTEN, gone[kind], kind=kind)
        return gone

    def _sweeps(self) -> Mapping[str, Callable[[], Awaitable[int]]]:
        records, ages, epoch = self._records, self._ages, self._epoch
        sweeps: dict[str, Callable[[], Awaitable[int]]] = {
            "sessions": lambda: records.accounts.forget_expired(ages.sessions, epoch)
        }
        if ages.idempotency_keys:
            sweeps["idempotency_keys"] = lambda: records.keys.forget_older(ages.idempotency_keys, epoch)
        if ages.audit:
            sweeps["audit"] = lambda: records.audit.forget_older(ages.audit, epoch)
        if ages.ledger:
            sweeps["ledger"] = lambda: records.ledger.forget_older(ages.ledger, epoch)
        return sweeps
