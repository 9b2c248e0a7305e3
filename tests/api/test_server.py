"""The socket that the API listens on."""

import socket

from codehub.api.server import bound


def test_no_answer_waits_until_its_beginning_is_acknowledged() -> None:
    """Head and body are two writes: with Nagle's algorithm on, each keep-alive answer would take 40 ms."""
    with (
        bound("127.0.0.1", 0) as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
