"""Attacks from inside a workspace of the process runtime, in a real sandbox: on the front door's port, on the machine's
files and on its ports. Each runs in every kind of isolation that this machine has."""

import asyncio
import os
import socket
import stat
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from uuid import uuid4

import pytest

from codehub.adapters.process import ProcessRuntime
from codehub.adapters.process.sandbox import find_confinement
from codehub.domain.naming import volume_name
from codehub.ports.runtime import ContainerSpec
from codehub.proxy.supervisor import Supervisor
from tests.contracts.patience import eventually
from tests.contracts.places import READABLE

pytestmark = pytest.mark.system

OWN_NETWORK, OWN_USER = "a network of its own", "a user of its own"
TRIES = 24
THIEF = """
import os, socket, sys, threading, time
port, held = int(sys.argv[1]), []
STOLEN = b"HTTP/1.1 200 OK\\r\\nContent-Length: 6\\r\\nConnection: close\\r\\n\\r\\nstolen"
def serve(server):
    while True:
        client, _ = server.accept()
        client.recv(65536)
        client.sendall(STOLEN)
        client.close()
for host in ("127.0.0.1", "::1", "0.0.0.0", "::", "::ffff:127.0.0.1"):
    for shared in (True, False):
        server = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            server.bind((host, port))
            server.listen()
        except OSError:
            continue
        held.append(host)
        threading.Thread(target=serve, args=(server,), daemon=True).start()
open("ready", "w").write(repr(held))
while not os.path.exists("enough"):
    time.sleep(0.05)
"""


ONLY_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can give workspaces users of their own")


@pytest.fixture(params=[OWN_NETWORK, pytest.param(OWN_USER, marks=ONLY_ROOT)])
def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> ProcessRuntime:
    return confining(tmp_path, own_network=request.param == OWN_NETWORK)


@pytest.fixture
def connected(tmp_path: Path) -> ProcessRuntime:
    return confining(tmp_path, own_network=True)


def confining(place: Path, *, own_network: bool) -> ProcessRuntime:
    found = find_confinement(own_network=own_network)
    if found is None or (own_network and found.slirp4netns is None):
        pytest.skip("bubblewrap or slirp4netns is not there or does not work")
    return ProcessRuntime(place / "root", "here", ["true"], sandbox=True, own_network=own_network, readable=READABLE)


@pytest.fixture
async def attacker(runtime: ProcessRuntime) -> ContainerSpec:
    return await workspace(runtime)


async def workspace(runtime: ProcessRuntime) -> ContainerSpec:
    workspace_id = uuid4()
    await runtime.create_volume(workspace_id, volume_name(workspace_id, 1))
    return ContainerSpec(workspace_id, volume_name(workspace_id, 1), "image")


@asynccontextmanager
async def front_door(latch: Path) -> AsyncIterator[int]:
    """Its port. Two workers, each of which answers with its process id."""
    command = [sys.executable, "-m", "tests.proxy.worker_program", str(latch)]
    supervisor = Supervisor(command, 2, "127.0.0.1", 0)
    running = asyncio.create_task(supervisor.run())
    try:
        await eventually(lambda: _count(supervisor, 2))
        yield supervisor.port
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def _count(supervisor: Supervisor, wanted: int) -> bool:
    return len(supervisor.pids) == wanted


@asynccontextmanager
async def thief(runtime: ProcessRuntime, spec: ContainerSpec, port: int) -> AsyncIterator[None]:
    """Inside, on every loopback address that it can get hold of."""
    home = runtime.homes.home(spec.volume)
    running = asyncio.create_task(runtime.run_inside(spec, [sys.executable, "-c", THIEF, str(port)]))

    async def ready() -> bool:
        assert not running.done(), running.result()
        return (home / "ready").exists()

    try:
        await eventually(ready)
        yield
    finally:
        (home / "enough").touch()
        await running


async def answer(host: str, port: int) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nCookie: session=secret\r\nConnection: close\r\n\r\n")
    body = (await reader.read()).rpartition(b"\r\n\r\n")[2]
    writer.close()
    return body


async def test_a_workspace_takes_no_visitor_of_the_front_door(
    runtime: ProcessRuntime, attacker: ContainerSpec, tmp_path: Path
) -> None:
    """By sharing its port (SO_REUSEPORT), or by being first on `[::1]`, which is `localhost` just as well."""
    async with front_door(tmp_path / "latch") as port, thief(runtime, attacker, port):
        for host in ("127.0.0.1", "::1"):
            answers = [await answer(host, port) for _ in range(TRIES)]
            assert b"stolen" not in answers
            assert len(set(answers)) <= 2


