"""The probe on memory backends and the real controller: what it says when all is well, when something leaks, when
nobody leads; and that nothing of it is left.
"""

import asyncio
from collections.abc import Sequence
from uuid import UUID

import pytest

from codehub.adapters.memory import MemoryArchives, MemoryDatabase, MemoryRuntime
from codehub.coordinator.context import Tuning
from codehub.domain.workspace import Workspace
from codehub.usecases.self_check import (
    BEYOND_LIMITS,
    CAN_CONNECT,
    CAN_READ,
    CONNECT,
    FRONT_DOOR,
    MORE_PROCESSES,
    OWNER,
    PRIVILEGES,
    Finding,
    Probe,
    ProbeEnvironment,
    Verdict,
    failed,
)
from tests.coordinator.harness import in_virtual_time
from tests.simulation.harness import BackendStates, SeededIds, SimulationHarness


class House:
    """A site whose workspaces hold one note each, kept beside the volumes; `leaks`: paths that can be read inside."""

    def __init__(self, leaks: Sequence[str] = (), *, isolates: bool = True, network_isolated: bool = False) -> None:
        self.stage = SimulationHarness(BackendStates.fresh(), Tuning())
        self.notes: dict[UUID, str] = {}
        self.leaks = leaks
        self.isolates = isolates
        self.network_isolated = network_isolated
        self.front_door = FRONT_DOOR
        self.not_promised: dict[str, str] = {}
        self.findings: list[Finding] = []

    async def inside(self, ws: Workspace, argv: Sequence[str]) -> tuple[int, str]:
        if argv[2] == CAN_READ:
            return int(argv[-1] not in self.leaks), ""
        if argv[2] in PRIVILEGES | BEYOND_LIMITS:
            return int((PRIVILEGES | BEYOND_LIMITS)[argv[2]] not in self.leaks), ""
        if argv[2] == CAN_CONNECT:
            return int("no bash" in self.leaks), ""
        if argv[2] == CONNECT:
            return int(f"{argv[-2]}:{argv[-1]}" not in self.leaks), ""
        script = argv[2].partition(" && ")[2]
        if script.startswith("printf"):
            self.notes[ws.id] = script.split()[2]
            return 0, ""
        return 0, self.notes[ws.id]

    def probe(self, timeout: float = 300.0) -> Probe:
        worlds = self.stage.states
        return Probe(
            commands=self.stage.commands,
            views=MemoryDatabase(worlds.database).views(),
            runtime=MemoryRuntime(worlds.runtime),
            archives=MemoryArchives(worlds.archives),
            ids=SeededIds(5),
            inside=self.inside,
            home_of=lambda ws: f"/homes/{ws.home_store_key}",
            environment=ProbeEnvironment(
                {"/data/password": "the passwords"},
                self.isolates,
                self.network_isolated,
                {("gateway", 5432): "the database"},
                not_promised=self.not_promised,
            ),
            timeout_seconds=timeout,
            try_port=self.try_port,
        )

    async def try_port(self, _ws: Workspace) -> bool | None:
        return None if self.front_door == "down" else self.front_door in self.leaks

    async def examined(self, timeout: float = 300.0) -> dict[str, Verdict]:
        await self.probe(timeout).run(self.findings.append)
        return {finding.name: finding.verdict for finding in self.findings}

    def nothing_is_left(self) -> bool:
        worlds = self.stage.states
        rows = [row for row in worlds.database.rows.values() if row.owner_id == OWNER]
        assert rows
        return (
            all(row.deleted_at for row in rows)
            and not worlds.runtime.volumes
            and not worlds.runtime.containers
            and not worlds.archives.objects
        )


@in_virtual_time
async def test_the_whole_way_and_nothing_is_left() -> None:
    house = House()
    house.stage.start("me")
    told = await house.examined()
    assert set(told.values()) == {Verdict.OK}
    assert list(told) == [f"probe: {step}" for step in ("start", "isolation", "archive", "restore", "clean up")]
    assert "another workspace's home" in house.findings[1].seen
    assert house.nothing_is_left()
    await house.stage.kill("me")


