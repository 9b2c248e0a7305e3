"""Strict parsing of the heads of requests and responses: what this accepts, every HTTP parser reads the same way.

A head comes in as the raw bytes before its empty line. Lines that only pass through are kept as they are; a line that
means something to a proxy is taken by the reader of its header, so that what is sent on is put together by us alone.
What two parsers could understand differently is refused. Hop-by-hop headers end here, and so do the platform's cookies
and tokens: none reaches a workspace, and no workspace sets one. A workspace runs anyone's code, so its responses are
read as strictly as requests.
"""

from collections.abc import Callable
from typing import Any, Final

from codehub.domain.credentials import SESSION_COOKIE, TOKEN_PREFIX
from codehub.proxy.access.addresses import host_name
from codehub.proxy.access.verdicts import CachedAuthorization, Forward

CHUNKED: Final = -1
UNTIL_CLOSE: Final = -2

Reader = Callable[[Any, bytes], None]
"""Reads the line of one header into the fields of its head."""
Readers = dict[bytes, Reader | None]
"""Readers by the name of the header, in every spelling that was seen; None passes its lines on."""

_NOT_CONTROL: Final = bytes(n for n in range(256) if (n >= 0x20 and n != 0x7F) or n == 0x09)
_TOKEN: Final = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LENGTH_DIGITS: Final = 18
_RESERVED: Final = (b"x-forwarded-", b"x-codehub-", b"proxy-")
_MOST_NAMES: Final = 4096
_LONGEST_NAME: Final = 64


class BadMessage(Exception):
    """A message that is refused, and whose connection is closed."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


class Fields:
    """The header lines of one head, parsed."""

    lines: list[bytes]
    """The lines that mean nothing to a proxy, in their order."""
    keep_alive = True
    length: int | None = None
    chunked = False
    upgrading = False
    named: tuple[bytes, ...] = ()
    """The headers that Connection names, which are for this hop alone."""

    def __init__(self) -> None:
        self.lines = []

    def read(self, lines: list[bytes], readers: Readers) -> None:
        keep = self.lines.append
        try:
            for line in lines:
                name, _ = line.split(b":", 1)
                try:
                    read = readers[name]
                except KeyError:
                    read = learn(readers, name)
                if read is None:
                    keep(line)
                else:
                    read(self, line)
        except ValueError:
            raise BadMessage(400, "A header line is not `Name: value`.") from None
        if self.named:
            self.lines = [line for line in self.lines if line.partition(b":")[0].lower() not in self.named]

    def body(self) -> int | None:
        """The body's length: a count, CHUNKED, or None when the headers do not say."""
        if not self.chunked:
            return self.length
        if self.length is not None:
            raise BadMessage(400, "Content-Length and Transfer-Encoding together.")
        return CHUNKED


def split_lines(raw: bytes, most: int) -> list[bytes]:
    lines = raw.split(b"\r\n")
    # All that is left without the ordinary bytes are control bytes: they may only be our line ends.
    if raw.translate(None, _NOT_CONTROL) != b"\r\n" * (len(lines) - 1):
        raise BadMessage(400, "A control byte or a bare line end in the head.")
    if len(lines) > most:
        raise BadMessage(431, "Too many headers.")
    return lines


def is_token(name: bytes) -> bool:
    return bool(name) and not name.translate(None, _TOKEN)


def learn(readers: Readers, name: bytes) -> Reader | None:
    """The reader for a spelling of a header's name that was not seen before; it is checked once and then known. None
    passes the line on."""
    if not is_token(name):
        raise ValueError(name)
    dashed = name.lower().replace(b"_", b"-")
    reader = readers.get(dashed) or (ignore if dashed.startswith(_RESERVED) else None)
    if reader is not None and b"_" in name:
        reader = ignore  # a gateway that reads `X_Forwarded_For` as `X-Forwarded-For` shall not be fooled
    if len(readers) < _MOST_NAMES and len(name) <= _LONGEST_NAME:
        readers[name] = reader
    return reader


def value_of(line: bytes) -> bytes:
    return line.partition(b":")[2].strip(b" \t")


# ── readers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def ignore(_fields: object, _line: bytes) -> None:
    """Drops a header that is not for the other side."""


def read_connection(fields: Fields, line: bytes) -> None:
    for part in value_of(line).split(b","):
        token = part.strip(b" \t").lower()
        if token == b"close":
            fields.keep_alive = False
        elif token == b"upgrade":
            fields.upgrading = True
        elif token not in (b"", b"keep-alive"):
            if not is_token(token):
                raise BadMessage(400, "The Connection header does not name headers.")
            fields.named += (token,)


