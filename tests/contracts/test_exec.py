"""Commands inside a workspace: the promises of Runtime.exec, kept alike in memory, by processes, by processes in a
sandbox, by containers and by pods. What takes a real shell is asked of the real ones alone."""

import asyncio
import hashlib
import os
import resource
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from codehub.adapters.process.sandbox import find_sandbox_tools
from codehub.domain.errors import ExecInterrupted, Invalid, NotRunning
from codehub.domain.naming import volume_name
from codehub.ports.exec import ExecRequest, ExecSession, ExitStatus, OutputStream, TerminalSize
from codehub.ports.runtime import ContainerSpec, Runtime, StartSecrets
from tests.contracts.places import DockerPlace, KubernetesPlace, MemoryPlace, Place, ProcessPlace
from tests.eventually import SECONDS, eventually

REAL = [
    *(pytest.param(kind, marks=pytest.mark.system) for kind in ("process", "sandbox", "docker")),
    pytest.param("kubernetes", marks=[pytest.mark.system, pytest.mark.kubernetes]),
]
real = pytest.mark.parametrize("place", REAL, indirect=True)
TERMINAL = TerminalSize(80, 24)
ALIVE = ExitStatus(0)


@pytest.fixture(params=["memory", *REAL])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    place: Place = MemoryPlace()
    if request.param == "docker":
        place = DockerPlace(request.getfixturevalue("docker_testbed"), tmp_path)
    elif request.param == "kubernetes":
        place = KubernetesPlace(request.getfixturevalue("kubernetes_testbed"), tmp_path)
    elif request.param == "sandbox":
        tools = find_sandbox_tools()
        if tools is None:
            pytest.skip("bubblewrap is not there or does not work")
        place = ProcessPlace(tmp_path / "root", sandbox=True, own_network=tools.slirp4netns is not None)
    elif request.param == "process":
        place = ProcessPlace(tmp_path / "root")
    yield place
    await place.close()


@pytest.fixture
def runtime(place: Place) -> Runtime:
    return place.runtime()


@pytest.fixture
async def workspace_id(runtime: Runtime) -> UUID:
    """A workspace that runs."""
    workspace_id = uuid4()
    volume = volume_name(workspace_id, 1)
    await runtime.create_volume(workspace_id, volume)
    secrets = StartSecrets(env={"TOKEN": "secret of the start"})
    spec = ContainerSpec(workspace_id, volume, "", env={"GREETING": "안녕"}, secrets=secrets)
    async with asyncio.timeout(SECONDS):
        while await runtime.start_container(spec) is not None:
            await asyncio.sleep(0.1)
        while not await runtime.answers(workspace_id):
            await asyncio.sleep(0.05)
    return workspace_id


async def output(session: ExecSession) -> dict[OutputStream, bytes]:
    """All that the command says until its end."""
    found = {OutputStream.STDOUT: b"", OutputStream.STDERR: b""}
    async with asyncio.timeout(SECONDS):
        while (said := await session.read()) is not None:
            found[said.stream] += said.data
    return found


async def run(
    runtime: Runtime, workspace_id: UUID, *argv: str, given: bytes | None = b"", **options: Any
) -> tuple[ExitStatus, bytes, bytes]:
    """The ending of a command, its output and its errors. `given`: its input; None: it has no end."""
    request = ExecRequest(argv, **options)
    session = await runtime.exec(workspace_id, request)
    try:
        async with asyncio.TaskGroup() as tasks:
            if given is not None:
                tasks.create_task(feed(session, given))
            reading = tasks.create_task(output(session))
        said = reading.result()
        return await session.wait(), said[OutputStream.STDOUT], said[OutputStream.STDERR]
    finally:
        await session.close()


async def feed(session: ExecSession, data: bytes) -> None:
    await session.write(data)
    await session.write_eof()


async def until(session: ExecSession, text: bytes) -> bytes:
    """What the command says up to that text."""
    found = b""
    async with asyncio.timeout(SECONDS):
        while text not in found:
            said = await session.read()
            assert said is not None, found
            found += said.data
    return found


