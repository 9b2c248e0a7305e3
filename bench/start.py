"""From the wish to RUNNING on the event stream, against a bare `docker run` or a bare pod until the same page answers.

Both start the same image with the same isolation on a home that has been used before, one after the other, then
many at once. What lies between is what recording first, looking and telling cost: it should be under 150 ms, and at
once no more than 1.2 times as long.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4

import httpx
import uvloop

from bench._bare_pods import BarePods
from bench._site import Person, Site, register
from bench.controller import Servers, say
from codehub.adapters.docker import DockerRuntime
from codehub.adapters.embedded import embedded_postgres, embedded_redis
from codehub.adapters.kubernetes import KubernetesRuntime
from codehub.bootstrap.kubernetes import why_not_kubernetes
from codehub.bootstrap.runtimes import why_not_docker
from codehub.bootstrap.services import Services, open_services
from codehub.cli.serve import until_signalled
from codehub.domain.identity import Role
from codehub.domain.workspace import Desired, Phase
from codehub.ports.stores import Actor
from codehub.settings import load_settings
from codehub.telemetry import configure_logging
from codehub.usecases.workspace_commands import CreateWorkspace

REACHABLE = "sed s/127.0.0.1:8080/0.0.0.0:8080/ /usr/local/lib/ide/launch | sh"
"""The command of the IDE at the container's address: without an agent nothing else leads to it."""
TIMEOUT_SECONDS = 180.0
LOOK_SECONDS = 0.005
AIM_MS, AIM_AT_ONCE = 150.0, 1.2


@dataclass(frozen=True)
class Row:
    what: str
    starts: int
    p50_ms: float
    p99_ms: float


