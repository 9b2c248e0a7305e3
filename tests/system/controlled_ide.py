"""Stands for the IDE, and does what the files in a directory say: `python gated_ide.py SOCKET GATES`.

`no-start`: it does not listen yet. `no-stop`: asked to end, it does not. `short-lived`: it ends after its first answer.
`broken`: it ends at once.
"""

import signal
import socket
import sys
import time
from pathlib import Path


def main() -> None:
    gates = Path(sys.argv[2])

    def wait_for(gate: str) -> None:
        while (gates / gate).exists():
            time.sleep(0.02)

    def end(_number: int, _frame: object) -> None:
        wait_for("no-stop")
        sys.exit(0)

    if (gates / "broken").exists():
        sys.exit("this IDE is broken")
    signal.signal(signal.SIGTERM, end)
    wait_for("no-start")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(sys.argv[1])
        server.listen()
        while True:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            if (gates / "short-lived").exists():
                sys.exit("this IDE does not last")


if __name__ == "__main__":
    main()
