"""Sessions over SSH with the real OpenSSH tools, in a real workspace: a process of this machine."""

import asyncio
import hashlib
import os
import shlex
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import asyncssh
import pytest

from codehub.agent.handshake import AGENT_PORT
from tests.contracts.places import ProcessPlace
from tests.eventually import SECONDS, eventually
from tests.ssh.deployment import SshDeployment, SshPerson, deployed

pytestmark = pytest.mark.system


@pytest.fixture
async def deployment(tmp_path: Path) -> AsyncIterator[SshDeployment]:
    place = ProcessPlace(tmp_path / "root")
    (tmp_path / "client").mkdir()
    async with deployed(place.runtime(), tmp_path / "client") as made:
        yield made
    await place.close()


@pytest.fixture
async def ann(deployment: SshDeployment) -> SshPerson:
    ann = await deployment.person()
    await deployment.workspace(ann)
    return ann


async def test_exit_codes_streams_and_signals_are_the_command_s_own(deployment: SshDeployment, ann: SshPerson) -> None:
    for code in (0, 1, 7, 127, 255):
        assert (await deployment.ssh(ann, f"exit {code}")).code == code
    ended = await deployment.ssh(ann, "cat; echo 'to 한글' >&2; echo \"$LC_TEST$SECRET_OF_MINE\"", given=b"in \xff\n")
    assert (ended.out, ended.err, ended.code) == (b"in \xff\n\n", "to 한글\n".encode(), 0)
    killed = await deployment.ssh(ann, "kill -TERM $$")
    assert killed.code == 255, "as OpenSSH says it of a command that a signal ended"


async def test_variables_of_the_client_pass_if_they_are_harmless(deployment: SshDeployment, ann: SshPerson) -> None:
    sent = ("-o", "SendEnv=LC_TEST SECRET_OF_MINE")
    ended = await deployment.run(*deployment.words(ann, *sent, "localhost", 'echo "$LC_TEST-$SECRET_OF_MINE"'))
    assert ended.out == "보기-\n".encode()


async def test_ten_megabytes_come_back_as_they_went(deployment: SshDeployment, ann: SshPerson) -> None:
    data = os.urandom(10 << 20)
    ended = await deployment.ssh(ann, "cat", given=data)
    assert hashlib.sha256(ended.out).digest() == hashlib.sha256(data).digest()


async def test_a_terminal_has_the_client_s_size_and_type(deployment: SshDeployment, ann: SshPerson) -> None:
    ended = await deployment.ssh(ann, "-tt", "stty size; echo $TERM; tty", given=b"")
    size, term, tty, *_ = ended.out.decode().split("\r\n")
    assert size.split() == ["24", "80"]
    assert (bool(term), tty.startswith("/dev/")) == (True, True)


async def test_a_login_shell_reads_what_is_typed(deployment: SshDeployment, ann: SshPerson) -> None:
    ended = await deployment.ssh(ann, given=b"echo one two\nexit 3\n")
    assert (ended.code, b"one two" in ended.out) == (3, True)


async def test_files_go_by_sftp_scp_and_rsync(deployment: SshDeployment, ann: SshPerson, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(20):
        (source / f"파일 {number}").write_bytes(os.urandom(1000 * number))
    port, options = str(deployment.port), deployment.options(ann)
    copied = await deployment.run("scp", *options, "-P", port, "-r", str(source), "demo@localhost:copied")
    assert copied.code == 0, copied.err
    legacy = await deployment.run(
        "scp", "-O", *options, "-P", port, "-r", "demo@localhost:copied", str(tmp_path / "back")
    )
    assert legacy.code == 0, legacy.err
    shell = f"ssh {' '.join(options)} -p {port}"
    synced = await deployment.run("rsync", "-a", "-e", shell, f"{source}/", "demo@localhost:synced/")
    assert synced.code == 0, synced.err
    expected = {path.name: path.read_bytes() for path in source.iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "back").iterdir()} == expected
    listed = await deployment.run("sftp", *options, "-P", port, "demo@localhost", given=b"ls -1 synced\n")
    assert all(name.encode() in listed.out for name in expected)


