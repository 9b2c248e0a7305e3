"""A request's head, parsed strictly and once: what this accepts, every HTTP parser reads the same way.

Its headers become what the workspace may see of them here too: hop-by-hop headers, our cookies and our tokens end here.
"""

from typing import TYPE_CHECKING, Final

from codehub.proxy.credentials import is_our_token, without_ours
from codehub.proxy.head import (
    HOP_BY_HOP,
    Fields,
    Reader,
    Refused,
    ignore,
    is_token,
    split_lines,
    value_of,
)

if TYPE_CHECKING:
    from codehub.proxy.passes import Pass

REPEATABLE: Final = frozenset((b"GET", b"HEAD", b"PUT", b"DELETE", b"OPTIONS"))
METHODS: Final = REPEATABLE | {b"POST", b"PATCH"}
"""Those that are common. Any other token is a method too, for workspaces speak WebDAV and more."""
_UNSERVED: Final = frozenset((b"CONNECT", b"TRACE"))
"""The one would make a tunnel to anywhere; the other answers with the request itself, and what proxies added to it."""

_TARGET: Final = bytes(n for n in range(0x21, 0x7F) if n not in b"#")
_HOST: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._:[]~%!$&'()*+;="
_VERSIONS: Final = (b"HTTP/1.1", b"HTTP/1.0")
_LONGEST_REMEMBERED: Final = 3072
_MOST_REMEMBERED: Final = 1024
_LONGEST_HOST: Final = 262
_ID: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:+/="
_LONGEST_ID: Final = 128


class RequestFields(Fields):
    """The headers of a request. One object serves all requests that repeat them, so what was read stays."""

    host = b""
    cookies: list[bytes] | None = None
    """The values of Cookie headers, ours among them: the gate needs those, the workspace never sees them."""
    authorization: bytes | None = None
    origin: bytes | None = None
    request_id = b""
    forwarded_for = b""
    forwarded_proto = b""
    """What a proxy before us may have said. Never passed on: it counts if that proxy is believed, else not at all."""
    expects = False
    upgrade_to: tuple[bytes, ...] = ()
    body_length = 0
    """A count, or CHUNKED."""
    upgrade = False
    """They ask for a WebSocket."""
    passed = b""
    """What the workspace sees of them, as lines that each end: without ours, Host and the framing."""
    passed_whole: bytes | None = None
    """The same with ours, for the platform itself; made when it is first asked for."""
    passport: "Pass | None" = None
    """What the gate found out about them."""

    _searched: tuple[bytes, bytes] | None = None
    """The passed-through lines as one text, as they are and in lower case."""

    def header(self, name: bytes) -> bytes | None:
        """The first of a passed-through header, in any case; None without it."""
        if self._searched is None:
            text = b"\r\n".join((b"", *self.lines, b""))
            self._searched = text, text.lower()
        text, lower = self._searched
        wanted = b"\r\n%b:" % name.lower()
        at = lower.find(wanted)
        if at < 0:
            return None
        at += len(wanted)
        return text[at : text.index(b"\r\n", at)].strip(b" \t")


class RequestHead:
    __slots__ = ("fields", "keep_alive", "method", "peer", "request_id", "target", "version_1_1")

    def __init__(self, method: bytes, target: bytes, fields: RequestFields, *, version_1_1: bool) -> None:
        self.method = method
        self.target = target
        self.fields = fields
        self.version_1_1 = version_1_1
        self.keep_alive = version_1_1 and fields.keep_alive
        self.request_id = fields.request_id
        """The client's, if it sent a fit one; else the server makes one."""
        self.peer = b""
        """The client's address, as the server saw it."""


def parse_request(raw: bytes, most_lines: int) -> RequestHead:
    """Raises Refused. `raw` ends before the empty line; one more empty line may stand before it."""
    end = raw.find(b"\r\n")
    if end == 0:
        raw = raw[2:]
        end = raw.find(b"\r\n")
    if end < 0:
        end = len(raw)
    method, target, version_1_1 = _request_line(raw[:end])
    block = raw[end:]
    fields = _remembered.get(block)
    if fields is None:
        fields = _read(block, most_lines)
    if fields.upgrade and not (method == b"GET" and version_1_1):
        raise Refused(400, "An upgrade is asked for by GET, over HTTP/1.1, without a body.")
    if fields.chunked and not version_1_1:
        raise Refused(400, "HTTP/1.0 has no Transfer-Encoding.")
    return RequestHead(method, target, fields, version_1_1=version_1_1)


_remembered: dict[bytes, RequestFields] = {}
"""Browsers repeat their headers from request to request, so blocks of lines are remembered, whole and up to a bound."""


def _read(block: bytes, most_lines: int) -> RequestFields:
    lines = split_lines(block, most_lines)
    del lines[0]
    fields = RequestFields()
    fields.read(lines, _READERS)
    if not fields.host:
        raise Refused(400, "A Host header is needed.")
    fields.body_length = fields.body() or 0
    fields.upgrade = fields.upgrading and b"websocket" in fields.upgrade_to
    if fields.upgrade and fields.body_length:
        raise Refused(400, "An upgrade is asked for by GET, over HTTP/1.1, without a body.")
    fields.passed = passed_lines(fields)
    if len(block) <= _LONGEST_REMEMBERED and not fields.upgrade:  # each of those has a key of its own
        if len(_remembered) >= _MOST_REMEMBERED:
            _remembered.clear()
        _remembered[block] = fields
    return fields


