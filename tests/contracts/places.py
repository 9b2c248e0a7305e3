"""Where the runtime and job suites run: one machine each, with what no port offers, such as a container that exits.

Every call of `runtime()` or `jobs()` is another coordinator's view of the same machine.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol
from uuid import UUID

from codehub.adapters.docker import DockerJobs, DockerRuntime, DockerSite, Engine
from codehub.adapters.docker.jobs import PROGRAM as JOB_PROGRAM
from codehub.adapters.docker.jobs import job_store
from codehub.adapters.kubernetes import Cluster, KubernetesJobs, KubernetesRuntime, KubernetesSite
from codehub.adapters.kubernetes.jobs import PROGRAM as KUBERNETES_JOB_PROGRAM
from codehub.adapters.memory import MemoryArchives, MemoryJobs, MemoryRuntime
from codehub.adapters.memory.archives import ArchivesState
from codehub.adapters.memory.jobs import JobsState
from codehub.adapters.memory.runtime import RuntimeState
from codehub.adapters.object_store.archives import ObjectArchives
from codehub.adapters.process import ProcessJobs, ProcessRuntime
from codehub.adapters.process.jobs import PROGRAM
from codehub.adapters.process.table import orphans
from codehub.adapters.readiness_probe import Streams
from codehub.agent.handshake import dial
from codehub.ports.archives import Archives
from codehub.ports.jobs import Jobs
from codehub.ports.runtime import Endpoint, Runtime
from tests.contracts.s3 import BUCKET, KEY_ID, SECRET, credentials, rclone
from tests.docker_engine import DockerTestbed, engine_here, sweep
from tests.eventually import eventually
from tests.kubernetes_cluster import KubernetesTestbed

HERE = Path(__file__).parent
FAKE_IDE = [sys.executable, str(HERE / "fake_ide.py"), "{socket}"]
SLOW_JOB = [sys.executable, str(HERE / "slow_job.py")]
READABLE = [Path(sys.prefix), Path(sys.base_prefix), HERE]
PROGRAMS = Path(sys.prefix, "programs")
"""Of all tests: it takes half a second to make."""


def names(volumes: Mapping[UUID, Mapping[str, str]]) -> dict[UUID, set[str]]:
    return {owner: set(theirs) for owner, theirs in volumes.items()}


class Place(Protocol):
    def runtime(self) -> Runtime: ...

    def jobs(self) -> Jobs: ...

    def archives(self) -> Archives: ...

    def slow_jobs(self) -> Jobs:
        """Jobs that report progress and do not end by themselves."""
        ...

    async def exit_by_itself(self, workspace_id: UUID) -> None: ...

    async def listen(self, workspace_id: UUID, port: int = 0) -> int:
        """A program in the running workspace listens on loopback; the port it got. 0: any."""
        ...

    async def environment(self, workspace_id: UUID) -> Mapping[str, str]:
        """The variables that the IDE in the running workspace has."""
        ...

    def write(self, volume: str, value: int) -> None: ...

    def content(self, volume: str) -> list[int]: ...

    def fill(self, volume: str, size: int) -> None:
        """A file of that many bytes in the home."""
        ...

    def damage(self, key: str) -> None:
        """Change a byte of an archive in the store, where only who reads all of it can tell."""
        ...

    async def close(self) -> None: ...


class MemoryPlace:
    def __init__(self) -> None:
        self.state = RuntimeState()
        self._archives = ArchivesState()
        first = MemoryJobs(self.runtime(), self.archives())
        self._jobs: JobsState = first.state
        self._first = first

    def runtime(self) -> MemoryRuntime:
        return MemoryRuntime(self.state)

    def archives(self) -> MemoryArchives:
        return MemoryArchives(self._archives)

    def jobs(self) -> MemoryJobs:
        return MemoryJobs(self.runtime(), self.archives(), self._jobs)

    def slow_jobs(self) -> MemoryJobs:
        self._jobs.steps, self._jobs.step_seconds = 10_000, 0.01
        return self.jobs()

    async def exit_by_itself(self, workspace_id: UUID) -> None:
        self.state.kill(workspace_id)

    async def listen(self, workspace_id: UUID, port: int = 0) -> int:
        self.state.listen(workspace_id, port or 8080)
        return port or 8080

    async def environment(self, workspace_id: UUID) -> Mapping[str, str]:
        spec = self.state.containers[workspace_id].spec
        assert spec is not None
        return {**spec.env, **spec.secrets.env}

    def write(self, volume: str, value: int) -> None:
        content = self.state.volumes[volume].content
        self.state.volumes[volume].content = (*content, value)

    def content(self, volume: str) -> list[int]:
        return list(self.state.volumes[volume].content)

    def fill(self, volume: str, size: int) -> None:
        self.state.volumes[volume].used_bytes = size

    def damage(self, key: str) -> None:
        self._archives.objects[key].rotten = True

    async def close(self) -> None:
        await self._first.close()


class ProcessPlace:
    def __init__(self, root: Path, *, sandbox: bool = False, own_network: bool = False) -> None:
        self.root = root
        self._sandbox = sandbox or own_network
        self._own_network = own_network
        self._store = root.parent / "archives"
        self._archives = ObjectArchives(self.store_url, "", make_directory=True)

    @property
    def store_url(self) -> str:
        return self._store.as_uri()

    @property
    def own_users(self) -> bool:
        """Root gives each workspace in a sandbox a user of its own."""
        return self._sandbox and os.getuid() == 0

    def runtime(self, *options: str, install_id: str = "here", grace_seconds: float = 1.0) -> ProcessRuntime:
        return ProcessRuntime(
            self.root,
            install_id,
            [*FAKE_IDE, *options],
            grace_seconds=grace_seconds,
            sandbox=self._sandbox,
            own_network=self._own_network,
            readable=READABLE,
            programs=PROGRAMS,
        )

    def archives(self) -> ObjectArchives:
        return self._archives

    def jobs(self, *program: str, install_id: str = "here") -> ProcessJobs:
        return ProcessJobs(self.runtime(install_id=install_id), self.store_url, program=program or PROGRAM)

    def slow_jobs(self) -> ProcessJobs:
        return self.jobs(*SLOW_JOB)

    async def exit_by_itself(self, workspace_id: UUID) -> None:
        seen = (await self.runtime().containers([workspace_id]))[workspace_id]
        while not (pids := list(orphans(seen.instance))):
            await asyncio.sleep(0.01)  # it has not become the command yet
        for pid in pids:
            with suppress(ProcessLookupError):  # a sandbox's end is the end of all in it
                os.kill(pid, signal.SIGKILL)

    async def listen(self, workspace_id: UUID, port: int = 0, host: str = "127.0.0.1", word: str = "hello") -> int:
        """`word`: what it says to whoever connects, and its socket's options after a slash."""
        body = await self._ask(workspace_id, f"/listen/{host}/{port}/{word}")
        if not body:
            raise OSError(f"it could not listen on {host}:{port}")
        return int(body)

    async def environment(self, workspace_id: UUID) -> Mapping[str, str]:
        variables: dict[str, str] = json.loads(await self._ask(workspace_id, "/environment"))
        return variables

    async def _ask(self, workspace_id: UUID, path: str) -> bytes:
        runtime = self.runtime()
        await eventually(lambda: runtime.answers(workspace_id))
        endpoint = await runtime.endpoint(workspace_id)
        assert endpoint
        return await _answer(await asyncio.open_unix_connection(endpoint.socket), path)

    def write(self, volume: str, value: int) -> None:
        home = self.runtime().homes.home(volume)
        (home / f"{len(self.content(volume))}.txt").write_text(str(value))

    def content(self, volume: str) -> list[int]:
        home = self.runtime().homes.home(volume)
        return [int(path.read_text()) for path in sorted(home.glob("*.txt"))]

    def fill(self, volume: str, size: int) -> None:
        (self.runtime().homes.home(volume) / "large").write_bytes(os.urandom(size))

    def processes(self) -> list[int]:
        """Whatever workspaces run here: their home is here."""
        return [pid for pid, variables in environments() if b"HOME=" + os.fsencode(self.root) in variables]

    def ides(self) -> list[int]:
        """Of these, the IDEs: the program that runs commands is beside each."""
        return [pid for pid in self.processes() if is_ide(pid)]

    def damage(self, key: str) -> None:
        flip_last_byte(self._store / key)

    async def close(self) -> None:
        runtime, jobs = self.runtime(), self.jobs()
        for workspace_id in await runtime.containers():
            await runtime.remove_container(workspace_id)
        for workspace_id in await jobs.find():
            await jobs.clear(workspace_id)
        self._archives.close()
        shutil.rmtree(runtime._sockets._directory)  # below a long root it is elsewhere


