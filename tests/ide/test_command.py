"""The command line as a value, and its first words run for real: they keep what a person has set."""

import json
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
        *("--disable-getting-started-override", "{home}"),
    ]


def run(home: Path, tmp_path: Path) -> list[str]:
    node = tmp_path / "node"
    node.write_text(PRINTS_ITS_CALL)
    node.chmod(0o755)
    template = ide_command(InstalledIde("4.0", node, tmp_path / "ide"))
    words = [word.replace("{home}", str(home)).replace("{socket}", "/s") for word in template]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "a home; with 'odd' $letters"
    home.mkdir()
    return home


def settings_of(home: Path) -> Path:
    return home / ".local" / "share" / "code-server" / "User" / "settings.json"


def test_a_home_without_settings_gets_the_first_ones(home: Path, tmp_path: Path) -> None:
    said = run(home, tmp_path)
    assert json.loads(settings_of(home).read_text()) == {"chat.disableAIFeatures": True}
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