PASSED_ON = (
    *("CODEHUB_WORKSPACE_IMAGE", "CODEHUB_IMAGE", "KUBECONFIG", "CODEHUB_KUBERNETES_NAMESPACE"),
    *("CODEHUB_ARCHIVE_URL", "CODEHUB_S3_ENDPOINT", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"),
)
"""Variables of ours that the measured processes have too."""


@dataclass(frozen=True)
class ContainerSite(Site):
    install: str = ""
    runtime: str = "docker"

    def _environment(self, port: int) -> dict[str, str]:
        more = {"CODEHUB_RUNTIME": self.runtime, "CODEHUB_INSTALL_ID": self.install}
        more |= {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        # Many start at once here; no more than the machine is asked of bare containers.
        return super()._environment(port) | more | {"MAX_RUNNING_PER_USER": "1000", "MAX_RUNNING_GLOBAL": "1000"}


class Stream:
    """The user's own event stream: the phase of each workspace, as soon as it is told."""

    def __init__(self, port: int, person: Person) -> None:
        self._address = f"http://127.0.0.1:{port}/api/v1/events"
        self._headers = {"Authorization": f"Bearer {person.token}"}
        self._at: dict[tuple[UUID, Phase], asyncio.Event] = {}

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["Stream"]:
        connected = asyncio.Event()
        task = asyncio.create_task(self._listen(connected))
        try:
            await asyncio.wait_for(connected.wait(), TIMEOUT_SECONDS)
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def expect(self, key: UUID, phase: Phase) -> asyncio.Event:
        """Forget what was heard: only what comes from now on counts."""
        self._at[key, phase] = told = asyncio.Event()
        return told

    async def _listen(self, connected: asyncio.Event) -> None:
        async with (
            httpx.AsyncClient(timeout=httpx.Timeout(60), trust_env=False) as client,
            client.stream("GET", self._address, headers=self._headers) as answer,
        ):
            event = ""
            async for line in answer.aiter_lines():
                name, _, value = line.partition(": ")
                if name == "event":
                    event = value
                    connected.set()
                elif name == "data" and event == "workspace_updated":
                    self._hear(json.loads(value))

    def _hear(self, seen: dict[str, object]) -> None:
        at_rest = seen["operation"] == "NONE"
        told = self._at.get((UUID(str(seen["id"])), Phase(str(seen["phase"]))))
        if told is not None and at_rest:
            told.set()


class Bench:
    def __init__(self, services: Services, stream: Stream, person: Person) -> None:
        self._services = services
        self._stream = stream
        self._owner = person.owner_id

    async def workspaces(self, number: int) -> list[UUID]:
        return list(await asyncio.gather(*(self.workspace() for _ in range(number))))

    async def workspace(self) -> UUID:
        """Make a workspace that is asleep, with a home that has been used."""
        key = uuid4()
        running = self._stream.expect(key, Phase.RUNNING)
        new = CreateWorkspace(f"bench {key}", self._owner, Desired.RUNNING, runtime=self._services.settings.runtime)
        await self._services.commands.create(new, key, Actor("bench"), datetime.now(UTC))
        await asyncio.wait_for(running.wait(), TIMEOUT_SECONDS)
        await self.wished(key, Desired.STANDBY)
        return key

    async def wished(self, key: UUID, desired: Desired) -> float:
        """Ask for a desired state; returns the seconds until its phase is told."""
        told = self._stream.expect(key, Phase(desired.value))
        began = time.perf_counter()
        await self._services.commands.want(key, desired, Actor("bench"))
        await asyncio.wait_for(told.wait(), TIMEOUT_SECONDS)
        return time.perf_counter() - began


class BareContainers:
    """Bare containers of the workspace's image in Docker, as confined as a workspace."""

    name = "docker run"

    def __init__(self, runtime: DockerRuntime) -> None:
        self._runtime = runtime
        self._names: set[str] = set()

    async def start(self, home: UUID) -> float:
        """The seconds from `docker run` until its page answers; `home` names its volume."""
        site, name, volume = self._runtime.site, f"bench-{uuid4().hex[:12]}", f"bench-{home}"
        self._names |= {name, volume}
        memory, pids = site.share.memory_bytes, site.share.pids
        isolation = ["--cap-drop=ALL", "--security-opt=no-new-privileges:true", "--read-only", "--tmpfs=/tmp", "--init"]
        limits = [f"--memory={memory}", f"--memory-swap={memory}", f"--pids-limit={pids}", f"--cpus={site.share.cpu}"]
        place = [f"--network={site.network}", f"--volume={volume}:/home/coder", f"--name={name}"]
        began = time.perf_counter()
        await _docker("run", "--detach", *isolation, *limits, *place, site.workspace_image, "sh", "-c", REACHABLE)
        address = await _docker("inspect", "--format", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", name)
        await _until_it_answers(address)
        seconds = time.perf_counter() - began
        await _docker("rm", "--force", name)
        return seconds

    async def sweep(self) -> None:
        runtime = self._runtime
        for key in await runtime.containers():
            await runtime.remove_container(key)
        for key, names in (await runtime.volumes()).items():
            for name in names:
                await runtime.delete_volume(key, name)
        for kind in (("rm", "--force"), ("volume", "rm", "--force")):
            await _docker(*kind, *self._names, check=False)  # most are gone already
        await runtime.isolation.take_down()


def bare_starts(services: Services) -> BareContainers | BarePods:
    if isinstance(services.runtime, DockerRuntime):
        return BareContainers(services.runtime)
    assert isinstance(services.runtime, KubernetesRuntime)
    return BarePods(services.runtime, REACHABLE, _until_it_answers)


async def _docker(*words: str, check: bool = True) -> str:
    process = await asyncio.create_subprocess_exec(
        "docker", *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    assert process.returncode == 0 or not check, errors.decode()
    return output.decode().strip()


async def _until_it_answers(address: str) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=5) as client, asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            try:
                await client.get(f"http://{address}:8080/healthz")
            except httpx.HTTPError:
                await asyncio.sleep(LOOK_SECONDS)
            else:
                return


async def measure(runtime: str, rounds: int, at_once: int) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="codehub-bench-") as directory:
        place = Path(directory)
        async with embedded_postgres(place) as postgres, embedded_redis(place) as redis:
            servers = Servers(postgres.url, redis.url)
            install = f"bench-{uuid4().hex[:8]}"
            site = ContainerSite(servers, place, await servers.database(), install=install, runtime=runtime)
            [person] = await register(site.url, 1, Role.USER)
            settings = load_settings(
                database_url=site.url,
                redis_url=servers.redis_url,
                data_dir=place / "data",
                runtime=runtime,
                install_id=site.install,
                max_running_per_user=1000,
                max_running_global=1000,
            )
            async with open_services(settings) as services:
                bare = bare_starts(services)
                try:
                    async with (
                        site.coordinator(),
                        site.api() as (port, _),
                        Stream(port, person).listening() as stream,
                    ):
                        return await _rows(Bench(services, stream, person), bare, rounds, at_once)
                finally:
                    # Nobody coordinates any more, who would bring back what is removed.
                    await bare.sweep()


async def _rows(bench: Bench, starts: BareContainers | BarePods, rounds: int, at_once: int) -> list[Row]:
    ours, bare = [], []
    key, home = await bench.workspace(), uuid4()
    await starts.start(home)
    for number in range(rounds):
        say(f"start {number + 1} of {rounds}")
        bare.append(await starts.start(home))
        ours.append(await bench.wished(key, Desired.RUNNING))
        await bench.wished(key, Desired.STANDBY)
    keys = await bench.workspaces(at_once)
    homes = [uuid4() for _ in range(at_once)]
    await asyncio.gather(*(starts.start(one) for one in homes))
    say(f"{at_once} at once")
    together_bare = await asyncio.gather(*(starts.start(one) for one in homes))
    together = await asyncio.gather(*(bench.wished(one, Desired.RUNNING) for one in keys))
    return [
        _row(f"{starts.name}, one by one", bare),
        _row("wish to RUNNING, one by one", ours),
        _row(f"{starts.name}, {at_once} at once", together_bare),
        _row(f"wish to RUNNING, {at_once} at once", together),
    ]


def _row(what: str, seconds: Sequence[float]) -> Row:
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return Row(what, len(seconds), cuts[49] * 1000, cuts[98] * 1000)


def show(rows: Sequence[Row]) -> None:
    print(f"{'':34}{'starts':>7}{'p50 ms':>10}{'p99 ms':>10}")
    for row in rows:
        print(f"{row.what:34}{row.starts:7}{row.p50_ms:10.0f}{row.p99_ms:10.0f}")
    bare, ours, bare_at_once, at_once = rows
    print(f"\noverhead at p50: {ours.p50_ms - bare.p50_ms:.0f} ms (aim: under {AIM_MS:.0f})")
    ratio = at_once.p99_ms / bare_at_once.p99_ms
    print(f"until the last of {at_once.starts}: {ratio:.2f} times as long (aim: at most {AIM_AT_ONCE})")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runtime", choices=("docker", "kubernetes"), default="docker")
    parser.add_argument("--quick", action="store_true", help="small numbers: does it work at all?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=20)
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.rounds, chosen.at_once = 2, 2
    configure_logging(level="warning")
    unused = load_settings(database_url="postgresql://unused", redis_url="redis://unused")
    reason = asyncio.run((why_not_docker if chosen.runtime == "docker" else why_not_kubernetes)(unused))
    if reason is None and chosen.runtime == "kubernetes" and "CODEHUB_ARCHIVE_URL" not in os.environ:
        reason = "pods need a bucket for archives: CODEHUB_ARCHIVE_URL names none"
    if reason is not None:
        print(f"not measured: {reason}")
        return 0
    rows: list[Row] = []

    async def run() -> None:
        rows.extend(await measure(chosen.runtime, chosen.rounds, chosen.at_once))

    uvloop.run(until_signalled(run))
    if not rows:
        return 1
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    show(rows)
    if chosen.json:
        chosen.json.write_text(json.dumps({"bench": "start", "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
