"""What only real processes can do wrong: die in the middle, hide, be taken for another, see what is not theirs."""

import asyncio
import errno
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from codehub.adapters.process import ProcessRuntime, volumes
from codehub.adapters.process.sandbox import find_sandbox_tools
from codehub.adapters.process.shim import RECORD, clear, descendants
from codehub.adapters.process.table import ProcessTable, holder, orphans
from codehub.adapters.process.volumes import DirectoryIdentity
from codehub.domain.errors import BackendError, ErrorReason, Unreachable, VolumeInUse
from codehub.domain.naming import archive_key, volume_name
from codehub.job import filesystem
from codehub.ports.jobs import JobKind, JobSpec, JobState
from codehub.ports.runtime import ContainerSpec
from tests.contracts.places import ProcessPlace, names
from tests.eventually import eventually

pytestmark = pytest.mark.system

LAUNCHER = """
import asyncio, sys
from pathlib import Path
from uuid import UUID
from codehub.ports.runtime import ContainerSpec
from tests.contracts.places import ProcessPlace

async def main(root, workspace_id, volume):
    runtime = ProcessPlace(Path(root)).runtime()
    print("ready", flush=True)
    await runtime.start_container(ContainerSpec(UUID(workspace_id), volume, "image"))
    print("started", flush=True)
    await asyncio.sleep(60)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[ProcessPlace]:
    place = ProcessPlace(tmp_path / "root")
    yield place
    if place.root.exists():
        await place.close()
    assert place.processes() == []


@pytest.fixture
async def spec(place: ProcessPlace) -> ContainerSpec:
    workspace_id = uuid4()
    volume = volume_name(workspace_id, 1)
    await place.runtime().create_volume(workspace_id, volume)
    return ContainerSpec(workspace_id, volume, "image", {"GREETING": "hello"})


def lock(place: ProcessPlace, workspace_id: UUID) -> Path:
    return place.root / "containers" / f"{workspace_id}.lock"


def shim_of(place: ProcessPlace, workspace_id: UUID) -> int:
    pid = holder(lock(place, workspace_id))
    assert pid is not None
    return pid


def runs(pid: int) -> bool:
    return environment(pid) != []


def command_of(pid: int) -> list[bytes]:
    return Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")


def environment(pid: int) -> list[bytes]:
    """Empty when it has ended, reaped or not."""
    try:
        return [variable for variable in Path("/proc", str(pid), "environ").read_bytes().split(b"\0") if variable]
    except OSError:
        return []


def bystander() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"])


def launcher(place: ProcessPlace, spec: ContainerSpec) -> subprocess.Popen[bytes]:
    arguments = [str(place.root), str(spec.workspace_id), spec.volume]
    return subprocess.Popen([sys.executable, "-c", LAUNCHER, *arguments], stdout=subprocess.PIPE)


async def socket_of(runtime: ProcessRuntime, workspace_id: UUID) -> Path:
    endpoint = await runtime.endpoint(workspace_id)
    assert endpoint is not None
    assert endpoint.socket is not None
    return Path(endpoint.socket)


async def daemon_of(place: ProcessPlace, spec: ContainerSpec) -> int:
    path = place.runtime().homes.home(spec.volume) / "daemon.pid"

    async def written() -> bool:
        return path.exists() and path.read_text() != ""

    await eventually(written)
    return int(path.read_text())


@pytest.mark.timeout(600)
async def test_a_coordinator_killed_while_it_starts_leaves_one_container_or_none(
    place: ProcessPlace, spec: ContainerSpec
) -> None:
    """Killed at random points around the start; then its successor starts, and there is exactly one."""
    dice = random.Random(2)
    runtime, found = place.runtime(), 0
    for _ in range(12):
        with launcher(place, spec) as coordinator:
            assert coordinator.stdout is not None
            assert await asyncio.to_thread(coordinator.stdout.readline) == b"ready\n"
            await asyncio.sleep(dice.uniform(0, 0.08))
            coordinator.kill()
        left = len(await runtime.containers())
        await runtime.start_container(spec)
        await eventually(lambda: runtime.answers(spec.workspace_id))  # the script before it has ended by then
        seen = (await runtime.containers())[spec.workspace_id]
        assert seen.running
        assert len(place.ides()) == 1
        assert set(orphans(seen.instance)) == set(place.processes())
        found += left
        await runtime.remove_container(spec.workspace_id)
        assert place.processes() == []
    print(f"killed 12 times: {found} had their container already")


async def test_a_hidden_daemon_ends_with_its_container(place: ProcessPlace, spec: ContainerSpec) -> None:
    runtime = place.runtime("--spawn", grace_seconds=0.3)
    await runtime.start_container(spec)
    daemon = await daemon_of(place, spec)
    await runtime.remove_container(spec.workspace_id)
    assert not runs(daemon)


async def test_one_that_does_not_want_to_end_is_ended(place: ProcessPlace, spec: ContainerSpec) -> None:
    runtime = place.runtime("--stubborn", grace_seconds=0.3)
    await runtime.start_container(spec)
    await eventually(lambda: runtime.answers(spec.workspace_id))
    await runtime.remove_container(spec.workspace_id)
    assert place.processes() == []


async def test_a_listener_that_never_answers_is_not_awake(place: ProcessPlace, spec: ContainerSpec) -> None:
    runtime = place.runtime("--deaf")
    await runtime.start_container(spec)
    socket = await socket_of(runtime, spec.workspace_id)
    await eventually(lambda: asyncio.to_thread(socket.exists))
    assert socket.parent.stat().st_mode & 0o777 == 0o700
    assert not await runtime.answers(spec.workspace_id)


async def test_a_shim_that_is_stuck_is_ended_too(
    place: ProcessPlace, spec: ContainerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codehub.adapters.process.table._KILL_SECONDS", 1.0)
    runtime = place.runtime("--spawn", grace_seconds=0.1)
    await runtime.start_container(spec)
    daemon = await daemon_of(place, spec)
    os.kill(shim_of(place, spec.workspace_id), signal.SIGSTOP)
    assert (await runtime.containers())[spec.workspace_id].running
    await runtime.remove_container(spec.workspace_id)
    assert not runs(daemon)


async def test_a_shim_that_is_stuck_is_killed_before_it_is_given_up_on_a_machine_that_stood_still(
    place: ProcessPlace, spec: ContainerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the moment it is asked to end until long after it should have been killed."""
    monkeypatch.setattr("codehub.adapters.process.table._KILL_SECONDS", 1.0)
    really = ProcessTable._signal_holder

    def signal_and_stand_still(table: ProcessTable, key: UUID, pid: int, number: signal.Signals) -> None:
        really(table, key, pid, number)
        if number is signal.SIGTERM:
            time.sleep(2.5)

    monkeypatch.setattr(ProcessTable, "_signal_holder", signal_and_stand_still)
    runtime = place.runtime(grace_seconds=0.1)
    await runtime.start_container(spec)
    os.kill(shim_of(place, spec.workspace_id), signal.SIGSTOP)
    await runtime.remove_container(spec.workspace_id)
    assert not await runtime.containers()