def read_content_length(fields: Fields, line: bytes) -> None:
    value = value_of(line)
    if fields.length is not None:
        raise BadMessage(400, "Two Content-Length headers.")
    if not value.isdigit() or len(value) > _LENGTH_DIGITS:
        raise BadMessage(400, "Content-Length is not a number.")
    fields.length = int(value)


def read_transfer_encoding(fields: Fields, line: bytes) -> None:
    if fields.chunked:
        raise BadMessage(400, "Two Transfer-Encoding headers.")
    if value_of(line).lower() != b"chunked":
        raise BadMessage(400, "The only transfer coding served is chunked.")
    fields.chunked = True


HOP_BY_HOP: Final[Readers] = {
    b"connection": read_connection,
    b"content-length": read_content_length,
    b"transfer-encoding": read_transfer_encoding,
    b"upgrade": ignore,
    b"keep-alive": ignore,
    b"te": ignore,
    b"trailer": ignore,
    b"proxy": ignore,
    b"http2-settings": ignore,
}


PLATFORM_COOKIES: Final = SESSION_COOKIE.lower().encode()
PLATFORM_TOKENS: Final = TOKEN_PREFIX.encode()


def is_platform_cookie(cookie: bytes) -> bool:
    """Whether a browser would send this cookie back under one of the platform's names. A nameless one comes back as its
    bare value."""
    return cookie.lstrip(b" \t=").lower().startswith(PLATFORM_COOKIES)


def without_platform_cookies(cookies: list[bytes]) -> bytes:
    """The value of one Cookie header for all of these, without the platform's cookies."""
    whole = cookies[0] if len(cookies) == 1 else b"; ".join(cookies)
    if PLATFORM_COOKIES not in whole.lower():
        return whole
    pairs = (pair.strip(b" \t") for pair in whole.split(b";"))
    return b"; ".join(pair for pair in pairs if pair and not is_platform_cookie(pair))


def is_platform_token(authorization: bytes) -> bool:
    scheme, _, token = authorization.partition(b" ")
    return scheme.lower() == b"bearer" and token.strip(b" \t").startswith(PLATFORM_TOKENS)


REPEATABLE: Final = frozenset((b"GET", b"HEAD", b"PUT", b"DELETE", b"OPTIONS"))
METHODS: Final = REPEATABLE | {b"POST", b"PATCH"}
"""The common methods. Any other token is a method too, for workspaces speak WebDAV and more."""
_UNSERVED: Final = frozenset((b"CONNECT", b"TRACE"))
"""The methods that are refused: CONNECT would make a tunnel to anywhere; TRACE answers with the request itself, and
what proxies added to it.
"""

_TARGET: Final = bytes(n for n in range(0x21, 0x7F) if n not in b"#")
_HOST: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._:[]~%!$&'()*+;="
_VERSIONS: Final = (b"HTTP/1.1", b"HTTP/1.0")
_LONGEST_REMEMBERED: Final = 3072
_MOST_REMEMBERED: Final = 1024
_LONGEST_HOST: Final = 262
_ID: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:+/="
_LONGEST_ID: Final = 128


class RequestFields(Fields):
    """The headers of a request. One object serves all requests that repeat them."""

    host = b""
    cookies: list[bytes] | None = None
    """The values of Cookie headers with the platform's own, which the authorizer needs and the workspace never sees."""
    authorization: bytes | None = None
    origin: bytes | None = None
    request_id = b""
    forwarded_for = b""
    forwarded_proto = b""
    """What a proxy before this one may have said of the client. It is never passed on, and counts only if that proxy is
    trusted."""
    expects = False
    upgrade_to: tuple[bytes, ...] = ()
    body_length = 0
    """The body's length: a count, or CHUNKED."""
    upgrade = False
    """Whether a WebSocket is asked for."""
    upstream_lines = b""
    """What the workspace sees of the headers, as lines that each end: without the platform's credentials, Host and the
    framing."""
    platform_lines: bytes | None = None
    """What the platform's API sees of the headers, credentials included; made when it is first asked for."""
    cached_authorization: CachedAuthorization | None = None
    """The permission for requests with these headers to go to a workspace, if the authorizer has granted one."""

    _searched: tuple[bytes, bytes] | None = None
    """The lines that pass through as one text, as they are and in lower case."""

    def header(self, name: bytes) -> bytes | None:
        """The value of the first header of this name that passes through; None without one."""
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
        """The client's id of the request, if it sent a fit one; else the server makes one."""
        self.peer = b""
        """The client's address, as the server saw it."""


