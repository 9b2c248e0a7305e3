"""A pass: that these very headers may go on to that place, until it is withdrawn or has to be looked at again.

It hangs on the parsed headers, for which one object stands as long as a browser repeats them, so that a hot request
costs one comparison.
"""

from typing import TYPE_CHECKING, Final

from codehub.proxy.gate import Forward

if TYPE_CHECKING:
    from codehub.proxy.directory import Entry

REVOKED: Final = -1.0


class Pass:
    __slots__ = ("entry", "forward", "prefix", "until")

    def __init__(self, forward: Forward, entry: "Entry", prefix: bytes, until: float) -> None:
        self.forward = forward
        self.entry = entry
        self.prefix = prefix
        """What of the target is ours and not the workspace's."""
        self.until = until
        """By the doorkeeper's clock."""

    def inner(self, target: bytes) -> bytes:
        """As the workspace sees it."""
        return b"/" + target[len(self.prefix) :]

    def withdraw(self) -> None:
        self.until = REVOKED
