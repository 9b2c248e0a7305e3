"""The agent as a program: it runs the image's command, hands on signals, and ends as that does; and its bundle."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from codehub.agent.bundle import COMMAND, PLACE, bundle
from codehub.agent.handshake import KEY_BYTES, KEY_VARIABLE

KEY = os.urandom(KEY_BYTES).hex()
ALONE = ["unshare", "--net", "--"]
"""A network of its own: the agent's port is always the same."""

pytestmark = pytest.mark.skipif(
    subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode != 0,
    reason="a network namespace takes root",
)


@pytest.fixture(autouse=True, scope="module")
def _runtime_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CODEHUB_AGENT_DIRECTORY", str(tmp_path_factory.mktemp("run")))
        yield


@pytest.fixture(params=["as a module", "as a bundle"], scope="module")
def agent(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    if request.param == "as a module":
        yield [*ALONE, sys.executable, "-m", "codehub.agent"]
        return
    place = tmp_path_factory.mktemp("bundle") / "agent"
    bundle(place)
    yield [*ALONE, *(word.replace(PLACE, str(place)) for word in COMMAND)]


def _kept() -> dict[str, str]:
    return {name: os.environ[name] for name in ("PATH", "CODEHUB_AGENT_DIRECTORY")}


def ran(agent: list[str], *command: str, **env: str) -> subprocess.CompletedProcess[str]:
    environ = {**_kept(), KEY_VARIABLE: KEY, **env}
    return subprocess.run([*agent, *command], capture_output=True, text=True, check=False, env=environ, timeout=60)


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)])
def test_it_ends_as_the_command_does(agent: list[str], script: str, code: int) -> None:
    assert ran(agent, "sh", "-c", script).returncode == code


def test_the_command_gets_the_environment_and_not_the_key(agent: list[str]) -> None:
    done = ran(agent, "env", GREETING="hello")
    assert "GREETING=hello\n" in done.stdout
    assert KEY not in done.stdout
    assert done.stderr == ""


def test_a_command_that_is_not_there_is_named(agent: list[str]) -> None:
    done = ran(agent, "no-such-program")
    assert done.returncode == 127
    assert done.stderr == "codehub: the command no-such-program cannot be run: there is no such program\n"


def test_a_home_that_cannot_be_written_to_is_said_at_once(agent: list[str], tmp_path: Path) -> None:
    assert ran(agent, "true", HOME=str(tmp_path)).returncode == 0
    tmp_path.chmod(0o755)
    os.chown(tmp_path, 1, 1)
    done = ran([*ALONE, "setpriv", "--bounding-set=-dac_override", *agent[len(ALONE) :]], "true", HOME=str(tmp_path))
    assert done.returncode == 73, done.stderr
    assert f"the home {tmp_path} cannot be written to by user 0" in done.stderr


def test_without_a_key_it_does_not_start(agent: list[str]) -> None:
    done = ran(agent, "true", CODEHUB_AGENT_KEY="ab")
    assert done.returncode == 1
    assert "must hold 32 bytes" in done.stderr


def test_signals_are_passed_on_and_a_pipe_that_breaks_ends_what_the_command_runs(agent: list[str]) -> None:
    script = "trap 'echo told; exit 3' TERM; yes | head -1; echo ready; while :; do sleep 0.1; done"
    environ = {**_kept(), KEY_VARIABLE: KEY}
    with subprocess.Popen([*agent, "sh", "-c", script], stdout=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["y\n", "ready\n"]
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "told\n"
    assert process.returncode == 3


def test_it_does_not_go_by_its_interpreter_s_name(agent: list[str]) -> None:
    done = ran(agent, "sh", "-c", "cat /proc/$PPID/comm")
    assert done.stdout == "codehub-agent\n"


@pytest.mark.parametrize(("is_used", "said"), [(True, ["other\n", "told\n"]), (False, ["told\n", ""])])
def test_while_somebody_is_connected_the_end_is_told_a_moment_later(is_used: bool, said: list[str]) -> None:
    """Another signal overtakes the end that is held back, and a second request to end is passed on at once.

    The shell tells only of the first: a second signal between `echo` and `exit` would make it say so twice.
    """
    script = (
        "trap 'echo other' USR1; trap 'trap \"\" TERM; echo told; exit 3' TERM; echo ready; while :; do sleep 0.1; done"
    )
    program = (
        "import os, sys, time\nfrom codehub.agent.__main__ import WorkspaceCommand\n"
        f"WorkspaceCommand(['sh', '-c', sys.argv[1]], os.environ, lambda: {is_used})\nwhile True: time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program, script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        if is_used:
            process.send_signal(signal.SIGUSR1)
        heard = [process.stdout.readline()]
        process.send_signal(signal.SIGTERM)
        heard.append(process.stdout.readline())
    assert heard == said
    assert process.returncode == 3
