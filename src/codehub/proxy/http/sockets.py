"""Options of sockets that listen and of connections: a peer that vanished is noticed, and one that was cut off can
tell.
"""

import asyncio
import errno
import select
import socket
import struct

BACKLOG = 1024
_COUNTERPARTS = {"127.0.0.1": "::1", "::1": "127.0.0.1", "0.0.0.0": "::", "::": "0.0.0.0"}  # noqa: S104 - named, not bound
_RESET = struct.pack("ii", 1, 0)


def listeners(host: str, port: int) -> list[socket.socket]:
    """The sockets of one address to listen on, and, if that is the loopback address or every address of one family, of
    the same in the other family: `localhost` is both, and whoever held the other would get our visitors. OSError if
    somebody else holds one of them; a machine without IPv6 has no other."""
    first = listener(host, port)
    other = _COUNTERPARTS.get(first.getsockname()[0])
    if other is None:
        return [first]
    try:
        return [first, listener(other, first.getsockname()[1])]
    except OSError as error:
        if error.errno in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}:
            return [first]
        first.close()
        raise OSError(error.errno, f"{error.strerror}: {other}") from error


def listener(host: str, port: int) -> socket.socket:
    """A TCP socket to listen on. It shares its address with no other socket, whoever's that is. What is set here,
    accepted connections inherit: a peer that vanished without a word is noticed within two minutes."""
    family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4)):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def reset_on_close(transport: asyncio.Transport) -> None:
    """Make the close of this connection a reset, so that the peer sees an error instead of a regular end."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def has_unread(transport: asyncio.Transport) -> bool:
    """Whether something has come, or the peer's end, that nobody has read yet."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return bool(poll.poll(0))
