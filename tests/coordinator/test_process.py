"""The coordinator as a process: it leads, fails over, steps down, leads again, and nothing in it dies silently."""

import asyncio
from collections.abc import Callable
from typing import TypeVar
from uuid import UUID

import pytest

from codehub.adapters.memory import MemoryBus
from codehub.adapters.memory.fault_injection import Network
from codehub.coordinator.context import Tuning
from codehub.coordinator.process import Coordinator
from codehub.domain.workspace import Desired, Operation, Phase
from codehub.telemetry import LAST_GOOD_PASS
from tests.coordinator.harness import FAILS, HANGS, CoordinatorHarness, ScriptedNetwork, in_virtual_time
from tests.simulation.harness import PERSON, BackendStates, SimulationHarness
from tests.simulation.virtual_time import VirtualClock

T = TypeVar("T")

ID = UUID(int=1)
TUNING = Tuning(workers=2)
EVENTS_ONLY = Tuning(workers=2, idle_interval=1000, active_interval=1000)


def simulation(tuning: Tuning = TUNING) -> SimulationHarness:
    return SimulationHarness(BackendStates.fresh(), tuning)


def start(it: SimulationHarness, name: str) -> tuple[Coordinator, ScriptedNetwork]:
    network = ScriptedNetwork(VirtualClock())
    return it.start(name, network).coordinator, network


def leaders(*coordinators: Coordinator) -> list[bool]:
    return [coordinator.readiness().leads for coordinator in coordinators]


@in_virtual_time
async def test_one_leads_and_the_other_takes_over_within_five_seconds() -> None:
    it = simulation()
    a, network = start(it, "a")
    await asyncio.sleep(1)
    b, _ = start(it, "b")
    await asyncio.sleep(10)
    assert leaders(a, b) == [True, False]
    network.faults["leadership"] = HANGS
    began = asyncio.get_running_loop().time()
    assert await it.until(lambda: b.readiness().leads, 60, step=0.1)
    assert asyncio.get_running_loop().time() - began < 5 + 1
    assert leaders(a, b) == [False, True]
    assert (b.readiness().epoch or 0) > 1


@in_virtual_time
async def test_a_clean_stop_hands_over_at_once() -> None:
    it = simulation()
    start(it, "a")
    await asyncio.sleep(1)
    b, _ = start(it, "b")
    await asyncio.sleep(1)
    await it.kill("a")
    assert await it.until(lambda: b.readiness().leads, 1, step=0.1)


@in_virtual_time
async def test_a_lost_term_ends_its_work_and_the_next_one_is_built_anew() -> None:
    it = simulation()
    a, network = start(it, "a")
    await it.create(Desired.RUNNING)
    assert await it.reaches(ID, "RUNNING")
    network.faults["leadership"] = FAILS
    await asyncio.sleep(5)
    assert a.readiness().leads is False
    network.calls.clear()
    await it.commands.want(ID, Desired.STANDBY, PERSON)
    await asyncio.sleep(30)
    where_it_is = {"db.backend_identities", "runtime.identity"}
    assert {name for name in network.calls if not name.startswith("leadership")} == where_it_is
    network.faults.clear()
    assert await it.reaches(ID, "STANDBY")
    assert a.readiness().epoch == 2


@in_virtual_time
async def test_a_stalled_leader_that_wakes_up_is_refused() -> None:
    """The leader was deposed while it stalled: its late write changes nothing."""
    it = simulation()
    _, network = start(it, "a")
    await it.create(Desired.STANDBY)
    network.faults.update({"leadership.renew": HANGS, "runtime.create_volume": HANGS})
    await asyncio.sleep(1)
    b, _ = start(it, "b")
    assert await it.reaches(ID, "STANDBY")
    assert b.readiness().leads
    before = it.row(ID)
    await asyncio.sleep(1100)
    assert it.row(ID) == before


@in_virtual_time
async def test_the_database_may_be_away_when_it_starts() -> None:
    it = simulation()
    a, network = start(it, "a")
    network.faults.update({"leadership": FAILS, "db": FAILS})
    await asyncio.sleep(30)
    assert a.readiness().leads is False
    network.faults.clear()
    await it.create(Desired.RUNNING)
    assert await it.reaches(ID, "RUNNING", 10)


class Crashing(Network):
    """A network in which the named call meets a bug of ours, for a while."""

    def __init__(self, name: str, times: int, about: UUID | None = None) -> None:
        self._name = name
        self._about = about
        self._times = times
        self.met = 0

    async def call(self, name: str, effect: Callable[[], T], about: UUID | None = None) -> T:
        if name == self._name and about == (self._about or about) and self.met < self._times:
            self.met += 1
            raise ZeroDivisionError(name)
        return effect()


@pytest.mark.parametrize(
    "name", ["db.versions", "db.active", "db.load", "db.collector", "activity.read", "bus.publish", "db.record"]
)
@in_virtual_time
async def test_a_component_that_crashes_is_restarted(name: str) -> None:
    """Each of these calls is made by another component."""
    it = simulation(Tuning(workers=2, ttl_interval=5, gc_interval=5))
    network = Crashing(name, 3)
    coordinator = it.start("a", network).coordinator
    await it.create(Desired.RUNNING)
    assert await it.reaches(ID, "RUNNING", 60)
    assert await it.until(lambda: network.met == 3, 120), "the component died"
    await asyncio.sleep(40)
    readiness = coordinator.readiness()
    assert readiness.leads
    assert readiness.pass_age is not None
    assert readiness.pass_age < 20
    await it.commands.want(ID, Desired.ARCHIVED, PERSON)
    assert await it.reaches(ID, "ARCHIVED", 60)


