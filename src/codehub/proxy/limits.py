"""Every bound of the relay in one place: how long it waits, how much it holds, how many it serves."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, bytes and counts. Deadlines are checked once per `tick`, so they are late by up to that much."""

    head_bytes: int = 32 * 1024
    header_lines: int = 200
    """Of a request; a workspace's answer may have more."""
    response_head_bytes: int = 128 * 1024
    response_header_lines: int = 1000
    head_seconds: float = 15.0
    """From the first byte of a request's head to its last."""
    keep_alive_seconds: float = 75.0
    body_idle_seconds: float = 600.0
    """No byte of a request's body, or nothing read of an answer that waits to be."""
    small_body_bytes: int = 32 * 1024
    """A body for the platform up to this size is read whole before a connection to it is taken. Who has not signed in
    may send no larger one: nothing that a stranger may ask needs more."""
    small_body_seconds: float = 30.0
    """From the head of such a request to the last byte of its body, however steadily it drips."""
    held_per_address: int = 32 * 1024 * 1024
    """Bytes of requests that are held unread, unfinished or undecided, for one address that has not signed in."""
    connect_seconds: float = 5.0
    """To connect, or to wait for one of the target's connections to come free."""
    response_seconds: float = 4 * 3600.0
    """No byte of an answer, before its head or within its body: long polls, quiet event streams and builds take their
    time, and a workspace that stops ends what is open to it."""
    wait_seconds: float = 60.0
    """For a gate that answers later."""
    undecided_per_address: int = 128
    """Requests of one address that a gate looks into at once, before it knows who asks; the others wait in line."""
    linger_seconds: float = 3.0
    """How long what the client still sends is read and forgotten, so that it can read our last answer."""
    last_request_seconds: float = 1.0
    """How long a kept connection may still ask, once, when the server drains: its next request may be on its way."""
    half_closed_seconds: float = 60.0
    """For the answer to a client that has closed its sending side, which may as well have gone."""
    pool_idle_seconds: float = 4.0
    """Below the five seconds after which Node closes an idle connection: the race is then seldom run."""
    unrepeatable_idle_seconds: float = 1.0
    """A request that must not be sent twice takes no pooled connection that has been idle for longer."""
    pool_idle: int = 128
    per_target: int = 512
    connections: int = 20_000
    """Of clients; each takes up to two descriptors, the other to its workspace."""
    per_address: int = 0
    """Connections of one address; 0: no bound."""
    per_person: int = 0
    """Connections of one signed-in person, upgraded ones included; 0: no bound."""
    write_buffer: int = 256 * 1024
    """Above it the other side is no longer read."""
    tick: float = 0.5


SPARE_DESCRIPTORS: Final = 512
"""For everything that is no client: databases, kept connections, those that are turned away."""


def limits_within(descriptors: int, per_address: int | None, per_person: int, response_seconds: float) -> Limits:
    """What a process with so many descriptors can keep. `per_address` None: half of that, so that no single address
    takes them all, and an office behind one is not locked out."""
    connections = max(min(Limits().connections, (descriptors - SPARE_DESCRIPTORS) // 2), 2)
    half = connections // 2
    return Limits(
        connections=connections,
        per_address=half if per_address is None else per_address,
        per_person=per_person,
        response_seconds=response_seconds,
    )
