"""What of an SSH connection counts as somebody at work."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from codehub.ssh.presence import KeystrokeFilter, WorkSign, work_sign
from tests.contracts.places import ProcessPlace
from tests.eventually import SECONDS, eventually
from tests.ssh.deployment import SshDeployment, deployed


@pytest.mark.parametrize(
    "reply",
    [
        b"\x1b[12;40R",
        b"\x1b[I",
        b"\x1b[O",
        b"\x1b[?62;4c",
        b"\x1b[>41;354;0c",
        b"\x1b[0n",
        b"\x1b[?2026;2$y",
        b"\x1b[?1u",
        b"\x1b[8;24;80t",
        b"\x1b]11;rgb:0000/0000/0000\x07",
        b"\x1b]10;rgb:ffff/ffff/ffff\x1b\\",
        b"\x1bP1+r5463=787465726d\x1b\\",
        b"\x1b[I\x1b[12;40R\x1b[?62;4c",
    ],
)
def test_a_terminal_s_own_reply_is_no_keystroke(reply: bytes) -> None:
    assert not KeystrokeFilter().has_keystrokes(reply)
    for cut in range(1, len(reply)):
        pieces = KeystrokeFilter()
        assert not pieces.has_keystrokes(reply[:cut])
        assert not pieces.has_keystrokes(reply[cut:])
        assert pieces.has_keystrokes(b"x")


@pytest.mark.parametrize(
    "typed",
    [b"a", "한".encode(), b"\r", b"\x03", b"\x1b[A", b"\x1bOP", b"\x1b[3~", b"\x1b[<0;1;1M", b"\x1b[Ia", b"\x1bb"],
)
def test_what_a_person_types_is_a_keystroke(typed: bytes) -> None:
    assert KeystrokeFilter().has_keystrokes(typed)


@pytest.mark.parametrize("begin", [b"\x1b[", b"\x1b[?", b"\x1b]", b"\x1bP"])
def test_of_a_reply_that_never_ends_little_is_kept(begin: bytes) -> None:
    endless = KeystrokeFilter()
    endless.has_keystrokes(begin)
    counted = [endless.has_keystrokes(b"1" * 100) for _ in range(100)]
    assert len(endless._unfinished) <= 1100
    assert any(counted), "it is no reply of a terminal"
    assert not endless.has_keystrokes(b"\x1b[12;40R"), "and the next reply is known again"


@pytest.mark.parametrize(
    ("has_terminal", "command", "subsystem", "sign"),
    [
        (True, None, None, WorkSign.KEYSTROKES),
        (True, "htop", None, WorkSign.KEYSTROKES),
        (False, "pytest -q", None, WorkSign.RUNNING),
        (False, "bash -c 'make'", None, WorkSign.RUNNING),
        (False, None, None, WorkSign.INPUT),
        (False, "bash", None, WorkSign.INPUT),
        (False, "/bin/bash --login", None, WorkSign.INPUT),
        (False, "sh", None, WorkSign.INPUT),
        (False, None, "sftp", WorkSign.BYTES),
        (False, "scp -r -t there", None, WorkSign.BYTES),
        (False, "rsync --server -logDtpre.iLsfxCIvu . there", None, WorkSign.BYTES),
        (False, "git-upload-pack '/home/coder/x.git'", None, WorkSign.BYTES),
    ],
)
def test_what_counts_in_a_session(
    has_terminal: bool, command: str | None, subsystem: str | None, sign: WorkSign
) -> None:
    assert work_sign(has_terminal=has_terminal, command=command, subsystem=subsystem) is sign


@pytest.fixture
async def deployment(tmp_path: Path) -> AsyncIterator[SshDeployment]:
    place = ProcessPlace(tmp_path / "root")
    async with deployed(place.runtime(), tmp_path) as made:
        yield made
    await place.close()


@pytest.mark.system
async def test_an_open_terminal_is_no_work_and_a_key_press_is(deployment: SshDeployment) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    process = await asyncio.create_subprocess_exec(
        *deployment.words(ann, "-tt", "-o", "ServerAliveInterval=1", "localhost", "cat"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"a\n")
    await asyncio.wait_for(process.stdout.readexactly(1), SECONDS)
    session = next(iter(next(iter(deployment.gateway.connections))._sessions))
    await deployment.gateway.parts.reporter.flush()
    await deployment.activity.forget(await deployment.activity.read())

    process.stdin.write(b"\x1b[I\x1b[12;40R")
    while b"R" not in await asyncio.wait_for(process.stdout.read(64), SECONDS):
        pass  # the terminal echoes it: by now it was read
    session.tick()
    await deployment.gateway.parts.reporter.flush()
    assert await deployment.activity.read() == {}, "neither the connection nor what a terminal answers"

    process.stdin.write(b"b\n")
    await eventually(lambda: demo.id in deployment.bus.state.activity)
    process.terminate()
    await process.wait()


@pytest.mark.system
async def test_a_command_counts_while_it_runs(deployment: SshDeployment) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    process = await asyncio.create_subprocess_exec(*deployment.words(ann, "localhost", "sleep 1000"))
    await eventually(lambda: len(deployment.audited()) == 1)
    for _ in range(2):
        await deployment.gateway.parts.reporter.flush()
        await deployment.activity.forget(await deployment.activity.read())
        await eventually(lambda: demo.id in deployment.bus.state.activity)
    process.terminate()
    await process.wait()
    await eventually(lambda: not deployment.gateway.connections)
