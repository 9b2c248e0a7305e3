"""What passes the front doors, counted for the charts of the last day."""

from typing import Protocol


class Traffic(Protocol):
    async def add(self, requests: int, socket_seconds: float) -> None:
        """To the database's present minute, on top of whatever other front doors add; what is older than a day goes.
        `socket_seconds`: how long WebSockets were open, all of them together. Raises Unreachable: whether it was added
        is then not known."""
        ...