async def is_alive(runtime: Runtime, workspace_id: UUID, mark: str) -> bool:
    """Whether a process with this word in its command line runs in the workspace."""
    script = 'for f in /proc/[0-9]*/cmdline; do tr "\\0" " " <$f; echo; done 2>/dev/null | grep -v grep | grep -q "$0"'
    status, _, _ = await run(runtime, workspace_id, "sh", "-c", script.replace("$0", f"[{mark[0]}]{mark[1:]}"))
    return status == ALIVE


async def ended(runtime: Runtime, workspace_id: UUID, mark: str) -> bool:
    return not await is_alive(runtime, workspace_id, mark)


# ── everywhere ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_command_says_something_and_ends(runtime: Runtime, workspace_id: UUID) -> None:
    assert await run(runtime, workspace_id, "echo", "hello", "world") == (ExitStatus(0), b"hello world\n", b"")


@pytest.mark.parametrize("code", [0, 1, 7, 255])
async def test_the_exit_code_is_the_command_s(runtime: Runtime, workspace_id: UUID, code: int) -> None:
    assert (await run(runtime, workspace_id, "sh", "-c", f"exit {code}"))[0] == ExitStatus(code)


async def test_an_end_by_a_signal_has_its_name(runtime: Runtime, workspace_id: UUID) -> None:
    assert (await run(runtime, workspace_id, "sh", "-c", "kill -KILL $$"))[0] == ExitStatus(137, "KILL")


@pytest.mark.parametrize(("name", "code"), [("TERM", 143), ("INT", 130), ("HUP", 129), ("USR1", 138)])
async def test_a_signal_reaches_the_command(runtime: Runtime, workspace_id: UUID, name: str, code: int) -> None:
    session = await runtime.exec(workspace_id, ExecRequest(["sleep", "600"]))
    await session.signal(name)
    assert await session.read() is None
    assert await session.wait() == ExitStatus(code, name)
    await session.signal(name)
    await session.close()


async def test_there_is_no_other_signal(runtime: Runtime, workspace_id: UUID) -> None:
    session = await runtime.exec(workspace_id, ExecRequest(["cat"]))
    with pytest.raises(Invalid):
        await session.signal("NOTHING")
    await session.close()


async def test_input_comes_back_whole(runtime: Runtime, workspace_id: UUID) -> None:
    data = os.urandom(10 << 20)
    status, said, _ = await run(runtime, workspace_id, "cat", given=data)
    assert status == ExitStatus(0)
    assert hashlib.sha256(said).digest() == hashlib.sha256(data).digest()


async def test_errors_are_apart_from_output(runtime: Runtime, workspace_id: UUID) -> None:
    found = await run(runtime, workspace_id, "sh", "-c", "echo out; echo err >&2")
    assert found == (ExitStatus(0), b"out\n", b"err\n")


async def test_a_program_that_is_not_there_is_127_and_says_so(runtime: Runtime, workspace_id: UUID) -> None:
    status, said, errors = await run(runtime, workspace_id, "no-such-program", "--help")
    assert (status, said) == (ExitStatus(127), b"")
    assert errors == b"codehub: cannot run no-such-program: No such file or directory\n"


async def test_it_has_a_terminal_only_if_it_is_asked_for(runtime: Runtime, workspace_id: UUID) -> None:
    assert (await run(runtime, workspace_id, "stty", "size"))[0] == ExitStatus(1)
    status, said, _ = await run(
        runtime, workspace_id, "stty", "size", terminal=TerminalSize(columns=132, rows=43), given=None
    )
    assert (status, said.strip()) == (ExitStatus(0), b"43 132")


async def test_it_starts_in_the_home_or_where_it_is_told(runtime: Runtime, workspace_id: UUID) -> None:
    home = (await run(runtime, workspace_id, "printenv", "HOME"))[1]
    assert (await run(runtime, workspace_id, "pwd"))[1] == home
    assert (await run(runtime, workspace_id, "pwd", cwd="/tmp"))[1] == b"/tmp\n"


async def test_it_has_the_workspace_s_variables_and_the_caller_s(runtime: Runtime, workspace_id: UUID) -> None:
    assert (await run(runtime, workspace_id, "printenv", "GREETING"))[1].decode() == "안녕\n"
    assert (await run(runtime, workspace_id, "printenv", "TOKEN"))[1] == b"secret of the start\n"
    own = {"GREETING": "caller's", "OTHER": "한글"}
    assert (await run(runtime, workspace_id, "printenv", "GREETING", env=own))[1] == b"caller's\n"
    assert (await run(runtime, workspace_id, "printenv", "OTHER", env=own))[1].decode() == "한글\n"


