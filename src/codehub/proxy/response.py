"""An answer's head. A workspace runs anyone's code: its answers are read as strictly as a stranger's requests."""

from typing import Final

from codehub.proxy.credentials import names_ours
from codehub.proxy.head import HOP_BY_HOP, UNTIL_CLOSE, Fields, Reader, Refused, ignore, split_lines, value_of

Readers = dict[bytes, Reader | None]

_MOST_STATUS_LINES: Final = 256
_LONGEST_STATUS_LINE: Final = 64


class ResponseHead(Fields):
    body_length = UNTIL_CLOSE
    """What the headers say; the status or the method may mean that there is no body."""
    dated = False
    upgrade = False
    """It names WebSocket as what it switches to."""

    def __init__(self, status: int, line: bytes, keep_alive: bool) -> None:  # noqa: FBT001 - as its first line says
        """`line`: the one that the client sees first, before all others."""
        self.lines = [line]
        self.status = status
        self.keep_alive = keep_alive


def parse_response(raw: bytes, most_lines: int, readers: Readers | None = None) -> ResponseHead:
    """Raises Refused. `raw` ends before the empty line. `readers`: those of a stranger's answer, unless it is OURS,
    which may set our cookies, or one that is SHARING our origin, which may say nothing of the whole of it."""
    lines = split_lines(raw, most_lines)
    first = lines.pop(0)
    status, line, keep_alive = _status_lines.get(first) or _status_line(first)
    head = ResponseHead(status, line, keep_alive)
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
    if not names_ours(value_of(line)):
        head.lines.append(line)


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
    b"upgrade": _read_upgrade,
    b"x-request-id": ignore,
    b"sec-websocket-extensions": ignore,
}

OURS: Final[Readers] = {**_READERS, b"set-cookie": None}
SHARING: Final[Readers] = {**_READERS, b"service-worker-allowed": ignore, b"clear-site-data": ignore}
