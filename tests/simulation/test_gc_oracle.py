"""What the oracle says of garbage in the quiet: all of it must go, and each piece has its own time for that."""

import asyncio
from uuid import UUID

from codehub.adapters.memory.archives import StoredArchive
from codehub.domain import naming
from codehub.domain.idle import IdlePolicy
from tests.simulation.harness import BackendStates, virtual_now
from tests.simulation.oracle import Oracle, Watched
from tests.simulation.virtual_time import run

LONGEST = 26.0


def leave(states: BackendStates, number: int) -> str:
    key = naming.archive_key("", UUID(int=number), UUID(int=number))
    states.archives.objects[key] = StoredArchive((number,), virtual_now())
    return key


async def left_after(seconds: float, *, swept: bool) -> tuple[str, bool]:
    """Make one piece of garbage at once and another 20 s later; returns the violation, and whether any is still waited
    for."""
    states = BackendStates.fresh()
    oracle = Oracle(Watched(states.database, states.runtime, states.archives, states.jobs), 2, IdlePolicy())
    first, waits = leave(states, 1), False
    for second in range(int(seconds) + 1):
        if second == 20:
            leave(states, 2)
            if swept:
                del states.archives.objects[first]
        waits = oracle.gc.garbage_waits(LONGEST)
        await asyncio.sleep(1.0)
    return str(oracle.first or ""), waits


def test_garbage_is_waited_for_as_long_as_it_may_take() -> None:
    assert run(left_after(LONGEST, swept=False)) == ("", True)


def test_garbage_that_stays_is_a_violation() -> None:
    found, _ = run(left_after(LONGEST + 1, swept=False))
    assert found.startswith(f"7: garbage is left ({UUID(int=1)}/")


def test_garbage_made_meanwhile_has_its_own_time() -> None:
    assert run(left_after(20 + LONGEST, swept=True)) == ("", True)
    found, _ = run(left_after(20 + LONGEST + 1, swept=True))
    assert found.startswith(f"7: garbage is left ({UUID(int=2)}/")