class DockerPlace:
    """Each view has an engine's connection of its own, as each coordinator has."""

    def __init__(self, testbed: DockerTestbed, directory: Path, site: DockerSite | None = None) -> None:
        self.testbed = testbed
        self.site = site or testbed.site()
        self._store = directory / "archives"
        self._archives = ObjectArchives(self._store.as_uri(), "", make_directory=True)
        self._engines: list[Engine] = []
        self._runtimes: list[DockerRuntime] = []

    def engine(self) -> Engine:
        self._engines.append(engine_here())
        return self._engines[-1]

    def runtime(self, site: DockerSite | None = None, grace_seconds: int = 1) -> DockerRuntime:
        self._runtimes.append(self.testbed.runtime(self.engine(), site or self.site, grace_seconds))
        return self._runtimes[-1]

    def archives(self) -> ObjectArchives:
        return self._archives

    def jobs(self, *program: str, site: DockerSite | None = None) -> DockerJobs:
        store = job_store(self._store.as_uri(), os.environ)
        return DockerJobs(self.runtime(site), store, program=program or JOB_PROGRAM)

    def slow_jobs(self) -> DockerJobs:
        fakes = replace(self.site, codehub_image=self.site.workspace_image)
        return self.jobs("/usr/local/lib/codehub/bin/python", "/fakes/slow_job.py", site=fakes)

    async def exit_by_itself(self, workspace_id: UUID) -> None:
        engine = self.engine()
        seen = (await self.runtime().containers([workspace_id]))[workspace_id]
        await (await engine.docker()).containers.container(seen.instance).kill()

    async def listen(self, workspace_id: UUID, port: int = 0, host: str = "127.0.0.1") -> int:
        return int(await self._ask(workspace_id, f"/listen/{host}/{port}/hello"))

    async def environment(self, workspace_id: UUID) -> Mapping[str, str]:
        variables: dict[str, str] = json.loads(await self._ask(workspace_id, "/environment"))
        return variables

    async def _ask(self, workspace_id: UUID, path: str) -> bytes:
        runtime = self.runtime()
        await eventually(lambda: runtime.answers(workspace_id))
        endpoint = await runtime.endpoint(workspace_id)
        assert endpoint
        return await _answer(await _open(endpoint), path)

    def mountpoint(self, volume: str) -> Path:
        asked = ["docker", "volume", "inspect", "--format", "{{.Mountpoint}}", volume]
        return Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())

    def write(self, volume: str, value: int) -> None:
        home = self.mountpoint(volume)
        (home / f"{len(self.content(volume))}.txt").write_text(str(value))

    def content(self, volume: str) -> list[int]:
        return [int(path.read_text()) for path in sorted(self.mountpoint(volume).glob("*.txt"))]

    def fill(self, volume: str, size: int) -> None:
        (self.mountpoint(volume) / "large").write_bytes(os.urandom(size))

    def damage(self, key: str) -> None:
        flip_last_byte(self._store / key)

    async def close(self) -> None:
        await sweep(self.engine(), self.site.install_id)
        for runtime in self._runtimes:
            await runtime.close()
        for engine in self._engines:
            await engine.close()
        self._archives.close()


