"""An answer's head. A workspace runs anyone's code: its answers are read as strictly as a stranger's requests."""

from collections.abc import Callable
from typing import Final, NamedTuple

from codehub.proxy.addresses import host_name
from codehub.proxy.credentials import names_ours
from codehub.proxy.head import HOP_BY_HOP, UNTIL_CLOSE, Fields, Reader, Refused, ignore, split_lines, value_of

Readers = dict[bytes, Reader | None]
Location = Callable[[bytes], bytes]

_MOST_STATUS_LINES: Final = 256
_LONGEST_STATUS_LINE: Final = 64


class Asked(NamedTuple):
    """What was asked, as far as the answer is read against it: the request's Host, the origin of another port of the
    same workspace whose page asked, and where a browser finds what the answer says as its Location."""

    host: bytes = b""
    read_by: bytes | None = None
    location: Location | None = None


NOTHING_ASKED: Final = Asked()


class ResponseHead(Fields):
    body_length = UNTIL_CLOSE
    """What the headers say; the status or the method may mean that there is no body."""
    dated = False
    location: "Location | None" = None
    upgrade = False
    """It names WebSocket as what it switches to."""
    host = b""
    """The Host that was asked: no cookie of the answer may be for more than this."""
    read_by: bytes | None = None
    """The origin of another port of the same workspace, whose page asked."""

    def __init__(self, status: int, line: bytes, keep_alive: bool) -> None:  # noqa: FBT001 - as its first line says
        """`line`: the one that the client sees first, before all others."""
        self.lines = [line]
        self.status = status
        self.keep_alive = keep_alive


def parse_response(
    raw: bytes, most_lines: int, readers: Readers | None = None, asked: Asked = NOTHING_ASKED
) -> ResponseHead:
    """Raises Refused. `raw` ends before the empty line. `readers`: those of a stranger's answer, unless it is OURS,
    which may set our cookies, or one that is SHARING our origin, which may say nothing of the whole of it."""
    lines = split_lines(raw, most_lines)
    first = lines.pop(0)
    status, line, keep_alive = _status_lines.get(first) or _status_line(first)
    head = ResponseHead(status, line, keep_alive)
    head.host, head.read_by, head.location = asked
    head.read(lines, readers or _READERS)
    length = head.body() if head.chunked else head.length
    if length is not None:
        head.body_length = length
    return head


_status_lines: dict[bytes, tuple[int, bytes, bool]] = {}
"""Those seen before, up to a bound: there are few."""


def _status_line(line: bytes) -> tuple[int, bytes, bool]:
    version, code = line[:9], line[9:12]
    if version not in (b"HTTP/1.1 ", b"HTTP/1.0 ") or not code.isdigit() or line[12:13] not in (b"", b" "):
        raise Refused(502, "Not an HTTP status line.")
    status = int(code)
    if not 100 <= status <= 599:
        raise Refused(502, "Not an HTTP status.")
    parsed = status, b"HTTP/1.1 %d %b" % (status, line[13:]), version == b"HTTP/1.1 "
    if len(_status_lines) < _MOST_STATUS_LINES and len(line) <= _LONGEST_STATUS_LINE:
        _status_lines[line] = parsed
    return parsed


# ── readers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _read_set_cookie(head: ResponseHead, line: bytes) -> None:
    """As if the domain of all workspaces were a public suffix: a cookie for it would reach other people's workspaces
    and the platform, so it is dropped; one for the very host that was asked passes."""
    cookie = value_of(line)
    if not names_ours(cookie) and _is_for_this_host(cookie, head.host):
        head.lines.append(line)


def _is_for_this_host(cookie: bytes, host: bytes) -> bool:
    if b"domain" not in cookie.lower():
        return True
    for attribute in cookie.split(b";")[1:]:
        name, _, value = attribute.partition(b"=")
        domain = value.strip(b" \t").removeprefix(b".").lower()
        if name.strip(b" \t").lower() == b"domain" and domain and domain != host_name(host):
            return False
    return True


def _read_allow_origin(head: ResponseHead, line: bytes) -> None:
    """The app lets this origin read the answer, or lets all. To get here the page had to send our cookie, of which the
    app knows nothing; with one, browsers want the origin by name and a word on credentials."""
    if head.read_by is None or value_of(line) not in (b"*", head.read_by):
        head.lines.append(line)
        return
    head.lines += (
        b"Access-Control-Allow-Origin: " + head.read_by,
        b"Access-Control-Allow-Credentials: true",
        b"Vary: Origin",
    )


def _read_allow_credentials(head: ResponseHead, line: bytes) -> None:
    if head.read_by is None:
        head.lines.append(line)


def _read_location(head: ResponseHead, line: bytes) -> None:
    head.lines.append(line if head.location is None else b"Location: " + head.location(value_of(line)))


def _read_date(head: ResponseHead, line: bytes) -> None:
    if not head.dated:
        head.dated = True
        head.lines.append(line)


def _read_upgrade(head: ResponseHead, line: bytes) -> None:
    head.upgrade = value_of(line).lower() == b"websocket"


_READERS: Final[dict[bytes, Reader | None]] = {
    **HOP_BY_HOP,
    b"set-cookie": _read_set_cookie,
    b"set-cookie2": ignore,
    b"date": _read_date,
    b"location": _read_location,
    b"upgrade": _read_upgrade,
    b"x-request-id": ignore,
    b"sec-websocket-extensions": ignore,
    # What these say holds for more than the host that says it: the cookies of the whole site, or another server.
    b"clear-site-data": ignore,
    b"alt-svc": ignore,
    b"access-control-allow-origin": _read_allow_origin,
    b"access-control-allow-credentials": _read_allow_credentials,
}
"""Of an answer that a workspace gave at a host of its own."""

OURS: Final[Readers] = {**_READERS, b"set-cookie": None, b"clear-site-data": None, b"location": None}
SHARING: Final[Readers] = {
    **_READERS,
    # What these say holds for all of an origin, and here that is the platform's.
    b"service-worker-allowed": ignore,
    b"strict-transport-security": ignore,
    b"public-key-pins": ignore,
    b"expect-ct": ignore,
    b"nel": ignore,
    b"report-to": ignore,
    b"reporting-endpoints": ignore,
    b"accept-ch": ignore,
    b"critical-ch": ignore,
    b"origin-agent-cluster": ignore,
    b"set-login": ignore,
    b"sec-session-registration": ignore,
    b"secure-session-registration": ignore,
}
