"""The command line as a value, and its first words run for real: they keep what a person has set."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from codehub.adapters.ide import InstalledIde, ide_command
from codehub.adapters.ide.command import FIRST_SETTINGS
from codehub.adapters.ide.install import SETUP
from codehub.adapters.ide.toolchain import of_the_wheel

PRINTS_ITS_CALL = 'console.log([process.env.NODE_EXEC_PATH, ...process.argv.slice(1)].join("\\n"))'


def test_the_command_line() -> None:
    words = ide_command(InstalledIde("4.0", Path("/wheel/bin/node"), Path("/cache/ide")))
    data = "{home}/.local/share/code-server"
    assert words[:2] == ["sh", "-c"]
    assert words[3:] == [
        *("codehub-ide", "{home}", data, FIRST_SETTINGS, "/cache/ide/setup/main.js"),
        *("/wheel/bin/node", "/cache/ide/package/out/node/entry.js"),
        *("--config", "/cache/ide/config.yaml"),
        *("--socket", "{socket}", "--socket-mode", "600", "--session-socket", "{socket}.cli"),
        *("--auth", "none", "--user-data-dir", data, "--extensions-dir", f"{data}/extensions"),
        *("--disable-telemetry", "--disable-update-check", "--disable-workspace-trust"),
        *("--disable-getting-started-override", "--disable-proxy"),
    ]


def run(home: Path, tmp_path: Path, **environment: str) -> list[str]:
    """What code-server is started with. Output is read to the end, so whatever was left running beside has ended."""
    installed = InstalledIde("4.0", of_the_wheel().node, tmp_path / "ide")
    if not installed.entry.exists():
        installed.entry.parent.mkdir(parents=True)
        installed.entry.write_text(PRINTS_ITS_CALL)
        shutil.copytree(SETUP, installed.setup.parent)
    words = [word.replace("{home}", str(home)).replace("{socket}", "/s") for word in ide_command(installed)]
    given = {"PATH": os.environ["PATH"], "HOME": str(home)} | environment
    return subprocess.run(words, env=given, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "a home; with 'odd' $letters"
    home.mkdir()
    return home


def settings_of(home: Path) -> Path:
    return home / ".local" / "share" / "code-server" / "User" / "settings.json"


def test_a_home_without_settings_gets_the_first_ones(home: Path, tmp_path: Path) -> None:
    said = run(home, tmp_path)
    first = json.loads(settings_of(home).read_text())
    assert first["chat.disableAIFeatures"] is True
    assert first["workbench.secondarySideBar.defaultVisibility"] == "hidden"
    assert said[0] == str(of_the_wheel().node)  # for `code-server FILE` in a terminal
    assert said[1].endswith("entry.js")
    assert said[-1] == str(home)


@pytest.mark.parametrize("theirs", ['{"editor.fontSize": 20}', "", "{ not json"])
def test_a_person_s_settings_are_never_touched(theirs: str, home: Path, tmp_path: Path) -> None:
    settings_of(home).parent.mkdir(parents=True)
    settings_of(home).write_text(theirs)
    run(home, tmp_path)
    assert settings_of(home).read_text() == theirs


def test_settings_that_cannot_be_written_do_not_keep_it_from_starting(home: Path, tmp_path: Path) -> None:
    (home / ".local").write_text("a file")
    assert run(home, tmp_path)[-1] == str(home)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    if shutil.which("git") is None:
        pytest.skip("git is not there")
    work = tmp_path / "shop"
    alone = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
    who = ("-c", "user.name=Ann", "-c", "user.email=ann@example.com")
    for words in (("init", "-q", str(work)), ("-C", str(work), *who, "commit", "-q", "--allow-empty", "-m", "first")):
        subprocess.run(["git", *words], env=alone, check=True)
    return work


def test_a_repository_is_the_folder_that_is_opened_and_cloned_beside_the_start(
    repository: Path, home: Path, tmp_path: Path
) -> None:
    assert run(home, tmp_path, CODEHUB_GIT_URL=f"file://{repository}")[-1] == str(home / "shop")
    assert (home / "shop" / ".git").is_dir()
    state = home / ".local" / "state" / "codehub" / "setup.json"
    assert json.loads(state.read_text())["steps"]["clone"]["status"] == "done"
    assert run(home, tmp_path)[-1] == str(home)
    assert not state.exists(), "of what nobody asks for any more"


def test_a_setup_program_that_does_not_run_keeps_nothing_from_starting(home: Path, tmp_path: Path) -> None:
    run(home, tmp_path)
    (tmp_path / "ide" / "setup" / "main.js").write_text("process.exit(1)")
    assert run(home, tmp_path, CODEHUB_GIT_URL="https://host/shop")[-1] == str(home)