def parse_request(raw: bytes, most_lines: int) -> RequestHead:
    """Parses the head of a request, or raises BadMessage. `raw` ends before the empty line; one more empty line may
    stand before the head."""
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
        raise BadMessage(400, "An upgrade is asked for by GET, over HTTP/1.1, without a body.")
    if fields.chunked and not version_1_1:
        raise BadMessage(400, "HTTP/1.0 has no Transfer-Encoding.")
    return RequestHead(method, target, fields, version_1_1=version_1_1)


_remembered: dict[bytes, RequestFields] = {}
"""The parsed headers of blocks of lines, whole and up to a bound: browsers repeat their headers from request to
request.
"""


def _read(block: bytes, most_lines: int) -> RequestFields:
    lines = split_lines(block, most_lines)
    del lines[0]
    fields = RequestFields()
    fields.read(lines, _READERS)
    if not fields.host:
        raise BadMessage(400, "A Host header is needed.")
    fields.body_length = fields.body() or 0
    fields.upgrade = fields.upgrading and b"websocket" in fields.upgrade_to
    if fields.upgrade and fields.body_length:
        raise BadMessage(400, "An upgrade is asked for by GET, over HTTP/1.1, without a body.")
    fields.upstream_lines = header_lines(fields)
    if len(block) <= _LONGEST_REMEMBERED and not fields.upgrade:  # each of those has a key of its own
        if len(_remembered) >= _MOST_REMEMBERED:
            _remembered.clear()
        _remembered[block] = fields
    return fields


def platform_lines_of(fields: RequestFields) -> bytes:
    if fields.platform_lines is None:
        fields.platform_lines = header_lines(fields, to_platform=True)
    return fields.platform_lines


def header_lines(fields: RequestFields, *, to_platform: bool = False) -> bytes:
    """The header lines that a workspace may see; with `to_platform`, those that the platform's API may."""
    parts = [*fields.lines]
    if fields.cookies is not None and (
        cookie := b"; ".join(fields.cookies) if to_platform else without_platform_cookies(fields.cookies)
    ):
        parts.append(b"Cookie: " + cookie)
    if fields.authorization is not None and (to_platform or not is_platform_token(fields.authorization)):
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
        raise BadMessage(400, "The request line is not `METHOD target HTTP/1.1`.")
    method, target, version = parts
    if version not in _VERSIONS:
        if version[:5] == b"HTTP/" and len(version) == 8:
            raise BadMessage(505, "Only HTTP/1.1 is spoken here.")
        raise BadMessage(400, "The request line is not `METHOD target HTTP/1.1`.")
    if method not in METHODS:
        _check_method(method)
    if target.translate(None, _TARGET) or (target[:1] != b"/" and not (target == b"*" and method == b"OPTIONS")):
        raise BadMessage(400, "The request target is not a path.")
    return method, target, version == b"HTTP/1.1"


def _check_method(method: bytes) -> None:
    """Refuses a known method in other letters: some servers would take `head` for HEAD, and some would not."""
    if not is_token(method):
        raise BadMessage(400, "The method is not a token.")
    if method.upper() in _UNSERVED:
        raise BadMessage(405, "This method is not served.")
    if method.upper() in METHODS:
        raise BadMessage(501, "Methods are written in capital letters.")


# ── readers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _read_host(fields: RequestFields, line: bytes) -> None:
    value = value_of(line)
    if fields.host:
        raise BadMessage(400, "Two Host headers.")
    if not value or len(value) > _LONGEST_HOST or value.translate(None, _HOST):
        raise BadMessage(400, "The Host header is not a host.")
    fields.host = value


def _read_cookie(fields: RequestFields, line: bytes) -> None:
    if fields.cookies is None:
        fields.cookies = [value_of(line)]
    else:
        fields.cookies.append(value_of(line))


def _read_authorization(fields: RequestFields, line: bytes) -> None:
    if fields.authorization is not None:
        raise BadMessage(400, "Two Authorization headers.")
    fields.authorization = value_of(line)


def _read_origin(fields: RequestFields, line: bytes) -> None:
    if fields.origin is not None:
        raise BadMessage(400, "Two Origin headers.")
    fields.origin = value_of(line)


def _read_expect(fields: RequestFields, line: bytes) -> None:
    if value_of(line).lower() != b"100-continue":
        raise BadMessage(417, "The only expectation met here is 100-continue.")
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


