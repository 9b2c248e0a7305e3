"""The heads of requests and answers as they are sent on, and who a request comes from.

The platform's cookies and tokens never reach a workspace, a workspace's cookies never bear the platform's names, and
the X-Forwarded headers are written here alone. The caller's address and scheme are decided on here alone too: they go
to the API and to workspaces, into the log, and into the count of connections. Only a trusted proxy in front of this one
may say them; from anybody else such headers are as good as not sent.
"""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final

from codehub.proxy.access.verdicts import Forward
from codehub.proxy.http.parser import CHUNKED, RequestFields, RequestHead, ResponseHead, platform_lines_of

UNKNOWN_PEER: Final = b"unknown"
"""The address of a client that comes over a unix socket."""
_SCHEMES: Final = {b"http": b"http", b"https": b"https", b"ws": b"http", b"wss": b"https"}
"""Some proxies name the scheme of a WebSocket by what it becomes."""
_BODYLESS = frozenset((b"GET", b"HEAD", b"OPTIONS", b"DELETE"))
_MOST_HOPS: Final = 32
_MOST_REMEMBERED: Final = 4096
_LONGEST_REMEMBERED: Final = 256
Network = IPv4Network | IPv6Network


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


def networks(named: str | None) -> tuple[Network, ...]:
    """The networks in a comma-separated list of addresses and networks."""
    return tuple(ip_network(one.strip()) for one in named.split(",")) if named else ()


class TrustedProxies:
    def __init__(self, named: Iterable[Network] = (), scheme: bytes = b"http") -> None:
        """`scheme`: what counts where no trusted proxy says another."""
        self._networks = tuple(named)
        self._scheme = scheme
        self._remembered: dict[tuple[bytes, bytes, bytes], Forwarded] = {}

    def include(self, peer: bytes) -> bool:
        return bool(self._networks) and self._is_trusted(read_address(peer))

    def forwarded_by(self, peer: bytes, fields: RequestFields) -> Forwarded:
        """What a trusted proxy says of a request. It is remembered, because proxies repeat themselves."""
        key = peer, fields.forwarded_for, fields.forwarded_proto
        found = self._remembered.get(key)
        if found is None:
            scheme = _SCHEMES.get(fields.forwarded_proto.lower(), self._scheme)
            found = Forwarded(self._caller(peer, fields.forwarded_for), scheme)
            if len(fields.forwarded_for) + len(fields.forwarded_proto) <= _LONGEST_REMEMBERED:
                if len(self._remembered) >= _MOST_REMEMBERED:
                    self._remembered.clear()
                self._remembered[key] = found
        return found

    def _caller(self, peer: bytes, said: bytes) -> bytes:
        """The last hop that is not trusted. What stands left of it is that hop's own claim, and what stands left of
        something unreadable is nobody's."""
        caller = peer
        for hop in reversed(said.rsplit(b",", _MOST_HOPS)[-_MOST_HOPS:]):
            address = read_address(_bare(hop.strip(b" \t")))
            if address is None:
                return caller
            caller = str(address).encode()
            if not self._is_trusted(address):
                return caller
        return caller

    def _is_trusted(self, address: IPv4Address | IPv6Address | None) -> bool:
        return address is not None and any(address in network for network in self._networks)


def peer_address(peername: Any) -> bytes:  # noqa: ANN401 - as the transport has it
    """The address of the other end of a connection, without the name of an interface. IPv4 is IPv4, however the socket
    writes it."""
    if not isinstance(peername, tuple):
        return UNKNOWN_PEER
    return str(peername[0]).removeprefix("::ffff:").partition("%")[0].encode()


def read_address(address: bytes) -> IPv4Address | IPv6Address | None:
    if b"%" in address:  # an interface's name, which could be any text
        return None
    try:
        read = ip_address(address.decode("ascii"))
    except ValueError:
        return None
    return read.ipv4_mapped or read if isinstance(read, IPv6Address) else read


def _bare(hop: bytes) -> bytes:
    """A hop of X-Forwarded-For without the port that some proxies write behind it."""
    if hop.startswith(b"["):
        address, closing, port = hop[1:].partition(b"]")
        return address if closing and (not port or (port[:1] == b":" and port[1:].isdigit())) else b""
    address, colon, port = hop.partition(b":")
    return address if colon and port.isdigit() else hop
