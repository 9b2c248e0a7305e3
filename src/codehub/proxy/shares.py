"""Shares of what is scarce behind the front door and open to strangers: nobody takes all of it.

Connections to the platform's API, and the gate's attention: an address that has not signed in and a person who has each
have a part, as have all strangers and all people together. Whoever comes beyond a share waits in line behind the same
address or person, and the lines take turns.
"""

from collections.abc import Callable


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
