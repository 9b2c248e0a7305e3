"""The caller's side: a connection to a port inside a workspace, handed over once the agent has proven whose it is."""

import asyncio
import os
import socket

from codehub.agent.handshake import (
    ANSWER_BYTES,
    NONCE_BYTES,
    PORT_BYTES,
    PROTOCOL,
    Status,
    Transcript,
    proofs_agree,
)


class NotProven(ConnectionError):
    """What answers at that address has not the key of this start: it may be another person's container by now."""


class NothingListens(ConnectionRefusedError):
    """The agent is the right one, and nothing inside listens on that port."""


class NotAllowed(ConnectionRefusedError):
    """The agent is the right one, and does not lead to that port."""


async def dial(address: tuple[str, int], key: bytes, port: int) -> socket.socket:
    """A connection to `port` inside the workspace whose agent is at `address`. Raises OSError; the caller sets the
    deadline."""
    sock = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(sock, address)
        await _handshake(sock, address, key, port)
    except BaseException:
        sock.close()
        raise
    return sock


async def _handshake(sock: socket.socket, address: tuple[str, int], key: bytes, port: int) -> None:
    loop = asyncio.get_running_loop()
    nonce = os.urandom(NONCE_BYTES)
    await loop.sock_sendall(sock, PROTOCOL + nonce)
    answer = await _exactly(sock, ANSWER_BYTES)
    transcript = Transcript(key, address, nonce, answer[:NONCE_BYTES])
    if not proofs_agree(answer[NONCE_BYTES:], transcript.agents_proof()):
        raise NotProven(f"what answers at {address[0]} is not the container that was started there")
    await loop.sock_sendall(sock, port.to_bytes(PORT_BYTES, "big") + transcript.callers_proof(port))
    status = (await _exactly(sock, 1))[0]
    if status == Status.NOTHING_LISTENS:
        raise NothingListens(f"nothing listens on port {port}")
    if status != Status.OPEN:
        raise NotAllowed(f"port {port} is not led to")


async def _exactly(sock: socket.socket, size: int) -> bytes:
    loop, got = asyncio.get_running_loop(), b""
    while len(got) < size:
        more = await loop.sock_recv(sock, size - len(got))
        if not more:
            raise NotProven("the connection was closed before the agent had proven itself")
        got += more
    return got
