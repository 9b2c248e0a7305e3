"""A share that somebody mounted inside a home stays theirs: not archived with the home, not emptied with it."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from codehub.adapters.process.volumes import Volumes
from codehub.domain.errors import VolumeInUse
from codehub.job.errors import ExitCode
from codehub.job.filesystem import mounts_below, opened_volume, remove_tree
from tests.job.harness import JobHarness
from tests.job.trees import ROOT

pytestmark = pytest.mark.system
ODD = "a share\twith \\040 and\r\n in its name"


class Share:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.file = directory / "payroll" / "2026.csv"
        self.file.parent.mkdir()
        self.file.write_text("everybody's")
        self._points: list[Path] = []

    def mount(self, point: Path, source: Path | None = None) -> None:
        """Of the same filesystem: no device number tells it from the home."""
        done = subprocess.run(["mount", "--bind", source or self.directory, point], check=False)
        if done.returncode:
            pytest.skip("this machine does not let us mount")
        self._points.append(point)

    def unmount(self) -> None:
        while self._points:
            subprocess.run(["umount", self._points.pop()], check=True)


@pytest.fixture
def share() -> Iterator[Share]:
    if not ROOT:
        pytest.skip("mounting needs root")
    with tempfile.TemporaryDirectory(prefix="codehub-job-") as directory:
        share = Share(Path(directory))
        try:
            yield share
        finally:
            share.unmount()


def test_they_are_found_whatever_they_are_called(harness: JobHarness, share: Share) -> None:
    (harness.home / "deep" / ODD).mkdir(parents=True)
    (harness.home / "file").touch()
    (harness.home.parent / "home2").mkdir()
    assert mounts_below(harness.home) == []
    share.mount(harness.home / "deep" / ODD)
    share.mount(harness.home / "file", share.file)
    share.mount(harness.home.parent / "home2")
    with opened_volume(harness.home) as home:
        assert mounts_below(home) == mounts_below(harness.home) == [b"deep/" + ODD.encode(), b"file"]


def test_a_home_with_a_mount_is_not_archived(harness: JobHarness, share: Share) -> None:
    (harness.home / "mnt").mkdir()
    share.mount(harness.home / "mnt")
    archived = harness.archive()
    assert (archived.code, archived.message) == (
        ExitCode.ACTION_FAILED,
        "another filesystem is mounted at “mnt”; unmount it first",
    )
    assert not harness.object.exists()
    share.unmount()
    assert harness.archive().last["files"] == 0


def test_a_home_with_a_mount_is_not_replaced(harness: JobHarness, share: Share) -> None:
    (harness.home / "deep" / "mnt").mkdir(parents=True)
    harness.archive()
    harness.restore()
    harness.op_id = "restore-2"
    share.mount(harness.restored / "deep" / "mnt")
    restored = harness.restore()
    assert (restored.code, restored.message) == (
        ExitCode.ACTION_FAILED,
        "another filesystem is mounted at “deep/mnt”; unmount it first",
    )
    assert share.file.exists()
    assert (harness.restored / "deep" / "mnt" / "payroll").exists(), "nothing was moved"
    share.unmount()
    assert harness.restore().code == ExitCode.DONE


@pytest.mark.parametrize("point", ["", "inner/mnt"])
def test_a_tree_with_a_mount_is_not_removed(harness: JobHarness, share: Share, point: str) -> None:
    (harness.home / "tree" / "inner" / "mnt").mkdir(parents=True)
    (harness.home / "tree" / "file").touch()
    share.mount(harness.home / "tree" / point)
    with opened_volume(harness.home) as home, pytest.raises(OSError, match="another filesystem is mounted at"):
        remove_tree(home, b"tree")
    assert share.file.exists()
    share.unmount()
    assert (harness.home / "tree" / "file").exists()
    with opened_volume(harness.home) as home:
        remove_tree(home, b"tree")
    assert os.listdir(harness.home) == []


def test_a_volume_with_a_mount_is_kept(harness: JobHarness, share: Share) -> None:
    volumes, workspace = Volumes(harness.home, "here"), uuid4()
    volumes.create(workspace, "home-1")
    point = volumes.home("home-1") / "mnt"
    point.mkdir()
    share.mount(point)
    with pytest.raises(VolumeInUse, match=f"mounted at {point}; unmount it first"):
        volumes.withdraw("home-1")
    assert volumes.owner("home-1") == workspace
    assert share.file.exists()
    share.unmount()
    volumes.withdraw("home-1")
    assert volumes.owner("home-1") is None
    assert share.file.exists()
