"""The handshake at the beginning of every connection to a workspace agent.

    caller → agent   PROTOCOL, caller's nonce
    agent  → caller  agent's nonce, HMAC(key, agent, address, both nonces)
    caller → agent   port, HMAC(key, caller, address, both nonces, port)
    agent  → caller  status; after OPEN both sides' bytes pass as they are

The key never crosses the wire. The agent proves itself first: whoever else has got its address sees one random number.
The address that was dialled is part of both proofs, so that nobody can pass the handshake on to the real agent.
"""

import hmac
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
