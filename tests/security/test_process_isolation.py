"""Attacks from inside a workspace of the process runtime, in a real sandbox: on the front door's port, on the machine's
files and on its ports. Each runs in every kind of isolation that this machine has."""

import asyncio
import os
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from codehub.adapters.process import ProcessRuntime, port_hijack_probe
from codehub.adapters.process.sandbox import find_sandbox_tools
from codehub.adapters.process.shim import descendants
from codehub.bootstrap.operator import port_can_be_taken
from codehub.domain.naming import volume_name
from codehub.ports.runtime import ContainerSpec, GitCredential, StartSecrets
from codehub.proxy.workers import WorkerSupervisor
from tests.contracts.places import READABLE
from tests.eventually import eventually

pytestmark = pytest.mark.system

OWN_NETWORK, OWN_USER = "a network of its own", "a user of its own"

ONLY_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can give workspaces users of their own")


@pytest.fixture(params=[OWN_NETWORK, pytest.param(OWN_USER, marks=ONLY_ROOT)])
def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> ProcessRuntime:
    return confining(tmp_path, own_network=request.param == OWN_NETWORK)


@pytest.fixture
def connected(tmp_path: Path) -> ProcessRuntime:
    return confining(tmp_path, own_network=True)


def confining(place: Path, *, own_network: bool) -> ProcessRuntime:
    found = find_sandbox_tools(own_network=own_network)
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
async def front_door(latch: Path, workers: int) -> AsyncIterator[int]:
    """Listen inside the workspace; returns the port."""
    command = [sys.executable, "-m", "tests.proxy.worker_program", str(latch)]
    supervisor = WorkerSupervisor(command, workers, "127.0.0.1", 0)
    running = asyncio.create_task(supervisor.run())

    async def serves() -> bool:
        return len(supervisor.pids) == workers

    try:
        await eventually(serves)
        yield supervisor.port
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def inside(runtime: ProcessRuntime, spec: ContainerSpec) -> Callable[[Sequence[str]], Awaitable[tuple[int, str]]]:
    return lambda argv: runtime.run_inside(spec, argv)


async def test_a_workspace_takes_no_visitor_of_the_front_door(
    runtime: ProcessRuntime, attacker: ContainerSpec, tmp_path: Path
) -> None:
    """Try to share the proxy's port (SO_REUSEPORT), or to be first on `[::1]`, which is `localhost` just as well."""
    async with front_door(tmp_path / "latch", 2) as port:
        assert await port_can_be_taken(port, inside(runtime, attacker)) is False


async def test_the_attack_is_one(tmp_path: Path) -> None:
    """A program takes visitors of a port that can be shared, or of which `[::1]` is free: as the proxy's once was."""
    unconfined = ProcessRuntime(tmp_path / "root", "here", ["true"], sandbox=False)
    spec = await workspace(unconfined)
    for shared in (True, False):
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, shared)
            server.bind(("127.0.0.1", 0))
            async with await asyncio.start_server(greet, sock=server):
                assert await port_can_be_taken(server.getsockname()[1], inside(unconfined, spec)) is True


def leave_without_a_word(address: tuple[str, int]) -> socket.socket:
    visitor = socket.create_connection(address)
    visitor.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    visitor.close()  # with a reset
    return visitor


@pytest.mark.parametrize("visit", [socket.create_connection, leave_without_a_word], ids=["says nothing", "breaks off"])
def test_no_visitor_ends_the_program_that_tries_the_port(visit: Callable[[tuple[str, int]], socket.socket]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with visit(server.getsockname()):
            port_hijack_probe.answer(server, "mark")
        with socket.create_connection(server.getsockname()) as next_one:
            next_one.sendall(b"GET / HTTP/1.1\r\n\r\n")
            port_hijack_probe.answer(server, "mark")
            assert next_one.recv(1 << 16).endswith(b"mark")


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    writer.close()


async def test_whoever_was_quicker_keeps_the_front_door_from_starting(tmp_path: Path) -> None:
    """The proxy starts on both addresses, or not at all."""
    for taken, family in (("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)):
        with socket.socket(family) as quicker:
            quicker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            quicker.bind((taken, 0))
            quicker.listen()
            with pytest.raises(OSError, match="in use"):
                WorkerSupervisor(["true"], 1, "127.0.0.1", quicker.getsockname()[1])


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
                with suppress(FileNotFoundError):  # it was somebody's for a moment
                    mode = path.lstat().st_mode
                    if stat.S_ISREG(mode) and not mode & stat.S_IROTH and "\n" not in str(path):
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


async def test_no_program_outside_of_the_sandbox_has_the_workspace_s_variables(
    runtime: ProcessRuntime, attacker: ContainerSpec
) -> None:
    """Some make a program load code (GCONV_PATH, LD_PRELOAD), which would then run as we do, and others are secrets."""
    hostile = {"GCONV_PATH": "/planted", "LOCPATH": "/planted", "LC_ALL": "planted", "LD_PRELOAD": "planted"}
    secrets = StartSecrets(env={"TOKEN": "planted"}, git_credentials=[GitCredential("git.example", "ann", "planted")])
    runtime._command = ["sh", "-c", "env > seen; exec sleep 60"]
    await runtime.start_container(replace(attacker, env=hostile, secrets=secrets))
    seen = runtime.homes.home(attacker.volume) / "seen"
    await eventually(lambda: seen.exists() and "TOKEN=planted" in seen.read_text())
    assert {f"{name}={value}" for name, value in hostile.items()} <= set(seen.read_text().splitlines())
    entry = runtime._containers.look(attacker.workspace_id)
    assert entry is not None
    outside = [pid for pid in (entry.pid, *(pid for pid, _ in descendants(entry.pid))) if _is_ours(pid)]
    assert len(outside) > 1
    for pid in outside:
        kept = [Path(f"/proc/{pid}/{name}").read_bytes() for name in ("environ", "cmdline", "fd/0")]
        assert [text for text in kept if b"planted" in text] == []
    await runtime.remove_container(attacker.workspace_id)


def _is_ours(pid: int) -> bool:
    """Whether the process is in our own process namespace, and so outside of every sandbox."""
    return Path(f"/proc/{pid}/ns/pid").readlink() == Path("/proc/self/ns/pid").readlink()


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

    async def reach(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append(True)
        writer.close()

    server = await asyncio.start_server(reach, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        code, output = await connected.run_inside(attacker, [sys.executable, "-c", CONNECTS, host, str(port)])
        assert code != 0
        assert "Error" in output
        assert reached == []


@ONLY_ROOT
async def test_starting_a_workspace_unmounts_nothing_of_the_machine(connected: ProcessRuntime, tmp_path: Path) -> None:
    """A mount that is shared, as Docker makes its directory, with another below it, as each of its containers is."""
    shared, below = tmp_path / "shared", tmp_path / "shared" / "below"
    shared.mkdir()
    mounts = [["--bind", str(shared), str(shared)], ["--make-shared", str(shared)], ["-t", "tmpfs", "none", str(below)]]
    try:
        for words in mounts:
            below.mkdir(exist_ok=True)
            if subprocess.run(["mount", *words], check=False).returncode:
                pytest.skip("this machine does not let us mount")
        code, _said = await connected.run_inside(await workspace(connected), ["true"])
        assert code == 0
        assert os.path.ismount(below)
    finally:
        for place in (below, shared):
            subprocess.run(["umount", "--quiet", str(place)], check=False)
