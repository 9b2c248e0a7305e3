"""Opening a connection to where a workspace answers, and to nowhere else.

An address may be another person's a moment later: the agent behind it proves that it is this start's before a byte of a
request is sent. A workspace may write the directory its socket is in. The socket is therefore looked up without
following a link and connected to through what was found, so that nothing planted meanwhile leads us to somebody else's.
"""

import asyncio
import os
import socket
import stat
from collections.abc import Callable
from typing import TypeVar

from codehub.agent.dial import dial
from codehub.ports.runtime import Endpoint
from codehub.proxy.gate import Confirm

Connection = TypeVar("Connection", bound=asyncio.Protocol)


async def connect(endpoint: Endpoint, make: Callable[[], Connection], confirm: Confirm | None = None) -> Connection:
    """Raises OSError when nobody answers there, or it is not `confirm`ed that the workspace still has that address."""
    loop = asyncio.get_running_loop()
    if endpoint.socket is not None:
        return await _connect_socket(loop, endpoint.socket, make)
    if endpoint.host is None or endpoint.port is None:
        raise OSError("this endpoint names neither a socket nor a host and port")
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


async def _confirmed(loop: asyncio.AbstractEventLoop, address: tuple[str, int], confirm: Confirm) -> socket.socket:
    """If it has the address after we have connected, it had it when we did: nobody else is at the other end."""
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
