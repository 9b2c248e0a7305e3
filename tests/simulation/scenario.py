"""One seed's scenario: users, timers and operators act, machines and networks fail; then all is quiet and settles."""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field

from codehub.coordinator.context import Tuning
from codehub.domain.admission import RunningLimits
from codehub.domain.failures import Policy
from codehub.domain.gc_rules import Retention
from codehub.domain.gc_safety import GcLimits
from codehub.domain.idle import IdlePolicy
from codehub.domain.workspace import Desired, Operation, Phase, Workspace
from tests.simulation.fault_schedule import FaultSchedule
from tests.simulation.faults import FaultState, UserNetwork
from tests.simulation.harness import BackendStates, SimulationHarness
from tests.simulation.oracle import Oracle, Violation, Watched
from tests.simulation.users import USER_PROFILES, SimulatedUsers, UserProfile
from tests.simulation.virtual_time import Deadlock, Livelock, VirtualClock, run

RATES = (0.0, 0.01, 0.03, 0.05)
"""The rates at which calls go wrong."""
CHAOS_SECONDS = 180
QUIET_SECONDS = 1500
COLLECTS_SELDOM = 1000

DEADLINES = {
    Operation.PROVISIONING: 60,
    Operation.STARTING: 60,
    Operation.STOPPING: 60,
    Operation.ARCHIVING: 120,
    Operation.RESTORING: 120,
    Operation.CREATE_EMPTY_ARCHIVE: 60,
    Operation.DISCARDING: 60,
    Operation.DELETING: 60,
}


@dataclass
class Outcome:
    seed: int
    steps: int
    trace: str
    faults: Counter[str]
    violation: str | None
    calls: Counter[str] = field(default_factory=Counter)


def play(seed: int, *, show: bool = False) -> Outcome:
    try:
        return run(Scenario(seed, show=show).run())
    except (Livelock, Deadlock) as stuck:
        return Outcome(seed, 0, "", Counter(), f"7: {type(stuck).__name__}")


