"""What one person has under way in this process, counted: each reads an archive, and few may at a time."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar
from uuid import UUID

from codehub.domain.errors import LimitReached


class UnderWay:
    most: ClassVar[int]
    what: ClassVar[str]
    code: ClassVar[str]

    def __init__(self) -> None:
        self._by_person: Counter[UUID] = Counter()

    @contextmanager
    def one_more(self, user_id: UUID) -> Iterator[None]:
        if self._by_person[user_id] >= self.most:
            message = f"You have {self.most} {self.what} under way. Try again when one of them is done."
            raise LimitReached(message, code=self.code)
        self._by_person[user_id] += 1
        try:
            yield
        finally:
            self._by_person[user_id] -= 1
            self._by_person += Counter()  # forgets whoever has none


class Downloads(UnderWay):
    most = 4
    what = "downloads"
    code = "download_limit"


class Listings(UnderWay):
    most = 8
    what = "listings of archives"
    code = "listing_limit"