@pytest.mark.parametrize(("isolates", "verdict"), [(True, Verdict.FAIL), (False, Verdict.WARN)])
def test_what_is_in_reach_is_named(isolates: bool, verdict: Verdict) -> None:
    @in_virtual_time
    async def check() -> None:
        house = House(["/data/password", *PRIVILEGES.values()], isolates=isolates)
        house.stage.start("me")
        assert (await house.examined())["probe: isolation"] is verdict
        for what in ("the passwords", *PRIVILEGES.values()):
            assert what in house.findings[1].seen
        assert house.findings[1].advice
        assert house.nothing_is_left()
        await house.stage.kill("me")

    check()


@pytest.mark.parametrize(
    ("front_door", "leaks", "verdict", "said"),
    [
        (FRONT_DOOR, [], Verdict.OK, True),
        (FRONT_DOOR, [FRONT_DOOR], Verdict.FAIL, True),
        ("down", [], Verdict.OK, False),
    ],
)
def test_a_front_door_whose_port_can_be_taken_is_no_isolation(
    front_door: str, leaks: list[str], verdict: Verdict, said: bool
) -> None:
    """One that does not run proves nothing, and nothing is said of it."""

    @in_virtual_time
    async def check() -> None:
        house = House(leaks, isolates=True)
        house.front_door = front_door
        house.stage.start("me")
        assert (await house.examined())["probe: isolation"] is verdict
        assert (FRONT_DOOR in house.findings[1].seen) is said
        await house.stage.kill("me")

    check()


@in_virtual_time
async def test_a_file_that_comes_back_otherwise_fails() -> None:
    house = House()
    house.stage.start("me")
    running = asyncio.create_task(house.examined())
    while not any(finding.name == "probe: archive" for finding in house.findings):
        await asyncio.sleep(0.1)
    house.notes = dict.fromkeys(house.notes, "other")
    assert (await running)["probe"] is Verdict.FAIL
    assert failed(house.findings)
    assert house.nothing_is_left()
    await house.stage.kill("me")


@in_virtual_time
async def test_without_a_leader_it_says_so_and_what_it_left() -> None:
    house = House()
    told = await house.examined(timeout=5.0)
    assert (told["probe"], told["probe: clean up"]) == (Verdict.FAIL, Verdict.WARN)
    assert "codehub admin leader" in house.findings[0].advice
    assert all(str(key) in house.findings[-1].seen for key in house.stage.ids())


@in_virtual_time
async def test_a_probe_that_is_cancelled_cleans_up() -> None:
    house = House()
    house.stage.start("me")
    running = asyncio.create_task(house.examined())
    while not house.findings:
        await asyncio.sleep(0.1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert house.nothing_is_left()
    await house.stage.kill("me")


def examined_behind_walls(*leaks: str) -> House:
    house = House(leaks, network_isolated=True)

    @in_virtual_time
    async def examine() -> None:
        house.stage.start("me")
        await house.examined()
        assert house.nothing_is_left()
        await house.stage.kill("me")

    examine()
    return house


def test_behind_walls_the_network_and_the_share_are_tried_too() -> None:
    found = examined_behind_walls().findings
    assert {one.verdict for one in found} == {Verdict.OK}, found
    assert all(what in found[1].seen for what in ("the database", "another workspace's IDE", *BEYOND_LIMITS.values()))


@pytest.mark.parametrize(
    ("leak", "what"),
    [
        ("gateway:5432", "the database"),
        ("memory:1", "another workspace's IDE"),
        ("more memory than its share", "more memory than its share"),
    ],
)
def test_a_hole_in_the_walls_is_a_failure(leak: str, what: str) -> None:
    found = examined_behind_walls(leak).findings
    assert (found[1].verdict, found[1].seen) == (Verdict.FAIL, f"from inside in reach: {what}")


def test_a_network_that_cannot_be_tried_is_not_called_closed() -> None:
    found = examined_behind_walls("no bash").findings
    assert [one.name for one in found if one.verdict is Verdict.FAIL] == ["probe"]
    assert "probe: isolation" not in {one.name for one in found}


@in_virtual_time
async def test_what_the_runtime_cannot_limit_is_a_warning_and_says_who_can() -> None:
    house = House([MORE_PROCESSES], network_isolated=True)
    house.not_promised = {MORE_PROCESSES: "Limit it on the nodes."}
    house.stage.start("me")
    await house.examined()
    await house.stage.kill("me")
    found = {finding.name: finding for finding in house.findings}["probe: isolation"]
    assert (found.verdict, found.advice) == (Verdict.WARN, "Limit it on the nodes.")
    assert MORE_PROCESSES in found.seen
