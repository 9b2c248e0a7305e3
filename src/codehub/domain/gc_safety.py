"""The checks that stop a garbage collection which would be a catastrophe: to an empty, new or restored database
everything looks like garbage. Pure.

Each check has a name by which a person may waive it, except two: nobody means to sweep on an empty database or in
another installation's store. Kinds are counted apart, so that many objects cannot hide the loss of all volumes.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from codehub.domain.gc_rules import ResourceKind


class SafetyCheck(StrEnum):
    DATABASE_EMPTY = "database-empty"
    FOREIGN_INSTALL = "foreign-install"
    DATABASE_YOUNGER = "database-younger"
    LEDGER_BEHIND = "ledger-behind"
    DATABASE_OLDER = "database-older"
    RESTORED = "restored"
    TOO_MANY = "too-many"


NEVER_WAIVED = frozenset({SafetyCheck.DATABASE_EMPTY, SafetyCheck.FOREIGN_INSTALL})
WAIVABLE = tuple(check for check in SafetyCheck if check not in NEVER_WAIVED)


@dataclass(frozen=True, slots=True)
class GcLimits:
    """How much one run may sweep. `skew`: how far the store's clock may be from the database's. `ledger_reach`: how far
    back the ledger goes; None is for ever."""

    most_share: float = 0.20
    most_count: int = 10
    per_run: int = 500
    ledger_lag: timedelta = timedelta(hours=1)
    skew: timedelta = timedelta(0)
    ledger_reach: timedelta | None = None


@dataclass(frozen=True, slots=True)
class ResourceCount:
    existing: int = 0
    garbage: int = 0


@dataclass(frozen=True, slots=True)
class LostRecords:
    """Names of resources that exist and whose records the database must have lost: resources of workspaces that it does
    not know, although no row is ever removed; homes of a number that their rows never gave, and archives of operations
    that the ledger does not know, although both are recorded before anything is made."""

    unknown: tuple[str, ...] = ()
    newer_homes: tuple[str, ...] = ()
    unrecorded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SafetyFacts:
    """What the safety checks look at. `newest_object_at`: of the objects that no running archive is writing.
    `owner`: the installation that the store says it belongs to; None if it says nothing."""

    counts: Mapping[ResourceKind, ResourceCount] = field(default_factory=dict)
    newest_object_at: datetime | None = None
    oldest_object_at: datetime | None = None
    newest_ledger_at: datetime | None = None
    oldest_workspace_at: datetime | None = None
    install: str = ""
    owner: str | None = None
    backup_at: datetime | None = None
    newer_than_backup: int = 0
    """How many resources are garbage to a database that was restored from a backup of `backup_at`, and may have been
    made since then."""
    lost_records: LostRecords = LostRecords()


@dataclass(frozen=True, slots=True)
class Refusal:
    check: SafetyCheck
    sentence: str


def refusals(facts: SafetyFacts, limits: GcLimits, waived: Collection[str] = ()) -> tuple[Refusal, ...]:
    """Every reason not to sweep, without those that a person waived."""
    if not any(count.existing for count in facts.counts.values()):
        return ()
    checks = (
        _foreign(facts),
        _empty(facts),
        _younger(facts, limits),
        _behind(facts, limits),
        _older(facts),
        _restored(facts),
    )
    found = [refusal for refusal in checks if refusal is not None]
    found += [_too_many(kind, count) for kind, count in facts.counts.items() if _is_too_many(count, limits)]
    return tuple(r for r in found if r.check in NEVER_WAIVED or r.check not in waived)


def database_is_doubtful(found: Collection[Refusal]) -> bool:
    """Whether the database may be the wrong one. Then nothing is even marked: what is garbage is not known."""
    return any(refusal.check is not SafetyCheck.TOO_MANY for refusal in found)


def _foreign(facts: SafetyFacts) -> Refusal | None:
    if facts.owner is None or facts.owner == facts.install:
        return None
    return Refusal(
        SafetyCheck.FOREIGN_INSTALL,
        f"the object store belongs to the installation {facts.owner!r} and we are {facts.install!r}; "
        "give each a bucket or an archive prefix of its own (if ours was renamed, remove the object codehub-owner, "
        "then `codehub admin backends --forget archives`)",
    )


def _is_empty(facts: SafetyFacts) -> bool:
    return facts.oldest_workspace_at is None or facts.newest_ledger_at is None


def _empty(facts: SafetyFacts) -> Refusal | None:
    if not _is_empty(facts):
        return None
    return Refusal(
        SafetyCheck.DATABASE_EMPTY,
        "the database knows no workspace although things of this installation exist; is this the right database?",
    )


def _younger(facts: SafetyFacts, limits: GcLimits) -> Refusal | None:
    oldest, first = facts.oldest_object_at, facts.oldest_workspace_at
    if oldest is None or first is None or oldest + limits.skew >= first:
        return None
    return Refusal(
        SafetyCheck.DATABASE_YOUNGER,
        f"there are objects from {oldest:%Y-%m-%d %H:%M} and the first workspace is from {first:%Y-%m-%d %H:%M}; "
        "was the database made anew?",
    )


def _behind(facts: SafetyFacts, limits: GcLimits) -> Refusal | None:
    newest, ledger = facts.newest_object_at, facts.newest_ledger_at
    if newest is None or ledger is None or newest - ledger <= limits.ledger_lag:
        return None
    return Refusal(
        SafetyCheck.LEDGER_BEHIND,
        f"the newest object is from {newest:%Y-%m-%d %H:%M} and the newest ledger entry from {ledger:%Y-%m-%d %H:%M}; "
        "was the database restored from a backup?",
    )


def _older(facts: SafetyFacts) -> Refusal | None:
    """Refuses when the database lacks records of what exists: neither time nor new entries in the ledger make this go
    away."""
    lost = facts.lost_records
    found = {
        "things of workspaces that it does not know": lost.unknown,
        "homes newer than their workspaces say": lost.newer_homes,
        "archives whose making it did not record": lost.unrecorded,
    }
    told = [f"{what}: {len(names)}, such as {names[0]}" for what, names in found.items() if names]
    if _is_empty(facts) or not told:
        return None
    return Refusal(
        SafetyCheck.DATABASE_OLDER,
        f"the database is older than what is here ({'; '.join(told)}); was it brought back to an earlier time? "
        "Look at the dry run, save what is wanted, then waive this",
    )


def _restored(facts: SafetyFacts) -> Refusal | None:
    """Refuses after a restore from a backup: only a person who has looked can say that nothing newer is lost."""
    if facts.backup_at is None or not facts.newer_than_backup:
        return None
    return Refusal(
        SafetyCheck.RESTORED,
        f"the database was restored from a backup of {facts.backup_at:%Y-%m-%d %H:%M}, and "
        f"{facts.newer_than_backup} things that it does not know may have been made since; "
        "look at the dry run, save what is wanted, then waive this once",
    )


def _is_too_many(count: ResourceCount, limits: GcLimits) -> bool:
    return count.garbage > limits.most_count and count.garbage > count.existing * limits.most_share


def _too_many(kind: ResourceKind, count: ResourceCount) -> Refusal:
    share = count.garbage / count.existing
    return Refusal(
        SafetyCheck.TOO_MANY,
        f"{count.garbage} of {count.existing} {kind}s ({share:.0%}) would be swept; look at the dry run first",
    )
