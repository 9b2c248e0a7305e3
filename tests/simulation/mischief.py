"""Mischief: machines die, stall and are cut off, backends are out, and operators remove what they should not."""

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
from tests.simulation.faults import BackupSnapshot, MachineWire, StoreWire, Weather, any_outage
from tests.simulation.oracle import Oracle
from tests.simulation.people import People
from tests.simulation.stage import OWNER, Stage, world_now
from tests.simulation.virtual_time import VirtualClock

MACHINES = ("a", "b")
ONE_AT_A_TIME = {0, 1, 2}
"""Crash, stall, cut: never both machines at once."""


class Mischief:
    def __init__(self, stage: Stage, oracle: Oracle, weather: Weather, rng: random.Random, people: People) -> None:
        self._stage = stage
        self._oracle = oracle
        self._weather = weather
        self._random = rng
        self._people = people
        self._wires: dict[str, MachineWire] = {}
        self._skew = {name: rng.uniform(0, 1000) for name in MACHINES}
        stage.worlds.jobs.store = StoreWire(rng.getrandbits(32), weather, VirtualClock())
        for name in MACHINES:
            self._start(name)

    async def go_on(self) -> None:
        rng = self._random
        pace = rng.choice((4.0, 10.0, 25.0))
        acts = self._acts()
        running: list[asyncio.Task[None]] = []
        busy: set[int] = set()
        try:
            while True:
                await asyncio.sleep(rng.expovariate(1 / pace))
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

    def calm_down(self) -> None:
        self._weather.rate = 0.0
        self._weather.out.clear()
        for network in self._wires.values():
            network.cut_from_database = False
            network.wake()

    def _start(self, name: str) -> None:
        clock = VirtualClock(self._skew[name])
        network = MachineWire(name, self._random.getrandbits(32), self._weather, self._oracle, clock)
        self._wires[name] = network
        self._stage.start(name, network, clock)

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
        network = self._wires[name]
        moment = self._random.choice(list(BackupSnapshot))
        network.stall_at(moment)
        for _ in range(50):
            if network.stalled:
                break
            await asyncio.sleep(0.5)
        self._weather.note(moment)
        await asyncio.sleep(self._random.choice((2.0, 6.0, 15.0, 60.0)))
        network.wake()

    async def _cut(self, name: str) -> None:
        self._weather.note("database partition")
        network = self._wires[name]
        network.cut_from_database = True
        await asyncio.sleep(self._random.choice((1.0, 6.0, 25.0)))
        network.cut_from_database = False

    async def _outage(self, backend: str) -> None:
        self._weather.note(f"{backend} outage")
        out = {"redis": {"bus", "activity"}}.get(backend, {backend})
        # longer than the TTL now and then, so that a timer which ignores a silent Redis is caught
        seconds = self._random.choice((3.0, 20.0, 60.0, 150.0 if "activity" in out else 60.0))
        outage = any_outage(self._random)
        if backend not in ("runtime", "jobs", "archives"):
            # people's activity reaches nobody meanwhile, so no timer may get through either
            outage = replace(outage, share=1.0)
        self._weather.out |= dict.fromkeys(out, outage)
        self._oracle.fell_silent(backend, wholly=outage.share == 1.0)
        await asyncio.sleep(seconds)
        for name in out:
            self._weather.out.pop(name, None)
        self._oracle.fell_silent(backend, wholly=False)

    async def _job_fails(self) -> None:
        """It vanishes, or it says that it has failed; some homes make every job fail for a while."""
        jobs = self._stage.worlds.jobs.jobs
        if not jobs:
            return
        victim = self._random.choice(sorted(jobs))
        if self._random.random() < 0.5:
            self._weather.note("job crash")
            self._stage.worlds.jobs.end(victim)
            return
        self._weather.note("jobs fail")
        self._stage.worlds.jobs.failing[victim] = ErrorReason.ACTION_FAILED
        await asyncio.sleep(self._random.choice((3.0, 10.0)))
        self._stage.worlds.jobs.failing.pop(victim, None)

    async def _notifications(self) -> None:
        """A lost connection loses some; a reconnect repeats some."""
        listeners = self._stage.worlds.database.listeners
        for listener in listeners:
            if self._random.random() < 0.5:
                self._weather.note("notifications lost")
                while not listener.empty():
                    listener.get_nowait()
                listener.put_nowait(None)
            else:
                self._weather.note("notifications doubled")
                for workspace_id in self._stage.ids():
                    listener.put_nowait(Change(Channel.WAKE, workspace_id, OWNER))

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

    def _volume_made(self) -> None:
        """An empty one, under the name of a home that is in the archive."""
        worlds = self._stage.worlds
        gone = [row for row in worlds.database.rows.values() if row.phase == Phase.ARCHIVED and row.home_store_key]
        names = sorted((row.home_store_key or "", row.id) for row in gone)
        free = [(name, key) for name, key in names if name not in worlds.runtime.volumes]
        if free:
            self._weather.note("volume made by hand")
            name, key = self._random.choice(free)
            worlds.runtime.made += 1
            worlds.runtime.volumes[name] = Volume(key, instance=f"volume-{worlds.runtime.made}")

    async def _volume_removed(self) -> None:
        """By an operator's hand: that home's newest bytes are the operator's to answer for."""
        worlds = self._stage.worlds
        if self._random.random() < 0.3:
            self._volume_made()
            return
        held = {c.volume for c in worlds.runtime.containers.values()}
        rows = self._stage.ids()
        free = sorted(
            name
            for name, v in worlds.runtime.volumes.items()
            if name not in held and v.job is None and v.workspace_id in rows
        )
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
                    self._people.any_copy_will_do(row)
            if self._random.random() < 0.3:
                self._weather.note("volume made again by hand")
                worlds.runtime.made += 1
                worlds.runtime.volumes[name] = Volume(row.id, instance=f"volume-{worlds.runtime.made}")

    async def _archive_lost(self) -> None:
        objects = self._stage.worlds.archives.objects
        rows = self._stage.ids()
        whole = sorted(key for key, a in objects.items() if a.committed and UUID(key.split("/", 1)[0]) in rows)
        if whole and self._random.random() < 0.3:
            self._weather.note("archive lost")
            key = self._random.choice(whole)
            self._damage(UUID(key.split("/", 1)[0]))
            state = self._random.choice((ArchiveState.CORRUPTED, ArchiveState.NOT_FOUND, None))
            if state is None:
                objects[key].rotten = True
            else:
                objects[key].state = state

    async def _left_behind(self) -> None:
        """What comes late to a workspace that was purged long ago, and an upload that was cut off."""
        worlds, rng = self._stage.worlds, self._random
        if not worlds.database.rows:
            return
        self._weather.note("left behind")
        nobody = UUID(int=rng.getrandbits(128), version=4)
        self._stage.purged_long_ago(nobody)
        volume = naming.volume_name(nobody, 1)
        worlds.runtime.volumes[volume] = Volume(nobody)
        if rng.random() < 0.5:
            worlds.runtime.containers[nobody] = Container(f"left-{nobody}", volume)
        owner = rng.choice([nobody, *self._stage.ids()])
        op_id = UUID(int=rng.getrandbits(128), version=4)
        worlds.database.ledger.append(
            LedgerEntry(world_now(), owner, "coordinator", LedgerKind.ATTEMPT_FAILED, None, None, "", op_id, "cut off")
        )
        worlds.archives.objects[naming.archive_key("", owner, op_id)] = StoredArchive((0,), world_now())

    def _damage(self, workspace_id: UUID) -> None:
        """Whoever still has their volume has lost nothing, unless its delete is already on the way."""
        row, home = self._stage.row(workspace_id), self._oracle.home(workspace_id)
        home.damaged_at = asyncio.get_running_loop().time()
        volume = self._oracle.volume(row)
        if not row.home.live or volume is None or volume.content != home.content:
            home.damaged = True
