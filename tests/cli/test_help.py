"""`--help` and the shell's completion: everything has an example and fits a terminal, and nothing shows an error."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from codehub.cli import output
from codehub.cli.main import app
from tests.cli.api_server import ApiServer
from tests.cli.terminal import Terminal

PROGRAM = Path(sys.executable).with_name("codehub")
NOT_FOR_PEOPLE = ("job", "proxy-worker")


def verbs(command: TyperGroup, *path: str) -> Iterator[tuple[str, ...]]:
    yield path
    for name, inner in command.commands.items():
        if name in NOT_FOR_PEOPLE:
            continue
        if isinstance(inner, TyperGroup):
            yield from verbs(inner, *path, name)
        else:
            yield (*path, name)


ROOT = get_command(app)
assert isinstance(ROOT, TyperGroup)
VERBS = list(verbs(ROOT))


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: " ".join(verb) or "codehub")
def test_every_verb_has_an_example_and_fits_a_terminal(verb: tuple[str, ...], terminal: Terminal) -> None:
    said = terminal(*verb, "--help")
    assert (said.code, said.err) == (0, "")
    assert [line for line in said.out.splitlines() if len(line.rstrip()) > 80] == []
    example = said.out.partition("Example")[2]
    assert " ".join(("codehub", *verb)) in " ".join(example.split())


@pytest.mark.parametrize("name", ["ws", "token", "admin", "context", "admin users", "admin templates"])
def test_a_group_alone_shows_its_help(name: str, terminal: Terminal) -> None:
    said = terminal(*name.split())
    assert said.code == output.USAGE
    assert "Commands" in said.out + said.err


def test_the_exit_codes_are_all_documented(terminal: Terminal) -> None:
    told = " ".join(terminal("--help").out.split()).partition("Exit codes:")[2]
    known = {value for name, value in vars(output).items() if name.isupper() and isinstance(value, int)}
    assert {int(number) for number in re.findall(r"(?:^| )(\d+) ", told)} >= known | {0}


def test_version(terminal: Terminal) -> None:
    assert terminal.done("--version") == f"codehub {version('codehub')}\n"


def completed(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    asked = {"_CODEHUB_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    return subprocess.run(
        [PROGRAM], capture_output=True, text=True, check=False, env={**os.environ, **asked, **environment}
    )


def test_completion_knows_verbs_and_names(ann: Terminal) -> None:
    ann.done("ws", "create", "alpha")
    assert "create" in completed("codehub ws cr").stdout
    done = completed("codehub ws stop al")
    assert (done.stdout.split(), done.stderr) == (["alpha"], "")


def test_completion_of_what_comes_back_knows_the_deleted(ann: Terminal, server: ApiServer) -> None:
    ann.done("ws", "create", "alpha")
    ann.done("ws", "create", "albatross")
    server.controller_writes("albatross", deleted_at=datetime.now(UTC))
    assert completed("codehub ws undelete al").stdout.split() == ["albatross"]
    assert completed("codehub ws stop al").stdout.split() == ["alpha"]


@pytest.mark.parametrize(
    "broken",
    [
        {"CODEHUB_URL": "http://127.0.0.1:1"},
        {"CODEHUB_TOKEN": "chub_wrong"},
        {"CODEHUB_URL": "ftp://x"},
        {"CODEHUB_TOKEN": "", "CODEHUB_CONTEXT": "nowhere"},
    ],
)
def test_completion_never_shows_an_error(broken: dict[str, str], ann: Terminal, server: ApiServer) -> None:
    done = completed("codehub ws stop al", **broken)
    assert (done.stdout.strip(), done.stderr) == ("", "")
