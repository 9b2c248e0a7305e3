"""What `codehub doctor --probe` runs inside a workspace to see whether it can take connections meant for the front
door.

It listens on the front door's port wherever the kernel lets it: on each loopback address and on every address, shared
with whoever holds it (SO_REUSEPORT) or alone. To whoever comes it answers with its own mark. Arguments: port, mark,
seconds. Only the standard library.
"""

import selectors
import socket
import sys
import time
from contextlib import suppress

HOSTS = ("127.0.0.1", "::1", "0.0.0.0", "::", "::ffff:127.0.0.1")  # noqa: S104 - that is the attack


def main(port: str, mark: str, seconds: str) -> None:
    with selectors.DefaultSelector() as selector:
        for host in HOSTS:
            for shared in (True, False):
                if (server := taken(host, int(port), shared=shared)) is not None:
                    selector.register(server, selectors.EVENT_READ)
        until = time.monotonic() + float(seconds)
        while time.monotonic() < until:
            for key, _ in selector.select(0.2) if selector.get_map() else ():
                if isinstance(key.fileobj, socket.socket):
                    answer(key.fileobj, mark)
            if not selector.get_map():
                time.sleep(0.2)


def taken(host: str, port: int, *, shared: bool) -> socket.socket | None:
    server = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, shared)
        server.bind((host, port))
        server.listen()
    except OSError:
        server.close()
        return None
    return server


def answer(server: socket.socket, mark: str) -> None:
    with suppress(OSError):  # whoever says nothing or breaks off is no reason to stop
        client, _ = server.accept()
        with client:
            client.settimeout(1.0)
            client.recv(1 << 16)
            client.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(mark)}\r\n\r\n{mark}".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
