"""What a caller makes of frames that are not a session's: a workspace may put anything in its place."""

import asyncio
import socket

import pytest

from codehub.adapters.agent_exec import AgentExecSession
from codehub.agent.exec_frames import Frame, frame
from codehub.domain.errors import ExecInterrupted


@pytest.mark.parametrize(
    "sent", [frame(Frame.EXIT, b"x"), frame(Frame.TAKEN, b""), frame(Frame.EXIT, b"\0\0\0\0\xff\xfe"), b"\xff" * 40]
)
async def test_frames_that_are_none_end_the_session_as_a_lost_connection_does(sent: bytes) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        reader, writer = await asyncio.open_connection(sock=ours)
        theirs.sendall(sent)
        session = AgentExecSession(reader, writer)
        with pytest.raises(ExecInterrupted):
            await session.read()
        with pytest.raises(ExecInterrupted):
            await session.wait()
        await session.close()
