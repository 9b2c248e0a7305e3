"""The handshake at the beginning of every connection to a workspace agent.

    caller → agent   PROTOCOL, caller's nonce
    agent  → caller  agent's nonce, HMAC(key, agent, address, both nonces)
    caller → agent   port, HMAC(key, caller, address, both nonces, port)
    agent  → caller  status; after OPEN both sides' bytes pass as they are

The key never crosses the wire. The agent proves itself first: whoever else has got its address sees one random number.
The address that was dialled is part of both proofs, so that nobody can pass the handshake on to the real agent.
`dial` is the caller's side, relay.py the agent's.
"""

import asyncio
import hmac
import os
import socket
from enum import IntEnum

PROTOCOL = b"CHA1"
NONCE_BYTES = 32
PROOF_BYTES = 32
PORT_BYTES = 2
KEY_BYTES = 32

HELLO_BYTES = len(PROTOCOL) + NONCE_BYTES
ANSWER_BYTES = NONCE_BYTES + PROOF_BYTES
REQUEST_BYTES = PORT_BYTES + PROOF_BYTES

KEY_VARIABLE = "CODEHUB_AGENT_KEY"
"""Names the key of this start in the agent's environment, in hexadecimal digits."""
AGENT_PORT = 61079
"""Where the agent listens: above the ports that programs are given and below none that people choose."""


class Status(IntEnum):
    OPEN = 0
    NOTHING_LISTENS = 1
    NOT_ALLOWED = 2
    """The agent's own port, or no port at all."""


class Transcript:
    """What both sides know once the nonces are exchanged. `address`: the agent's, as it was dialled."""

    __slots__ = ("_context", "_key")

    def __init__(self, key: bytes, address: tuple[str, int], callers_nonce: bytes, agents_nonce: bytes) -> None:
        self._key = key
        self._context = f"{address[0]} {address[1]} ".encode() + callers_nonce + agents_nonce

    def agents_proof(self) -> bytes:
        return self._proof(b"agent ")

    def callers_proof(self, port: int) -> bytes:
        return self._proof(b"caller " + port.to_bytes(PORT_BYTES, "big"))

    def _proof(self, what: bytes) -> bytes:
        return hmac.digest(self._key, what + self._context, "sha256")


def proofs_agree(one: bytes, other: bytes) -> bool:
    return hmac.compare_digest(one, other)


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