@pytest.mark.parametrize("again", ["start", "remove"])
async def test_what_a_killed_shim_leaves_is_ended_and_nobody_else(
    place: ProcessPlace, spec: ContainerSpec, again: str
) -> None:
    """Its pid may be another's by now: the record is made to name a bystander, as after a recycling."""
    runtime = place.runtime("--spawn", grace_seconds=0.3)
    await runtime.start_container(spec)
    before = (await runtime.containers())[spec.workspace_id].instance
    daemon, shim = await daemon_of(place, spec), shim_of(place, spec.workspace_id)
    os.kill(shim, signal.SIGKILL)

    async def dead() -> bool:
        return not (await runtime.containers())[spec.workspace_id].running

    await eventually(dead)
    assert runs(daemon)
    with bystander() as innocent:
        record = place.root / "containers" / str(spec.workspace_id) / RECORD
        record.write_text(record.read_text().replace(f'"pid": {shim}', f'"pid": {innocent.pid}'))
        assert not (await runtime.containers())[spec.workspace_id].running
        if again == "start":
            await runtime.start_container(spec)
            assert (await runtime.containers())[spec.workspace_id].instance != before
        else:
            await runtime.remove_container(spec.workspace_id)
            assert not await runtime.containers()
        assert not runs(daemon)
        assert innocent.poll() is None
        innocent.kill()


