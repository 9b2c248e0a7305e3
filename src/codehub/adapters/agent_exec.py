"""The caller's side of a command inside a workspace: an ExecSession over a connection to the agent or to the session
program beside a workspace.

Nothing is read ahead: what `read` does not ask for stays in the connection and holds the command up.
"""

import asyncio
import socket
import struct
from contextlib import suppress

from codehub.agent.exec_frames import (
    HEADER,
    MOST_DATA_BYTES,
    MOST_FRAME_BYTES,
    WINDOW_BYTES,
    Frame,
    OpenFrame,
    frame,
    open_frame,
    parsed_count,
    parsed_exit,
    size_payload,
)
from codehub.agent.handshake import NotAllowed, NothingListens, dial
from codehub.domain.errors import AgentTooOld, ExecInterrupted, Invalid, NotRunning, Unreachable
from codehub.ports.exec import SIGNALS, ExecRequest, ExecSession, ExitStatus, Output, OutputStream, TerminalSize
from codehub.ports.runtime import Endpoint

CONNECT_SECONDS = 10.0
_STREAMS = {Frame.STDOUT: OutputStream.STDOUT, Frame.STDERR: OutputStream.STDERR}
_LOST = "The connection to the command was lost: its workspace was stopped, or its machine does not answer."


async def exec_by_agent(endpoint: Endpoint | None, request: ExecRequest) -> ExecSession:
    """Starts a command through the agent of a container. `endpoint`: of any port in it; None if it does not run."""
    if endpoint is None:
        raise NotRunning
    if endpoint.inside is None or endpoint.host is None or endpoint.port is None:
        raise AgentTooOld  # it was started before there were agents
    opening = opening_frame(request)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            sock = await dial((endpoint.host, endpoint.port), endpoint.inside.key, endpoint.port)
    except NotAllowed:
        raise AgentTooOld from None
    except NothingListens:
        raise NotRunning("The workspace has not finished starting.") from None
    except (OSError, TimeoutError) as error:
        raise Unreachable(f"the workspace's agent does not answer: {error or 'no answer in time'}") from error
    return await opened(sock, opening)


def opening_frame(request: ExecRequest) -> bytes:
    """The frame that starts a command. Invalid if it is too large."""
    written = open_frame(
        OpenFrame(
            [_encoded(word) for word in request.argv],
            {_encoded(name): _encoded(value) for name, value in request.env.items()},
            _encoded(request.cwd or ""),
            None if request.terminal is None else (request.terminal.columns, request.terminal.rows),
        )
    )
    if len(written) > MOST_FRAME_BYTES:
        raise Invalid("The arguments and variables of a command are together at most a MiB.")
    return written


def _encoded(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


async def opened(sock: socket.socket, opening: bytes) -> ExecSession:
    """A session over a connection on which nothing was said yet."""
    reader, writer = await asyncio.open_connection(sock=sock, limit=WINDOW_BYTES)
    writer.transport.set_write_buffer_limits(high=WINDOW_BYTES)
    writer.write(opening)
    return AgentExecSession(reader, writer)


class AgentExecSession:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._ended: asyncio.Future[ExitStatus] = asyncio.get_running_loop().create_future()
        self._header: tuple[int, int] | None = None
        self._window = WINDOW_BYTES
        self._may_write = asyncio.Event()
        self._may_write.set()

    async def read(self) -> Output | None:
        while not self._ended.done():
            kind, payload = await self._next()
            if kind in _STREAMS:
                return Output(_STREAMS[Frame(kind)], payload)
            try:
                self._note(kind, payload)
            except (ValueError, struct.error) as error:  # whatever has taken the session's place
                raise self._lost() from error
        self._ended.result()
        return None

    async def _next(self) -> tuple[int, bytes]:
        try:
            if self._header is None:  # else a reader was cancelled in the middle of a frame
                self._header = HEADER.unpack(await self._reader.readexactly(HEADER.size))
            kind, size = self._header
            if size > MOST_FRAME_BYTES:
                raise ConnectionError("what answers is not the session of a command")
            payload = await self._reader.readexactly(size)
            self._header = None
        except (OSError, EOFError) as error:
            raise self._lost() from error
        return kind, payload

    def _note(self, kind: int, payload: bytes) -> None:
        if kind == Frame.TAKEN:
            self._window += parsed_count(payload)
            self._may_write.set()
        elif kind == Frame.EXIT:
            self._ended.set_result(ExitStatus(*parsed_exit(payload)))
            self._may_write.set()

    def _lost(self) -> ExecInterrupted:
        failure = ExecInterrupted(_LOST)
        if not self._ended.done():
            self._ended.set_exception(failure)
            self._ended.exception()  # whoever does not wait is not warned of it
        self._may_write.set()
        return failure

    async def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest and not self._ended.done():
            if self._window <= 0:
                self._may_write.clear()
                await self._may_write.wait()
                continue
            part = rest[: min(self._window, MOST_DATA_BYTES)]
            rest = rest[len(part) :]
            self._window -= len(part)
            await self._send(frame(Frame.STDIN, bytes(part)))

    async def write_eof(self) -> None:
        await self._send(frame(Frame.STDIN_EOF))

    async def resize(self, size: TerminalSize) -> None:
        await self._send(frame(Frame.RESIZE, size_payload(size.columns, size.rows)))

    async def signal(self, name: str) -> None:
        if name not in SIGNALS:
            raise Invalid(f"There is no signal {name}: use one of {', '.join(sorted(SIGNALS))}.")
        await self._send(frame(Frame.SIGNAL, name.encode()))

    async def _send(self, data: bytes) -> None:
        if self._ended.done():
            return
        with suppress(OSError):  # whoever reads is told
            self._writer.write(data)
            await self._writer.drain()

    async def wait(self) -> ExitStatus:
        return await asyncio.shield(self._ended)

    async def close(self) -> None:
        if not self._ended.done():
            self._ended.set_exception(ExecInterrupted("The session was closed before its command had ended."))
            self._ended.exception()
        self._may_write.set()
        self._writer.transport.abort()  # what the command has not taken is not waited for
        with suppress(OSError):
            await self._writer.wait_closed()
