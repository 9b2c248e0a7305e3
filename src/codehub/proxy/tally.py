"""How many connections each address, or each person, has open, and how many they may have."""


class Tally:
    """Only those that have some are kept."""

    __slots__ = ("_counts", "_most")

    def __init__(self, most: int) -> None:
        """`most`: 0 is no bound."""
        self._most = most
        self._counts: dict[object, int] = {}

    def add(self, key: object) -> bool:
        """False: it has as many as it may, and this one is not counted."""
        count = self._counts.get(key, 0)
        if self._most and count >= self._most:
            return False
        self._counts[key] = count + 1
        return True

    def drop(self, key: object) -> None:
        count = self._counts[key] - 1
        if count:
            self._counts[key] = count
        else:
            del self._counts[key]

    def __len__(self) -> int:
        return len(self._counts)