async def test_a_process_whose_record_was_removed_by_hand_is_not_doubled(
    place: ProcessPlace, spec: ContainerSpec
) -> None:
    runtime = place.runtime()
    await runtime.start_container(spec)
    shutil.rmtree(place.root / "containers" / str(spec.workspace_id))
    assert not await runtime.containers()
    with pytest.raises(BackendError):
        await runtime.start_container(spec)

    async def ended() -> bool:
        return place.processes() == []

    await eventually(ended)
    await runtime.start_container(spec)
    assert len(await runtime.containers()) == 1


async def test_another_installation_is_never_seen_nor_touched(place: ProcessPlace, spec: ContainerSpec) -> None:
    mine, theirs = place.runtime(install_id="other"), place.runtime()
    jobs = place.jobs(install_id="other")
    await theirs.start_container(spec)
    assert not await mine.containers()
    assert not await mine.volumes()
    assert not await mine.answers(spec.workspace_id)
    assert await mine.endpoint(spec.workspace_id) is None
    await mine.remove_container(spec.workspace_id)
    await mine.delete_volume(spec.workspace_id, spec.volume)
    for refused in (
        mine.start_container(spec),
        mine.create_volume(spec.workspace_id, spec.volume),
    ):
        with pytest.raises(BackendError):
            await refused
    assert (await theirs.containers())[spec.workspace_id].running
    assert names(await theirs.volumes()) == {spec.workspace_id: {spec.volume}}

    job = JobSpec(spec.workspace_id, uuid4(), JobKind.ARCHIVE, spec.volume, "homes/x/home.tar.zst")
    await place.slow_jobs().start(job)
    assert not await jobs.find()
    await jobs.clear(spec.workspace_id)
    with pytest.raises(BackendError):
        await jobs.start(job)
    assert (await place.jobs().find())[spec.workspace_id].state is JobState.RUNNING


