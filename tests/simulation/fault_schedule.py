"""The fault schedule: machines die, stall and are cut off, backends are out, operators remove what they should not."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any
from uuid import UUID

from codehub.adapters.memory.archives import StoredArchive
from codehub.adapters.memory.runtime import Container, Volume
from codehub.domain import naming
from codehub.domain.errors import ErrorReason
from codehub.domain.judge import ArchiveState
from codehub.domain.ledger import LedgerEntry, LedgerKind
from codehub.domain.workspace import Phase
from codehub.ports.signals import Change, Channel
from tests.simulation.faults import FaultState, MachineNetwork, StallMoment, StoreNetwork, any_outage
from tests.simulation.harness import OWNER, SimulationHarness, virtual_now
from tests.simulation.oracle import Oracle
from tests.simulation.users import SimulatedUsers
from tests.simulation.virtual_time import VirtualClock

MACHINES = ("a", "b")
ONE_AT_A_TIME = {0, 1, 2}
"""The numbers of the faults crash, stall and cut, which never meet both machines at once."""


class FaultSchedule:
    def __init__(
        self,
        harness: SimulationHarness,
        oracle: Oracle,
        fault_state: FaultState,
        rng: random.Random,
        users: SimulatedUsers,
    ) -> None:
        self._harness = harness
        self._oracle = oracle
        self._fault_state = fault_state
        self._random = rng
        self._users = users
        self._networks: dict[str, MachineNetwork] = {}
        self._skew = {name: rng.uniform(0, 1000) for name in MACHINES}
        harness.states.jobs.store = StoreNetwork(rng.getrandbits(32), fault_state, VirtualClock())
        for name in MACHINES:
            self._start(name)

    async def run(self) -> None:
        rng = self._random
        interval = rng.choice((4.0, 10.0, 25.0))
        acts = self._acts()
        running: list[asyncio.Task[None]] = []
        busy: set[int] = set()
        try:
            while True:
                await asyncio.sleep(rng.expovariate(1 / interval))
                number = rng.randrange(len(acts))
                if number in busy or (number in ONE_AT_A_TIME and busy & ONE_AT_A_TIME):
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

    def _acts(self) -> tuple[Callable[[], Coroutine[Any, Any, None]], ...]:
        rng = self._random
        return (
            lambda: self._crash(rng.choice(MACHINES)),
            lambda: self._stall(rng.choice(MACHINES)),
            lambda: self._cut(rng.choice(MACHINES)),
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
            self._left_behind,
        )

    def stop(self) -> None:
        self._fault_state.rate = 0.0
        self._fault_state.out.clear()
        for network in self._networks.values():
            network.cut_from_database = False
            network.wake()

    def _start(self, name: str) -> None:
        clock = VirtualClock(self._skew[name])
        network = MachineNetwork(name, self._random.getrandbits(32), self._fault_state, self._oracle, clock)
        self._networks[name] = network
        self._harness.start(name, network, clock)

    async def _crash(self, name: str) -> None:
        self._fault_state.note("crash")
        await self._kill(name)
        await asyncio.sleep(self._random.choice((0.5, 3.0, 15.0)))
        self._start(name)

    async def _kill(self, name: str) -> None:
        self._networks[name].dead = True
        self._networks[name].wake()
        await self._harness.kill(name)
        self._oracle.forget(name)
        leadership = self._harness.states.database.leadership
        if self._oracle.epochs.get(name) == leadership.epoch:
            leadership.free(leadership.epoch)

    async def _stall(self, name: str) -> None:
        network = self._networks[name]
        moment = self._random.choice(list(StallMoment))
        network.stall_at(moment)
        for _ in range(50):
            if network.stalled:
                break
            await asyncio.sleep(0.5)
        self._fault_state.note(moment)
        await asyncio.sleep(self._random.choice((2.0, 6.0, 15.0, 60.0)))
        network.wake()

    async def _cut(self, name: str) -> None:
        self._fault_state.note("database partition")
        network = self._networks[name]
        network.cut_from_database = True
        await asyncio.sleep(self._random.choice((1.0, 6.0, 25.0)))
        network.cut_from_database = False

    async def _outage(self, backend: str) -> None:
        self._fault_state.note(f"{backend} outage")
        out = {"redis": {"bus", "activity"}}.get(backend, {backend})
        # longer than the TTL now and then, so that a timer which ignores a silent Redis is caught
        seconds = self._random.choice((3.0, 20.0, 60.0, 150.0 if "activity" in out else 60.0))
        outage = any_outage(self._random)
        if backend not in ("runtime", "jobs", "archives"):
            # users' activity reaches nobody meanwhile, so no timer may get through either
            outage = replace(outage, share=1.0)
        self._fault_state.out |= dict.fromkeys(out, outage)
        self._oracle.fell_silent(backend, wholly=outage.share == 1.0)
        await asyncio.sleep(seconds)
        for name in out:
            self._fault_state.out.pop(name, None)
        self._oracle.fell_silent(backend, wholly=False)

    async def _job_fails(self) -> None:
        """A job vanishes, or says that it has failed; some homes make every job fail for a while."""
        jobs = self._harness.states.jobs.jobs
        if not jobs:
            return
        victim = self._random.choice(sorted(jobs))
        if self._random.random() < 0.5:
            self._fault_state.note("job crash")
            self._harness.states.jobs.end(victim)
            return
        self._fault_state.note("jobs fail")
        self._harness.states.jobs.failing[victim] = ErrorReason.ACTION_FAILED
        await asyncio.sleep(self._random.choice((3.0, 10.0)))
        self._harness.states.jobs.failing.pop(victim, None)

    async def _notifications(self) -> None:
        """A lost connection loses some notifications; a reconnect repeats some."""
        listeners = self._harness.states.database.listeners
        for listener in listeners:
            if self._random.random() < 0.5:
                self._fault_state.note("notifications lost")
                while not listener.empty():
                    listener.get_nowait()
                listener.put_nowait(None)
            else:
                self._fault_state.note("notifications doubled")
                for workspace_id in self._harness.ids():
                    listener.put_nowait(Change(Channel.WAKE, workspace_id, OWNER))

    # ── operators ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _container_dies(self) -> None:
        self._fault_state.note("container dies")
        if self._harness.states.runtime.containers:
            self._harness.states.runtime.kill(self._random.choice(sorted(self._harness.states.runtime.containers)))

    async def _container_deaf(self) -> None:
        containers = self._harness.states.runtime.containers
        if containers:
            self._fault_state.note("busy container")
            container = containers[self._random.choice(sorted(containers))]
            container.deaf = True
            await asyncio.sleep(self._random.choice((5.0, 40.0)))
            container.deaf = False

    async def _container_removed(self) -> None:
        containers = self._harness.states.runtime.containers
        if containers:
            self._fault_state.note("container removed by hand")
            del containers[self._random.choice(sorted(containers))]

    def _volume_made(self) -> None:
        """An operator makes an empty volume, under the name of a home that is in the archive."""
        states = self._harness.states
        gone = [row for row in states.database.rows.values() if row.phase == Phase.ARCHIVED and row.home_store_key]
        names = sorted((row.home_store_key or "", row.id) for row in gone)
        free = [(name, key) for name, key in names if name not in states.runtime.volumes]
        if free:
            self._fault_state.note("volume made by hand")
            name, key = self._random.choice(free)
            states.runtime.made += 1
            states.runtime.volumes[name] = Volume(key, instance=f"volume-{states.runtime.made}")

    async def _volume_removed(self) -> None:
        """An operator removes a volume: that home's newest bytes are the operator's to answer for."""
        states = self._harness.states
        if self._random.random() < 0.3:
            self._volume_made()
            return
        held = {c.volume for c in states.runtime.containers.values()}
        rows = self._harness.ids()
        free = sorted(
            name
            for name, v in states.runtime.volumes.items()
            if name not in held and v.job is None and v.workspace_id in rows
        )
        if free and self._random.random() < 0.4:
            self._fault_state.note("volume removed by hand")
            name = self._random.choice(free)
            volume = states.runtime.volumes.pop(name)
            row = self._harness.row(volume.workspace_id)
            home = self._oracle.home(row.id)
            home.touched_at = asyncio.get_running_loop().time()
            home.removed.add(name)
            if row.home.live and row.home_store_key == name:
                home.hand_removed = True
                if row.recover_pending or home.asking:
                    self._users.any_copy_will_do(row)
            if self._random.random() < 0.3:
                self._fault_state.note("volume made again by hand")
                states.runtime.made += 1
                states.runtime.volumes[name] = Volume(row.id, instance=f"volume-{states.runtime.made}")

    async def _archive_lost(self) -> None:
        objects = self._harness.states.archives.objects
        rows = self._harness.ids()
        whole = sorted(key for key, a in objects.items() if a.committed and UUID(key.split("/", 1)[0]) in rows)
        if whole and self._random.random() < 0.3:
            self._fault_state.note("archive lost")
            key = self._random.choice(whole)
            self._damage(UUID(key.split("/", 1)[0]))
            state = self._random.choice((ArchiveState.CORRUPTED, ArchiveState.NOT_FOUND, None))
            if state is None:
                objects[key].rotten = True
            else:
                objects[key].state = state

    async def _left_behind(self) -> None:
        """Resources come late to a workspace that was purged long ago, and an upload is cut off."""
        states, rng = self._harness.states, self._random
        if not states.database.rows:
            return
        self._fault_state.note("left behind")
        nobody = UUID(int=rng.getrandbits(128), version=4)
        self._harness.purged_long_ago(nobody)
        volume = naming.volume_name(nobody, 1)
        states.runtime.volumes[volume] = Volume(nobody)
        if rng.random() < 0.5:
            states.runtime.containers[nobody] = Container(f"left-{nobody}", volume)
        owner = rng.choice([nobody, *self._harness.ids()])
        op_id = UUID(int=rng.getrandbits(128), version=4)
        states.database.ledger.append(
            LedgerEntry(
                virtual_now(), owner, "coordinator", LedgerKind.ATTEMPT_FAILED, None, None, "", op_id, "cut off"
            )
        )
        states.archives.objects[naming.archive_key("", owner, op_id)] = StoredArchive((0,), virtual_now())

    def _damage(self, workspace_id: UUID) -> None:
        """Note a damaged archive. Whoever still has their volume has lost nothing, unless its delete is already on the
        way."""
        row, home = self._harness.row(workspace_id), self._oracle.home(workspace_id)
        home.damaged_at = asyncio.get_running_loop().time()
        volume = self._oracle.volume(row)
        if not row.home.live or volume is None or volume.content != home.content:
            home.damaged = True
