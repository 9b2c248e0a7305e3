"""`codehub ws hold`: the workspace is held while the command runs here, and let go whatever becomes of it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from codehub.cli import leases
from codehub.cli.output import FAILED, USAGE
from codehub.domain.workspace import Phase
from tests.cli.api_server import ApiServer
from tests.cli.terminal import Terminal

PROGRAM = Path(sys.executable).with_name("codehub")


@pytest.fixture
def demo(ann: Terminal, server: ApiServer) -> Terminal:
    ann.done("ws", "create", "demo")
    server.controller_writes("demo", phase=Phase.RUNNING)
    return ann


def python(code: str) -> tuple[str, ...]:
    return ("ws", "hold", "demo", "--", sys.executable, "-c", code)


@pytest.mark.parametrize("code", [0, 7, 255])
def test_the_exit_code_is_the_command_s(code: int, demo: Terminal, server: ApiServer) -> None:
    assert demo(*python(f"raise SystemExit({code})")).code == code
    assert server.leases("demo") == {}


@pytest.mark.parametrize(
    "words", [("demo", "--", "sh", "-c", "touch ran"), ("demo", "sh", "-c", "touch ran"), ("demo",)]
)
def test_run_is_kept_for_what_runs_inside_and_runs_nothing_here(
    words: tuple[str, ...], demo: Terminal, server: ApiServer
) -> None:
    said = demo("ws", "run", *words)
    assert said.code == FAILED
    [line] = said.lines()
    assert "inside the workspace" in line
    assert "`codehub ws hold demo -- " in line
    assert not Path("ran").exists()
    assert server.leases("demo") == {}


def test_a_command_that_is_killed(demo: Terminal, server: ApiServer) -> None:
    assert demo(*python("import os; os.kill(os.getpid(), 9)")).code == 128 + 9
    assert server.leases("demo") == {}


def test_options_after_the_dashes_are_the_command_s(demo: Terminal) -> None:
    assert demo(*python("import sys; raise SystemExit(len(sys.argv))"), "--json", "--help", "--").code == 4


@pytest.mark.parametrize(("command", "code"), [("no-such-program", 127), ("/", 126)])
def test_what_cannot_be_run(command: str, code: int, demo: Terminal, server: ApiServer) -> None:
    said = demo("ws", "hold", "demo", "--", command)
    assert said.code == code
    assert len(said.lines()) == 1
    assert server.leases("demo") == {}


def test_nothing_to_run(demo: Terminal) -> None:
    assert demo("ws", "hold", "demo", "--").code == USAGE
    assert demo("ws", "hold", "demo").code == USAGE


def test_it_is_held_and_renewed_meanwhile(demo: Terminal, server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "RENEW_SECONDS", 0.05)
    seen: list[object] = []

    class Child(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            seen.append(server.leases("demo"))
            deadline = time.monotonic() + 30
            while server.leases("demo") == seen[0] and time.monotonic() < deadline:
                time.sleep(0.01)
            seen.append(server.leases("demo"))
            return super().wait(timeout)

    monkeypatch.setattr(subprocess, "Popen", Child)
    assert demo(*python("pass")).code == 0
    first, renewed = seen
    assert isinstance(first, dict)
    assert isinstance(renewed, dict)
    assert list(first) == ["ann"]
    assert renewed["ann"] > first["ann"]
    assert server.leases("demo") == {}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_who_asks_us_to_end_asks_the_command(number: signal.Signals, demo: Terminal, server: ApiServer) -> None:
    """It ends in its own way, and what it says is our exit code."""
    patient = (
        "import signal, sys, time\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit(42))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)"
    )
    with subprocess.Popen([PROGRAM, *python(patient)], stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert list(server.leases("demo")) == ["ann"]
        process.send_signal(number)
        assert process.wait(60) == 42
    assert server.leases("demo") == {}


def test_ctrl_c_is_the_command_s_to_answer(demo: Terminal, server: ApiServer) -> None:
    patient = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGINT, lambda *_: (time.sleep(1), sys.exit(5)))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)"
    )
    with subprocess.Popen(
        [PROGRAM, *python(patient)], stdout=subprocess.PIPE, text=True, env=os.environ, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        assert process.wait(60) == 5
    assert server.leases("demo") == {}


def test_a_workspace_that_cannot_be_held(ann: Terminal, server: ApiServer) -> None:
    ann.done("ws", "create", "demo", "--state", "ARCHIVED")
    said = ann(*python("open('ran', 'w')"))
    assert said.code == 1
    assert "nothing to keep alive" in said.err
    assert not Path("ran").exists()
