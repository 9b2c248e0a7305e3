"""Every bound of the relay in one place: how long it waits, how much it holds, how many it serves.

Shares of what is scarce behind the front door and open to strangers: nobody takes all of it.

Connections to the platform's API, and the gate's attention: an address that has not signed in and a person who has each
have a part, as have all strangers and all people together. Whoever comes beyond a share waits in line behind the same
address or person, and the lines take turns.

How much of something each address, or each person, has, and how much they may have: connections, or bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ProxyLimits:
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


def limits_within(descriptors: int, per_address: int | None, per_person: int, response_seconds: float) -> ProxyLimits:
    """What a process with so many descriptors can keep. `per_address` None: half of that, so that no single address
    takes them all, and an office behind one is not locked out."""
    connections = max(min(ProxyLimits().connections, (descriptors - SPARE_DESCRIPTORS) // 2), 2)
    half = connections // 2
    return ProxyLimits(
        connections=connections,
        per_address=half if per_address is None else per_address,
        per_person=per_person,
        response_seconds=response_seconds,
    )


class Share:
    __slots__ = ("_all", "_each", "_most", "_taken", "_waiting")

    def __init__(self, each: int, together: int) -> None:
        """`each`: how many turns one address or person may have at once. `together`: all of them."""
        self._each = max(each, 1)
        self._most = max(together, 1)
        self._all = 0
        self._taken: dict[object, int] = {}
        self._waiting: dict[object, dict[Turn, None]] = {}

    @property
    def taken(self) -> int:
        return self._all

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def take(self, turn: "Turn") -> bool:
        """False: it stands in line, and is told by `begin` when it is its turn."""
        if self._has_room(turn.whose):
            self._count(turn.whose)
            return True
        self._waiting.setdefault(turn.whose, {})[turn] = None
        return False

    def release(self, whose: object) -> None:
        """What was taken is free again: the next in line begins."""
        self._all -= 1
        left = self._taken[whose] - 1
        if left:
            self._taken[whose] = left
        else:
            del self._taken[whose]
        following = next(filter(self._has_room, self._waiting), None)
        if following is None:
            return
        line = self._waiting.pop(following)
        turn = next(iter(line))
        del line[turn]
        if line:
            self._waiting[following] = line  # behind the others
        self._count(following)
        turn.begin()

    def leave(self, turn: "Turn") -> None:
        """It waits no longer."""
        line = self._waiting[turn.whose]
        del line[turn]
        if not line:
            del self._waiting[turn.whose]

    def _has_room(self, whose: object) -> bool:
        return self._all < self._most and self._taken.get(whose, 0) < self._each

    def _count(self, whose: object) -> None:
        self._all += 1
        self._taken[whose] = self._taken.get(whose, 0) + 1


class Turn:
    """One use of a share, from when it is asked for until it is given back."""

    __slots__ = ("_share", "_then", "in_line", "whose")

    def __init__(self, share: Share, whose: object, then: Callable[[], None]) -> None:
        """`then` is called when there is room: not by this, which only stands in line."""
        self._share = share
        self._then = then
        self.whose = whose
        self.in_line = False

    def ask(self) -> None:
        """Begin now, or when there is room."""
        self.in_line = True
        if self._share.take(self):
            self.begin()

    def begin(self) -> None:
        self.in_line = False
        self._then()

    def give_back(self) -> None:
        if self.in_line:
            self._share.leave(self)
        else:
            self._share.release(self.whose)


class ConnectionCounter:
    """Only those that have some are kept."""

    __slots__ = ("_counts", "_most")

    def __init__(self, most: int) -> None:
        """`most`: 0 is no bound."""
        self._most = most
        self._counts: dict[object, int] = {}

    def add(self, key: object, amount: int = 1) -> bool:
        """False: that would be more than it may have, and nothing was counted."""
        count = self._counts.get(key, 0) + amount
        if self._most and count > self._most:
            return False
        self._counts[key] = count
        return True

    def drop(self, key: object, amount: int = 1) -> None:
        count = self._counts[key] - amount
        if count:
            self._counts[key] = count
        else:
            del self._counts[key]

    def __len__(self) -> int:
        return len(self._counts)


class Counted:
    """An amount that is counted as somebody's, and changes."""

    __slots__ = ("_amount", "_tally", "_whose")

    def __init__(self, tally: ConnectionCounter) -> None:
        self._tally = tally
        self._whose: object = None
        self._amount = 0

    def becomes(self, whose: object, amount: int) -> bool:
        """False: that would be more than they may have, and nothing is counted any more."""
        if self._amount:
            self._tally.drop(self._whose, self._amount)
            self._amount = 0
        if not amount:
            return True
        if not self._tally.add(whose, amount):
            return False
        self._whose, self._amount = whose, amount
        return True
