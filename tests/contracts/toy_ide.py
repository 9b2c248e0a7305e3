"""Stands for the IDE: a few lines of HTTP. `python toy_ide.py SOCKET|PORT [--deaf | --stubborn | --spawn]`.

deaf: listens but never answers. stubborn: does not end when asked. spawn: leaves a daemon that hides in a session of
its own and ignores being asked.
"""

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
                connection.recv(4096)
                if "--deaf" in options:
                    time.sleep(600)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


if __name__ == "__main__":
    main()
