"""The route that runs a command inside a workspace and streams what it says, for scripts.

The answer is lines of JSON: what the command said as it says it, and how it ended as the last line. An answer without
such a last line was cut off. Empty lines mean nothing: they keep a silent connection open. Whoever closes the
connection hangs the command up.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from codehub.api.access_watch import AccessWatch, StreamCaller, access_check
from codehub.api.dependencies import WITH_BODY, Parts, Signed, WorkspaceId, problems
from codehub.api.restore_points import ConcurrencyLimit
from codehub.api.schemas import ExecCommand
from codehub.domain.errors import ExecInterrupted, Forbidden
from codehub.ports.exec import ExecRequest, ExecSession, ExitStatus, Output, OutputStream

router = APIRouter(tags=["workspaces"])

MOST_COMMANDS: Final = 32
HEARTBEAT_SECONDS = 15.0
LINES_TYPE: Final = "application/x-ndjson"
_LONGEST_TAIL: Final = 3
"""How many bytes of a character may come before its last."""
_EXAMPLE: Final = (
    '{"stream": "stdout", "text": "hello\\n"}\n{"stream": "stderr", "base64": "/w=="}\n'
    '{"exit_code": 0, "signal": null}\n'
)


class TextStream:
    """Makes lines of one stream's output: text where it is UTF-8, base64 where it is not."""

    def __init__(self, stream: OutputStream) -> None:
        self._stream = stream
        self._held = b""

    def lines(self, data: bytes) -> list[bytes]:
        data, self._held = self._held + data, b""
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            if error.reason != "unexpected end of data" or len(data) - error.start > _LONGEST_TAIL:
                return [self._line("base64", base64.b64encode(data).decode())]
            text, self._held = data[: error.start].decode(), data[error.start :]
        return [self._line("text", text)] if text else []

    def rest(self) -> list[bytes]:
        held, self._held = self._held, b""
        return [self._line("base64", base64.b64encode(held).decode())] if held else []

    def _line(self, kind: str, value: str) -> bytes:
        return line({"stream": self._stream.value, kind: value})


def line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


class CommandStream(Response):
    """A response that starts its command only when it is sent, and leaves it whatever happens."""

    def __init__(
        self,
        watched: StreamCaller,
        running: Callable[[ExecRequest], AbstractAsyncContextManager[ExecSession]],
        command: ExecCommand,
    ) -> None:
        super().__init__()
        self._watched = watched
        self._running = running
        self._command = command

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        commands: ConcurrencyLimit = scope["app"].state.commands
        access: AccessWatch = scope["app"].state.access
        watched, command = self._watched, self._command
        with commands.slot(watched.user_id):
            try:
                async with watched.interruption:
                    with access.watching(watched):
                        async with self._running(ExecRequest(command.argv, command.env, command.cwd)) as session:
                            await _until_either_ends(self._sent(session, send), _left(receive))
            except TimeoutError as error:
                if watched.why is None:
                    raise
                raise Forbidden("You may no longer run commands in this workspace.") from error

    async def _sent(self, session: ExecSession, send: Send) -> None:
        headers = [(b"content-type", LINES_TYPE.encode()), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        giving = asyncio.create_task(_give(session, self._command.stdin.encode()))
        try:
            async for one in _said(session):
                await send({"type": "http.response.body", "body": one, "more_body": True})
        finally:
            giving.cancel()
        await send({"type": "http.response.body", "body": b""})


async def _give(session: ExecSession, data: bytes) -> None:
    await session.write(data)
    await session.write_eof()


async def _said(session: ExecSession) -> AsyncIterator[bytes]:
    streams = {stream: TextStream(stream) for stream in OutputStream}
    try:
        while (output := await _next_output(session)) is not None:
            for one in streams[output.stream].lines(output.data) if isinstance(output, Output) else [output]:
                yield one
        status: ExitStatus | None = await session.wait()
        failure = ""
    except ExecInterrupted as error:
        status, failure = None, str(error)
    for stream in streams.values():
        for one in stream.rest():
            yield one
    if status is None:
        yield line({"error": "interrupted", "detail": failure})
    else:
        yield line({"exit_code": status.code, "signal": status.signal_name})


async def _next_output(session: ExecSession) -> Output | bytes | None:
    """What the command says next, or an empty line after a silence: what is between us and the caller may take a long
    one for an end."""
    try:
        async with asyncio.timeout(HEARTBEAT_SECONDS):
            return await session.read()
    except TimeoutError:
        return b"\n"


async def _left(receive: Receive) -> None:
    """Waits until the caller has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _until_either_ends(one: Coroutine[Any, Any, None], other: Coroutine[Any, Any, None]) -> None:
    tasks = [asyncio.create_task(one), asyncio.create_task(other)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


@router.post(
    "/workspaces/{workspace_id}/exec",
    operation_id="runCommand",
    response_class=Response,
    responses={
        **problems(*WITH_BODY, 404, 409, 429),
        200: {"description": "What it says, then how it ended.", "content": {LINES_TYPE: {"example": _EXAMPLE}}},
    },
)
async def run_command(
    request: Request, parts: Parts, caller: Signed, workspace_id: WorkspaceId, body: ExecCommand
) -> Response:
    """Runs a command in a running workspace, as its user and with its variables, and streams lines of JSON: `stream`
    with `text` (or `base64`, where it is not UTF-8) while it runs, and at last `exit_code` with `signal`, or `error` if
    the workspace was stopped meanwhile. Empty lines mean nothing. A program that is not there ends with 127. Closing
    the connection ends the command."""
    await parts.exec.authorized(caller, workspace_id)
    still_allowed = access_check(request, parts, lambda now: parts.exec.authorized(now, workspace_id))
    return CommandStream(
        StreamCaller(caller.user.id, still_allowed),
        lambda request: parts.exec.run(caller, workspace_id, request),
        body,
    )
