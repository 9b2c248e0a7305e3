"""Opening a connection to where a workspace answers, and to nowhere else.

An address may be another person's a moment later: the agent behind it proves that it is this start's before a byte of a
request is sent. A workspace may write the directory its socket is in. The socket is therefore looked up without
following a link and connected to through what was found, so that nothing planted meanwhile leads us to somebody else's.
"""

import asyncio
import os
import stat
from collections.abc import Callable
from typing import TypeVar

from codehub.agent.dial import dial
from codehub.ports.runtime import Endpoint

Connection = TypeVar("Connection", bound=asyncio.Protocol)


async def connect(endpoint: Endpoint, make: Callable[[], Connection]) -> Connection:
    """Raises OSError when nobody answers there."""
    loop = asyncio.get_running_loop()
    if endpoint.socket is not None:
        return await _connect_socket(loop, endpoint.socket, make)
    if endpoint.host is None or endpoint.port is None:
        raise OSError("this endpoint names neither a socket nor a host and port")
    if endpoint.inside is None:
        _, connection = await loop.create_connection(make, endpoint.host, endpoint.port)
        return connection
    proven = await dial((endpoint.host, endpoint.port), endpoint.inside.key, endpoint.inside.port)
    _, connection = await loop.create_connection(make, sock=proven)
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