async def test_bytes_that_are_no_text_and_korean_pass(runtime: Runtime, workspace_id: UUID) -> None:
    data = bytes(range(256)) + "가나다".encode()
    assert (await run(runtime, workspace_id, "cat", given=data))[1] == data
    assert (await run(runtime, workspace_id, "echo", "가나다"))[1].decode() == "가나다\n"
    odd = b"\xff\xfe".decode(errors="surrogateescape")
    assert (await run(runtime, workspace_id, "echo", odd))[1] == b"\xff\xfe\n"


async def test_many_run_at_once(runtime: Runtime, workspace_id: UUID) -> None:
    found = await asyncio.gather(
        *(run(runtime, workspace_id, "cat", given=f"number {number}".encode()) for number in range(50))
    )
    assert [said for _, said, _ in found] == [f"number {number}".encode() for number in range(50)]


async def test_a_stop_ends_what_runs_with_a_clear_word(runtime: Runtime, workspace_id: UUID) -> None:
    session = await runtime.exec(workspace_id, ExecRequest(["sleep", "600"]))
    await runtime.remove_container(workspace_id)
    try:
        async with asyncio.timeout(SECONDS):
            while await session.read() is not None:
                pass
            status = await session.wait()
    except ExecInterrupted:
        pass
    else:
        assert status.signal_name in {"TERM", "KILL", "HUP"}
    await session.close()
    with pytest.raises(NotRunning):
        await runtime.exec(workspace_id, ExecRequest(["true"]))


