"""The program that measures homes: each byte once, nothing outside of the home, and an end in time."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from codehub.adapters import disk_walk

MIB = 1 << 20
LATER = float("inf")
NOBODY = 65534


def used(home: Path) -> int:
    found, _, _ = disk_walk.measured(str(home), LATER)
    assert found is not None
    return found


def test_files_are_counted_once_and_links_are_not_followed(tmp_path: Path) -> None:
    home, outside = tmp_path / "home", tmp_path / "outside"
    (home / "a" / "b").mkdir(parents=True)
    outside.mkdir()
    (outside / "large").write_bytes(os.urandom(8 * MIB))
    before = used(home)
    (home / "a" / "b" / "file").write_bytes(os.urandom(MIB))
    (home / "another name").hardlink_to(home / "a" / "b" / "file")
    (home / "link").symlink_to(outside)
    (home / "a" / "link").symlink_to(outside / "large")
    assert MIB <= used(home) - before < 2 * MIB


def test_a_hole_takes_no_room(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    assert used(tmp_path) < MIB


def test_the_size_and_the_free_space_are_the_file_system_s(tmp_path: Path) -> None:
    _, total, free = disk_walk.measured(str(tmp_path), LATER)
    assert 0 < free <= total


def test_a_quota_is_asked_instead_of_files(tmp_path: Path) -> None:
    """Where one holds, the figures of the home are the file system's; elsewhere that is the whole disk."""
    found, total, free = disk_walk.measured(f"={tmp_path}", LATER)
    assert found is not None
    assert 0 < found <= total
    assert found + free <= total


def test_what_takes_too_long_is_not_known(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found, total, _ = disk_walk.measured(str(tmp_path), time.monotonic() - 1)
    assert found is None
    assert total > 0


def test_what_is_too_deep_is_not_known_and_no_descriptor_is_left(tmp_path: Path) -> None:
    place = os.open(tmp_path, os.O_RDONLY)
    for _ in range(disk_walk.DEEPEST + 2):
        os.mkdir("d", dir_fd=place)
        inner = os.open("d", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = inner
    os.close(place)
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert disk_walk.measured(str(tmp_path), LATER)[0] is None
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_what_is_too_wide_is_not_known_on_one_level_or_on_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_walk, "MOST_NAMES", 7)
    for outer in "abc":
        for inner in "123":
            (tmp_path / outer / inner / "x").mkdir(parents=True)
    assert used(tmp_path) > 0, "no more than seven are held at once"
    (tmp_path / "c" / "4").mkdir()
    assert disk_walk.measured(str(tmp_path), LATER)[0] is None
    (tmp_path / "c" / "4").rmdir()
    assert disk_walk.measured(str(tmp_path), LATER)[0] is not None
    for number in range(5):
        (tmp_path / str(number)).mkdir()
    found, total, _ = disk_walk.measured(str(tmp_path), LATER)
    assert found is None
    assert total > 0


def test_files_of_several_names_are_remembered_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        (tmp_path / f"{number}").write_bytes(os.urandom(MIB))
        (tmp_path / f"{number} again").hardlink_to(tmp_path / f"{number}")
    once = used(tmp_path)
    monkeypatch.setattr(disk_walk, "MOST_LINKS", 1)
    assert used(tmp_path) >= once + 2 * MIB


def test_what_may_not_be_read_is_not_counted() -> None:
    with tempfile.TemporaryDirectory() as name:  # pytest's own directories are closed to others
        home, closed = Path(name), Path(name, "closed")
        home.chmod(0o755)
        closed.mkdir()
        (closed / "file").write_bytes(os.urandom(MIB))
        closed.chmod(0)
        child = os.fork()
        if child == 0:
            try:
                if os.geteuid() == 0:  # who may read everything
                    os.seteuid(NOBODY)
                os._exit(used(home) >= MIB)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        closed.chmod(0o700)


def test_the_program_says_a_line_for_each_home_and_why_not(tmp_path: Path) -> None:
    home, missing = tmp_path / "ho me\n=", tmp_path / "missing"
    home.mkdir()
    program = Path(disk_walk.__file__).read_text()
    argv = [sys.executable, "-I", "-S", "-c", program, "10", str(home), str(missing), f"={home}"]
    said = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout
    assert len(said.splitlines()) == 3
    assert "No such file" in said
    assert set(disk_walk.parsed(said)) == {str(home)}


def test_other_lines_are_no_answer() -> None:
    assert disk_walk.parsed(
        'Traceback\n12\nnull\n["/b", 1, null, 2]\n["/c", 5\n[1]\n"a"\n{}\n["/h", "No such file"]\n["/a", null, 3, 2]\n'
    ) == {"/a": (None, 3, 2)}
