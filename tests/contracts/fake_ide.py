"""Stands for the IDE: a few lines of HTTP. `python fake_ide.py SOCKET|PORT [--deaf | --stubborn | --spawn]`.

Asked for `/listen/HOST/PORT/WORD`, it leaves a program behind that listens there and says WORD to whoever connects; the
answer is the port. `shared`, `only6` as a further word set the socket's option of that kind. Asked for `/environment`,
it answers with its variables in JSON. Whoever is asked for `/for/NAME` writes that down in its log.

deaf: listens but never answers. stubborn: does not end when asked. spawn: leaves a daemon that hides in a session of
its own and ignores being asked.
"""

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path


def daemon() -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            Path("daemon.pid").write_text(str(os.getpid()))
            time.sleep(600)
        os._exit(0)


def listener(host: str, port: str, word: str, *options: str) -> str:
    """A daemon's: an orphan in a session of its own."""
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0:
            _listen(host, int(port), word.encode(), options, tell)
        os._exit(0)
    os.close(tell)
    os.waitpid(child, 0)
    with os.fdopen(told) as answer:
        return answer.read()


def _listen(host: str, port: int, word: bytes, options: tuple[str, ...], tell: int) -> None:
    os.closerange(3, tell)
    os.closerange(tell + 1, 256)  # else who asked waits for our end
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as server:
            if "shared" in options:
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if ":" in host:
                server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, "only6" in options)
            server.bind((host, port))
            server.listen()
            os.write(tell, str(server.getsockname()[1]).encode())
            os.close(tell)
            while True:
                connection, _ = server.accept()
                with connection:
                    connection.sendall(word)
    finally:
        os._exit(1)


def answer(request: bytes) -> str:
    path = request.split(b" ")[1].decode() if b" " in request else "/"
    if path == "/environment":
        return json.dumps(dict(os.environ))
    return listener(*path.split("/")[2:]) if path.startswith("/listen/") else ""


def main() -> None:
    options = sys.argv[2:]
    if "--stubborn" in options:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "--spawn" in options:
        daemon()
    where = sys.argv[1]
    with socket.socket(socket.AF_INET if where.isdigit() else socket.AF_UNIX) as server:
        server.bind(("", int(where)) if where.isdigit() else where)
        server.listen()
        print("listening", flush=True)
        while True:
            connection, _ = server.accept()
            with connection:
                request = connection.recv(4096)
                if b"/for/" in request:
                    print(request.partition(b"\r\n")[0].decode(), flush=True)
                body = answer(request)
                if "--deaf" in options:
                    time.sleep(600)
                head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                connection.sendall((head + body).encode())


if __name__ == "__main__":
    main()
