"""Both heads as they are sent on: what a workspace may see of a request, and a browser of an answer.

The platform's cookies and tokens never reach a workspace, a workspace's cookies never bear the platform's names, and
the X-Forwarded headers are written here alone.
"""

from codehub.proxy.access.verdicts import Forward
from codehub.proxy.http.parser import CHUNKED, RequestHead, ResponseHead, platform_lines_of


class Forwarded:
    """The X-Forwarded lines for one client: made once per connection, as most of its requests name one host."""

    __slots__ = ("_host", "_lines", "_scheme", "peer")

    def __init__(self, peer: bytes, scheme: bytes) -> None:
        self.peer = peer
        self._scheme = scheme
        self._host: bytes | None = None
        self._lines = b""

    def lines(self, host: bytes) -> bytes:
        if host != self._host:
            self._host = host
            self._lines = b"X-Forwarded-For: %b\r\nX-Forwarded-Host: %b\r\nX-Forwarded-Proto: %b\r\n" % (
                self.peer,
                host,
                self._scheme,
            ) + b"X-Forwarded-Port: %b\r\n" % port_of(host, self._scheme)
        return self._lines


def request_for_upstream(head: RequestHead, forward: Forward, forwarded: Forwarded) -> bytes:
    fields = head.fields
    length = fields.body_length
    if length:
        framing = b"Transfer-Encoding: chunked\r\n" if length == CHUNKED else b"Content-Length: %d\r\n" % length
    else:
        framing = b"" if head.method in _BODYLESS else b"Content-Length: 0\r\n"
    return b"%b %b HTTP/1.1\r\nHost: %b\r\n%b%bX-Request-Id: %b\r\n%b\r\n" % (
        head.method,
        forward.target or head.target,
        fields.host,
        platform_lines_of(fields) if forward.to_platform else fields.upstream_lines,
        framing,
        head.request_id,
        forwarded.lines(fields.host),
    )


_BODYLESS = frozenset((b"GET", b"HEAD", b"OPTIONS", b"DELETE"))


def response_for_client(head: ResponseHead, framing: bytes, request_id: bytes, date: bytes) -> bytes:
    """`framing` are the lines that say where the body ends, and whether the connection stays."""
    lines = head.lines
    if not head.dated:
        lines.append(date)
    lines += b"X-Request-Id: " + request_id, framing, b""
    return b"\r\n".join(lines)


def port_of(host: bytes, scheme: bytes) -> bytes:
    port = host.rpartition(b":")[2]
    if port.isdigit() and port != host:
        return port
    return b"443" if scheme == b"https" else b"80"
