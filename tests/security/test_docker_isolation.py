"""The rules that isolate workspaces are really deleted on a real engine, as a reload of the machine's firewall does.

They are back within seconds, whoever slipped through meanwhile is cut off, nothing starts while nobody can say that
they stand, and the admins are told.
"""

import asyncio
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from codehub.adapters.docker import DockerRuntime, DockerSite, Engine, firewall, payloads
from codehub.adapters.docker.network_isolation import NetworkIsolation
from codehub.domain.errors import Deferred
from codehub.domain.naming import INSTALL_LABEL, volume_name
from codehub.domain.workspace import Desired, Phase
from codehub.ports.runtime import ContainerSpec, Resources
from tests.docker_engine import FAKE_IDE_IMAGE, WORKSPACE_IMAGE, DockerTestbed, sweep
from tests.eventually import eventually
from tests.system.conftest import logged_database, logged_template
from tests.system.docker_site import DockerDeployment, docker_deployed, has_tools, own_engine

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

__all__ = ["logged_database", "logged_template"]

RESTORED = "the isolation of workspaces was broken and has been restored"
KEEPS_TRYING = """\
import socket, sys, time
while True:
    try:
        with socket.create_connection((sys.argv[1], int(sys.argv[2])), 0.2) as through:
            while True:
                through.sendall(b"x")
                time.sleep(0.1)
    except OSError:
        pass
"""


class Target:
    """A port of the engine's machine: how many bytes came, and from how many connections."""

    def __init__(self) -> None:
        self.connections = 0
        self.bytes = 0
        self._server = socket.create_server(("0.0.0.0", 0))
        self.port = self._server.getsockname()[1]

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._count, args=(connection,), daemon=True).start()

    def _count(self, connection: socket.socket) -> None:
        with connection:
            while some := connection.recv(100):
                self.bytes += len(some)

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()


@contextmanager
def target() -> Iterator[Target]:
    found = Target()
    thread = threading.Thread(target=found.serve)
    thread.start()
    try:
        yield found
    finally:
        found.close()
        thread.join()


@pytest.fixture
async def site(
    docker_testbed: DockerTestbed, logged_database: str, fresh_redis: str
) -> AsyncIterator[tuple[DockerDeployment, UUID]]:
    async with docker_deployed(logged_database, fresh_redis) as site:
        site.start()
        key = await site.create(Desired.RUNNING)
        await site.settled(key, Phase.RUNNING)
        yield site, key


async def reload_firewall(isolation: NetworkIsolation) -> None:
    """Delete all rules that are ours, as if the machine's firewall had been loaded anew."""
    await isolation._run(firewall.take_down(isolation._site.bridge))


async def test_rules_that_are_deleted_are_put_back_and_who_slipped_through_is_cut_off(
    site: tuple[DockerDeployment, UUID],
) -> None:
    deployed, key = site
    isolation = deployed.runtime.isolation
    gateway = await isolation.gateway()
    with target() as machine:
        inside = ["exec", "--detach", f"ws-{key}", "python3", "-c", KEEPS_TRYING, gateway, str(machine.port)]
        deployed.docker(*inside)
        for _ in range(20):
            await reload_firewall(isolation)
            if machine.connections:
                break
        assert machine.connections, "without the rules it would not have been kept out"

        async def they_stand() -> bool:
            return await isolation.missing() == ""

        await eventually(they_stand, 120)
        came = machine.bytes
        await asyncio.sleep(2)
        assert machine.bytes == came, "a connection from before the rules came back is still of use"
    (leader,) = deployed.coordinators

    async def admins_know() -> bool:
        return any("missing: -A" in line["details"] for line in leader.said(RESTORED, level="error"))

    await eventually(admins_know, 120)
    await deployed.settled(key, Phase.RUNNING)


@pytest.fixture
async def own(docker_testbed: DockerTestbed, engine: Engine) -> AsyncIterator[NetworkIsolation]:
    site = docker_testbed.site()
    isolation = NetworkIsolation(engine, replace(site, network=f"codehub-{site.install_id}"))
    yield isolation
    await sweep(engine, site.install_id)
    await isolation.take_down()


async def test_nothing_starts_while_the_rules_cannot_be_put_up(own: NetworkIsolation, engine: Engine) -> None:
    """The packet filter refuses one of the rules."""
    refusing = NetworkIsolation(engine, replace(own._site, reachable=("300.1.2.3/8",)))
    runtime = DockerRuntime(engine, refusing._site, isolation=refusing)
    key = uuid4()
    await runtime.create_volume(key, volume_name(key, 1))
    spec = ContainerSpec(key, volume_name(key, 1), "", {}, Resources(memory_bytes=64 << 20))
    for _ in range(2):
        with pytest.raises(Deferred, match=r"workspaces are not isolated .*300\.1\.2\.3"):
            await runtime.start_container(spec)
    assert await runtime.containers() == {}
    mended = DockerRuntime(engine, own._site, isolation=own)
    await mended.start_container(spec)
    assert set(await runtime.containers()) == {key}


async def test_a_word_that_is_old_does_not_count(own: NetworkIsolation, engine: Engine) -> None:
    """The monitor stands still: what it said before it did is not believed, and another takes its place."""
    await own.stand()
    docker = await engine.docker()
    monitor = docker.containers.container(own.monitor_name)
    before = (await monitor.show())["Id"]
    async with aclosing(own._lines(from_the_start=False)) as lines:
        await anext(lines)  # it rests after each: a process that is being made cannot be frozen on every kernel
    await monitor.pause()
    await own._run(firewall.take_down(own._site.bridge))
    assert await own.missing() != ""
    later = NetworkIsolation(engine, own._site)
    await later.stand()
    assert await own.missing() == ""
    assert (await monitor.show())["Id"] != before


