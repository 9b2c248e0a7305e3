"""The command line as a value, and its first words run for real: they keep what a person has set."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from codehub.adapters.ide import InstalledIde, ide_command
from codehub.adapters.ide.command import FIRST_SETTINGS

PRINTS_ITS_CALL = '#!/bin/sh\nprintf "%s\\n" "$NODE_EXEC_PATH" "$@"\n'


def test_the_command_line() -> None:
    words = ide_command(InstalledIde("4.0", Path("/wheel/bin/node"), Path("/cache/ide")))
    data = "{home}/.local/share/code-server"
    assert words[:2] == ["sh", "-c"]
    assert words[3:] == [
        *("codehub-ide", data, FIRST_SETTINGS),
        *("/wheel/bin/node", "/cache/ide/package/out/node/entry.js"),
        *("--config", "/cache/ide/config.yaml"),
        *("--socket", "{socket}", "--socket-mode", "600", "--session-socket", "{socket}.cli"),
        *("--auth", "none", "--user-data-dir", data, "--extensions-dir", f"{data}/extensions"),
        *("--disable-telemetry", "--disable-update-check", "--disable-workspace-trust"),
        *("--disable-getting-started-override", "--disable-proxy", "{home}"),
    ]


def run(home: Path, tmp_path: Path, **environment: str) -> list[str]:
    node = tmp_path / "node"
    node.write_text(PRINTS_ITS_CALL)
    node.chmod(0o755)
    template = ide_command(InstalledIde("4.0", node, tmp_path / "ide"))
    words = [word.replace("{home}", str(home)).replace("{socket}", "/s") for word in template]
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
    assert said[0] == str(tmp_path / "node")  # for `code-server FILE` in a terminal
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


def started_with(url: Path, home: Path, tmp_path: Path) -> None:
    """Its output is read to the end, so whatever it left running beside has ended too."""
    assert run(home, tmp_path, CODEHUB_GIT_URL=str(url))[-1] == str(home)


def test_a_repository_that_was_asked_for_is_cloned_once(repository: Path, home: Path, tmp_path: Path) -> None:
    started_with(repository, home, tmp_path)
    assert (home / "shop" / ".git").is_dir()
    shutil.rmtree(home / "shop")
    started_with(repository, home, tmp_path)
    assert not (home / "shop").exists(), "a person who removed it does not get it back"


def test_a_clone_that_failed_keeps_nothing_from_starting_and_is_tried_again(
    repository: Path, home: Path, tmp_path: Path
) -> None:
    away = repository.rename(tmp_path / "away")
    started_with(repository, home, tmp_path)
    away.rename(repository)
    started_with(repository, home, tmp_path)
    assert (home / "shop" / ".git").is_dir()
