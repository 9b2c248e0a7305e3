"""Shares of what is scarce behind the front door and open to strangers: nobody takes all of it.

Connections to the platform's API, and the gate's attention: an address that has not signed in and a person who has each
have a part, as have all strangers and all people together. Whoever comes beyond a share waits in line behind the same
address or person, and the lines take turns.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from codehub.proxy.client import Client


class Share:
    __slots__ = ("_all", "_each", "_most", "_taken", "_waiting")

    def __init__(self, each: int, together: int) -> None:
        """`each`: how many of one address or person may use it at once. `together`: of all of them."""
        self._each = max(each, 1)
        self._most = max(together, 1)
        self._all = 0
        self._taken: dict[object, int] = {}
        self._waiting: dict[object, dict[Client, None]] = {}

    def take(self, client: "Client", key: object) -> bool:
        """True: it may go on. False: it stands in line, and is told by `admitted` when it may."""
        if self._has_room(key):
            self._count(key)
            return True
        self._waiting.setdefault(key, {})[client] = None
        return False

    def release(self, key: object) -> None:
        """What was taken is free again: the next in line may go on."""
        self._all -= 1
        left = self._taken[key] - 1
        if left:
            self._taken[key] = left
        else:
            del self._taken[key]
        following = next(filter(self._has_room, self._waiting), None)
        if following is None:
            return
        line = self._waiting.pop(following)
        client = next(iter(line))
        del line[client]
        if line:
            self._waiting[following] = line  # behind the others
        self._count(following)
        client.admitted()

    def leave(self, client: "Client", key: object) -> None:
        """It waits no longer."""
        line = self._waiting[key]
        del line[client]
        if not line:
            del self._waiting[key]

    def _has_room(self, key: object) -> bool:
        return self._all < self._most and self._taken.get(key, 0) < self._each

    def _count(self, key: object) -> None:
        self._all += 1
        self._taken[key] = self._taken.get(key, 0) + 1
