"""Pages of one port of a workspace that use another port of the same workspace: a front end on 3000, its API on 4000.

Each port has a host, and so an origin and cookies, of its own. What a page of one asks of another is cross-origin: the
browser asks first by a preflight, which carries no cookie, and sends the other host's cookie only if there is one that
may go along from there. So the proxy answers preflights between ports of one workspace itself, and lets a person
who is at one port join the others: a page of ours at that port's host fetches a one-time ticket's address from each
other port's host, whose answer sets a cookie for exactly that pair (partitioned by the top-level site). The Origin, or
for what has none the Referer, says which page asks; without one of the same workspace no cookie counts.
"""

from dataclasses import dataclass, field
from typing import Final

from codehub.proxy.access.addresses import Addresses, WorkspaceHost
from codehub.proxy.access.verdicts import Header, Respond
from codehub.proxy.access.workspace_request import WorkspaceRequest

MOST_PORTS: Final = 8
"""How many ports one page joins at once."""
_MOST_REMEMBERED: Final = 1024
_PREFLIGHT_SECONDS: Final = 600


def asking_origin(request: WorkspaceRequest) -> bytes | None:
    """The origin of the page that sends the request, as the browser says it. No page can forge either header."""
    fields = request.head.fields
    if fields.origin is not None:
        return fields.origin
    scheme, separator, rest = (fields.header(b"referer") or b"").partition(b"://")
    return scheme + separator + rest.partition(b"/")[0] if separator else None


def sibling_origin(request: WorkspaceRequest, addresses: Addresses) -> bytes | None:
    """The origin of the page that sends the request, if it is another one of the same workspace and a port is asked
    for. No port may use the IDE, whose own origin is of the workspace too."""
    origin = asking_origin(request)
    if origin is None or request.port is None or addresses.is_same_origin(origin, request.head.fields.host):
        return None
    return origin if addresses.is_workspace_origin(origin, str(request.name), request.head.fields.host) else None


def sharing_headers(origin: bytes) -> tuple[Header, ...]:
    """The headers of an answer that a page of that origin may read, though it was asked for with a cookie."""
    return (
        (b"Access-Control-Allow-Origin", origin),
        (b"Access-Control-Allow-Credentials", b"true"),
        (b"Vary", b"Origin"),
    )


def preflight(request: WorkspaceRequest, addresses: Addresses) -> Respond | None:
    """The answer to a preflight from another port of the same workspace, whether there is such a workspace or not: it
    follows from the request alone, and nothing reaches the workspace. None: this is no such preflight."""
    fields, origin = request.head.fields, sibling_origin(request, addresses)
    method = fields.header(b"access-control-request-method")
    if request.head.method != b"OPTIONS" or fields.origin is None or method is None or origin is None:
        return None
    headers = [*sharing_headers(origin), (b"Access-Control-Allow-Methods", method)]
    asked = fields.header(b"access-control-request-headers")
    if asked:
        headers.append((b"Access-Control-Allow-Headers", asked))
    headers.append((b"Access-Control-Max-Age", b"%d" % _PREFLIGHT_SECONDS))
    return Respond(204, tuple(headers))


@dataclass(slots=True)
class WantedPorts:
    """Which other ports the pages of a port asked for in vain: whoever opens such a page next joins them first."""

    _wanted: dict[tuple[str, int], dict[int, None]] = field(default_factory=dict)

    def want(self, page: WorkspaceHost, port: int) -> None:
        if page.port is None or page.port == port:
            return
        if len(self._wanted) >= _MOST_REMEMBERED:
            self._wanted.clear()
        wanted = self._wanted.setdefault((page.slug, page.port), {})
        if len(wanted) < MOST_PORTS:
            wanted[port] = None

    def take(self, slug: str, port: int) -> tuple[int, ...]:
        return tuple(self._wanted.pop((slug, port), {}))


def ports_in(text: str) -> tuple[int, ...]:
    """The ports in a list such as `4000,5000`; what is no port is left out."""
    numbers = (
        int(part) for part in text.split(",")[:MOST_PORTS] if part.isascii() and part.isdecimal() and len(part) < 6
    )
    return tuple(dict.fromkeys(number for number in numbers if 0 < number < 65536))
