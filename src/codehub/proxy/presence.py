"""Whether somebody is there: what counts as presence among the bytes of a socket and the requests of a browser."""

from collections.abc import Callable


class ClientPresence:
    """Any bytes from the client count."""

    at_boundary = False

    def __init__(self, seen: Callable[[], None]) -> None:
        self._seen = seen

    def from_client(self, data: bytes) -> None:
        if data:
            self._seen()

    def from_upstream(self, data: bytes) -> None: ...


Presence = ClientPresence


def counts(method: bytes, target: bytes) -> bool:
    return bool(method and target)
