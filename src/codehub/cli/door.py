"""Starting the front door's processes, for `codehub proxy` and `codehub up` alike."""

import socket
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from codehub.proxy.supervisor import Supervisor
    from codehub.telemetry import Metrics

WORKER = (sys.executable, "-c", "from codehub.cli.main import main; main()", "proxy-worker")


def free(host: str, port: int) -> None:
    """Raises OSError if somebody has it. The door's own sockets share their port among each other, and would share it
    with another door just as well."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        probe.listen(1)


def supervised(
    host: str,
    port: int,
    workers: int,
    metrics: "Metrics",
    environment: Mapping[str, str] | None = None,
    ready: Callable[[], None] | None = None,
) -> "Supervisor":
    """`ready`: told once, when the first of them serves."""
    from codehub.proxy.census import Census
    from codehub.proxy.supervisor import Supervisor

    census = Census(metrics, ready or (lambda: None))
    return Supervisor(WORKER, workers, host, port, environment=environment, news=census)