class Scenario:
    def __init__(self, seed: int, *, show: bool = False) -> None:
        self.seed = seed
        self._show = show
        self._random = random.Random(seed)

    async def run(self) -> Outcome:
        rng = self._random
        profile = rng.choice(USER_PROFILES)
        states = BackendStates.fresh(boot_seconds=rng.choice((0.0, 1.0, 4.0)), job_seconds=rng.choice((0.1, 1.0, 3.0)))
        self._harness = SimulationHarness(states, _tuning(profile), self.seed)
        watched = Watched(states.database, states.runtime, states.archives, states.jobs)
        self._profile = profile
        self._oracle = Oracle(watched, profile.limit, self._harness.tuning.idle, self._harness.tuning.retention)
        self._oracle.show = self._show
        self._fault_state = FaultState(rng.choice(RATES))
        self._harness.front = UserNetwork(rng.getrandbits(32), self._fault_state, VirtualClock())
        self._users = SimulatedUsers(self._harness, self._oracle, self._fault_state, rng, profile)
        self._fault_schedule = FaultSchedule(self._harness, self._oracle, self._fault_state, rng, self._users)
        violation = await self._chaos_then_quiet()
        return Outcome(
            self.seed,
            self._oracle.steps,
            self._oracle.trace.hexdigest(),
            self._fault_state.counts,
            violation,
            self._oracle.happened,
        )

    async def _chaos_then_quiet(self) -> str | None:
        try:
            await self._chaos()
            self._fault_schedule.stop()
            await self._users.flush()
            await self._settle()
        except Violation as violation:
            self._oracle.first = self._oracle.first or violation
        return str(self._oracle.first) if self._oracle.first else None

    async def _chaos(self) -> None:
        users = self._users
        acts = (users.work(), users.command(), users.heed_warnings(), self._fault_schedule.run())
        tasks = [asyncio.create_task(act) for act in acts]
        try:
            end = asyncio.get_running_loop().time() + CHAOS_SECONDS
            while asyncio.get_running_loop().time() < end and self._oracle.first is None:
                await asyncio.sleep(1.0)
                for task in tasks:
                    if task.done():
                        task.result()
        finally:
            # the faults under way end first; users work, and their activity arrives, until then
            for task in reversed(tasks):
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _settle(self) -> None:
        """Check (7): once faults stop, everything converges in bounded time; users mend what is in ERROR."""
        end = asyncio.get_running_loop().time() + QUIET_SECONDS
        while True:
            if self._oracle.first is not None:
                return
            unsettled = [ws for ws in map(self._harness.row, self._harness.ids()) if not _at_rest(ws)]
            if not unsettled:
                break
            if asyncio.get_running_loop().time() > end:
                ws = unsettled[0]
                self._oracle.break_(
                    "7: no convergence",
                    f"{ws.id} {ws.phase}/{ws.desired_state} {ws.operation} {ws.error_info} restore={ws.restore_pending}"
                    f" recover={ws.recover_pending} undelete={ws.undelete_pending}",
                )
                return
            for ws in unsettled:
                if _waits_for_a_person(ws):
                    await self._users.mend(ws)
            await asyncio.sleep(5.0)
        await asyncio.sleep(30.0)
        if self._profile.gc_interval < COLLECTS_SELDOM:
            await self._all_garbage_goes(self._profile.grace + 2 * self._profile.gc_interval)
        self._last_look()

    async def _all_garbage_goes(self, longest: float) -> None:
        """Wait for the garbage: one run marks it, the first after the grace sweeps it. An idle workspace that is put
        away meanwhile makes an older restore point garbage: that one has its own time."""
        end = asyncio.get_running_loop().time() + longest
        while self._oracle.first is None:
            waits = self._oracle.gc.garbage_waits(longest)
            if not waits and asyncio.get_running_loop().time() >= end:
                return
            await asyncio.sleep(1.0)

    def _last_look(self) -> None:
        self._oracle.gc.all_kept_is_there()
        for ws in map(self._harness.row, self._harness.ids()):
            self._oracle.check_homes(ws)
            self._users.look_into(ws)
        for ws in map(self._harness.row, self._harness.ids()):
            self._explained(ws)

    def _explained(self, ws: Workspace) -> None:
        """Check (6): folding the ledger gives the row."""
        phase, operation, desired = "PENDING", "NONE", None
        for entry in self._harness.states.database.ledger:
            if entry.workspace_id != ws.id:
                continue
            if entry.kind == "phase":
                phase = entry.after or ""
            elif entry.kind in ("operation_began", "operation_ended"):
                operation = entry.after or ""
            elif entry.kind in ("wish", "created"):
                desired = entry.after
        if (phase, operation, desired) != (ws.phase, ws.operation, ws.desired_state):
            self._oracle.break_("6: the ledger does not explain the row", f"{phase} {operation} {desired}")


def _at_rest(ws: Workspace) -> bool:
    if ws.deleted_at is not None:
        return ws.phase is Phase.DELETED and ws.operation is Operation.NONE and not ws.undelete_pending
    return ws.phase.value == ws.desired_state.value and ws.operation is Operation.NONE and not ws.request_pending


def _waits_for_a_person(ws: Workspace) -> bool:
    idle = ws.operation is Operation.NONE and not ws.recover_pending
    return ws.phase is Phase.ERROR and idle and ws.desired_state is not Desired.DELETED


def _tuning(profile: UserProfile) -> Tuning:
    return Tuning(
        idle_interval=15,
        active_interval=1,
        ttl_interval=5,
        gc_interval=profile.gc_interval,
        gc_request_interval=100_000,
        inventory_interval=20,
        call_seconds=20,
        workers=3,
        policy=Policy(deadlines=DEADLINES),
        limits=RunningLimits(profile.limit, 100),
        idle=IdlePolicy(standby_ttl=profile.standby_ttl, archive_ttl=profile.archive_ttl, flush_seconds=5),
        retention=Retention(restore_points=2, undo_seconds=profile.undo, grace_seconds=profile.grace),
        gc_limits=GcLimits(most_count=1000),
    )
