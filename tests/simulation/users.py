"""Simulated users: they give commands, change their minds, work, leave, come back at the last moment, mend what is
broken.
"""

import asyncio
import random
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from codehub.adapters.memory import MemoryActivity, MemoryBus
from codehub.domain.errors import CodeHubError
from codehub.domain.transitions import RUNS_A_JOB
from codehub.domain.workspace import Desired, Phase, RecoverAction, Workspace
from tests.simulation.faults import FaultState
from tests.simulation.harness import OWNER, PERSON, SimulationHarness, virtual_now
from tests.simulation.oracle import Oracle


@dataclass(frozen=True, slots=True)
class UserProfile:
    """How users behave in one scenario: how many workspaces they have and may run, how often they ask and for what, how
    soon they leave what they work on, how often they want back what they deleted; and how soon their garbage goes."""

    workspaces: int
    limit: int
    interval: float
    desired_states: tuple[Desired, ...]
    leave_chance: float
    standby_ttl: int
    archive_ttl: int
    undelete_chance: float = 1.0
    gc_interval: float = 100_000.0
    undo: int = 7200
    grace: int = 7200


RUN, REST, STORE, DROP = Desired.RUNNING, Desired.STANDBY, Desired.ARCHIVED, Desired.DELETED
USER_PROFILES = (
    # many at once, and a little of everything
    UserProfile(
        4, 2, 4.0, (RUN,) * 5 + (REST,) * 2 + (STORE,) * 3 + (DROP,), leave_chance=0.04, standby_ttl=90, archive_ttl=120
    ),
    # to the archive and back again, so that what was sent for one volume meets the next
    UserProfile(
        2,
        2,
        2.5,
        (RUN,) * 3 + (REST,) * 4 + (STORE,) * 5,
        leave_chance=0.04,
        standby_ttl=90,
        archive_ttl=120,
        gc_interval=7.0,
        undo=20,
        grace=12,
    ),
    # few words: the timers rule
    UserProfile(5, 4, 6.0, (RUN,) * 8 + (REST, STORE), leave_chance=0.1, standby_ttl=15, archive_ttl=15),
    # much is thrown away, and some of it is wanted back when it is being swept
    UserProfile(
        7,
        3,
        2.0,
        (RUN,) * 3 + (STORE,) * 3 + (DROP,) * 3,
        leave_chance=0.04,
        standby_ttl=90,
        archive_ttl=120,
        undelete_chance=0.15,
        gc_interval=5.0,
        undo=10,
        grace=8,
    ),
)


