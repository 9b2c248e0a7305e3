"""What is set on sockets before and after their connection: who vanished is noticed, who was cut off can tell."""

import asyncio
import select
import socket
import struct

BACKLOG = 1024
_RESET = struct.pack("ii", 1, 0)


def listener(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """A TCP socket to listen on. What is set here, accepted connections inherit: a peer that vanished without a word is
    noticed within two minutes."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
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
    """The peer sees an error instead of a regular end."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def has_unread(transport: asyncio.Transport) -> bool:
    """Something has come, or the peer's end, that nobody has read yet."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return bool(poll.poll(0))
