"""Opening a connection to where a workspace answers, and to nowhere else.

A workspace may write the directory its socket is in. The socket is therefore looked up without following a link and
connected to through what was found, so that nothing planted meanwhile leads us to another's socket. A workspace with a
network of its own has ports that are not this machine's: we are handed a socket of that network, and connect it.
"""

import asyncio
import os
import socket
import stat
from collections.abc import Callable
from typing import TypeVar

from codehub.ports.runtime import Endpoint

Connection = TypeVar("Connection", bound=asyncio.Protocol)

_HANDED_OUT = 2
_HANDING_OUT_SECONDS = 5.0


async def connect(endpoint: Endpoint, make: Callable[[], Connection]) -> Connection:
    """Raises OSError when nobody answers there."""
    loop = asyncio.get_running_loop()
    if endpoint.socket is not None:
        return await _connect_socket(loop, endpoint.socket, make)
    if endpoint.host is None or endpoint.port is None:
        raise OSError("this endpoint names neither a socket nor a host and port")
    if endpoint.network is not None:
        return await _connect_inside(loop, endpoint.network, (endpoint.host, endpoint.port), make)
    _, connection = await loop.create_connection(make, endpoint.host, endpoint.port)
    return connection


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