class SimulatedUsers:
    def __init__(
        self,
        harness: SimulationHarness,
        oracle: Oracle,
        fault_state: FaultState,
        rng: random.Random,
        profile: UserProfile,
    ) -> None:
        self._harness = harness
        self._oracle = oracle
        self._fault_state = fault_state
        self._random = rng
        self._profile = profile
        self._written = 0
        self._buffer: dict[UUID, datetime] = {}
        self._away: dict[UUID, float] = {}
        self._chosen: dict[UUID, str] = {}

    async def command(self) -> None:
        """Users create, ask for desired states and delete; two at once now and then, since limits must hold in
        races."""
        while True:
            await asyncio.sleep(self._random.expovariate(1 / self._profile.interval))
            count = 2 if self._random.random() < 0.2 else 1
            await asyncio.gather(*(self._try(self._one_wish()) for _ in range(count)))

    async def _one_wish(self) -> None:
        rng, commands = self._random, self._harness.commands
        ids = self._harness.ids()
        if len(ids) < self._profile.workspaces and rng.random() < 0.5:
            await self._harness.create(rng.choice((Desired.RUNNING, Desired.STANDBY, Desired.ARCHIVED)), len(ids) + 1)
            return
        if not ids:
            return
        # users open what is just being put away, and close what is just coming up
        moving = [key for key in ids if self._harness.row(key).operation in RUNS_A_JOB]
        row = self._harness.row(rng.choice(moving if moving and rng.random() < 0.4 else ids))
        if row.deleted_at is not None:
            if rng.random() < self._profile.undelete_chance:
                await commands.undelete(row.id, PERSON)
        elif row.phase is Phase.ERROR:
            await self._wish_in_error(row)
        elif rng.random() < 0.12:
            await self._choose_restore_point(row)
        else:
            await commands.want(row.id, rng.choice(self._profile.desired_states), PERSON)

    async def _wish_in_error(self, row: Workspace) -> None:
        if self._random.random() < 0.3:
            await self._harness.commands.want(row.id, Desired.DELETED, PERSON)
        else:
            await self._recover(row)

    async def mend(self, row: Workspace) -> None:
        await self._try(self._recover(row))

    async def _recover(self, row: Workspace) -> None:
        lives = row.home.live and self._oracle.volume(row) is not None
        action = RecoverAction.RETRY
        if lives:
            # whatever they ask for: a home that is there after all is kept
            action = self._random.choice(
                (RecoverAction.RETRY,) * 3 + (RecoverAction.USE_ARCHIVE, RecoverAction.EMPTY_HOME)
            )
        elif row.error_reason in ("DataLost", "ContainerWithoutVolume", "ArchiveAccessError", "ArchiveCorrupted"):
            readable = [
                p.key
                for p in self._harness.states.database.points.get(row.id, ())
                if p.released_at is None and self._harness.states.archives.is_complete(p.key)
            ]
            action = RecoverAction.USE_ARCHIVE if readable else RecoverAction.EMPTY_HOME
        elif row.error_info is not None and "archive" in row.error_info.message and self._random.random() < 0.5:
            action = RecoverAction.USE_ARCHIVE
        if not lives:
            self.any_copy_will_do(row)
        with self._asking(row):
            await self._harness.commands.recover(row.id, action, PERSON)

    async def _choose_restore_point(self, row: Workspace) -> None:
        points = self._harness.states.database.points.get(row.id, ())
        if points and row.desired_state is not Desired.DELETED:
            last = [p for p in points if p.key == self._chosen.get(row.id)]
            point = self._random.choice(last or points) if self._random.random() < 0.5 else self._random.choice(points)
            self._chosen[row.id] = point.key
            archive = self._harness.states.archives.objects.get(point.key)
            if archive is not None:
                self._oracle.home(row.id).choices.add(archive.content)
                with self._asking(row):
                    await self._harness.commands.restore(row.id, point.key, PERSON)

    def any_copy_will_do(self, row: Workspace) -> None:
        objects = self._harness.states.archives.objects
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

    async def heed_warnings(self) -> None:
        """Users who are told that their workspace will be put to sleep come back at the last moment, some of them."""
        coming: list[asyncio.Task[None]] = []
        try:
            async for message in MemoryBus(self._harness.states.signals).subscribe(f"codehub:sse:{OWNER}"):
                if message["type"] == "idle_warning" and self._random.random() < 0.8:
                    late = datetime.fromisoformat(message["stops_at"]) - virtual_now()
                    seconds = late.total_seconds() + self._random.uniform(-1, 8)
                    coming.append(asyncio.create_task(self._come_back(UUID(message["id"]), seconds)))
        finally:
            for task in coming:
                task.cancel()
            await asyncio.gather(*coming, return_exceptions=True)

    async def _come_back(self, workspace_id: UUID, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._away.pop(workspace_id, None)
        await self._try(self._harness.commands.want(workspace_id, Desired.RUNNING, PERSON))

    def look_into(self, row: Workspace) -> None:
        self._written += 1
        self._oracle.person_works(row.id, self._written)

    async def work(self) -> None:
        """Users type; their activity reaches Redis late, from machines whose clocks are a little wrong."""
        buffer = self._buffer
        while True:
            await asyncio.sleep(1.5)
            for workspace_id in self._harness.ids():
                if self._random.random() < 0.5 and not self._is_away(workspace_id):
                    before = self._oracle.home(workspace_id).last_activity
                    self.look_into(self._harness.row(workspace_id))
                    if self._oracle.home(workspace_id).last_activity != before:
                        buffer[workspace_id] = virtual_now() + timedelta(seconds=self._random.uniform(0, 2))
            if "activity" not in self._fault_state.out:
                await self.flush()

    def _is_away(self, workspace_id: UUID) -> bool:
        """Users leave for a while, long enough for a timer to notice."""
        now = asyncio.get_running_loop().time()
        if self._random.random() < self._profile.leave_chance:
            self._away[workspace_id] = now + self._random.choice((20.0, 60.0, 120.0))
        return self._away.get(workspace_id, 0.0) > now

    async def flush(self) -> None:
        await MemoryActivity(self._harness.states.signals).record(dict(self._buffer))
        self._buffer.clear()
