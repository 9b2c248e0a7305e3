"""`codehub ws exec`: a command inside a workspace, as if it ran here."""

import asyncio

import pytest

from codehub.cli.output import FAILED, UNREACHABLE, USAGE
from tests.cli.api_server import ApiServer
from tests.cli.terminal import Terminal


@pytest.fixture
def demo(ann: Terminal, server: ApiServer) -> Terminal:
    ann.done("ws", "create", "demo")
    server.runs("demo")
    return ann


def test_output_errors_and_exit_code_are_the_command_s(demo: Terminal) -> None:
    said = demo("ws", "exec", "demo", "--", "sh", "-c", "echo 안녕; echo err >&2; exit 7")
    assert (said.code, said.out, said.err) == (7, "안녕\n", "err\n")


def test_an_end_by_a_signal_is_told_as_shells_do(demo: Terminal) -> None:
    assert demo("ws", "exec", "demo", "--", "sh", "-c", "kill -TERM $$").code == 143


def test_a_program_that_is_not_there(demo: Terminal) -> None:
    said = demo("ws", "exec", "demo", "--", "no-such-program")
    assert (said.code, said.out) == (127, "")
    assert "No such file or directory" in said.err


def test_bytes_and_other_line_ends_pass(demo: Terminal) -> None:
    text = "a\u2028b\x0cc\r\nd"
    assert demo("ws", "exec", "--stdin", "demo", "--", "cat", stdin=text).raw == text.encode()
    assert demo("ws", "exec", "demo", "--", "echo", "--help", "--").out == "--help --\n"


def test_variables_and_directory(demo: Terminal) -> None:
    assert demo("ws", "exec", "--env", "A=b=c", "demo", "--", "printenv", "A").out == "b=c\n"
    assert demo("ws", "exec", "--cwd", "/tmp", "demo", "--", "pwd").out == "/tmp\n"
    assert demo("ws", "exec", "--env", "A", "demo", "--", "true").code == USAGE


def test_one_that_does_not_run_says_so(ann: Terminal) -> None:
    ann.done("ws", "create", "asleep")
    said = ann("ws", "exec", "asleep", "--", "true")
    assert said.code == FAILED
    assert "start it first" in said.lines()[0]


def test_nothing_to_run_is_wrong_usage(demo: Terminal) -> None:
    assert demo("ws", "exec", "demo", "--").code == USAGE


def test_a_stop_meanwhile_is_told(demo: Terminal, server: ApiServer) -> None:
    async def stop_once_it_runs() -> None:
        [container] = server.api.backends.runtime.state.containers.values()
        while not container.sessions:
            await asyncio.sleep(0.01)
        container.end()

    stopping = asyncio.run_coroutine_threadsafe(stop_once_it_runs(), server._loop)
    said = demo("ws", "exec", "demo", "--", "sleep", "600")
    stopping.result(10)
    assert said.code == UNREACHABLE
    assert "stopped" in said.lines()[0]