async def test_several_at_once_make_one_network_and_one_monitor(own: NetworkIsolation, engine: Engine) -> None:
    """Two set the rules at once: a leader that begins and a doctor that looks, say."""
    others = [NetworkIsolation(engine, own._site) for _ in range(4)]
    await asyncio.gather(*(isolation.stand() for isolation in others))
    assert await own.missing() == ""


async def test_what_was_disturbed_can_be_asked_for_later(own: NetworkIsolation) -> None:
    await own.stand()
    assert await own.disturbances() == []
    await own._run(f'for tables in iptables-nft iptables-legacy; do "$tables" -F {own._site.bridge}-HOST; done; true')

    async def it_was_noted() -> bool:
        return any(f"missing: -A {own._site.bridge}-HOST -j DROP" in line for line in await own.disturbances())

    await eventually(it_was_noted, 120)
    assert await own.missing() == ""


async def test_the_monitor_ends_with_the_network(own: NetworkIsolation, engine: Engine) -> None:
    """Nothing of an installation that was removed runs on for ever."""
    await own.stand()
    docker = await engine.docker()
    await (await docker.networks.get(own._site.network)).delete()

    async def it_has_ended() -> bool:
        found = await engine.container(own.monitor_name)
        return found is not None and not found["State"]["Running"]

    await eventually(it_has_ended, 120)
    await own.stand(afresh=True)
    assert await own.missing() == ""


@pytest.mark.parametrize("reload", ["iptables -F", "iptables -F; iptables -X"], ids=["flushed", "flushed and removed"])
async def test_a_whole_firewall_that_is_loaded_anew_is_survived(reload: str, docker_testbed: DockerTestbed) -> None:
    """The test has an engine of its own, for it takes Docker's own chains away too: then nobody would ask ours."""
    if not has_tools():
        pytest.skip("dockerd, unshare, nsenter, ip or mkfs.ext4 is not there")
    with own_engine() as lonely:
        engine = Engine(lonely.host)
        isolation = NetworkIsolation(engine, DockerSite("reloaded", FAKE_IDE_IMAGE, FAKE_IDE_IMAGE, "codehub-reloaded"))
        try:
            await isolation.stand()
            subprocess.run([*lonely.enter, "sh", "-c", reload], check=True)

            async def they_stand() -> bool:
                return await isolation.missing() == ""

            await eventually(they_stand, 120)
            await isolation.take_down()
        except TimeoutError:
            print(await engine.output(isolation.monitor_name, 40, timestamps=True))
            raise
        finally:
            await engine.close()


async def reached(runtime: DockerRuntime, spec: ContainerSpec, host: str, port: int) -> bool:
    argv = ["timeout", "3", "bash", "-c", f"</dev/tcp/{host}/{port}"]
    code, _output = await runtime.run_inside(spec, argv, 60)
    return code == 0


async def test_what_the_operator_names_on_the_same_machine_is_reached_and_nothing_beside_it(
    own: NetworkIsolation, engine: Engine
) -> None:
    """A git server that listens on the machine, and one in another container: by its published port and by its own
    address. The ports beside them, and a network that holds them all, open nothing."""
    docker = await engine.docker()
    await own._make_network()
    gateway = (await (await docker.networks.get(own._site.network)).show())["IPAM"]["Config"][0]["Gateway"]
    server: payloads.Payload = {
        "Image": FAKE_IDE_IMAGE,
        "Labels": {INSTALL_LABEL: own._site.install_id},
        "Entrypoint": ["/usr/local/lib/codehub/bin/python", "-m", "http.server"],
        "Cmd": ["3000"],
        "ExposedPorts": {"3000/tcp": {}},
        "HostConfig": {"NetworkMode": "bridge", "PortBindings": {"3000/tcp": [{"HostIp": gateway, "HostPort": ""}]}},
    }
    git = await docker.containers.create(server, name=f"test-git-{own._site.install_id}")
    await git.start()
    seen = (await git.show())["NetworkSettings"]
    address, published = seen["Networks"]["bridge"]["IPAddress"], int(seen["Ports"]["3000/tcp"][0]["HostPort"])
    key = uuid4()
    with target() as machine, target() as beside:
        places = [(gateway, machine.port), (gateway, published), (address, 3000)]
        for host, port in [*places, (gateway, beside.port)]:
            await eventually(lambda host=host, port=port: answers(host, port), 120)  # type: ignore[misc]
        wide, exact = (
            ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"),
            tuple(f"{host}:{port}" for host, port in places),
        )
        for reachable, open_to in ((wide, []), ((*wide, *exact), places)):
            site = replace(own._site, reachable=reachable)
            runtime = DockerRuntime(engine, site, isolation=NetworkIsolation(engine, site))
            await runtime.create_volume(key, volume_name(key, 1))
            spec = ContainerSpec(key, volume_name(key, 1), WORKSPACE_IMAGE, {}, Resources(memory_bytes=256 << 20))
            tried = [*places, (gateway, beside.port), (address, 3001)]
            assert [place for place in tried if await reached(runtime, spec, *place)] == open_to, reachable


async def answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 2).close()
    except OSError:
        return False
    return True
