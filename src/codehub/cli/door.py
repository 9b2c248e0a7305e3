"""Starting the front door's processes, for `codehub proxy` and `codehub up` alike."""

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from codehub.proxy.workers import WorkerSupervisor
    from codehub.telemetry import Metrics

WORKER = (sys.executable, "-c", "from codehub.cli.main import main; main()", "proxy-worker")


def free(host: str, port: int) -> None:
    """Raises OSError if somebody has it, in IPv4 or IPv6."""
    from codehub.proxy.http.sockets import listeners

    for sock in listeners(host, port):
        sock.close()


def supervised(
    host: str,
    port: int,
    workers: int,
    metrics: "Metrics",
    environment: Mapping[str, str] | None = None,
    ready: Callable[[], None] | None = None,
) -> "WorkerSupervisor":
    """`ready`: told once, when the first of them serves."""
    from codehub.proxy.workers import WorkerMetrics, WorkerSupervisor

    worker_metrics = WorkerMetrics(metrics, ready or (lambda: None))
    return WorkerSupervisor(WORKER, workers, host, port, environment=environment, metrics=worker_metrics)
