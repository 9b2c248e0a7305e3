"""The access log: one line per request, with ids and never with a query, which may hold a ticket."""

from typing import Literal, Protocol, runtime_checkable

import structlog

from codehub.proxy.access.verdicts import Forward
from codehub.proxy.http.parser import RequestHead

log = structlog.get_logger()


@runtime_checkable
class HasLogFields(Protocol):
    def log_fields(self) -> dict[str, str]:
        """The fields of a log line that say whose request it was."""
        ...


class AccessLog:
    def __init__(self, which: Literal["errors", "all"]) -> None:
        self._least = 400 if which == "errors" else 0

    def note(self, head: RequestHead, forward: Forward | None, status: int) -> None:
        if status < self._least:
            return
        grant = None if forward is None else forward.grant
        log.info(
            "request",
            request_id=head.request_id.decode("latin-1"),
            method=head.method.decode("latin-1"),
            host=head.fields.host.decode("latin-1"),
            path=head.target.partition(b"?")[0].decode("latin-1"),
            status=status,
            route="front_door" if forward is None else forward.route.name,
            peer=head.peer.decode("latin-1"),
            **(grant.log_fields() if isinstance(grant, HasLogFields) else {}),
        )