class KubernetesPlace:
    """Each view has a connection to the API server of its own, as each coordinator has."""

    def __init__(self, testbed: KubernetesTestbed, directory: Path, site: KubernetesSite | None = None) -> None:
        self.testbed = testbed
        self.site = site or testbed.site()
        self._stack = ExitStack()
        self._buckets = directory / "buckets"
        self._s3_endpoint = self._stack.enter_context(rclone(self._buckets, testbed.address))
        self._stack.enter_context(credentials(self._s3_endpoint))
        self._archives = ObjectArchives(f"s3://{BUCKET}", "", make_directory=False)
        self._clusters: list[Cluster] = []
        self._runtimes: list[KubernetesRuntime] = []

    def cluster(self) -> Cluster:
        self._clusters.append(self.testbed.cluster())
        return self._clusters[-1]

    def runtime(self, site: KubernetesSite | None = None) -> KubernetesRuntime:
        self._runtimes.append(KubernetesRuntime(self.cluster(), site or self.site))
        return self._runtimes[-1]

    def archives(self) -> ObjectArchives:
        return self._archives

    @property
    def store(self) -> tuple[str, dict[str, str]]:
        """The object store's address, and what reaches it."""
        env = {
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "CODEHUB_S3_ENDPOINT": self._s3_endpoint,
        }
        return f"s3://{BUCKET}", env

    def jobs(self, *program: str, site: KubernetesSite | None = None) -> KubernetesJobs:
        return KubernetesJobs(self.runtime(site), *self.store, program=program or KUBERNETES_JOB_PROGRAM)

    def slow_jobs(self) -> KubernetesJobs:
        fakes = replace(self.site, codehub_image=self.site.workspace_image)
        return self.jobs("/usr/local/lib/codehub/bin/python", "/fakes/slow_job.py", site=fakes)

    async def exit_by_itself(self, workspace_id: UUID) -> None:
        runtime = self.runtime()
        await eventually(lambda: _has_endpoint(runtime, workspace_id))
        seen = (await runtime.containers([workspace_id]))[workspace_id]
        self.testbed.kill_container(seen.instance)

    async def listen(self, workspace_id: UUID, port: int = 0, host: str = "127.0.0.1") -> int:
        return int(await self._ask(workspace_id, f"/listen/{host}/{port}/hello"))

    async def environment(self, workspace_id: UUID) -> Mapping[str, str]:
        variables: dict[str, str] = json.loads(await self._ask(workspace_id, "/environment"))
        return variables

    async def _ask(self, workspace_id: UUID, path: str) -> bytes:
        runtime = self.runtime()
        await eventually(lambda: runtime.answers(workspace_id))
        endpoint = await runtime.endpoint(workspace_id)
        assert endpoint
        return await _answer(await _open(endpoint), path)

    def write(self, volume: str, value: int) -> None:
        home = self.testbed.mountpoint(volume)
        (home / f"{len(self.content(volume))}.txt").write_text(str(value))

    def content(self, volume: str) -> list[int]:
        return [int(path.read_text()) for path in sorted(self.testbed.mountpoint(volume).glob("*.txt"))]

    def fill(self, volume: str, size: int) -> None:
        (self.testbed.mountpoint(volume) / "large").write_bytes(os.urandom(size))

    def damage(self, key: str) -> None:
        flip_last_byte(self._buckets / BUCKET / key)

    async def close(self) -> None:
        for runtime in self._runtimes:
            await runtime.close()
        for cluster in self._clusters:
            await cluster.close()
        self.testbed.sweep(self.site.install_id)
        self._archives.close()
        self._stack.close()


async def _has_endpoint(runtime: KubernetesRuntime, workspace_id: UUID) -> bool:
    return await runtime.endpoint(workspace_id) is not None


def flip_last_byte(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


async def _answer(streams: Streams, path: str) -> bytes:
    reader, writer = streams
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    body = (await reader.read()).rpartition(b"\r\n\r\n")[2]
    writer.close()
    return body


async def _open(endpoint: Endpoint) -> Streams:
    assert endpoint.host
    assert endpoint.port
    assert endpoint.inside
    proven = await dial((endpoint.host, endpoint.port), endpoint.inside.key, endpoint.inside.port)
    return await asyncio.open_connection(sock=proven)


def is_ide(pid: int) -> bool:
    words = Path("/proc", str(pid), "cmdline").read_bytes()
    return b"fake_ide.py" in words and b"exec_session" not in words


def environments() -> Iterator[tuple[int, bytes]]:
    """Of all that run; one that has ended and is not yet reaped has none."""
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                yield int(process.name), (process / "environ").read_bytes()
            except OSError:  # it ended just now
                continue
