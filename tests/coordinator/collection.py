"""The garbage collector in a test: its backends filled with what could be garbage, one report, and one collection."""

import asyncio
from datetime import timedelta
from uuid import UUID

from codehub.adapters.memory.archives import StoredArchive
from codehub.adapters.memory.runtime import Volume
from codehub.coordinator.context import Tuning
from codehub.coordinator.gc_runner import CollectionReport, GcRunner
from codehub.domain import naming
from codehub.domain.gc_rules import Retention
from codehub.domain.workspace import HomeContext, Phase
from tests.coordinator.harness import CoordinatorHarness, began, now
from tests.rows import OP_ID, WORKSPACE_ID, archived, workspace

NOBODY = UUID(int=7)
GRACE = 100.0
TUNING = Tuning(gc_interval=50, retention=Retention(undo_seconds=7200, grace_seconds=100))

STRAY = naming.archive_key("", WORKSPACE_ID, UUID(int=9))
"""The key of an archive that nobody has recorded."""
OLD, OLDER, OLDEST = (naming.archive_key("", WORKSPACE_ID, UUID(int=number)) for number in (1, 2, 3))


def stray(harness: CoordinatorHarness, key: str = STRAY, *, age: timedelta = timedelta(0)) -> None:
    harness.states.archives.objects[key] = StoredArchive((1,), now() - age, committed=True)
    if naming.stored_name("", key):
        harness.states.database.ledger.append(began(key))


def all_volumes(harness: CoordinatorHarness) -> None:
    """All volumes are garbage, beside hundreds of objects that are well protected."""
    for number in range(300):
        row = archived(id=UUID(int=number + 100), name=f"{number}", slug=f"{number}", archive_op_id=None)
        key = naming.archive_key("", row.id, OP_ID)
        home = HomeContext(incarnation=1)
        harness.place(workspace(id=row.id, archive_key=key, phase=Phase.ARCHIVED, home=home), archives={key: (1,)})
    for number in range(11):
        name = naming.volume_name(UUID(int=number + 100), 1)
        harness.states.runtime.volumes[name] = Volume(UUID(int=number + 100))


def collector(harness: CoordinatorHarness) -> GcRunner:
    return harness.term_runner.gc


async def scan(harness: CoordinatorHarness) -> CollectionReport:
    return await collector(harness)._scanner.report()


async def collect(harness: CoordinatorHarness) -> CollectionReport:
    """Mark, wait for the grace, sweep."""
    await collector(harness).run()
    await asyncio.sleep(GRACE)
    return await collector(harness).run()


def checks(report: CollectionReport) -> list[str]:
    return [refusal.check.value for refusal in report.refusals]
