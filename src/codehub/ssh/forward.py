"""A forwarded port (`ssh -L`, `ssh -D`): a connection of the client to a port inside the workspace.

Only ports that the workspace's own processes hold on its loopback are led to, as at the front door. No other host is:
the gateway stands in another network than the workspace, and must not lend it.
"""

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import Final, cast
from uuid import UUID

import asyncssh

from codehub.agent.handshake import AGENT_PORT
from codehub.domain.errors import CodeHubError
from codehub.ports.runtime import Runtime
from codehub.usecases.workspace_connection import confirmation, connect

LOOPBACK: Final = frozenset(("localhost", "127.0.0.1", "::1", "[::1]", "ip6-localhost"))
CONNECT_SECONDS: Final = 10.0


class Hold(StrEnum):
    """Why nothing is read of the workspace's end."""

    CLIENT_NOT_THERE = "client not there"
    CHANNEL_FULL = "channel full"
    CONNECTION_FULL = "connection full"


class WorkspacePort(asyncio.Protocol):
    """The workspace's end of a forwarded connection."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.client: asyncssh.SSHTCPChannel[bytes] | None = None
        self._held = {Hold.CLIENT_NOT_THERE}
        self._ended = 0
        """How many of the two directions have ended."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.pause_reading()  # until the client's end is there

    def join(self, client: "asyncssh.SSHTCPChannel[bytes]") -> None:
        self.client = client
        self.release(Hold.CLIENT_NOT_THERE)

    def hold(self, reason: Hold) -> None:
        """Reads nothing more until every reason is released."""
        self._held.add(reason)
        if self.transport is not None:
            self.transport.pause_reading()

    def release(self, reason: Hold) -> None:
        self._held.discard(reason)
        if not self._held and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        if self.client is not None:
            self.client.write(data)

    def eof_received(self) -> bool:
        if self.client is not None:
            self.client.write_eof()
        self._end_one()
        return True

    def client_ended(self) -> None:
        """The client sends nothing more."""
        if self.transport is not None and self.transport.can_write_eof():
            self.transport.write_eof()
        self._end_one()

    def _end_one(self) -> None:
        self._ended += 1
        if self._ended == 2:
            self.close()

    def pause_writing(self) -> None:
        if self.client is not None:
            self.client.pause_reading()

    def resume_writing(self) -> None:
        if self.client is not None:
            self.client.resume_reading()

    def connection_lost(self, _exc: Exception | None) -> None:
        if self.client is not None:
            self.client.close()


class ForwardedConnection(asyncssh.SSHTCPSession[bytes]):
    """The client's end of a forwarded connection. `sent`: called with how many bytes the client has sent."""

    def __init__(self, port: WorkspacePort, sent: Callable[[int], None], closed: Callable[[], None]) -> None:
        self._port = port
        self._sent = sent
        self._closed = closed

    def connection_made(self, chan: "asyncssh.SSHTCPChannel[bytes]") -> None:
        self._chan = chan

    def session_started(self) -> None:
        self._port.join(self._chan)

    def data_received(self, data: bytes, _datatype: asyncssh.DataType) -> None:
        self._sent(len(data))
        if self._port.transport is not None:
            self._port.transport.write(data)

    def eof_received(self) -> bool:
        self._port.client_ended()
        return True

    def pause_writing(self) -> None:
        self._port.hold(Hold.CHANNEL_FULL)

    def resume_writing(self) -> None:
        self._port.release(Hold.CHANNEL_FULL)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._closed()


async def connected(runtime: Runtime, workspace_id: UUID, port: int) -> WorkspacePort:
    """A connection to a port that the workspace's own processes hold. Raises ChannelOpenError."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            endpoint = await runtime.port_endpoint(workspace_id, port)
            if endpoint is None:
                raise _refused(f"nothing listens on port {port} in this workspace, or it does not run")
            confirm = confirmation(endpoint, lambda: runtime.port_endpoint(workspace_id, port))
            return await connect(endpoint, WorkspacePort, confirm)
    except (OSError, TimeoutError, CodeHubError) as error:
        raise _refused(f"port {port} does not answer") from error


def refuse_other_hosts(host: str) -> None:
    """Raise ChannelOpenError unless the host is the workspace's own loopback."""
    if host.lower() not in LOOPBACK:
        raise asyncssh.ChannelOpenError(
            asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, "only ports of localhost in the workspace are forwarded"
        )


def refuse_other_ports(port: int) -> None:
    """Raise ChannelOpenError if there is no such port, or the workspace's agent listens there, which is ours."""
    if not 1 <= port <= 65535 or port == AGENT_PORT:
        raise asyncssh.ChannelOpenError(
            asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, f"port {port} of a workspace is not forwarded"
        )


def _refused(reason: str) -> asyncssh.ChannelOpenError:
    return asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, reason)
