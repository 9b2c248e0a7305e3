"""The verdict on a request: what the server asks the authorizer, and the answers that it understands.

`decide` is a plain function call on the hot path: it looks into memory and answers. Only an authorizer that must ask
someone answers `Pending`. The server itself knows no sessions, owners or phases.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from codehub.ports.runtime import Endpoint
from codehub.proxy.presence.activity import WorkspaceActivity
from codehub.usecases.workspace_connection import Confirm

Header = tuple[bytes, bytes]


class Route:
    """A class of requests, and how many of them were answered, by the hundreds of their status."""

    __slots__ = ("answers", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.answers = [0] * 6


ELSEWHERE = Route("other")


class Tap(Protocol):
    """Reads the bytes of one upgraded socket as they pass. It is called between reading and writing, so it must be
    brief."""

    def from_client(self, data: bytes) -> None: ...

    def from_upstream(self, data: bytes) -> None: ...

    @property
    def at_boundary(self) -> bool:
        """Whether what came from the workspace so far ends with a whole frame."""
        ...

    def close(self) -> None:
        """Release what refers to itself in a circle: nothing passes any more."""
        ...


@dataclass(frozen=True, slots=True)
class Forward:
    """The verdict that a request goes on to an endpoint. One object may serve any number of requests."""

    endpoint: Endpoint
    grant: object = None
    """On whose behalf the request is let in; `abort_sockets` is asked in these terms."""
    target: bytes | None = None
    """The request target to send instead of the client's."""
    tap: Callable[[], Tap] | None = None
    """Makes a tap for each socket that is upgraded."""
    counted_user: object = None
    """The user whom the connection is counted for."""
    pool_key: object = None
    """Kept connections serve only verdicts that agree on this: an address may be another workspace's a moment later."""
    confirm: Confirm | None = None
    """Says, once a connection is made and before anything passes, whether the workspace still has that address."""
    route: Route = ELSEWHERE
    shares_origin: bool = False
    """Whether the workspace is served within the platform's own origin: what it says of that whole origin does not
    pass."""
    read_by: bytes | None = None
    """The origin of another port of the same workspace whose page asks: it may read what the app lets anybody read."""
    to_platform: bool = False
    """Whether the request goes to the platform itself: the platform's cookies and tokens pass, both ways."""
    location: Callable[[bytes], bytes] | None = None
    """Translates the Location of a workspace's answer to where a browser finds it."""
    platform_user: object = None
    """The user who asks the platform, whose share of its connections is used; None: somebody who has not signed in."""


REVOKED: Final = -1.0


class CachedAuthorization:
    """The permission for requests with these very headers to go on to a workspace, until it is withdrawn or expires.

    It hangs on the parsed headers, for which one object stands as long as a browser repeats them, so that a hot request
    costs one comparison.
    """

    __slots__ = ("activity", "forward", "prefix", "until")

    def __init__(self, forward: Forward, activity: WorkspaceActivity, prefix: bytes, until: float) -> None:
        self.forward = forward
        self.activity = activity
        self.prefix = prefix
        """The part of the target that the workspace does not see."""
        self.until = until
        """When the permission expires, by the authorizer's clock."""

    def inner(self, target: bytes) -> bytes:
        """The target as the workspace sees it."""
        return b"/" + target[len(self.prefix) :]

    def withdraw(self) -> None:
        self.until = REVOKED


@dataclass(frozen=True, slots=True)
class Respond:
    status: int
    headers: tuple[Header, ...] = ()
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Pending:
    answer: Awaitable[Forward | Respond]
    """The decision. It is cancelled when the client goes away or has waited too long: give each request its own, or
    shield it."""
    proven: bool = False
    """Whether it is known already who asks. Of the others, few of one address are looked up at a time."""


Verdict = Forward | Respond | Pending


class UpstreamFailure(StrEnum):
    """Why a forwarded request got no answer from its workspace."""

    UNREACHABLE = "unreachable"
    BUSY = "busy"
    CLOSED_EARLY = "closed_early"
    GARBAGE = "garbage"
    TOO_SLOW = "too_slow"


class Cap(StrEnum):
    """Which limit of connections is reached."""

    ALL = "too_many_connections"
    ADDRESS = "too_many_from_address"
    PERSON = "too_many_of_person"
