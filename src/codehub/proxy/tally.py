"""How much of something each address, or each person, has, and how much they may have: connections, or bytes."""


class Tally:
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

    def __init__(self, tally: Tally) -> None:
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