async def test_the_workspace_gets_its_environment_and_not_ours(
    place: ProcessPlace, spec: ContainerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODEHUB_DATABASE_URL", "postgresql://secret")
    runtime = place.runtime()
    await runtime.start_container(spec)
    await eventually(lambda: runtime.answers(spec.workspace_id))
    (pid,) = place.ides()
    variables = environment(pid)
    assert b"GREETING=hello" in variables
    assert f"HOME={runtime.homes.home(spec.volume)}".encode() in variables
    assert not any(b"secret" in variable for variable in variables + environment(shim_of(place, spec.workspace_id)))


@pytest.mark.parametrize("own", [{}, {"LD_LIBRARY_PATH": "/home/coder/lib"}], ids=["without", "with its own"])
@pytest.mark.parametrize("own_network", [False, True], ids=["plain", "own network"])
async def test_an_interpreter_that_finds_its_libraries_by_path_starts_workspaces(
    own_network: bool, own: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if own_network and ((found := find_sandbox_tools()) is None or found.slirp4netns is None):
        pytest.skip("bubblewrap or slirp4netns is not there or does not work")
    interpreter = tmp_path / "python"
    interpreter.write_text(
        f'#!/bin/sh\n[ "$LD_LIBRARY_PATH" = /usr/lib/python ] && exec {sys.executable} "$@"\nexit 127\n'
    )
    interpreter.chmod(0o755)
    place, workspace_id = ProcessPlace(tmp_path / "root", own_network=own_network), uuid4()
    runtime = place.runtime()
    await runtime.create_volume(workspace_id, "home")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/usr/lib/python")
    monkeypatch.setattr(sys, "executable", str(interpreter))
    await runtime.start_container(ContainerSpec(workspace_id, "home", "image", own))
    await eventually(lambda: runtime.answers(workspace_id))
    (pid,) = (pid for pid, _ in descendants(shim_of(place, workspace_id)) if command_of(pid)[1].endswith(b"_ide.py"))
    paths = [variable for variable in environment(pid) if variable.startswith(b"LD_LIBRARY_PATH=")]
    assert paths == [f"{name}={value}".encode() for name, value in own.items()]
    await place.close()


async def test_no_link_leads_to_another_socket(place: ProcessPlace, spec: ContainerSpec) -> None:
    runtime, other = place.runtime(), uuid4()
    await runtime.create_volume(other, volume_name(other, 1))
    await runtime.start_container(ContainerSpec(other, volume_name(other, 1), "image"))
    await runtime.start_container(spec)
    await eventually(lambda: runtime.answers(other))
    await eventually(lambda: runtime.answers(spec.workspace_id))
    mine = await socket_of(runtime, spec.workspace_id)
    mine.unlink()
    mine.symlink_to(await socket_of(runtime, other))
    assert not await runtime.answers(spec.workspace_id)


async def test_a_long_root_has_short_sockets(tmp_path: Path) -> None:
    place = ProcessPlace(tmp_path / ("long" * 40) / "root")
    runtime, workspace_id = place.runtime(), uuid4()
    await runtime.create_volume(workspace_id, "home")
    await runtime.start_container(ContainerSpec(workspace_id, "home", "image"))
    await eventually(lambda: runtime.answers(workspace_id))
    await place.close()


async def test_a_lost_disk_is_no_answer(place: ProcessPlace, spec: ContainerSpec) -> None:
    runtime, jobs = place.runtime(), place.jobs()
    place.root.rename(place.root.with_name("elsewhere"))
    for asked in (
        runtime.containers(),
        runtime.containers([spec.workspace_id]),
        runtime.volumes(),
        runtime.volumes([spec.workspace_id]),
        runtime.answers(spec.workspace_id),
        jobs.find(),
    ):
        with pytest.raises(Unreachable):
            await asked
    with pytest.raises(BackendError):
        await runtime.start_container(spec)
    place.root.with_name("elsewhere").rename(place.root)
    assert names(await runtime.volumes()) == {spec.workspace_id: {spec.volume}}


async def test_a_directory_made_anew_below_a_lost_mount_is_another_world(place: ProcessPlace) -> None:
    runtime, disk = place.runtime(), place.root.with_name("disk")
    before = await runtime.identity()
    place.root.rename(disk)
    place.root.mkdir()
    with pytest.raises(Unreachable, match="is the disk mounted"):
        await runtime.identity()
    anew = await place.runtime().identity()
    assert anew != before
    assert await runtime.identity() == anew
    shutil.rmtree(place.root)
    disk.rename(place.root)
    assert await runtime.identity() == await place.runtime().identity() == before


async def test_two_installations_in_one_directory_are_two_worlds(place: ProcessPlace) -> None:
    assert await place.runtime().identity() != await place.runtime(install_id="there").identity()


def test_processes_that_begin_at_once_agree_on_one_identity(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(lambda _: DirectoryIdentity(tmp_path, "here").read(), range(64)))
    assert len(found) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["identity"]


async def test_a_command_that_is_not_there_is_an_image_that_is_not_to_be_had(
    place: ProcessPlace, spec: ContainerSpec
) -> None:
    runtime = ProcessRuntime(place.root, "here", ["no-such-ide", "{socket}"], sandbox=False)
    with pytest.raises(BackendError) as refused:
        await runtime.start_container(spec)
    assert refused.value.reason is ErrorReason.IMAGE_PULL_FAILED
    assert not await runtime.containers()


async def test_a_command_that_fails_says_why(place: ProcessPlace, spec: ContainerSpec) -> None:
    runtime = ProcessRuntime(place.root, "here", ["sh", "-c", "echo no licence >&2; exit 3"], sandbox=False)
    await runtime.start_container(spec)

    async def ended() -> bool:
        return not (await runtime.containers())[spec.workspace_id].running

    await eventually(ended)
    assert (await runtime.containers())[spec.workspace_id].detail == "ended with exit code 3: no licence"


async def test_another_workspaces_volume_is_not_started(place: ProcessPlace, spec: ContainerSpec) -> None:
    with pytest.raises(BackendError) as refused:
        await place.runtime().start_container(ContainerSpec(uuid4(), spec.volume, "image"))
    assert refused.value.reason is ErrorReason.MISMATCH


@pytest.mark.parametrize("name", ["../volumes/x", "", ".", "..", "a/b", ".hidden"])
async def test_a_volume_has_a_plain_name(place: ProcessPlace, name: str) -> None:
    runtime = place.runtime()
    for refused in (runtime.create_volume(uuid4(), name), runtime.delete_volume(uuid4(), name)):
        with pytest.raises(BackendError):
            await refused


async def test_a_home_with_locked_directories_is_deleted_whole(place: ProcessPlace, spec: ContainerSpec) -> None:
    runtime = place.runtime()
    module = runtime.homes.home(spec.volume) / "go" / "pkg" / "mod"
    module.mkdir(parents=True)
    (module / "file").write_text("x")
    module.chmod(0o500)
    module.parent.chmod(0o000)
    await runtime.delete_volume(spec.workspace_id, spec.volume)
    assert list((place.root / "volumes").iterdir()) == []
    await eventually(lambda: trash_is_empty(place))


async def trash_is_empty(place: ProcessPlace) -> bool:
    return list((place.root / "trash").iterdir()) == []


def trash_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "codehub-trash"}


async def test_large_homes_on_their_way_out_keep_nobody_from_being_seen(
    place: ProcessPlace, spec: ContainerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than there are threads for everything else."""
    endless, runtime = threading.Event(), place.runtime()
    of_earlier_tests = trash_threads()

    def waiting(*_: object, **__: object) -> None:
        endless.wait(60)

    monkeypatch.setattr(volumes, "remove_tree", waiting)
    try:
        for _ in range(40):
            workspace_id = uuid4()
            await runtime.create_volume(workspace_id, volume_name(workspace_id, 1))
            await runtime.delete_volume(workspace_id, volume_name(workspace_id, 1))
        assert names(await runtime.volumes()) == {spec.workspace_id: {spec.volume}}
        assert await runtime.containers() == {}
        assert len(trash_threads() - of_earlier_tests) == 1
        assert not await trash_is_empty(place)
    finally:
        endless.set()
    monkeypatch.undo()
    await runtime.delete_volume(spec.workspace_id, spec.volume)
    await eventually(lambda: trash_is_empty(place))


async def test_what_a_killed_leader_left_in_the_trash_goes_when_the_next_begins(
    place: ProcessPlace, spec: ContainerSpec
) -> None:
    killed = place.runtime()
    (killed.homes.home(spec.volume) / "file").write_text("x")
    killed.homes.withdraw(spec.volume)
    being_made = place.root / "trash" / "ws-of-somebody.0123"
    being_made.mkdir()
    hints = place.runtime().hints()
    assert isinstance(hints, AsyncGenerator)
    first = asyncio.ensure_future(anext(hints))

    async def only_what_is_being_made() -> bool:
        return list((place.root / "trash").iterdir()) == [being_made]

    await eventually(only_what_is_being_made)
    first.cancel()
    await asyncio.wait([first])
    await hints.aclose()
    being_made.rmdir()


async def test_closing_ends_the_emptying_of_the_trash_and_leaves_the_rest_for_later(
    place: ProcessPlace, spec: ContainerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, begun = place.runtime(), threading.Event()
    of_earlier_tests = trash_threads()
    for number in range(50):
        (runtime.homes.home(spec.volume) / f"{number}").mkdir()
    really = filesystem.remove_tree

    def until_enough(parent: int, name: bytes, *, enough: Callable[[], bool]) -> None:
        """The first directory is being emptied until it is said that it is enough."""

        def asked() -> bool:
            begun.set()
            until = time.monotonic() + 20
            while not enough() and time.monotonic() < until:
                time.sleep(0.01)
            return enough()

        really(parent, name, enough=asked)

    monkeypatch.setattr(volumes, "remove_tree", until_enough)
    await runtime.delete_volume(spec.workspace_id, spec.volume)
    assert await asyncio.to_thread(begun.wait, 60)
    await runtime.close()
    assert trash_threads() <= of_earlier_tests
    assert not await trash_is_empty(place)
    monkeypatch.undo()
    successor = place.runtime()
    successor.homes.trash.empty_soon()
    await eventually(lambda: trash_is_empty(place))


async def test_an_end_by_a_signal_without_a_name_is_told_like_any(place: ProcessPlace, spec: ContainerSpec) -> None:
    runtime = place.runtime()
    await runtime.start_container(spec)
    await eventually(lambda: runtime.answers(spec.workspace_id))
    [ide] = place.ides()
    os.kill(ide, signal.SIGRTMIN + 1)

    async def ended() -> bool:
        return not (await runtime.containers())[spec.workspace_id].running

    await eventually(ended)
    assert (await runtime.containers())[spec.workspace_id].detail.startswith(f"ended by signal {signal.SIGRTMIN + 1}")
    await runtime.remove_container(spec.workspace_id)


@pytest.mark.parametrize(
    "spoilt", ["not json", "[]", "{}", '{"pid": 1, "labels": 5, "instance": "x", "sockets": null}']
)
async def test_a_record_that_cannot_be_read_spoils_its_own_workspace_alone(
    place: ProcessPlace, spec: ContainerSpec, spoilt: str
) -> None:
    """Without a sandbox its user can write over it. The process is there, so it must not be called absent."""
    runtime, neighbour = place.runtime(), ContainerSpec(uuid4(), "ws-neighbour", "image")
    await runtime.create_volume(neighbour.workspace_id, neighbour.volume)
    for both in (spec, neighbour):
        await runtime.start_container(both)
    before = await runtime.containers()
    record = place.root / "containers" / str(spec.workspace_id) / RECORD
    record.write_text(spoilt)
    seen = await runtime.containers()
    assert not seen[spec.workspace_id].known
    assert str(record) in seen[spec.workspace_id].detail
    assert seen[neighbour.workspace_id] == before[neighbour.workspace_id]
    assert not (await runtime.containers([spec.workspace_id]))[spec.workspace_id].known
    with pytest.raises(BackendError):
        await runtime.start_container(spec)

    os.kill(shim_of(place, spec.workspace_id), signal.SIGCHLD)  # else it looks after its record a while later

    async def mended() -> bool:
        return await runtime.containers() == before

    await eventually(mended)
    await runtime.remove_container(neighbour.workspace_id)


async def test_a_record_that_power_was_lost_over_is_nobodys(place: ProcessPlace, spec: ContainerSpec) -> None:
    runtime, directory = place.runtime(), place.root / "containers" / str(spec.workspace_id)
    directory.mkdir()
    (directory / RECORD).touch()
    lock(place, spec.workspace_id).touch()
    assert await runtime.containers() == {}
    await runtime.remove_container(spec.workspace_id)
    await runtime.start_container(spec)
    assert (await runtime.containers())[spec.workspace_id].running


async def test_a_record_that_the_disk_refuses_is_unknown_until_it_gives_it(
    place: ProcessPlace, spec: ContainerSpec
) -> None:
    runtime = place.runtime()
    await runtime.start_container(spec)
    before = await runtime.containers()
    record = place.root / "containers" / str(spec.workspace_id) / RECORD
    kept = record.rename(record.with_name("kept"))
    record.symlink_to(record.name)  # a loop: no answer, rather than no such file
    assert not (await runtime.containers())[spec.workspace_id].known
    kept.rename(record)
    assert await runtime.containers() == before


def nest(directory: Path, depth: int) -> None:
    """Deeper than any path may be long, so step by step."""
    here = os.open(directory, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d" * 20, dir_fd=here)
        below = os.open("d" * 20, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=here))
    os.close(here)


async def test_no_depth_of_its_sockets_keeps_a_workspace_from_being_stopped(
    place: ProcessPlace, spec: ContainerSpec
) -> None:
    runtime = place.runtime()
    await runtime.start_container(spec)
    sockets = (await socket_of(runtime, spec.workspace_id)).parent
    nest(sockets, 1500)
    await runtime.remove_container(spec.workspace_id)
    assert not sockets.exists()
    assert await runtime.containers() == {}


async def test_sockets_that_cannot_be_removed_are_a_fault_that_is_told(
    place: ProcessPlace, spec: ContainerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = place.runtime()
    await runtime.start_container(spec)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    with monkeypatch.context() as broken:
        broken.setattr(os, "rmdir", refuse)
        broken.setattr(Path, "rmdir", refuse)
        with pytest.raises(BackendError, match="left cannot be removed"):
            await runtime.remove_container(spec.workspace_id)
    assert spec.workspace_id in await runtime.containers(), "it is found, so that it is tried again"
    await runtime.remove_container(spec.workspace_id)
    assert await runtime.containers() == {}


def test_clearing_follows_no_link_and_opens_what_is_locked(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o750)
    (outside / "kept").write_text("x")
    doomed = tmp_path / "doomed"
    (doomed / "locked" / "inner" / "innermost").mkdir(parents=True)
    (doomed / "locked" / "link").symlink_to(outside)
    (doomed / "file-link").symlink_to(outside / "kept")
    os.mkfifo(doomed / "locked" / "inner" / "fifo")
    (doomed / "locked" / "inner").chmod(0o000)
    (doomed / "locked").chmod(0o000)
    (tmp_path / "top-link").symlink_to(outside)
    for name in ("doomed", "top-link", "never-there"):
        clear(tmp_path / name)
    assert list(tmp_path.iterdir()) == [outside]
    assert [path.name for path in outside.iterdir()] == ["kept"]
    assert stat.S_IMODE(outside.stat().st_mode) == 0o750


def test_clearing_needs_few_descriptors(tmp_path: Path) -> None:
    (tmp_path / "doomed").mkdir()
    nest(tmp_path / "doomed", 1500)
    program = (
        "import pathlib, resource, sys\n"
        "from codehub.adapters.process.shim import clear\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))\n"
        "clear(pathlib.Path(sys.argv[1]))\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "doomed")], check=True)
    assert list(tmp_path.iterdir()) == []


async def test_starting_and_deleting_at_once_never_leaves_a_container_without_its_volume(
    place: ProcessPlace, spec: ContainerSpec
) -> None:
    for _ in range(8):
        starter, deleter = place.runtime(), place.runtime()
        await starter.create_volume(spec.workspace_id, spec.volume)
        answers = await asyncio.gather(
            starter.start_container(spec), deleter.delete_volume(spec.workspace_id, spec.volume), return_exceptions=True
        )
        assert {type(answer) for answer in answers} <= {type(None), BackendError, VolumeInUse}
        assert set(await starter.containers()) == set(await starter.volumes())
        await starter.remove_container(spec.workspace_id)


async def test_a_job_killed_from_outside_was_interrupted(place: ProcessPlace, spec: ContainerSpec) -> None:
    jobs, op_id = place.slow_jobs(), uuid4()
    key = archive_key("homes/", spec.workspace_id, op_id)
    await jobs.start(JobSpec(spec.workspace_id, op_id, JobKind.ARCHIVE, spec.volume, key))
    shim = holder(place.root / "jobs" / f"{spec.workspace_id}.lock")
    assert shim is not None
    os.kill(shim, signal.SIGKILL)

    async def failed() -> bool:
        return (await jobs.find())[spec.workspace_id].state is JobState.FAILED

    await eventually(failed)
    seen = (await jobs.find())[spec.workspace_id]
    assert (seen.reason, seen.message) == (ErrorReason.UNREACHABLE, "the job ended from outside")
    await jobs.clear(spec.workspace_id)