async def test_twenty_sessions_share_one_connection(deployment: SshDeployment, ann: SshPerson, tmp_path: Path) -> None:
    control = ("-S", str(tmp_path / "control"))
    words = deployment.words(ann, *control, "-M", "-N", "localhost")
    master = await asyncio.create_subprocess_exec(*words)
    await eventually((tmp_path / "control").exists)
    shared = [
        deployment.run(*deployment.words(ann, *control, "localhost", f"sleep 0.2; exit {number}"))
        for number in range(20)
    ]
    assert [one.code for one in await asyncio.gather(*shared)] == list(range(20))
    assert len(deployment.gateway.connections) == 1
    master.send_signal(signal.SIGTERM)
    await master.wait()
    await eventually(lambda: not deployment.gateway.connections)


async def test_what_was_begun_is_audited_without_its_content(deployment: SshDeployment, ann: SshPerson) -> None:
    await deployment.ssh(ann, "cat > /dev/null", given=b"planted-7f3a")
    [entry] = deployment.audited()
    assert (entry["workspace"], entry["command"], entry["owner"]) == ("demo", "cat > /dev/null", "ann")
    assert entry["fingerprint"].startswith("SHA256:")
    assert "planted" not in repr(deployment.database.state.accounts.audit)


async def test_a_port_of_the_workspace_is_forwarded_and_no_other_host(
    deployment: SshDeployment, ann: SshPerson, tmp_path: Path
) -> None:
    program = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); "
        "c, _ = s.accept(); c.sendall(c.recv(9).upper())"
    )
    server = f"python3 -c {shlex.quote(program)}"
    listening = await asyncio.create_subprocess_exec(
        *deployment.words(ann, "localhost", server), stdout=asyncio.subprocess.PIPE
    )
    assert listening.stdout is not None
    port = int(await asyncio.wait_for(listening.stdout.readline(), SECONDS))
    there = await deployment.run(*deployment.words(ann, "-W", f"localhost:{port}", "localhost"), given=b"through")
    assert there.out == b"THROUGH", there.err
    for elsewhere in (f"192.0.2.1:{port}", f"10.0.0.1:{port}", f"0.0.0.0:{port}", "localhost:1"):
        refused = await deployment.run(*deployment.words(ann, "-W", elsewhere, "localhost"))
        assert refused.code != 0
        assert refused.out == b""
    await listening.wait()
    assert [one["port"] for one in deployment.audited() if "port" in one] == [str(port)]


async def test_a_port_that_cannot_be_audited_is_not_opened(deployment: SshDeployment, ann: SshPerson) -> None:
    program = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)\n"
        "for _ in range(2): c, _ = s.accept(); print(len(c.recv(9)), flush=True)"
    )
    async with await deployment.client(ann) as client:
        server = await client.create_process(f"python3 -c {shlex.quote(program)}")
        port = int(await asyncio.wait_for(server.stdout.readline(), SECONDS))
        for _ in range(2):
            deployment.failing = ["audit.append"]
            with pytest.raises(asyncssh.ChannelOpenError):
                await client.open_connection("localhost", port)
            assert await asyncio.wait_for(server.stdout.readline(), SECONDS) == "0\n", "it was closed"
        assert not [one for one in deployment.audited() if "port" in one]


@pytest.mark.parametrize("port", [0, 65536, 1 << 31, AGENT_PORT])
async def test_a_port_that_is_not_the_workspace_s_own_is_refused(
    port: int, deployment: SshDeployment, ann: SshPerson
) -> None:
    async with await deployment.client(ann, name="nothing") as client:
        with pytest.raises(asyncssh.ChannelOpenError, match="is not forwarded") as refused:
            await client.open_connection("localhost", port)
        assert refused.value.code == asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED
