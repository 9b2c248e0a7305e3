"""Whether a workspace's IDE answers. Any HTTP status line counts: a login page, even an error, is an IDE that is up.

The first answer of a container that was just started is watched for closely and reported as a hint; else it would be
noticed at the next look, and looks are too expensive to be frequent. Only the container is asked, at its own port, so
that twenty that start at once are not held up by the asking.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from uuid import UUID

from codehub.agent.handshake import dial
from codehub.domain.errors import CodeHubError
from codehub.ports.runtime import Endpoint

ANSWER_SECONDS = 2.0
_WATCHED_SECONDS = 120.0
"""An IDE that takes longer to answer is heard of at the next look."""
_AGAIN_SECONDS = 0.02
_FOR_EACH_SECONDS = 0.005
"""How much longer the pause is for each container that is watched."""
_QUESTION = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def answers_http(connecting: Awaitable[Streams]) -> bool:
    """Asks over the connection that `connecting` gives, which may fail: then nobody answers."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await connecting
            try:
                writer.write(_QUESTION)
                return (await reader.read(5)).startswith(b"HTTP/")
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError):
        return False


async def accepts(endpoint: Endpoint) -> bool:
    """Whether anybody listens at the endpoint."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            _, writer = await connect(endpoint)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def connect(endpoint: Endpoint) -> Streams:
    """Connects to an endpoint through the workspace's agent, so that nobody else's answer is taken for the IDE's."""
    if endpoint.inside is None or endpoint.host is None or endpoint.port is None:
        return await asyncio.open_connection(endpoint.host, endpoint.port)
    proven = await dial((endpoint.host, endpoint.port), endpoint.inside.key, endpoint.inside.port)
    return await asyncio.open_connection(sock=proven)


class ReadinessProbe:
    """Watches started containers for their first answer. `endpoint` says where a workspace's IDE will answer; `heard`
    are the workspaces that did, in that order."""

    def __init__(self, endpoint: Callable[[UUID], Awaitable[Endpoint | None]]) -> None:
        self._endpoint = endpoint
        self._watches: dict[UUID, asyncio.Task[None]] = {}
        self.heard: asyncio.Queue[UUID] = asyncio.Queue()

    def watch(self, workspace_id: UUID) -> None:
        """Watches for the first answer from now on; a watch for an earlier start of the same workspace ends."""
        before = self._watches.pop(workspace_id, None)
        if before is not None:
            before.cancel()
        watch = self._watches[workspace_id] = asyncio.create_task(self._watch(workspace_id))
        watch.add_done_callback(lambda done: self._forget(workspace_id, done))

    async def close(self) -> None:
        watches = list(self._watches.values())
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)

    async def _watch(self, workspace_id: UUID) -> None:
        try:
            async with asyncio.timeout(_WATCHED_SECONDS):
                endpoint = await self._endpoint(workspace_id)
                while endpoint is not None and not await answers_http(connect(endpoint)):  # noqa: ASYNC110 - nobody tells us
                    await asyncio.sleep(_AGAIN_SECONDS + _FOR_EACH_SECONDS * len(self._watches))
        except (CodeHubError, TimeoutError):
            return
        self.heard.put_nowait(workspace_id)

    def _forget(self, workspace_id: UUID, done: asyncio.Task[None]) -> None:
        if self._watches.get(workspace_id) is done:
            del self._watches[workspace_id]
