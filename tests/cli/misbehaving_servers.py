"""What may be at an address instead of a CodeHub: each connection gets the same bytes, or none at all."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def answering(answer: bytes | None) -> Iterator[str]:
    """The address of a server that says this to everyone and hangs up; None: it takes the call and never speaks."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held: list[socket.socket] = []
        thread = threading.Thread(target=_serve, args=(server, answer, held), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in held:
                connection.close()


def _serve(server: socket.socket, answer: bytes | None, held: list[socket.socket]) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        if answer is None:
            held.append(connection)
            continue
        with connection:
            connection.settimeout(10)
            _read_request(connection)
            connection.sendall(answer)


def _read_request(connection: socket.socket) -> None:
    seen = b""
    while b"\r\n\r\n" not in seen and (piece := connection.recv(65536)):
        seen += piece


def http(status: str, body: str, *headers: str) -> bytes:
    content = body.encode()
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(content)}", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode() + content