@in_virtual_time
async def test_a_collection_that_falls_due_while_the_database_is_away_waits_and_is_made_up_for() -> None:
    it = simulation(Tuning(workers=2, gc_interval=100))
    _, network = start(it, "a")
    network.faults["db.collection_pending"] = FAILS
    await asyncio.sleep(160)
    assert 10 < network.calls.count("db.collection_pending") < 40, "asked every few seconds, and not without a pause"
    assert "db.collector" not in network.calls
    network.faults.clear()
    await asyncio.sleep(10)
    assert network.calls.count("db.collector") == 1


@in_virtual_time
async def test_a_pass_that_crashes_harms_no_other_workspace() -> None:
    it = simulation()
    network = Crashing("runtime.create_volume", 8, about=ID)
    it.start("a", network)
    await it.create(Desired.RUNNING, 1)
    await it.create(Desired.RUNNING, 2)
    assert await it.reaches(UUID(int=2), "RUNNING", 5)
    assert it.row(ID).operation is Operation.PROVISIONING
    assert await it.reaches(ID, "RUNNING", 300)
    assert network.met == 8


@in_virtual_time
async def test_a_lost_feed_is_found_again_and_wishes_made_meanwhile_are_seen() -> None:
    it = simulation(EVENTS_ONLY)
    start(it, "a")
    await asyncio.sleep(5)
    for listener in it.states.database.listeners:
        listener.put_nowait(None)
    await asyncio.sleep(0.1)
    await it.create(Desired.STANDBY)
    assert await it.reaches(ID, "STANDBY", 10)


@in_virtual_time
async def test_a_wish_is_acted_on_at_once_and_a_dead_container_is_seen_by_its_hint() -> None:
    it = simulation(EVENTS_ONLY)
    start(it, "a")
    await asyncio.sleep(5)
    await it.create(Desired.RUNNING)
    assert await it.until(lambda: it.row(ID).phase is Phase.RUNNING, 0.5, step=0.01)
    await asyncio.sleep(120)
    it.states.runtime.kill(ID)
    assert await it.until(lambda: it.states.runtime.started == 2, 0.5, step=0.01)
    assert await it.reaches(ID, "RUNNING", 1)


@in_virtual_time
async def test_readiness_says_whether_it_leads_and_how_old_its_last_pass_is() -> None:
    it = simulation()
    a, network = start(it, "a")
    assert (a.readiness().leads, a.readiness().pass_age, a.readiness().epoch) == (False, None, None)
    await asyncio.sleep(1)
    assert (a.readiness().leads, a.readiness().epoch) == (True, 1)
    network.faults["runtime"] = FAILS
    await asyncio.sleep(100)
    age = a.readiness().pass_age
    assert age is not None
    assert age > 80
    network.faults.clear()
    await asyncio.sleep(20)
    assert (a.readiness().pass_age or 100) < 16


@in_virtual_time
async def test_a_pass_that_saw_nothing_is_no_good_pass() -> None:
    """The alarm on the age of the last good pass must be able to go off."""
    harness = await CoordinatorHarness.open()
    harness.network.faults["runtime"] = FAILS
    term_runner = asyncio.create_task(harness.term_runner.run())

    def last_good_pass() -> float | None:
        return harness.metrics.registry.get_sample_value(LAST_GOOD_PASS.name)

    await asyncio.sleep(100)
    assert last_good_pass() == 0
    harness.network.faults.clear()
    await asyncio.sleep(30)
    assert last_good_pass() != 0
    term_runner.cancel()
    await asyncio.wait([term_runner])


@pytest.mark.parametrize("message", [{"type": "wake", "id": str(ID)}, {"id": str(ID)}, {}, {"id": 7}])
@in_virtual_time
async def test_a_wake_from_outside_brings_a_look_at_once(message: dict[str, object]) -> None:
    it = simulation(EVENTS_ONLY)
    start(it, "a")
    await it.create(Desired.RUNNING)
    assert await it.reaches(ID, "RUNNING")
    it.states.runtime.containers.clear()
    await asyncio.sleep(60)
    assert it.states.runtime.containers == {}, "nobody has looked yet"
    await MemoryBus(it.states.signals).publish("codehub:wake:wc", message)
    assert await it.until(lambda: ID in it.states.runtime.containers, 5, step=0.1)


@in_virtual_time
async def test_admins_are_told_once_when_a_backend_falls_silent_and_once_when_it_is_back() -> None:
    it = simulation()
    _, network = start(it, "a")
    notices = it.running["a"].notifier.notices

    def of_backends() -> list[str]:
        return [subject for subject, _ in notices if subject.startswith("backend")]

    await it.create(Desired.RUNNING)
    assert await it.reaches(ID, "RUNNING")
    network.faults.update({"runtime": FAILS, "jobs": FAILS})
    await it.commands.want(ID, Desired.STANDBY, PERSON)
    await asyncio.sleep(600)
    assert of_backends() == ["backend does not answer"]
    assert notices[0][1]["backend"] == "runtime"
    assert notices[0][1]["error"]
    network.faults.clear()
    assert await it.reaches(ID, "STANDBY")
    assert of_backends() == ["backend does not answer", "backend answers again"]
