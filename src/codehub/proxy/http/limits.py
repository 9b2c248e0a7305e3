"""The bounds of the proxy: how long it waits, how much it holds, how many it serves, and who may have how much of it.

Connections to the platform's API and the authorizer's attention are scarce and open to anybody, so they are shared:
each address that has not signed in and each user has a part, as have all of them together. Whoever comes beyond a share
waits in line behind the same address or user, and the lines take turns.
"""

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network
from typing import Final

from codehub.proxy.http.headers import UNKNOWN_PEER, read_address

_IPV6_CLIENT_BITS: Final = 64
"""The prefix of IPv6 that one customer is commonly given: all of it counts as one client."""


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """The bounds in seconds, bytes and counts. Deadlines are checked once per `tick`, so they are late by up to that
    much."""

    head_bytes: int = 32 * 1024
    header_lines: int = 200
    """How many header lines a request may have; a workspace's answer may have more."""
    response_head_bytes: int = 128 * 1024
    response_header_lines: int = 1000
    head_seconds: float = 15.0
    """How long a request's head may take, from its first byte to its last."""
    keep_alive_seconds: float = 75.0
    body_idle_seconds: float = 600.0
    """How long no byte of a request's body may come, and no byte of an answer be read by its client."""
    small_body_bytes: int = 32 * 1024
    """A body for the platform up to this size is read whole before a connection to it is taken. Who has not signed in
    may send no larger one: nothing that they may ask needs more."""
    small_body_seconds: float = 30.0
    """How long a body of up to `small_body_bytes` may take, from the head of its request to its last byte."""
    held_per_address: int = 32 * 1024 * 1024
    """How many bytes of requests are held unread, unfinished or undecided, for one address that has not signed in."""
    connect_seconds: float = 5.0
    """How long connecting may take, or waiting for one of the target's connections to come free."""
    response_seconds: float = 4 * 3600.0
    """How long no byte of an answer may come, before its head or within its body: long polls, quiet event streams and
    builds take their time, and a workspace that stops ends what is open to it."""
    wait_seconds: float = 60.0
    """How long an authorizer may take that answers later."""
    undecided_per_address: int = 128
    """How many requests of one address an authorizer looks into at once, before it knows who asks; the others wait."""
    linger_seconds: float = 3.0
    """How long what the client still sends is read and discarded, so that it can read our last answer."""
    last_request_seconds: float = 1.0
    """How long a kept connection may still ask, once, when the server drains: its next request may be on its way."""
    half_closed_seconds: float = 60.0
    """How long an answer may take to a client that has closed its sending side, which may as well have gone."""
    pool_idle_seconds: float = 4.0
    """How long an idle connection is kept. Node closes its own after five seconds: below that, a request seldom meets a
    connection that is being closed."""
    unrepeatable_idle_seconds: float = 1.0
    """A request that must not be sent twice takes no pooled connection that has been idle for longer."""
    pool_idle: int = 128
    per_target: int = 512
    connections: int = 20_000
    """How many connections of clients are kept. Each takes up to two descriptors: its own, and that to its
    workspace."""
    per_address: int = 0
    """How many connections one address may have; 0 is no bound."""
    per_person: int = 0
    """How many connections one signed-in user may have, upgraded ones included; 0 is no bound."""
    write_buffer: int = 256 * 1024
    """How many bytes may wait to be sent. Above it the other side is no longer read."""
    tick: float = 0.5


SPARE_DESCRIPTORS: Final = 512
"""How many descriptors are kept for everything but clients: databases, kept connections, rejected connections."""


