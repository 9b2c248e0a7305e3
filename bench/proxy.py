"""The proxy against nginx and JupyterHub's configurable-http-proxy, in one run, before the same upstream.

One process each, on loopback. Ours is put together as in earnest: it looks at each request's cookie, Origin and path,
reads along in the sockets and notes who is at work; the others pass everything on. Every
round measures each of them in turn, and the medians are compared: on a machine that others use, only numbers of one run
say anything. CPU per request is the steadiest of them.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench._proxy_load import SITES
from bench._proxy_processes import ProxyProcess, ProxyProcesses, running

CONNECTIONS = 64
NAMES = ("nginx", "configurable-http-proxy", "codehub", "codehub-agent")


@dataclass
class Figures:
    name: str
    requests: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    heads: list[float] = field(default_factory=list)
    """Requests per second, each with a head that was not seen before."""
    messages: list[float] = field(default_factory=list)
    message_cpu_us: list[float] = field(default_factory=list)
    download_mb: list[float] = field(default_factory=list)
    download_cpu_s: list[float] = field(default_factory=list)
    idle_mb: list[float] = field(default_factory=list)

    def median(self, what: str) -> float:
        return float(statistics.median(getattr(self, what) or [float("nan")]))


@dataclass(frozen=True)
class Aim:
    text: str
    ratio: float
    met: bool


class Bench:
    def __init__(self, seconds: float, size: int, idle: int) -> None:
        self._seconds, self._size, self._idle = seconds, size, idle
        self.figures: dict[str, Figures] = {}

    def round(self, processes: list[ProxyProcess]) -> None:
        for proxy in processes:
            figures = self.figures.setdefault(proxy.name, Figures(proxy.name))
            began = proxy.cpu_seconds()
            found = load("requests", proxy, CONNECTIONS, self._seconds)
            figures.cpu_us.append(1e6 * (proxy.cpu_seconds() - began) / found["total"])
            figures.requests.append(found["per_second"])
            figures.p50_ms.append(found["p50_ms"])
            figures.p99_ms.append(found["p99_ms"])
            figures.heads.append(load("heads", proxy, CONNECTIONS, self._seconds)["per_second"])
        for proxy in processes:
            figures = self.figures[proxy.name]
            began = proxy.cpu_seconds()
            found = load("messages", proxy, CONNECTIONS, self._seconds)
            figures.message_cpu_us.append(1e6 * (proxy.cpu_seconds() - began) / found["total"])
            figures.messages.append(found["per_second"])
        for proxy in processes:
            figures = self.figures[proxy.name]
            began = proxy.cpu_seconds()
            figures.download_mb.append(load("download", proxy, self._size, 0)["bytes_per_second"] / 1e6)
            figures.download_cpu_s.append(proxy.cpu_seconds() - began)

    def measure_idle(self, proxy: ProxyProcess) -> None:
        """What a thousand open sockets that say nothing cost in memory."""
        before = proxy.rss()
        command = [sys.executable, "-m", "bench._proxy_load", "idle", str(proxy.port), str(self._idle), "0"]
        with running(command, {**os.environ, SITES: json.dumps(proxy.sites)}) as process:
            assert process.stdout
            assert process.stdin
            process.stdout.readline()
            self.figures[proxy.name].idle_mb.append((proxy.rss() - before) / 1e6 * 1000 / self._idle)
            process.stdin.write(b"\n")
            process.stdin.flush()
            process.wait(30)

    def aims(self) -> list[Aim]:
        ours, through = self.figures.get("codehub"), self.figures.get("codehub-agent")
        found: list[Aim] = []

        def aim(text: str, other: str, what: str, least: float | None = None, most: float | None = None) -> None:
            if ours is not None and other in self.figures:
                ratio = ours.median(what) / self.figures[other].median(what)
                met = ratio >= least if least is not None else ratio <= (most or 0.0)
                found.append(Aim(text, round(ratio, 2), met))

        aim("requests/s at least 0.7 × nginx", "nginx", "requests", least=0.7)
        aim("requests/s at least 5 × configurable-http-proxy", "configurable-http-proxy", "requests", least=5.0)
        aim("requests/s with new heads at least 0.5 × nginx", "nginx", "heads", least=0.5)
        aim("messages/s at least 0.8 × nginx", "nginx", "messages", least=0.8)
        aim("200 MB download at least 0.8 × nginx", "nginx", "download_mb", least=0.8)
        aim("p99 at most 2 × nginx", "nginx", "p99_ms", most=2.0)
        if ours is not None and through is not None:
            for what in ("requests", "messages", "download_mb"):
                ratio = through.median(what) / ours.median(what)
                found.append(Aim(f"{what} through an agent at least 0.5 × without", round(ratio, 2), ratio >= 0.5))
        return found


def load(what: str, proxy: ProxyProcess, amount: int, seconds: float) -> dict[str, float]:
    command = [sys.executable, "-m", "bench._proxy_load", what, str(proxy.port), str(amount), str(seconds)]
    environ = {**os.environ, SITES: json.dumps(proxy.sites)}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=60 + seconds, env=environ)
    found: dict[str, float] = json.loads(done.stdout)
    return found


COLUMNS = (
    ("req/s", "requests", 0),
    ("p50 ms", "p50_ms", 2),
    ("p99 ms", "p99_ms", 2),
    ("cpu us", "cpu_us", 1),
    ("new/s", "heads", 0),
    ("msg/s", "messages", 0),
    ("cpu us", "message_cpu_us", 1),
    ("MB/s", "download_mb", 0),
    ("cpu s", "download_cpu_s", 2),
    ("MB/1k ws", "idle_mb", 1),
)


def show(bench: Bench) -> None:
    print(" " * 26 + "".join(f"{title:>10}" for title, _, _ in COLUMNS))
    for row in bench.figures.values():
        print(f"{row.name:26}" + "".join(f"{row.median(what):10.{digits}f}" for _, what, digits in COLUMNS))
    print()
    for aim in bench.aims():
        print(f"{'met   ' if aim.met else 'MISSED'} {aim.text}: {aim.ratio}")


def measure(bench: Bench, rounds: int, names: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="codehub-bench-proxy-") as directory, ExitStack() as stack:
        upstream = stack.enter_context(running([sys.executable, "-m", "bench._proxy_upstream"]))
        assert upstream.stdout
        processes = ProxyProcesses(stack, Path(directory), int(upstream.stdout.readline()))
        starts = dict(
            zip(
                NAMES,
                (processes.nginx, processes.configurable_http_proxy, processes.ours, processes.ours_through_an_agent),
                strict=True,
            )
        )
        tried = {name: starts[name]() for name in NAMES if name in names}
        found = [proxy for proxy in tried.values() if proxy is not None]
        for name in [name for name, proxy in tried.items() if proxy is None]:
            print(f"not compared, as it is not here: {name} (nginx-light of Debian, or npm)", file=sys.stderr)
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            bench.round(found)
        for proxy in found:
            bench.measure_idle(proxy)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small numbers: does it work at all?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too (-: print them)")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, help="which to measure")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.5, help="of load, per proxy and round")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started ends with us
    rounds, seconds, size, idle = chosen.rounds, chosen.seconds, 200_000_000, 1000
    if chosen.quick:
        rounds, seconds, size, idle = 1, 0.5, 20_000_000, 100
    bench = Bench(seconds, size, idle)
    measure(bench, rounds, chosen.only)
    print(
        f"{CONNECTIONS} connections, 1 KiB answers, 64-byte messages, {size // 1_000_000} MB; "
        f"median of {rounds} rounds, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n"
    )
    show(bench)
    if chosen.json:
        proxies = [asdict(figures) for figures in bench.figures.values()]
        aims = [asdict(aim) for aim in bench.aims()]
        numbers = json.dumps({"bench": "proxy", "proxies": proxies, "aims": aims}) + "\n"
        print(f"\n{numbers}", end="") if str(chosen.json) == "-" else chosen.json.write_text(numbers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
