"""Connections to where a workspace answers, for the front door and the SSH gateway.

An address may be another person's a moment later, so the agent behind it proves that it belongs to this start before a
byte is sent. A workspace may write the directory its socket is in, so the socket is looked up without following a link
and connected to through what was found. The ports of a workspace with a network of its own are not this machine's: a
socket of that network is handed out, and connected.
"""

import asyncio
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from typing import TypeVar

from codehub.agent.handshake import dial
from codehub.domain.errors import CodeHubError
from codehub.ports.runtime import Endpoint

Confirm = Callable[[], Awaitable[bool]]
"""Says, of a connection that was made, whether the workspace still has the address that was connected to."""
Connection = TypeVar("Connection", bound=asyncio.Protocol)

_HANDED_OUT = 2
_HANDING_OUT_SECONDS = 5.0


async def connect(endpoint: Endpoint, make: Callable[[], Connection], confirm: Confirm | None = None) -> Connection:
    """A connection to where a workspace answers. Raises OSError when nobody answers there, or it is not `confirm`ed
    that the workspace still has that address."""
    loop = asyncio.get_running_loop()
    if endpoint.socket is not None:
        return await _connect_socket(loop, endpoint.socket, make)
    if endpoint.host is None or endpoint.port is None:
        raise OSError("this endpoint names neither a socket nor a host and port")
    if endpoint.network is not None:
        return await _connect_inside(loop, endpoint.network, (endpoint.host, endpoint.port), make)
    address = endpoint.host, endpoint.port
    if endpoint.inside is not None:
        proven = await dial(address, endpoint.inside.key, endpoint.inside.port)
    elif confirm is not None:
        proven = await _confirmed(loop, address, confirm)
    else:
        _, connection = await loop.create_connection(make, *address)
        return connection
    _, connection = await loop.create_connection(make, sock=proven)
    return connection


def confirmation(endpoint: Endpoint, look: Callable[[], Awaitable[Endpoint | None]]) -> Confirm | None:
    """A check, for a connection that was made, that the workspace still has that address. None: its agent proves
    itself, or its place never passes to another. A runtime that does not answer confirms nothing."""
    if endpoint.instance is None:
        return None

    async def confirm() -> bool:
        try:
            return await look() == endpoint
        except CodeHubError:
            return False

    return confirm


async def _confirmed(loop: asyncio.AbstractEventLoop, address: tuple[str, int], confirm: Confirm) -> socket.socket:
    """A connected socket. If the workspace has the address after we have connected, it had it when we did: nobody else
    is at the other end."""
    sock = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.sock_connect(sock, address)
        if not await confirm():
            raise ConnectionError(f"{address[0]} is no longer this workspace's address")
    except BaseException:
        sock.close()
        raise
    return sock


async def _connect_socket(loop: asyncio.AbstractEventLoop, path: str, make: Callable[[], Connection]) -> Connection:
    found = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISSOCK(os.fstat(found).st_mode):
            raise OSError(f"{path} is not a socket")
        _, connection = await loop.create_unix_connection(make, f"/proc/self/fd/{found}")
    finally:
        os.close(found)
    return connection


async def _connect_inside(
    loop: asyncio.AbstractEventLoop, network: str, address: tuple[str, int], make: Callable[[], Connection]
) -> Connection:
    sock = await asyncio.to_thread(_socket_of, network, socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
    try:
        await loop.sock_connect(sock, address)
        _, connection = await loop.create_connection(make, sock=sock)
    except BaseException:
        sock.close()
        raise
    return connection


def _socket_of(network: str, family: socket.AddressFamily) -> socket.socket:
    found = os.open(network, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(_HANDING_OUT_SECONDS)
            asking.connect(f"/proc/self/fd/{found}")
            _, descriptors, _, _ = socket.recv_fds(asking, 1, _HANDED_OUT)
    finally:
        os.close(found)
    handed = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    chosen = next((sock for sock in handed if sock.family == family), None)
    for sock in handed:
        if sock is not chosen:
            sock.close()
    if chosen is None:
        raise OSError(f"no socket of the workspace's network was handed out at {network}")
    chosen.setblocking(False)
    return chosen