def limits_within(descriptors: int, per_address: int | None, per_person: int, response_seconds: float) -> ProxyLimits:
    """The limits of a process that may open so many descriptors. `per_address` None: half of its connections, so that
    no single address takes them all, and an office behind one is not locked out."""
    connections = max(min(ProxyLimits().connections, (descriptors - SPARE_DESCRIPTORS) // 2), 2)
    half = connections // 2
    return ProxyLimits(
        connections=connections,
        per_address=half if per_address is None else per_address,
        per_person=per_person,
        response_seconds=response_seconds,
    )


class FairShare:
    __slots__ = ("_all", "_each", "_most", "_taken", "_waiting")

    def __init__(self, each: int, together: int) -> None:
        """`each`: how many permits one owner may have at once. `together`: how many all of them may."""
        self._each = max(each, 1)
        self._most = max(together, 1)
        self._all = 0
        self._taken: dict[object, int] = {}
        self._waiting: dict[object, dict[Permit, None]] = {}

    @property
    def taken(self) -> int:
        return self._all

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def take(self, permit: "Permit") -> bool:
        """Whether the permit is granted at once. If not, it waits, and is told by `granted` later."""
        if self._has_room(permit.owner):
            self._count(permit.owner)
            return True
        self._waiting.setdefault(permit.owner, {})[permit] = None
        return False

    def release(self, owner: object) -> None:
        """Free one permit of this owner's, and grant the next that waits."""
        self._all -= 1
        left = self._taken[owner] - 1
        if left:
            self._taken[owner] = left
        else:
            del self._taken[owner]
        following = next(filter(self._has_room, self._waiting), None)
        if following is None:
            return
        line = self._waiting.pop(following)
        permit = next(iter(line))
        del line[permit]
        if line:
            self._waiting[following] = line  # behind the others
        self._count(following)
        permit.granted()

    def cancel(self, permit: "Permit") -> None:
        """Take a permit out of its line."""
        line = self._waiting[permit.owner]
        del line[permit]
        if not line:
            del self._waiting[permit.owner]

    def _has_room(self, owner: object) -> bool:
        return self._all < self._most and self._taken.get(owner, 0) < self._each

    def _count(self, owner: object) -> None:
        self._all += 1
        self._taken[owner] = self._taken.get(owner, 0) + 1


class Permit:
    """One use of a share, from when it is asked for until it is released."""

    __slots__ = ("_share", "_then", "is_waiting", "owner")

    def __init__(self, share: FairShare, owner: object, then: Callable[[], None]) -> None:
        """`then` is called once the permit is granted, which `acquire` asks for."""
        self._share = share
        self._then = then
        self.owner = owner
        self.is_waiting = False

    def acquire(self) -> None:
        """Ask for the permit: it is granted now, or when there is room."""
        self.is_waiting = True
        if self._share.take(self):
            self.granted()

    def granted(self) -> None:
        self.is_waiting = False
        self._then()

    def release(self) -> None:
        if self.is_waiting:
            self._share.cancel(self)
        else:
            self._share.release(self.owner)


class UsageCounter:
    """How much of something each owner has: connections, or bytes. Owners that have none are not kept."""

    __slots__ = ("_counts", "_most")

    def __init__(self, most: int) -> None:
        """`most`: how much one owner may have; 0 is no bound."""
        self._most = most
        self._counts: dict[object, int] = {}

    def add(self, key: object, amount: int = 1) -> bool:
        """Count more for this owner. False: that would be more than it may have, and nothing was counted."""
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


class CountedUsage:
    """An amount that is counted for one owner at a time; both may change."""

    __slots__ = ("_amount", "_counter", "_owner")

    def __init__(self, counter: UsageCounter) -> None:
        self._counter = counter
        self._owner: object = None
        self._amount = 0

    def update(self, owner: object, amount: int) -> bool:
        """Count this amount for this owner instead. False: that would be more than it may have, and nothing is counted
        now."""
        if self._amount:
            self._counter.drop(self._owner, self._amount)
            self._amount = 0
        if not amount:
            return True
        if not self._counter.add(owner, amount):
            return False
        self._owner, self._amount = owner, amount
        return True


def client_network(address: bytes) -> bytes | None:
    """What a client is counted by: its address, or its network of IPv6. None: clients over a unix socket are not
    counted."""
    if address == UNKNOWN_PEER:
        return None
    read = read_address(address) if b":" in address else None
    if not isinstance(read, IPv6Address):
        return address
    return str(IPv6Network((int(read), _IPV6_CLIENT_BITS), strict=False)).encode()
