"""What a worker tells its supervisor of itself, a line at a time, and the metrics that become of all the lines."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from codehub.proxy.server import ProxyServer
from codehub.telemetry import PROXY_CONNECTIONS, PROXY_REQUESTS, PROXY_SOCKETS, PROXY_TURNED_AWAY, Metrics


def census(server: ProxyServer) -> bytes:
    told = {
        "connections": server.connections,
        "sockets": server.upgraded,
        "turned_away": {cap.name.lower(): count for cap, count in server.turned_away.items()},
        "answers": {route.name: route.answers for route in server.routes},
    }
    return json.dumps(told).encode() + b"\n"


class Census:
    """Counts only grow, whichever workers come and go."""

    def __init__(self, metrics: Metrics, ready: Callable[[], None]) -> None:
        """`ready`: told once, when the first worker serves."""
        self._metrics = metrics
        self._ready: Callable[[], None] | None = ready
        self._last: dict[int, Mapping[str, Any]] = {}

    def serves(self) -> None:
        ready, self._ready = self._ready, None
        if ready is not None:
            ready()

    def said(self, pid: int, line: bytes) -> None:
        told = json.loads(line)
        before = self._last.get(pid, {}).get("answers", {})
        for route, answers in told["answers"].items():
            known = before.get(route, [0] * len(answers))
            for hundreds, (now, then) in enumerate(zip(answers, known, strict=True)):
                if now > then:
                    self._metrics.add(PROXY_REQUESTS, now - then, route=route, status=f"{hundreds}xx")
        already = self._last.get(pid, {}).get("turned_away", {})
        for cap, count in told["turned_away"].items():
            if count > already.get(cap, 0):
                self._metrics.add(PROXY_TURNED_AWAY, count - already.get(cap, 0), cap=cap)
        self._last[pid] = told
        self._show()

    def gone(self, pid: int) -> None:
        """What it had open is closed, however it ended."""
        self._last.pop(pid, None)
        self._show()

    def _show(self) -> None:
        self._metrics.set(PROXY_CONNECTIONS, sum(told["connections"] for told in self._last.values()))
        self._metrics.set(PROXY_SOCKETS, sum(told["sockets"] for told in self._last.values()))
