"""Turning passwords into what may be stored."""

from typing import Protocol


class Passwords(Protocol):
    """Slow on purpose, and never on the event loop."""

    async def hash(self, password: str) -> str:
        """Another value each time."""
        ...

    async def verify(self, stored: str | None, password: str) -> bool:
        """The same work for every `stored`: with None, or with something that is no hash, the answer is False, and it
        takes as long as any other."""
        ...

    def outdated(self, stored: str) -> bool:
        """Made with other parameters than today's."""
        ...
