"""The handshake at the beginning of every connection to a workspace agent.

    caller → agent   PROTOCOL, caller's nonce
    agent  → caller  agent's nonce, HMAC(key, agent, address, both nonces)
    caller → agent   port, HMAC(key, caller, address, both nonces, port)
    agent  → caller  status; after OPEN both sides' bytes pass as they are

A caller that asks for the agent's own port runs a command: after OPEN both sides' bytes are frames (exec_frames.py).

A caller that asks for the port SECRETS offers the secrets of this start instead: after WANTED it sends them sealed,
with a key that is of this connection alone, and hears OPEN once they are taken.

The key never crosses the wire. The agent proves itself first: whoever else has got its address sees one random number.
The address that was dialled is part of both proofs, so that nobody can pass the handshake on to the real agent.
`dial` and `hand_over` are the caller's side, relay.py the agent's.
"""

import asyncio
import hashlib
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
SECRETS = 0
"""What a caller asks for, instead of a port, that has the secrets of this start to hand over."""
SIZE_BYTES = 4
MOST_SECRETS_BYTES = 8 << 20
AGENT_PORT = 61079
"""Where the agent listens: above the ports that programs are given and below none that people choose."""


def is_led_to(port: int) -> bool:
    """Whether a caller may ask for this port of a workspace as for a program's own; the agent's is for commands, which
    are authorised and audited elsewhere."""
    return 0 < port < 1 << 8 * PORT_BYTES and port != AGENT_PORT


class Status(IntEnum):
    OPEN = 0
    NOTHING_LISTENS = 1
    NOT_ALLOWED = 2
    """What an agent that cannot run commands says of its own port."""
    WANTED = 3
    """The agent waits for the secrets of this start."""
    NOT_WANTED = 4
    """The agent has the secrets of this start already, or was started without any."""


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

    def seal(self, secrets: bytes) -> bytes:
        """The secrets for the other side of this connection alone: their size, then encrypted and authenticated."""
        sealed = self._encrypted(secrets)
        return len(sealed).to_bytes(SIZE_BYTES, "big") + sealed + self._proof(b"sealed " + sealed)

    def unseal(self, sealed: bytes, proof: bytes) -> bytes | None:
        """What was sealed, without its size; None if it was changed on the way."""
        return self._encrypted(sealed) if proofs_agree(proof, self._proof(b"sealed " + sealed)) else None

    def _encrypted(self, text: bytes) -> bytes:
        """The text, encrypted or decrypted: it is combined with a stream of bytes that only this connection has."""
        stream = hashlib.shake_256(self._proof(b"stream ")).digest(len(text))
        return (int.from_bytes(text, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(text), "big")

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
    sock = await _connected(address)
    try:
        _, status = await _handshake(sock, address, key, port)
        if status == Status.NOTHING_LISTENS:
            raise NothingListens(f"nothing listens on port {port}")
        if status != Status.OPEN:
            raise NotAllowed(f"port {port} is not led to")
    except BaseException:
        sock.close()
        raise
    return sock


async def hand_over(address: tuple[str, int], key: bytes, secrets: bytes) -> None:
    """Gives the agent at `address` the secrets of its start. One that has them already, or waits for none, is left
    alone. Raises OSError; the caller sets the deadline."""
    with await _connected(address) as sock:
        transcript, status = await _handshake(sock, address, key, SECRETS)
        if status == Status.WANTED:
            await asyncio.get_running_loop().sock_sendall(sock, transcript.seal(secrets))
            await _exactly(sock, 1)


async def _connected(address: tuple[str, int]) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


async def _handshake(sock: socket.socket, address: tuple[str, int], key: bytes, port: int) -> tuple[Transcript, int]:
    """What both sides know now, and the agent's status."""
    loop = asyncio.get_running_loop()
    nonce = os.urandom(NONCE_BYTES)
    await loop.sock_sendall(sock, PROTOCOL + nonce)
    answer = await _exactly(sock, ANSWER_BYTES)
    transcript = Transcript(key, address, nonce, answer[:NONCE_BYTES])
    if not proofs_agree(answer[NONCE_BYTES:], transcript.agents_proof()):
        raise NotProven(f"what answers at {address[0]} is not the container that was started there")
    await loop.sock_sendall(sock, port.to_bytes(PORT_BYTES, "big") + transcript.callers_proof(port))
    return transcript, (await _exactly(sock, 1))[0]


async def _exactly(sock: socket.socket, size: int) -> bytes:
    loop, got = asyncio.get_running_loop(), b""
    while len(got) < size:
        more = await loop.sock_recv(sock, size - len(got))
        if not more:
            raise NotProven("the connection was closed before the agent had proven itself")
        got += more
    return got
