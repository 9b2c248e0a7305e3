"""VS Code's backups at the start of a workspace: those of what is saved are removed, and no other."""

import os
import subprocess
from pathlib import Path
from urllib.parse import quote

import pytest

from codehub.adapters.ide.install import SETUP
from codehub.adapters.ide.toolchain import of_the_wheel

NOTES = '{"mtime":1794859709000,"ctime":1794859709000,"size":14,"etag":"44jvzxhw14","orphaned":false,"typeId":""}'


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data/User/Backups/-15f3b5eb/vscode-remote").mkdir(parents=True)
    return tmp_path / "data"


def back_up(data: Path, file: Path, text: bytes) -> Path:
    backup = data / "User/Backups/-15f3b5eb/vscode-remote" / f"{len(file.name)}a1b2"
    backup.write_bytes(f"vscode-remote://desk.example.com{quote(str(file))} {NOTES}\n".encode() + text)
    return backup


def start(data: Path) -> None:
    subprocess.run([of_the_wheel().node, SETUP / "main.js", "backups", data], check=True, timeout=60)


@pytest.mark.parametrize("name", ["notes.txt", "with space and 100 %.txt", "한글.md"])
def test_one_of_what_is_saved_is_removed(data: Path, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_text("typed before one\ntwo\n")
    backup = back_up(data, file, file.read_bytes())
    start(data)
    assert not backup.exists()
    assert file.read_text() == "typed before one\ntwo\n"


def test_one_of_what_is_not_saved_stays(data: Path, tmp_path: Path) -> None:
    changed, gone = tmp_path / "changed.txt", tmp_path / "gone away.txt"
    changed.write_text("one\n")
    backups = [back_up(data, changed, b"two\n"), back_up(data, gone, b"three\n")]
    start(data)
    assert all(backup.exists() for backup in backups)


def test_what_is_no_backup_is_left_alone(data: Path) -> None:
    directory = data / "User/Backups/-15f3b5eb/vscode-remote"
    os.mkfifo(directory / "pipe")
    (directory / "nonsense").write_bytes(b"\xff\xfe no address")
    (directory / "directory").mkdir()
    start(data)
    assert sorted(each.name for each in directory.iterdir()) == ["directory", "nonsense", "pipe"]
