"""Homes of before workspaces had users of their own, and homes from another workspace's archive: nothing is lost when
they are given to the one that runs in them."""

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from codehub.adapters.process import volumes
from codehub.adapters.process.sandbox import FIRST_UID, find_sandbox_tools
from codehub.domain.naming import archive_key, volume_name
from codehub.ports.jobs import JobKind, JobSpec, JobState
from codehub.ports.runtime import ContainerSpec
from tests.contracts.places import ProcessPlace
from tests.eventually import eventually

pytestmark = [pytest.mark.system, pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")]

Seen = dict[str, tuple[int, int, bytes | str | None]]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    (home / "project" / "empty").mkdir(parents=True)
    (home / "project" / "file").write_bytes(os.urandom(5000))
    os.link(home / "project" / "file", home / "project" / "same")
    (home / "program").write_bytes(b"#!/bin/sh\n")
    (home / "program").chmod(0o6755)
    (home / "locked").mkdir(mode=0o000)
    os.mkfifo(home / "pipe")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").write_text("x")
    (home / "link").symlink_to(tmp_path / "outside")
    (home / "file-link").symlink_to(tmp_path / "outside" / "kept")
    os.utime(home / "project" / "file", ns=(1, 2))
    return home


def seen(home: Path) -> Seen:
    """All but the owners: modes, times and contents."""
    return {str(path.relative_to(home)): look(path) for path in (home, *home.rglob("*"))}


def look(path: Path) -> tuple[int, int, bytes | str | None]:
    found = path.lstat()
    content: bytes | str | None = None
    if stat.S_ISREG(found.st_mode):
        content = path.read_bytes()
    elif stat.S_ISLNK(found.st_mode):
        content = str(path.readlink())
    return found.st_mode, found.st_mtime_ns, content


def owners(home: Path) -> set[tuple[int, int]]:
    return {(path.lstat().st_uid, path.lstat().st_gid) for path in (home, *home.rglob("*"))}


def test_only_owners_change_and_only_inside(home: Path) -> None:
    before, uid = seen(home), FIRST_UID + 7
    volumes.give(home, uid)
    assert seen(home) == before
    assert owners(home) == {(uid, uid)}
    assert owners(home.parent / "outside") == {(0, 0)}


def test_cut_short_anywhere_it_is_made_good(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, uid, real = seen(home), FIRST_UID + 7, os.chown
    for most in range(12):
        done = iter(range(most))

        def cut_short(*path: object, done: Iterator[int] = done, **options: object) -> None:
            if next(done, None) is None:
                raise InterruptedError
            real(*path, **options)  # type: ignore[arg-type]

        with monkeypatch.context() as patched:
            patched.setattr("codehub.adapters.process.volumes.os.chown", cut_short)
            try:
                volumes.give(home, uid + most)
            except InterruptedError:
                assert home.stat().st_uid != uid + most, "what is not done is not said to be"
        volumes.give(home, uid + most)
        assert owners(home) == {(uid + most, uid + most)}
    assert seen(home) == before


def test_what_is_mounted_inside_is_left_alone(home: Path, tmp_path: Path) -> None:
    mounted = home / "project" / "empty"
    subprocess.run(["mount", "--bind", tmp_path / "outside", mounted], check=True)
    try:
        volumes.give(home, FIRST_UID)
        assert owners(tmp_path / "outside") == {(0, 0)}
    finally:
        subprocess.run(["umount", mounted], check=True)


def test_no_depth_is_too_deep(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    here = os.open(home, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d" * 20, dir_fd=here)
        below = os.open("d" * 20, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    volumes.give(home, FIRST_UID)
    assert os.fstat(here).st_uid == FIRST_UID
    os.close(here)
    subprocess.run(["rm", "-rf", home], check=True)


@pytest.fixture
def place(tmp_path: Path) -> ProcessPlace:
    if find_sandbox_tools(own_network=False) is None:
        pytest.skip("bubblewrap is not there or does not work")
    return ProcessPlace(tmp_path / "root", sandbox=True)


async def test_a_home_of_before_is_its_workspaces_and_survives_an_archive(place: ProcessPlace) -> None:
    """Written by root's CodeHub of an earlier version; then written inside, archived, restored and read inside."""
    runtime, workspace_id = place.runtime(), uuid4()
    volume, again = volume_name(workspace_id, 1), volume_name(workspace_id, 2)
    await runtime.create_volume(workspace_id, volume)
    (runtime.homes.home(volume) / "old").write_text("from before\n")
    (runtime.homes.home(volume) / "old").chmod(0o600)
    spec = ContainerSpec(workspace_id, volume, "image")
    assert await runtime.run_inside(spec, ["sh", "-c", "cat old; echo and now >> old"]) == (0, "from before\n")
    key = archive_key("homes/", workspace_id, uuid4())
    await ran(place, JobSpec(workspace_id, uuid4(), JobKind.ARCHIVE, volume, key))
    await runtime.create_volume(workspace_id, again)
    await ran(place, JobSpec(workspace_id, uuid4(), JobKind.RESTORE, again, key))
    restored = ContainerSpec(workspace_id, again, "image")
    script = "cat old; echo once more >> old; stat -c %u old; id -u"
    code, output = await runtime.run_inside(restored, ["sh", "-c", script])
    told, owner, user = output.rsplit("\n", 3)[:3]
    assert (code, told) == (0, "from before\nand now")
    assert owner == user


async def test_another_workspaces_archive_becomes_its_own(place: ProcessPlace) -> None:
    runtime, first, second = place.runtime(), uuid4(), uuid4()
    for workspace_id in (first, second):
        await runtime.create_volume(workspace_id, volume_name(workspace_id, 1))
    await runtime.run_inside(spec_of(first), ["sh", "-c", "mkdir -p a && echo hello > a/b && chmod 600 a/b"])
    key = archive_key("homes/", first, uuid4())
    await ran(place, JobSpec(first, uuid4(), JobKind.ARCHIVE, volume_name(first, 1), key))
    await ran(place, JobSpec(second, uuid4(), JobKind.RESTORE, volume_name(second, 1), key))
    assert await runtime.run_inside(spec_of(second), ["sh", "-c", "cat a/b && touch a/c"]) == (0, "hello\n")


def spec_of(workspace_id: UUID) -> ContainerSpec:
    return ContainerSpec(workspace_id, volume_name(workspace_id, 1), "image")


async def ran(place: ProcessPlace, job: JobSpec) -> None:
    jobs = place.jobs()
    await jobs.start(job)

    async def done() -> bool:
        return (await jobs.find())[job.workspace_id].state is not JobState.RUNNING

    await eventually(done)
    seen_job = (await jobs.find())[job.workspace_id]
    assert seen_job.state is JobState.SUCCEEDED, seen_job
    await jobs.clear(job.workspace_id)
