"""One seed's story: people, timers and operators act, machines and networks fail; then all is quiet and must settle."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from codehub.adapters.memory import MemoryActivity, MemoryBus
from codehub.coordinator.process import Tuning
from codehub.domain.admission import Limits
from codehub.domain.errors import CodeHubError
from codehub.domain.idle import IdlePolicy
from codehub.domain.judge import ArchiveState
from codehub.domain.plan import Policy
from codehub.domain.transitions import RUNS_A_JOB
from codehub.domain.workspace import Desired, Operation, Phase, RecoverAction, Workspace
from tests.simulation.faults import FrontWire, MachineWire, Moment, Weather
from tests.simulation.oracle import Oracle, Violation, Watched
from tests.simulation.stage import OWNER, PERSON, Stage, Worlds, world_now
from tests.simulation.virtual_time import Deadlock, Livelock, VirtualClock, run

WORKSPACES = 4
LIMIT = 2
CHAOS_SECONDS = 180
QUIET_SECONDS = 1500

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
        return run(Story(seed, show=show).tell())
    except (Livelock, Deadlock) as stuck:
        return Outcome(seed, 0, "", Counter(), f"7: {type(stuck).__name__}")


class Story:
    def __init__(self, seed: int, *, show: bool = False) -> None:
        self.seed = seed
        self._show = show
        self._random = random.Random(seed)
        self._written = 0
        self._buffer: dict[UUID, datetime] = {}
        self._away: dict[UUID, float] = {}
        self._chosen: dict[UUID, str] = {}

    async def tell(self) -> Outcome:
        rng = self._random
        self._stage = Stage(
            Worlds.fresh(boot_seconds=rng.choice((0.0, 1.0, 4.0)), job_seconds=rng.choice((0.1, 1.0, 3.0))),
            _tuning(rng),
            self.seed,
        )
        worlds = self._stage.worlds
        watched = Watched(worlds.database, worlds.runtime, worlds.archives, worlds.jobs)
        self._oracle = Oracle(watched, LIMIT, self._stage.tuning.idle.standby_ttl)
        self._oracle.show = self._show
        self._weather = Weather(rng.choice((0.0, 0.005, 0.02, 0.05)))
        self._stage.front = FrontWire(rng.getrandbits(32), self._weather, VirtualClock())
        self._wires: dict[str, MachineWire] = {}
        self._skew = {name: rng.uniform(0, 1000) for name in ("a", "b")}
        for name in ("a", "b"):
            self._start(name)
        violation = await self._chaos_then_quiet()
        return Outcome(
            self.seed,
            self._oracle.steps,
            self._oracle.trace.hexdigest(),
            self._weather.counts,
            violation,
            self._oracle.happened,
        )

    async def _chaos_then_quiet(self) -> str | None:
        try:
            await self._chaos()
            await self._calm_down()
            await self._settle()
        except Violation as violation:
            self._oracle.first = self._oracle.first or violation
        return str(self._oracle.first) if self._oracle.first else None

    # ── machines ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _start(self, name: str) -> None:
        clock = VirtualClock(self._skew[name])
        wire = MachineWire(name, self._random.getrandbits(32), self._weather, self._oracle, clock)
        self._wires[name] = wire
        self._stage.start(name, wire, clock)

    async def _crash(self, name: str) -> None:
        self._weather.note("crash")
        await self._kill(name)
        await asyncio.sleep(self._random.choice((0.5, 3.0, 15.0)))
        self._start(name)

    async def _kill(self, name: str) -> None:
        self._wires[name].dead = True
        self._wires[name].wake()
        await self._stage.kill(name)
        self._oracle.forget(name)
        leadership = self._stage.worlds.database.leadership
        if self._oracle.epochs.get(name) == leadership.epoch:
            leadership.free(leadership.epoch)

    async def _stall(self, name: str) -> None:
        wire = self._wires[name]
        moment = self._random.choice(list(Moment))
        wire.stall_at(moment)
        for _ in range(50):
            if wire.stalled:
                break
            await asyncio.sleep(0.5)
        self._weather.note(moment)
        await asyncio.sleep(self._random.choice((2.0, 6.0, 15.0, 60.0)))
        wire.wake()

    async def _cut(self, name: str) -> None:
        self._weather.note("database partition")
        wire = self._wires[name]
        wire.cut_from_database = True
        await asyncio.sleep(self._random.choice((1.0, 6.0, 25.0)))
        wire.cut_from_database = False

    async def _outage(self, backend: str) -> None:
        self._weather.note(f"{backend} outage")
        out = {"redis": {"bus", "activity"}}.get(backend, {backend})
        # longer than the TTL now and then, so that a timer which ignores a silent Redis is caught
        seconds = self._random.choice((3.0, 20.0, 60.0, 150.0 if "activity" in out else 60.0))
        if backend == "runtime":
            begun = asyncio.get_running_loop().time()
            self._oracle.runtime_silent.append((begun, begun + seconds))
        self._weather.out |= out
        await asyncio.sleep(seconds)
        self._weather.out -= out

    async def _job_fails(self) -> None:
        jobs = self._stage.worlds.jobs.jobs
        if jobs:
            self._weather.note("job crash")
            victim = self._random.choice(sorted(jobs))
            self._stage.worlds.jobs.end(victim)

    async def _notifications(self) -> None:
        """A lost connection loses some; a reconnect repeats some."""
        listeners = self._stage.worlds.database.listeners
        for listener in listeners:
            if self._random.random() < 0.5:
                self._weather.note("notifications lost")
                while not listener.empty():
                    listener.get_nowait()
                listener.put_nowait(None)
            elif self._ids():
                self._weather.note("notifications doubled")

    # ── operators ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _container_dies(self) -> None:
        self._weather.note("container dies")
        if self._stage.worlds.runtime.containers:
            self._stage.worlds.runtime.kill(self._random.choice(sorted(self._stage.worlds.runtime.containers)))

    async def _container_deaf(self) -> None:
        containers = self._stage.worlds.runtime.containers
        if containers:
            self._weather.note("busy container")
            container = containers[self._random.choice(sorted(containers))]
            container.deaf = True
            await asyncio.sleep(self._random.choice((5.0, 40.0)))
            container.deaf = False

    async def _container_removed(self) -> None:
        containers = self._stage.worlds.runtime.containers
        if containers:
            self._weather.note("container removed by hand")
            del containers[self._random.choice(sorted(containers))]

    async def _volume_removed(self) -> None:
        """By an operator's hand: that home's newest bytes are the operator's to answer for."""
        worlds = self._stage.worlds
        held = {c.volume for c in worlds.runtime.containers.values()}
        free = sorted(name for name, v in worlds.runtime.volumes.items() if name not in held and v.job is None)
        if free and self._random.random() < 0.4:
            self._weather.note("volume removed by hand")
            name = self._random.choice(free)
            volume = worlds.runtime.volumes.pop(name)
            row = self._stage.row(volume.workspace_id)
            home = self._oracle.home(row.id)
            home.touched_at = asyncio.get_running_loop().time()
            home.removed.add(name)
            if row.home.live and row.home_store_key == name:
                home.hand_removed = True
                if row.recover_pending or home.asking:
                    self._any_copy_will_do(row)

    async def _archive_lost(self) -> None:
        objects = self._stage.worlds.archives.objects
        whole = sorted(key for key, a in objects.items() if a.committed)
        if whole and self._random.random() < 0.3:
            self._weather.note("archive lost")
            key = self._random.choice(whole)
            self._damage(UUID(key.split("/", 1)[0]))
            objects[key].state = self._random.choice((ArchiveState.CORRUPTED, ArchiveState.NOT_FOUND))

    def _damage(self, workspace_id: UUID) -> None:
        """Whoever still has their volume has lost nothing, unless its delete is already on the way."""
        row, home = self._stage.row(workspace_id), self._oracle.home(workspace_id)
        home.damaged_at = asyncio.get_running_loop().time()
        volume = self._stage.worlds.runtime.volumes.get(row.home_store_key or "")
        if not row.home.live or volume is None or volume.content != home.content:
            home.damaged = True

    # ── people ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _ids(self) -> list[UUID]:
        return sorted(self._stage.worlds.database.rows)

    async def _people(self) -> None:
        """Creates, wishes, deletes; two at once now and then, since limits must hold in races."""
        while True:
            await asyncio.sleep(self._random.expovariate(1 / 4))
            count = 2 if self._random.random() < 0.2 else 1
            await asyncio.gather(*(self._try(self._wish()) for _ in range(count)))

    async def _wish(self) -> None:
        rng, wishes = self._random, self._stage.wishes()
        ids = self._ids()
        if len(ids) < WORKSPACES and rng.random() < 0.5:
            await self._stage.create(rng.choice((Desired.RUNNING, Desired.STANDBY, Desired.ARCHIVED)), len(ids) + 1)
            return
        if not ids:
            return
        # people open what is just being put away, and close what is just coming up
        moving = [key for key in ids if self._stage.row(key).operation in RUNS_A_JOB]
        row = self._stage.row(rng.choice(moving if moving and rng.random() < 0.4 else ids))
        if row.deleted_at is not None:
            await wishes.undelete(row.id, PERSON)
        elif row.phase is Phase.ERROR:
            await self._wish_in_error(row)
        elif rng.random() < 0.12:
            await self._choose_restore_point(row)
        else:
            desired = rng.choice(
                (Desired.RUNNING,) * 5 + (Desired.STANDBY,) * 2 + (Desired.ARCHIVED,) * 3 + (Desired.DELETED,)
            )
            await wishes.want(row.id, desired, PERSON)

    async def _wish_in_error(self, row: Workspace) -> None:
        if self._random.random() < 0.3:
            await self._stage.wishes().want(row.id, Desired.DELETED, PERSON)
        else:
            await self._recover(row)

    async def _recover(self, row: Workspace) -> None:
        lives = row.home.live and row.home_store_key in self._stage.worlds.runtime.volumes
        action = RecoverAction.RETRY
        if lives:
            # whatever they ask for: a home that is there after all is kept
            action = self._random.choice(
                (RecoverAction.RETRY,) * 3 + (RecoverAction.USE_ARCHIVE, RecoverAction.EMPTY_HOME)
            )
        elif row.error_reason in ("DataLost", "ContainerWithoutVolume", "ArchiveAccessError", "ArchiveCorrupted"):
            readable = [
                p.key
                for p in self._stage.worlds.database.points.get(row.id, ())
                if p.released_at is None and self._stage.worlds.archives.is_complete(p.key)
            ]
            action = RecoverAction.USE_ARCHIVE if readable else RecoverAction.EMPTY_HOME
        elif row.error_info is not None and "archive" in row.error_info.message and self._random.random() < 0.5:
            action = RecoverAction.USE_ARCHIVE
        if not lives:
            self._any_copy_will_do(row)
        with self._asking(row):
            await self._stage.wishes().recover(row.id, action, PERSON)

    async def _choose_restore_point(self, row: Workspace) -> None:
        points = self._stage.worlds.database.points.get(row.id, ())
        if points and row.desired_state is not Desired.DELETED:
            last = [p for p in points if p.key == self._chosen.get(row.id)]
            point = self._random.choice(last or points) if self._random.random() < 0.5 else self._random.choice(points)
            self._chosen[row.id] = point.key
            archive = self._stage.worlds.archives.objects.get(point.key)
            if archive is not None:
                self._oracle.home(row.id).choices.add(archive.content)
                with self._asking(row):
                    await self._stage.wishes().restore(row.id, point.key, PERSON)

    def _any_copy_will_do(self, row: Workspace) -> None:
        objects = self._stage.worlds.archives.objects
        mine = {archive.content for key, archive in objects.items() if key.startswith(f"{row.id}/")}
        self._oracle.home(row.id).choices |= mine | {()}

    @contextmanager
    def _asking(self, row: Workspace) -> Iterator[None]:
        home = self._oracle.home(row.id)
        home.asking += 1
        try:
            yield
        finally:
            home.asking -= 1

    async def _try(self, asking: Awaitable[object]) -> None:
        with suppress(CodeHubError):
            await asking

    async def _warned_people(self) -> None:
        """Told that their workspace will be put to sleep, some come back at the last moment."""
        coming: list[asyncio.Task[None]] = []
        try:
            async for message in MemoryBus(self._stage.worlds.signals).subscribe(f"codehub:sse:{OWNER}"):
                if message["type"] == "idle_warning" and self._random.random() < 0.5:
                    late = datetime.fromisoformat(message["stops_at"]) - world_now()
                    seconds = late.total_seconds() + self._random.uniform(-2, 10)
                    coming.append(asyncio.create_task(self._come_back(UUID(message["id"]), seconds)))
        finally:
            for task in coming:
                task.cancel()
            await asyncio.gather(*coming, return_exceptions=True)

    async def _come_back(self, workspace_id: UUID, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self._try(self._stage.wishes().want(workspace_id, Desired.RUNNING, PERSON))

    async def _work(self) -> None:
        """People type; their activity reaches Redis late, from machines whose clocks are a little wrong."""
        buffer = self._buffer
        while True:
            await asyncio.sleep(1.5)
            for workspace_id in self._ids():
                if self._random.random() < 0.5 and not self._is_away(workspace_id):
                    self._written += 1
                    before = self._oracle.home(workspace_id).last_activity
                    self._oracle.person_works(workspace_id, self._written)
                    if self._oracle.home(workspace_id).last_activity != before:
                        buffer[workspace_id] = world_now() + timedelta(seconds=self._random.uniform(0, 2))
            if "activity" not in self._weather.out:
                await self._flush()

    def _is_away(self, workspace_id: UUID) -> bool:
        """People leave for a while, long enough for a timer to notice."""
        now = asyncio.get_running_loop().time()
        if self._random.random() < 0.02:
            self._away[workspace_id] = now + self._random.choice((20.0, 60.0, 120.0))
        return self._away.get(workspace_id, 0.0) > now

    async def _flush(self) -> None:
        await MemoryActivity(self._stage.worlds.signals).record(dict(self._buffer))
        self._buffer.clear()

    # ── the acts ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _chaos(self) -> None:
        acts = (self._work(), self._people(), self._warned_people(), self._mischief())
        tasks = [asyncio.create_task(act) for act in acts]
        try:
            end = asyncio.get_running_loop().time() + CHAOS_SECONDS
            while asyncio.get_running_loop().time() < end and self._oracle.first is None:
                await asyncio.sleep(1.0)
                for task in tasks:
                    if task.done():
                        task.result()
        finally:
            # the mischief under way ends first; people work, and their activity arrives, until then
            for task in reversed(tasks):
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _mischief(self) -> None:
        rng = self._random
        pace = rng.choice((4.0, 10.0, 25.0))
        acts = (
            lambda: self._crash(rng.choice("ab")),
            lambda: self._stall(rng.choice("ab")),
            lambda: self._cut(rng.choice("ab")),
            lambda: self._outage("runtime"),
            lambda: self._outage("archives"),
            lambda: self._outage("jobs"),
            lambda: self._outage("redis"),
            lambda: self._outage("activity"),
            self._job_fails,
            self._notifications,
            self._container_dies,
            self._container_deaf,
            self._container_removed,
            self._volume_removed,
            self._archive_lost,
        )
        running: list[asyncio.Task[None]] = []
        busy: set[int] = set()
        try:
            while True:
                await asyncio.sleep(rng.expovariate(1 / pace))
                number = rng.randrange(len(acts))
                if number in busy or (number < 3 and busy & {0, 1, 2}):
                    continue
                busy.add(number)
                task = asyncio.create_task(acts[number]())
                task.add_done_callback(lambda _, number=number: busy.discard(number))  # type: ignore[misc]
                running.append(task)
        finally:
            if self._oracle.first is not None:
                for task in running:
                    task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _calm_down(self) -> None:
        self._weather.rate = 0.0
        self._weather.out.clear()
        await self._flush()
        for wire in self._wires.values():
            wire.cut_from_database = False
            wire.wake()

    async def _settle(self) -> None:
        """(7) Once faults stop, everything converges in bounded time; people mend what is in ERROR."""
        end = asyncio.get_running_loop().time() + QUIET_SECONDS
        while True:
            if self._oracle.first is not None:
                return
            unsettled = [ws for ws in map(self._stage.row, self._ids()) if not _at_rest(ws)]
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
                    await self._try(self._recover(ws))
            await asyncio.sleep(5.0)
        await asyncio.sleep(30.0)
        self._last_look()

    def _last_look(self) -> None:
        for ws in map(self._stage.row, self._ids()):
            self._oracle.check_homes(ws)
            self._written += 1
            self._oracle.person_works(ws.id, self._written)
        for ws in map(self._stage.row, self._ids()):
            self._explained(ws)

    def _explained(self, ws: Workspace) -> None:
        """(6) Folding the ledger gives the row."""
        phase, operation, desired = "PENDING", "NONE", None
        for entry in self._stage.worlds.database.ledger:
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
    return ws.phase.value == ws.desired_state.value and ws.operation is Operation.NONE and not ws.wish_pending


def _waits_for_a_person(ws: Workspace) -> bool:
    idle = ws.operation is Operation.NONE and not ws.recover_pending
    return ws.phase is Phase.ERROR and idle and ws.desired_state is not Desired.DELETED


def _tuning(rng: random.Random) -> Tuning:
    return Tuning(
        idle_interval=15,
        active_interval=1,
        ttl_interval=10,
        gc_interval=100_000,
        inventory_interval=60,
        call_seconds=20,
        workers=3,
        policy=Policy(deadlines=DEADLINES),
        limits=Limits(LIMIT, 100),
        idle=IdlePolicy(standby_ttl=rng.choice((30, 90)), archive_ttl=rng.choice((30, 120)), flush_seconds=5),
    )