async def test_a_port_that_a_workspace_holds_is_no_front_door_s(
    runtime: ProcessRuntime, attacker: ContainerSpec, tmp_path: Path
) -> None:
    """One that was quicker, for instance while CodeHub was down: it starts undisturbed, or not at all."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with thief(runtime, attacker, port):
        command = [sys.executable, "-m", "tests.proxy.worker_program", str(tmp_path / "latch")]
        try:
            supervisor = Supervisor(command, 1, "127.0.0.1", port)
        except OSError:
            return
        running = asyncio.create_task(supervisor.run())
        await eventually(lambda: _count(supervisor, 1))
        assert b"stolen" not in [await answer(host, port) for host in ("127.0.0.1", "::1") for _ in range(TRIES)]
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


READS = """
while IFS= read -r path; do
    head -c 1 "$path" >/dev/null 2>&1 && echo "$path"
done < private
ls -a /etc
"""
NEVER = {
    "docker",
    "ssh",
    "shadow",
    "gshadow",
    "sudoers",
    "sudoers.d",
    "crontab",
    "machine-id",
    "ssl/private",
    "systemd",
}


def private_files() -> Iterator[str]:
    """Files of the system that not everybody may read."""
    for top in ("/etc", "/usr", "/opt"):
        for directory, _, names in os.walk(top):
            for path in (Path(directory, name) for name in names):
                seen = path.lstat()
                if stat.S_ISREG(seen.st_mode) and not seen.st_mode & stat.S_IROTH and "\n" not in str(path):
                    yield str(path)


async def test_no_file_that_is_root_s_alone_is_readable_inside(
    runtime: ProcessRuntime, attacker: ContainerSpec
) -> None:
    home = runtime.homes.home(attacker.volume)
    (home / "private").write_text("".join(f"{path}\n" for path in private_files()))
    code, output = await runtime.run_inside(attacker, ["sh", "-c", READS])
    seen = output.split()
    assert code == 0
    assert [line for line in seen if line.startswith("/")] == []
    assert "passwd" in seen
    assert NEVER.isdisjoint(seen)


async def test_the_system_is_read_only(runtime: ProcessRuntime, attacker: ContainerSpec) -> None:
    _, output = await runtime.run_inside(attacker, ["touch", "/x", "/etc/x", "/etc/passwd", "/usr/x", "/bin/x"])
    assert output.count("Read-only file system") + output.count("Permission denied") == 5, output


POWERS = """
import os, pty, sys
assert not int([line for line in open("/proc/self/status") if line.startswith("CapEff")][0].split()[1], 16)
for path in (os.path.expanduser("~/mine"), "/tmp/mine", "/var/tmp/mine", "/dev/shm/mine"):
    open(path, "w").close()
os.openpty()
print(os.getuid(), os.getgid(), os.getgroups(), __import__("pwd").getpwuid(os.getuid()).pw_name)
"""


async def test_it_has_an_ordinary_user_s_powers_and_what_programs_need(
    runtime: ProcessRuntime, attacker: ContainerSpec
) -> None:
    code, output = await runtime.run_inside(attacker, [sys.executable, "-c", POWERS])
    assert code == 0, output
    uid, *_, name = output.split()
    assert name == "coder"
    assert int(uid) != 0
    assert (runtime.homes.home(attacker.volume) / "mine").stat().st_uid == int(uid)


@ONLY_ROOT
async def test_no_two_workspaces_and_nobody_else_have_the_same_user(runtime: ProcessRuntime) -> None:
    specs = [await workspace(runtime) for _ in range(3)]
    said = [await runtime.run_inside(spec, ["id", "-u"]) for spec in specs]
    uids = {int(output) for _, output in said}
    assert len(uids) == len(specs)
    assert min(uids) >= 0x70000000


CONNECTS = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5).recv(9)"


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.2.2", "::1"])
async def test_from_a_network_of_its_own_no_loopback_port_of_the_machine_is_reached(
    connected: ProcessRuntime, host: str
) -> None:
    """10.0.2.2 is where slirp4netns would show the machine itself, if it were let."""
    attacker = await workspace(connected)
    reached: list[bool] = []
    server = await asyncio.start_server(lambda _, writer: (reached.append(True), writer.close()), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        code, output = await connected.run_inside(attacker, [sys.executable, "-c", CONNECTS, host, str(port)])
        assert code != 0
        assert "Error" in output
        assert reached == []