def whole_lines(fields: RequestFields) -> bytes:
    if fields.passed_whole is None:
        fields.passed_whole = passed_lines(fields, ours=True)
    return fields.passed_whole


def passed_lines(fields: RequestFields, *, ours: bool = False) -> bytes:
    """What a workspace may see of the headers; with `ours`, what the platform may."""
    parts = [*fields.lines]
    if fields.cookies is not None and (cookie := b"; ".join(fields.cookies) if ours else without_ours(fields.cookies)):
        parts.append(b"Cookie: " + cookie)
    if fields.authorization is not None and (ours or not is_our_token(fields.authorization)):
        parts.append(b"Authorization: " + fields.authorization)
    if fields.origin is not None:
        parts.append(b"Origin: " + fields.origin)
    if fields.expects and fields.body_length:
        parts.append(b"Expect: 100-continue")
    if fields.upgrade:
        parts.append(b"Connection: Upgrade\r\nUpgrade: websocket")
    parts.append(b"")
    return b"\r\n".join(parts)


def _request_line(line: bytes) -> tuple[bytes, bytes, bool]:
    parts = line.split(b" ")
    if len(parts) != 3:
        raise Refused(400, "The request line is not `METHOD target HTTP/1.1`.")
    method, target, version = parts
    if version not in _VERSIONS:
        if version[:5] == b"HTTP/" and len(version) == 8:
            raise Refused(505, "Only HTTP/1.1 is spoken here.")
        raise Refused(400, "The request line is not `METHOD target HTTP/1.1`.")
    if method not in METHODS:
        _check_method(method)
    if target.translate(None, _TARGET) or (target[:1] != b"/" and not (target == b"*" and method == b"OPTIONS")):
        raise Refused(400, "The request target is not a path.")
    return method, target, version == b"HTTP/1.1"


def _check_method(method: bytes) -> None:
    """A known method in other letters is none: some servers would take `head` for HEAD, and some would not."""
    if not is_token(method):
        raise Refused(400, "The method is not a token.")
    if method.upper() in _UNSERVED:
        raise Refused(405, "This method is not served.")
    if method.upper() in METHODS:
        raise Refused(501, "Methods are written in capital letters.")


# ── readers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _read_host(fields: RequestFields, line: bytes) -> None:
    value = value_of(line)
    if fields.host:
        raise Refused(400, "Two Host headers.")
    if not value or len(value) > _LONGEST_HOST or value.translate(None, _HOST):
        raise Refused(400, "The Host header is not a host.")
    fields.host = value


def _read_cookie(fields: RequestFields, line: bytes) -> None:
    if fields.cookies is None:
        fields.cookies = [value_of(line)]
    else:
        fields.cookies.append(value_of(line))


def _read_authorization(fields: RequestFields, line: bytes) -> None:
    if fields.authorization is not None:
        raise Refused(400, "Two Authorization headers.")
    fields.authorization = value_of(line)


def _read_origin(fields: RequestFields, line: bytes) -> None:
    if fields.origin is not None:
        raise Refused(400, "Two Origin headers.")
    fields.origin = value_of(line)


def _read_expect(fields: RequestFields, line: bytes) -> None:
    if value_of(line).lower() != b"100-continue":
        raise Refused(417, "The only expectation met here is 100-continue.")
    fields.expects = True


def _read_upgrade(fields: RequestFields, line: bytes) -> None:
    protocols = [protocol.strip(b" \t").lower() for protocol in value_of(line).split(b",")]
    fields.upgrade_to += tuple(protocols)


def _read_request_id(fields: RequestFields, line: bytes) -> None:
    value = value_of(line)
    if 0 < len(value) <= _LONGEST_ID and not value.translate(None, _ID):
        fields.request_id = value


def _read_forwarded_for(fields: RequestFields, line: bytes) -> None:
    said = value_of(line)
    fields.forwarded_for = b"%b,%b" % (fields.forwarded_for, said) if fields.forwarded_for else said


def _read_forwarded_proto(fields: RequestFields, line: bytes) -> None:
    said = value_of(line)
    fields.forwarded_proto = b"%b,%b" % (fields.forwarded_proto, said) if fields.forwarded_proto else said


_READERS: Final[dict[bytes, Reader | None]] = {
    **HOP_BY_HOP,
    b"host": _read_host,
    b"cookie": _read_cookie,
    b"authorization": _read_authorization,
    b"origin": _read_origin,
    b"expect": _read_expect,
    b"upgrade": _read_upgrade,
    b"x-request-id": _read_request_id,
    b"x-forwarded-for": _read_forwarded_for,
    b"x-forwarded-proto": _read_forwarded_proto,
    b"forwarded": ignore,
    b"x-real-ip": ignore,
    # Without it no compression of frames is agreed on, so that they can be read.
    b"sec-websocket-extensions": ignore,
}
