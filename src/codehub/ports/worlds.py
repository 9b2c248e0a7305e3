"""What the database remembers of each backend: which world it was when we first used it.

Remembered once, by a leader in its term; forgotten only by an operator who moved it on purpose.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from codehub.domain.worlds import Backend


@dataclass(frozen=True, slots=True)
class Remembered:
    identity: str
    since: datetime


class Worlds(Protocol):
    async def remembered(self) -> Mapping[Backend, Remembered]: ...

    async def adopt(self, backend: Backend, identity: str, epoch: int) -> str:
        """Remember that one, if none is remembered; the one that now is. Stale once that term is over."""
        ...

    async def forget(self, backend: Backend) -> bool:
        """So that the leader adopts what it finds. False: none was remembered."""
        ...
