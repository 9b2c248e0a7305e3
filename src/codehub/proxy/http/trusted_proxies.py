"""The proxies before the front door whose word is taken on who asks, and the reading of that word.

This is the one place that decides on the caller's address and scheme: what it says goes to the API and to workspaces
as the only X-Forwarded-For, into the log, and into the count of connections. From anybody who was not named, the
headers are as good as not sent.
"""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final

from codehub.proxy.http.headers import Forwarded
from codehub.proxy.http.parser import RequestFields

NOBODY: Final = b"unknown"
"""The address of who comes over a unix socket."""
_SCHEMES: Final = {b"http": b"http", b"https": b"https", b"ws": b"http", b"wss": b"https"}
"""Some proxies name the scheme of a WebSocket by what it becomes."""
_MOST_HOPS: Final = 32
_MOST_REMEMBERED: Final = 4096
_LONGEST_REMEMBERED: Final = 256
_HOUSEHOLD_BITS: Final = 64
"""What one customer is commonly given of IPv6: all of it is one caller's."""

Network = IPv4Network | IPv6Network


def networks(named: str | None) -> tuple[Network, ...]:
    """`named`: addresses and networks, with commas between."""
    return tuple(ip_network(one.strip()) for one in named.split(",")) if named else ()


class TrustedProxies:
    def __init__(self, named: Iterable[Network] = (), scheme: bytes = b"http") -> None:
        """`scheme`: where nobody whom we believe says another."""
        self._named = tuple(named)
        self._scheme = scheme
        self._heard: dict[tuple[bytes, bytes, bytes], Forwarded] = {}

    def include(self, peer: bytes) -> bool:
        return bool(self._named) and self._is_named(_read(peer))

    def word(self, peer: bytes, fields: RequestFields) -> Forwarded:
        """What one of them says of a request. It says much the same again and again."""
        key = peer, fields.forwarded_for, fields.forwarded_proto
        heard = self._heard.get(key)
        if heard is None:
            scheme = _SCHEMES.get(fields.forwarded_proto.lower(), self._scheme)
            heard = Forwarded(self._caller(peer, fields.forwarded_for), scheme)
            if len(fields.forwarded_for) + len(fields.forwarded_proto) <= _LONGEST_REMEMBERED:
                if len(self._heard) >= _MOST_REMEMBERED:
                    self._heard.clear()
                self._heard[key] = heard
        return heard

    def _caller(self, peer: bytes, said: bytes) -> bytes:
        """The last hop that is none of them. What stands left of it is that one's own claim, and what stands left of
        something unreadable is nobody's."""
        caller = peer
        for hop in reversed(said.rsplit(b",", _MOST_HOPS)[-_MOST_HOPS:]):
            address = _read(_bare(hop.strip(b" \t")))
            if address is None:
                return caller
            caller = str(address).encode()
            if not self._is_named(address):
                return caller
        return caller

    def _is_named(self, address: IPv4Address | IPv6Address | None) -> bool:
        return address is not None and any(address in network for network in self._named)


def peer_address(peername: Any) -> bytes:  # noqa: ANN401 - as the transport has it
    """The address of the other end of a connection; IPv4 is IPv4, however the socket writes it, and by which interface
    somebody came is nobody's address."""
    if not isinstance(peername, tuple):
        return NOBODY
    return str(peername[0]).removeprefix("::ffff:").partition("%")[0].encode()


def household(address: bytes) -> bytes | None:
    """Whom an address is counted as. None: who comes over a unix socket is nobody's count."""
    if address == NOBODY:
        return None
    read = _read(address) if b":" in address else None
    if not isinstance(read, IPv6Address):
        return address
    return str(IPv6Network((int(read), _HOUSEHOLD_BITS), strict=False)).encode()


def _read(address: bytes) -> IPv4Address | IPv6Address | None:
    if b"%" in address:  # an interface's name, which could be any text
        return None
    try:
        read = ip_address(address.decode("ascii"))
    except ValueError:
        return None
    return read.ipv4_mapped or read if isinstance(read, IPv6Address) else read


def _bare(hop: bytes) -> bytes:
    """Without the port that some proxies write behind it."""
    if hop.startswith(b"["):
        address, closing, port = hop[1:].partition(b"]")
        return address if closing and (not port or (port[:1] == b":" and port[1:].isdigit())) else b""
    address, colon, port = hop.partition(b":")
    return address if colon and port.isdigit() else hop
