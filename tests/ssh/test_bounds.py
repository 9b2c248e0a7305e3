"""What one client can have of the gateway at once: clients that do what OpenSSH's would not, in a real workspace."""

import asyncio
import shlex
from collections.abc import AsyncIterator
from pathlib import Path

import asyncssh
import pytest
from asyncssh.channel import SSHClientChannel

from codehub.ssh.gateway import GatewayConnection, GatewayLimits
from tests.contracts.places import ProcessPlace
from tests.eventually import SECONDS, eventually
from tests.ssh.deployment import SshDeployment, SshPerson, deployed

pytestmark = pytest.mark.system
CHANNELS = 4


@pytest.fixture
async def deployment(tmp_path: Path) -> AsyncIterator[SshDeployment]:
    place = ProcessPlace(tmp_path / "root")
    (tmp_path / "client").mkdir()
    async with deployed(place.runtime(), tmp_path / "client", GatewayLimits(channels_per_connection=CHANNELS)) as made:
        yield made
    await place.close()


@pytest.fixture
async def ann(deployment: SshDeployment) -> SshPerson:
    ann = await deployment.person()
    await deployment.workspace(ann)
    return ann


def connection_of(deployment: SshDeployment) -> GatewayConnection:
    [connection] = deployment.gateway.connections
    return connection


async def opened(client: asyncssh.SSHClientConnection) -> "SSHClientChannel[bytes]":
    """A channel on which nothing is asked for."""
    loop = asyncio.get_running_loop()
    channel: SSHClientChannel[bytes] = SSHClientChannel(client, loop, "strict", None, "strict", 1 << 21, 1 << 15)
    await channel._open(b"session")
    return channel


async def test_channels_on_which_nothing_is_asked_for_count(deployment: SshDeployment, ann: SshPerson) -> None:
    async with await deployment.client(ann) as client:
        held = [await opened(client) for _ in range(CHANNELS)]
        with pytest.raises(asyncssh.ChannelOpenError, match="too many channels"):
            await opened(client)
        with pytest.raises(asyncssh.ChannelOpenError, match="too many channels"):
            await client.open_connection("localhost", 1)
        held.pop().close()
        await eventually(lambda: len(connection_of(deployment)._sessions) < CHANNELS)
        assert (await client.run("echo hello")).stdout == "hello\n"


async def test_a_channel_is_given_a_small_window(deployment: SshDeployment, ann: SshPerson) -> None:
    async with await deployment.client(ann) as client:
        assert (await opened(client))._send_window == 256 * 1024


async def test_sizes_and_signals_do_not_pile_up(deployment: SshDeployment, ann: SshPerson) -> None:
    async with await deployment.client(ann) as client:
        command = "echo ready; read line; stty size"
        process = await client.create_process(command, term_type="xterm", term_size=(80, 24))
        assert await asyncio.wait_for(process.stdout.readline(), SECONDS) == "ready\r\n"
        [session] = connection_of(deployment)._sessions
        for columns in range(1000):
            process.change_terminal_size(100 + columns, 24)
            process.send_signal("WINCH")
        most = 0
        while session._terminal is None or session._terminal.columns != 1099 or len(session._tasks) > 1:
            most = max(most, len(session._tasks))
            await asyncio.sleep(0)
        assert most <= 20
        process.stdin.write("\n")
        assert "24 1099" in await asyncio.wait_for(process.stdout.read(), SECONDS)


MUCH = 32 << 20
HUGE_WINDOW = 1 << 30


async def check_that_little_waits(deployment: SshDeployment, person: SshPerson) -> None:
    """The only client has stopped to read: what the gateway keeps for it does not grow while another one reads as much
    as it was to be sent."""
    waiting = connection_of(deployment)
    await eventually(lambda: not waiting.is_read.is_set())
    async with await deployment.client(person) as other:
        ended = await other.run(f"head -c {MUCH} /dev/zero", encoding=None)
        assert len(ended.stdout or b"") == MUCH
    assert waiting._conn._transport is not None
    assert waiting._conn._transport.get_write_buffer_size() < 2 << 20


async def test_output_waits_for_a_client_that_does_not_read(deployment: SshDeployment, ann: SshPerson) -> None:
    async with await deployment.client(ann) as client:
        command = f"head -c {MUCH} /dev/zero"
        process = await client.create_process(command, encoding=None, window=HUGE_WINDOW)
        transport = client._transport
        assert transport is not None
        transport.pause_reading()
        await check_that_little_waits(deployment, ann)
        transport.resume_reading()
        assert len(await asyncio.wait_for(process.stdout.read(), SECONDS)) == MUCH


async def test_a_forwarded_port_waits_for_a_client_that_does_not_read(
    deployment: SshDeployment, ann: SshPerson
) -> None:
    program = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); "
        f"c, _ = s.accept(); c.sendall(bytes({MUCH}))"
    )
    async with await deployment.client(ann) as client:
        server = await client.create_process(f"python3 -c {shlex.quote(program)}")
        port = int(await asyncio.wait_for(server.stdout.readline(), SECONDS))
        reader, _ = await client.open_connection("localhost", port, window=HUGE_WINDOW)
        transport = client._transport
        assert transport is not None
        transport.pause_reading()
        await check_that_little_waits(deployment, ann)
        transport.resume_reading()
        assert len(await asyncio.wait_for(reader.read(), SECONDS)) == MUCH
