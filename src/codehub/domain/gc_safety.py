"""When a sweep would be a catastrophe: an empty, new or restored database makes everything look like garbage. Pure.

Each check has a name by which a person may waive it, except two: nobody means to sweep on an empty database or in
another installation's store. Kinds are counted apart, so that many objects cannot hide the loss of all volumes.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from codehub.domain.gc_rules import ThingKind


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
class GcSafety:
    """How much one run may take; `skew` is how far the store's clock may be from the database's, `ledger_reach` how far
    back the ledger goes; None is for ever."""

    most_share: float = 0.20
    most_count: int = 10
    per_run: int = 500
    ledger_lag: timedelta = timedelta(hours=1)
    skew: timedelta = timedelta(0)
    ledger_reach: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Count:
    existing: int = 0
    garbage: int = 0


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What there is, by name, and the database must have lost: things of workspaces that it does not know, although no
    row is ever removed; homes of a number that their rows never gave, and archives of operations that the ledger does
    not know, although both are recorded before anything is made."""

    unknown: tuple[str, ...] = ()
    newer_homes: tuple[str, ...] = ()
    unrecorded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Inventory:
    """What the sweep is about to rely on. `newest_object_at`: of those that no running archive is writing.
    `owner`: the installation that the store says it belongs to; None if it says nothing."""

    counts: Mapping[ThingKind, Count] = field(default_factory=dict)
    newest_object_at: datetime | None = None
    oldest_object_at: datetime | None = None
    newest_ledger_at: datetime | None = None
    oldest_workspace_at: datetime | None = None
    install: str = ""
    owner: str | None = None
    backup_at: datetime | None = None
    newer_than_backup: int = 0
    """Garbage to a database that was restored from a backup of `backup_at`, and perhaps made since."""
    forgotten: Forgotten = Forgotten()


@dataclass(frozen=True, slots=True)
class Refusal:
    check: SafetyCheck
    sentence: str


def refusals(inventory: Inventory, envelope: GcSafety, waived: Collection[str] = ()) -> tuple[Refusal, ...]:
    """Every reason not to sweep, without those that a person waived."""
    if not any(count.existing for count in inventory.counts.values()):
        return ()
    doubts = (
        _foreign(inventory),
        _empty(inventory),
        _younger(inventory, envelope),
        _behind(inventory, envelope),
        _older(inventory),
        _restored(inventory),
    )
    found = [doubt for doubt in doubts if doubt is not None]
    found += [_too_many(kind, count) for kind, count in inventory.counts.items() if _is_too_many(count, envelope)]
    return tuple(r for r in found if r.check in NEVER_WAIVED or r.check not in waived)


def doubts_the_database(found: Collection[Refusal]) -> bool:
    """Then nothing is even marked: what is garbage is not known."""
    return any(refusal.check is not SafetyCheck.TOO_MANY for refusal in found)


def _foreign(inventory: Inventory) -> Refusal | None:
    if inventory.owner is None or inventory.owner == inventory.install:
        return None
    return Refusal(
        SafetyCheck.FOREIGN_INSTALL,
        f"the object store belongs to the installation {inventory.owner!r} and we are {inventory.install!r}; "
        "give each a bucket or an archive prefix of its own (if ours was renamed, remove the object codehub-owner, "
        "then `codehub admin backends --forget archives`)",
    )


def _is_empty(inventory: Inventory) -> bool:
    return inventory.oldest_workspace_at is None or inventory.newest_ledger_at is None


def _empty(inventory: Inventory) -> Refusal | None:
    if not _is_empty(inventory):
        return None
    return Refusal(
        SafetyCheck.DATABASE_EMPTY,
        "the database knows no workspace although things of this installation exist; is this the right database?",
    )


def _younger(inventory: Inventory, envelope: GcSafety) -> Refusal | None:
    oldest, first = inventory.oldest_object_at, inventory.oldest_workspace_at
    if oldest is None or first is None or oldest + envelope.skew >= first:
        return None
    return Refusal(
        SafetyCheck.DATABASE_YOUNGER,
        f"there are objects from {oldest:%Y-%m-%d %H:%M} and the first workspace is from {first:%Y-%m-%d %H:%M}; "
        "was the database made anew?",
    )


def _behind(inventory: Inventory, envelope: GcSafety) -> Refusal | None:
    newest, ledger = inventory.newest_object_at, inventory.newest_ledger_at
    if newest is None or ledger is None or newest - ledger <= envelope.ledger_lag:
        return None
    return Refusal(
        SafetyCheck.LEDGER_BEHIND,
        f"the newest object is from {newest:%Y-%m-%d %H:%M} and the newest ledger entry from {ledger:%Y-%m-%d %H:%M}; "
        "was the database restored from a backup?",
    )


def _older(inventory: Inventory) -> Refusal | None:
    """However the database came by its age: neither time nor new entries in the ledger make this go away."""
    lost = inventory.forgotten
    found = {
        "things of workspaces that it does not know": lost.unknown,
        "homes newer than their workspaces say": lost.newer_homes,
        "archives whose making it did not record": lost.unrecorded,
    }
    told = [f"{what}: {len(names)}, such as {names[0]}" for what, names in found.items() if names]
    if _is_empty(inventory) or not told:
        return None
    return Refusal(
        SafetyCheck.DATABASE_OLDER,
        f"the database is older than what is here ({'; '.join(told)}); was it brought back to an earlier time? "
        "Look at the dry run, save what is wanted, then waive this",
    )


def _restored(inventory: Inventory) -> Refusal | None:
    """Unlike the one before, new entries in the ledger do not make it go away: only a person's look does."""
    if inventory.backup_at is None or not inventory.newer_than_backup:
        return None
    return Refusal(
        SafetyCheck.RESTORED,
        f"the database was restored from a backup of {inventory.backup_at:%Y-%m-%d %H:%M}, and "
        f"{inventory.newer_than_backup} things that it does not know may have been made since; "
        "look at the dry run, save what is wanted, then waive this once",
    )


def _is_too_many(count: Count, envelope: GcSafety) -> bool:
    return count.garbage > envelope.most_count and count.garbage > count.existing * envelope.most_share


def _too_many(kind: ThingKind, count: Count) -> Refusal:
    share = count.garbage / count.existing
    return Refusal(
        SafetyCheck.TOO_MANY,
        f"{count.garbage} of {count.existing} {kind}s ({share:.0%}) would be swept; look at the dry run first",
    )
