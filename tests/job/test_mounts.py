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
from codehub.job.volume import mounts_below, opened, remove_tree
from tests.job.jobs import Desk
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


def test_they_are_found_whatever_they_are_called(desk: Desk, share: Share) -> None:
    (desk.home / "deep" / ODD).mkdir(parents=True)
    (desk.home / "file").touch()
    (desk.home.parent / "home2").mkdir()
    assert mounts_below(desk.home) == []
    share.mount(desk.home / "deep" / ODD)
    share.mount(desk.home / "file", share.file)
    share.mount(desk.home.parent / "home2")
    with opened(desk.home) as home:
        assert mounts_below(home) == mounts_below(desk.home) == [b"deep/" + ODD.encode(), b"file"]


def test_a_home_with_a_mount_is_not_archived(desk: Desk, share: Share) -> None:
    (desk.home / "mnt").mkdir()
    share.mount(desk.home / "mnt")
    archived = desk.archive()
    assert (archived.code, archived.message) == (
        ExitCode.ACTION_FAILED,
        "another filesystem is mounted at “mnt”; unmount it first",
    )
    assert not desk.object.exists()
    share.unmount()
    assert desk.archive().last["files"] == 0


def test_a_home_with_a_mount_is_not_replaced(desk: Desk, share: Share) -> None:
    (desk.home / "deep" / "mnt").mkdir(parents=True)
    desk.archive()
    desk.restore()
    desk.op_id = "restore-2"
    share.mount(desk.restored / "deep" / "mnt")
    restored = desk.restore()
    assert (restored.code, restored.message) == (
        ExitCode.ACTION_FAILED,
        "another filesystem is mounted at “deep/mnt”; unmount it first",
    )
    assert share.file.exists()
    assert (desk.restored / "deep" / "mnt" / "payroll").exists(), "nothing was moved"
    share.unmount()
    assert desk.restore().code == ExitCode.DONE


@pytest.mark.parametrize("point", ["", "inner/mnt"])
def test_a_tree_with_a_mount_is_not_removed(desk: Desk, share: Share, point: str) -> None:
    (desk.home / "tree" / "inner" / "mnt").mkdir(parents=True)
    (desk.home / "tree" / "file").touch()
    share.mount(desk.home / "tree" / point)
    with opened(desk.home) as home, pytest.raises(OSError, match="another filesystem is mounted at"):
        remove_tree(home, b"tree")
    assert share.file.exists()
    share.unmount()
    assert (desk.home / "tree" / "file").exists()
    with opened(desk.home) as home:
        remove_tree(home, b"tree")
    assert os.listdir(desk.home) == []


def test_a_volume_with_a_mount_is_kept(desk: Desk, share: Share) -> None:
    volumes, workspace = Volumes(desk.home, "here"), uuid4()
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