_READERS: Final[Readers] = {
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


_MOST_STATUS_LINES: Final = 256
_LONGEST_STATUS_LINE: Final = 64


class ResponseHead(Fields):
    body_length = UNTIL_CLOSE
    """The body's length as the headers say it; the status or the method may mean that there is no body."""
    dated = False
    upgrade = False
    """Whether the response switches to WebSocket."""
    host = b""
    """The Host of the request: no cookie of the response may be for more than this."""
    forward: Forward | None = None
    """The verdict on the request, which says which other port's page may read the response, and where its Location
    leads."""

    def __init__(self, status: int, line: bytes, keep_alive: bool) -> None:  # noqa: FBT001 - as its first line says
        """`line`: the status line for the client."""
        self.lines = [line]
        self.status = status
        self.keep_alive = keep_alive


def parse_response(
    raw: bytes,
    most_lines: int,
    readers: Readers | None = None,
    host: bytes = b"",
    forward: Forward | None = None,
) -> ResponseHead:
    """Parses the head of a response, or raises BadMessage. `raw` ends before the empty line. `readers`:
    PLATFORM_READERS let the platform set its cookies, SHARED_ORIGIN_READERS drop what a workspace says of an origin
    that it shares; None is for a workspace at a host of its own. `host`, `forward`: the Host of the request, and the
    verdict on it."""
    lines = split_lines(raw, most_lines)
    first = lines.pop(0)
    status, line, keep_alive = _status_lines.get(first) or _status_line(first)
    head = ResponseHead(status, line, keep_alive)
    head.host = host
    head.forward = forward
    head.read(lines, readers or _RESPONSE_READERS)
    length = head.body() if head.chunked else head.length
    if length is not None:
        head.body_length = length
    return head


_status_lines: dict[bytes, tuple[int, bytes, bool]] = {}
"""The status lines that were parsed before, up to a bound: there are few different ones."""


def _status_line(line: bytes) -> tuple[int, bytes, bool]:
    version, code = line[:9], line[9:12]
    if version not in (b"HTTP/1.1 ", b"HTTP/1.0 ") or not code.isdigit() or line[12:13] not in (b"", b" "):
        raise BadMessage(502, "Not an HTTP status line.")
    status = int(code)
    if not 100 <= status <= 599:
        raise BadMessage(502, "Not an HTTP status.")
    parsed = status, b"HTTP/1.1 %d %b" % (status, line[13:]), version == b"HTTP/1.1 "
    if len(_status_lines) < _MOST_STATUS_LINES and len(line) <= _LONGEST_STATUS_LINE:
        _status_lines[line] = parsed
    return parsed


# ── readers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _read_set_cookie(head: ResponseHead, line: bytes) -> None:
    """Treats the domain of all workspaces as a public suffix: a cookie for it would reach other people's workspaces and
    the platform, so it is dropped; one for the very host that was asked passes."""
    cookie = value_of(line)
    if not is_platform_cookie(cookie) and _is_for_this_host(cookie, head.host):
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
    """Lets a page of another port read the response if the app lets its origin, or all, do so. To get here the page had
    to send our cookie, of which the app knows nothing; browsers then want the origin by name and leave for credentials.
    """
    origin = None if head.forward is None else head.forward.read_by
    if origin is None or value_of(line) not in (b"*", origin):
        head.lines.append(line)
        return
    head.lines += (
        b"Access-Control-Allow-Origin: " + origin,
        b"Access-Control-Allow-Credentials: true",
        b"Vary: Origin",
    )


def _read_allow_credentials(head: ResponseHead, line: bytes) -> None:
    if head.forward is None or head.forward.read_by is None:
        head.lines.append(line)


def _read_location(head: ResponseHead, line: bytes) -> None:
    public = None if head.forward is None else head.forward.location
    head.lines.append(line if public is None else b"Location: " + public(value_of(line)))


def _read_date(head: ResponseHead, line: bytes) -> None:
    if not head.dated:
        head.dated = True
        head.lines.append(line)


def _read_response_upgrade(head: ResponseHead, line: bytes) -> None:
    head.upgrade = value_of(line).lower() == b"websocket"


_RESPONSE_READERS: Final[Readers] = {
    **HOP_BY_HOP,
    b"set-cookie": _read_set_cookie,
    b"set-cookie2": ignore,
    b"date": _read_date,
    b"location": _read_location,
    b"upgrade": _read_response_upgrade,
    b"x-request-id": ignore,
    b"sec-websocket-extensions": ignore,
    # What these say holds for more than the host that says it: the cookies of the whole site, or another server.
    b"clear-site-data": ignore,
    b"alt-svc": ignore,
    b"access-control-allow-origin": _read_allow_origin,
    b"access-control-allow-credentials": _read_allow_credentials,
}
"""Readers for the response of a workspace at a host of its own."""

PLATFORM_READERS: Final[Readers] = {
    **_RESPONSE_READERS,
    b"set-cookie": None,
    b"clear-site-data": None,
    b"location": None,
}
SHARED_ORIGIN_READERS: Final[Readers] = {
    **_RESPONSE_READERS,
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
