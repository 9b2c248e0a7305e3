"""From inside a workspace: the engine, the platform's ports, another workspace, more privileges, more than its share.
Each fails, and the others live. What is tried does listen: the same attempt from outside succeeds.
"""

import asyncio
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from codehub.adapters.docker import DockerRuntime
from codehub.adapters.docker.firewall import NEVER, PRIVATE
from codehub.adapters.docker.network_isolation import NetworkIsolation
from codehub.adapters.docker.payloads import PORT
from codehub.domain.naming import container_name, volume_name
from codehub.ports.runtime import ContainerSpec, Resources
from tests.docker_engine import WORKSPACE_IMAGE, DockerTestbed, engine_here, sweep
from tests.eventually import eventually
from tests.proxy.harness import ProxyHarness

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]

SHARE = Resources(cpu=1.0, memory_bytes=256 << 20, pids=100)
CONNECT = 'timeout 3 bash -c "</dev/tcp/$0/$1"'


class Neighbourhood:
    """Two workspaces beside each other, with the image that people get."""

    def __init__(self, runtime: DockerRuntime, isolation: NetworkIsolation) -> None:
        self.runtime = runtime
        self.isolation = isolation
        self.mine, self.theirs = uuid4(), uuid4()

    async def add_user(self) -> None:
        for key in (self.mine, self.theirs):
            await self.runtime.create_volume(key, volume_name(key, 1))
            await self.runtime.start_container(self.spec(key))
        for key in (self.mine, self.theirs):
            await eventually(lambda key=key: self.runtime.answers(key), 60)  # type: ignore[misc]

    def spec(self, key: UUID) -> ContainerSpec:
        return ContainerSpec(key, volume_name(key, 1), "", {}, SHARE)

    async def tries(self, *argv: str) -> int:
        """In a container that is confined as the workspace's own is: the exit code."""
        code, _output = await self.runtime.run_inside(self.spec(self.mine), argv, 120)
        return code

    async def says(self, script: str) -> str:
        _code, output = await self.runtime.run_inside(self.spec(self.mine), ["sh", "-c", script], 120)
        return output.strip()

    async def reached(self, places: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        """Tried from inside, all at once: each that fails takes its time."""
        codes = await asyncio.gather(*(self.tries("sh", "-c", CONNECT, host, str(port)) for host, port in places))
        return [place for place, code in zip(places, codes, strict=True) if code == 0]

    async def all_live(self) -> bool:
        return await self.runtime.answers(self.mine) and await self.runtime.answers(self.theirs)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(docker_testbed: DockerTestbed) -> AsyncIterator[Neighbourhood]:
    engine, site = engine_here(), docker_testbed.site(WORKSPACE_IMAGE)
    runtime = docker_testbed.runtime(engine, site)
    place = Neighbourhood(runtime, NetworkIsolation(engine, docker_testbed.here))
    try:
        await place.add_user()
        yield place
    finally:
        await sweep(engine, site.install_id)
        await runtime.close()
        await engine.close()


@contextmanager
def listening(host: str) -> Iterator[int]:
    """A port of this machine that answers whoever reaches it."""
    with socket.create_server((host, 0)) as server:
        server.settimeout(0.1)
        over = threading.Event()

        def accept() -> None:
            while not over.is_set():
                try:
                    server.accept()[0].close()
                except TimeoutError:
                    continue

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            over.set()
            thread.join()


def machines_own_addresses() -> list[str]:
    """Those by which other machines would find this one, whatever they are."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # documentation's; nothing is sent
        except OSError:
            return []
        return [probe.getsockname()[0]]


async def test_the_machine_and_the_platforms_ports_are_out_of_reach(here: Neighbourhood) -> None:
    gateway = await here.isolation.gateway()
    with listening("0.0.0.0") as port:
        addresses = [gateway, *machines_own_addresses()]
        for address in addresses:
            socket.create_connection((address, port), 5).close()  # it does listen there
        assert await here.reached([(address, port) for address in (*addresses, "172.17.0.1")]) == []
    assert await here.all_live()


async def test_another_workspace_is_out_of_reach_by_address_and_by_name(here: Neighbourhood) -> None:
    endpoint = await here.runtime.endpoint(here.theirs)
    assert endpoint is not None
    assert endpoint.host is not None
    assert endpoint.port is not None
    socket.create_connection((endpoint.host, endpoint.port), 5).close()
    ways = [(endpoint.host, endpoint.port), (container_name(here.theirs), endpoint.port)]
    assert await here.reached(ways) == []


async def test_the_ide_is_not_at_the_containers_address(here: Neighbourhood) -> None:
    """Only the agent leads there, and asks for a proof: else every account of the machine could use it."""
    endpoint = await here.runtime.endpoint(here.mine)
    assert endpoint is not None
    assert endpoint.host is not None
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((endpoint.host, PORT), 5)
    assert await here.runtime.answers(here.mine)


async def test_a_server_on_loopback_inside_is_reached_through_the_front_door(here: Neighbourhood) -> None:
    serve = ["python3", "-m", "http.server", "--bind", "127.0.0.1", "3001"]
    subprocess.run(["docker", "exec", "--detach", container_name(here.mine), *serve], check=True)

    async def listens() -> bool:
        return await here.runtime.port_endpoint(here.mine, 3001) is not None

    await eventually(listens, 60)
    endpoint = await here.runtime.port_endpoint(here.mine, 3001)
    assert endpoint is not None
    async with ProxyHarness(endpoint) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: 3001--demo.localhost\r\nConnection: close\r\n\r\n")
        answer = await reader.read(-1)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"Directory listing" in answer
    assert await here.runtime.port_endpoint(here.theirs, 3001) is None


async def test_a_try_from_inside_can_succeed(here: Neighbourhood) -> None:
    """Else the others would prove nothing."""
    connect = "timeout 3 bash -c '</dev/tcp/127.0.0.1/9999' && echo reached && break"
    script = f"python3 -m http.server 9999 & for _ in $(seq 300); do {connect}; sleep 0.1; done"
    assert "reached" in await here.says(script)


async def test_there_is_no_engine_and_no_privilege_inside(here: Neighbourhood) -> None:
    assert await here.tries("test", "-e", "/var/run/docker.sock") != 0
    assert await here.says("grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status | tr -s '\\t' ' '") == (
        "CapEff: 0000000000000000\nCapBnd: 0000000000000000\nNoNewPrivs: 1\nSeccomp: 2"
    )
    assert await here.says("id -u") == "1000"
    forbidden = (
        "touch /usr/bin/mine",
        "mount -t tmpfs none /mnt",
        "unshare --user --map-root-user true",
        "chown 0:0 /home/coder",
        "mknod /tmp/disk b 8 0",
        "test -w /proc/sys/kernel/core_pattern",
        "find / -xdev -perm /6000 -type f 2>/dev/null | grep -v '^/usr/bin/sudo$'",
        "sudo -n true",  # it is there for templates that give it
        "ip link set eth0 down",
    )
    codes = await asyncio.gather(*(here.tries("sh", "-c", script) for script in forbidden))
    assert [script for script, code in zip(forbidden, codes, strict=True) if code == 0] == [], "these worked"
    assert await here.tries("sh", "-c", "touch /tmp/fine /home/coder/fine") == 0


async def test_its_share_is_all_it_gets_and_the_others_live(here: Neighbourhood) -> None:
    read = "cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids/pids.max 2>/dev/null | head -n 1"
    assert await here.says(read) == "100"
    read = "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null | head -n 1"
    assert await here.says(read) == str(256 << 20)
    many = "i=0; while [ $i -lt 1000 ]; do sleep 20 & i=$((i+1)); done; echo all of them"
    assert "all of them" not in await here.says(many)
    assert await here.tries("sh", "-c", f"head -c {600 << 20} /dev/zero | tail -n 1 | wc -c | grep -v '^0$'") != 0
    assert await here.all_live()


async def test_the_rules_for_what_is_beyond_this_machine_stand(
    here: Neighbourhood, docker_testbed: DockerTestbed
) -> None:
    """Metadata services and private networks elsewhere: the rules are read, no packet is sent."""
    assert await here.isolation.missing() == ""
    assert "169.254.0.0/16" in NEVER
    assert {"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"} <= set(PRIVATE)