@pytest.mark.parametrize(
    "wrong", [{"argv": ["a\0b"]}, {"argv": [""]}, {"env": {"A=B": ""}}, {"env": {"": ""}}, {"cwd": "\ud800"}]
)
def test_what_cannot_be_run_anywhere_is_no_request(wrong: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        ExecRequest(**wrong)


async def test_nothing_runs_where_no_workspace_is(runtime: Runtime) -> None:
    with pytest.raises(NotRunning):
        await runtime.exec(uuid4(), ExecRequest(["true"]))


async def test_a_closed_session_is_closed(runtime: Runtime, workspace_id: UUID) -> None:
    session = await runtime.exec(workspace_id, ExecRequest(["cat"]))
    await session.close()
    await session.close()
    with pytest.raises(ExecInterrupted):
        await session.wait()


# ── in real workspaces ───────────────────────────────────────────────────────────────────────────────────────────────


@real
async def test_a_resize_is_seen(runtime: Runtime, workspace_id: UUID) -> None:
    script = "trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.05; done"
    session = await runtime.exec(workspace_id, ExecRequest(["sh", "-c", script], terminal=TERMINAL))
    await until(session, b"ready")
    await session.resize(TerminalSize(columns=101, rows=33))
    await until(session, b"33 101")
    assert await session.read() is None
    await session.close()


@real
async def test_a_key_of_the_terminal_interrupts_the_foreground_alone(runtime: Runtime, workspace_id: UUID) -> None:
    session = await runtime.exec(workspace_id, ExecRequest(["sh"], env={"PS1": "$ "}, terminal=TERMINAL))
    # What is ready is in the foreground already: a key that comes before would be the shell's own.
    await session.write(b"sh -c 'echo re\"\"ady; exec sleep 600'\n")
    await until(session, b"ready")
    await session.write(b"\x03")
    await until(session, b"$ ")
    await session.write(b"echo st''ill here; exit 5\n")
    await until(session, b"still here")
    await output(session)
    assert await session.wait() == ExitStatus(5)
    await session.close()


@real
async def test_an_empty_command_is_a_login_shell(runtime: Runtime, workspace_id: UUID) -> None:
    status, said, _ = await run(runtime, workspace_id, given=b'echo "$0"; exit 3\n')
    assert status == ExitStatus(3)
    assert said.startswith(b"-")
    assert said.rstrip().endswith(b"sh")


@real
async def test_what_it_said_before_its_end_is_never_lost(runtime: Runtime, workspace_id: UUID) -> None:
    for _ in range(20):
        said = (await run(runtime, workspace_id, "sh", "-c", "head -c 300000 /dev/zero; exit 4"))[1]
        assert len(said) == 300000
    late = (await run(runtime, workspace_id, "sh", "-c", "(sleep 0.3; echo late) & exit 4"))[:2]
    assert late == (ExitStatus(4), b"late\n")


@real
async def test_what_it_leaves_in_the_background_does_not_hold_its_end_up(runtime: Runtime, workspace_id: UUID) -> None:
    assert (await run(runtime, workspace_id, "sh", "-c", "sleep 600 & echo started"))[:2] == (ALIVE, b"started\n")


@real
async def test_a_slow_reader_holds_the_command_up(runtime: Runtime, workspace_id: UUID) -> None:
    script = "head -c 200000000 /dev/zero; echo done >&2"
    session = await runtime.exec(workspace_id, ExecRequest(["sh", "-c", script]))
    assert await session.read() is not None
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    size = 0
    async with asyncio.timeout(SECONDS):
        while (said := await session.read()) is not None:
            size += len(said.data) if said.stream is OutputStream.STDOUT else 0
            if size < 1 << 20:
                await asyncio.sleep(0.01)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000, "kilobytes"
    assert size > 199_000_000
    await session.close()


@real
async def test_a_signal_passes_input_that_nobody_reads(runtime: Runtime, workspace_id: UUID) -> None:
    session = await runtime.exec(workspace_id, ExecRequest(["sleep", "600"]))
    writing = asyncio.create_task(session.write(bytes(8 << 20)))
    await asyncio.sleep(0)
    reading = asyncio.create_task(session.read())
    await session.signal("TERM")
    async with asyncio.timeout(SECONDS):
        assert await reading is None
        await writing
    assert (await session.wait()).signal_name == "TERM"
    await session.close()


@real
@pytest.mark.parametrize("terminal", [None, TERMINAL])
async def test_leaving_hangs_the_command_up(
    runtime: Runtime, workspace_id: UUID, terminal: TerminalSize | None
) -> None:
    mark = f"31{uuid4().int % 10**6}"
    script = f"sleep {mark} & echo ready; wait"
    session = await runtime.exec(workspace_id, ExecRequest(["sh", "-c", script], terminal=terminal))
    await until(session, b"ready")
    assert await is_alive(runtime, workspace_id, f"sleep {mark}")
    await session.close()
    await eventually(lambda: ended(runtime, workspace_id, f"sleep {mark}"))


@real
async def test_who_does_not_hear_of_it_is_killed_and_who_left_the_group_stays(
    runtime: Runtime, workspace_id: UUID
) -> None:
    stubborn, daemon = (f"3{digit}{uuid4().int % 10**6}" for digit in (2, 3))
    script = f"trap '' HUP; setsid sleep {daemon} & sleep {stubborn} & echo ready; while :; do sleep 1; done"
    session = await runtime.exec(workspace_id, ExecRequest(["sh", "-c", script]))
    await until(session, b"ready")
    await eventually(lambda: is_alive(runtime, workspace_id, f"sleep {daemon}"))
    await session.close()
    await eventually(lambda: ended(runtime, workspace_id, f"sleep {stubborn}"))
    assert await is_alive(runtime, workspace_id, f"sleep {daemon}")


@real
async def test_sessions_leave_nothing_behind(runtime: Runtime, workspace_id: UUID) -> None:
    count = "ls -d /proc/[0-9]* | wc -l"

    async def processes() -> int:
        return int((await run(runtime, workspace_id, "sh", "-c", count))[1])

    before = await processes()
    await asyncio.gather(*(run(runtime, workspace_id, "true") for _ in range(30)))

    async def are_gone() -> bool:
        return await processes() <= before

    await eventually(are_gone)


@real
async def test_a_directory_that_is_not_there_is_said(runtime: Runtime, workspace_id: UUID) -> None:
    status, _, errors = await run(runtime, workspace_id, "true", cwd="no/such")
    assert status == ExitStatus(126)
    assert b"no/such: No such file or directory" in errors
