"""Who gets in over SSH, what wakes, what ends, and how much anybody may have: with the real OpenSSH client."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from codehub.domain.admission import RunningLimits
from codehub.domain.errors import ErrorInfo, ErrorReason
from codehub.domain.identity import Caller, Role
from codehub.domain.workspace import Desired, Operation, Phase
from codehub.ports.stores import Actor
from codehub.ssh.gateway import GatewayLimits
from tests.contracts.places import ProcessPlace
from tests.eventually import SECONDS, eventually
from tests.ssh.deployment import SshDeployment, SshPerson, deployed

pytestmark = pytest.mark.system


@pytest.fixture
async def deployment(tmp_path: Path) -> AsyncIterator[SshDeployment]:
    limits = GatewayLimits(unauthenticated_per_address=3, connections_per_person=2, grace_seconds=1.0)
    place = ProcessPlace(tmp_path / "root")
    async with deployed(place.runtime(), tmp_path, limits, RunningLimits(max_running_per_user=1)) as made:
        yield made
    await place.close()


@pytest.fixture
async def ann(deployment: SshDeployment) -> SshPerson:
    return await deployment.person()


async def connected(deployment: SshDeployment, person: SshPerson, name: str = "demo") -> asyncio.subprocess.Process:
    """A client with a shell that waits for input."""
    process = await asyncio.create_subprocess_exec(
        *deployment.words(person, "localhost", "cat", name=name),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"hello\n")
    assert await asyncio.wait_for(process.stdout.readline(), SECONDS) == b"hello\n"
    return process


async def ends(process: asyncio.subprocess.Process) -> int:
    async with asyncio.timeout(SECONDS):
        await process.communicate()
    return process.returncode or 0


async def test_only_a_registered_key_comes_in(deployment: SshDeployment, ann: SshPerson, tmp_path: Path) -> None:
    await deployment.workspace(ann)
    assert (await deployment.ssh(ann, "echo hello")).out == b"hello\n"
    await deployment.keys.remove(ann.caller, ann.key_id)
    refused = await deployment.ssh(ann, "echo hello")
    assert (refused.code, b"Permission denied (publickey)" in refused.err) == (255, True)


async def test_a_workspace_is_named_by_its_owner_s_name_its_id_or_its_address(
    deployment: SshDeployment, ann: SshPerson
) -> None:
    demo = await deployment.workspace(ann)
    for name in ("demo", "DEMO", str(demo.id), demo.slug):
        assert (await deployment.ssh(ann, "echo hello", name=name)).out == b"hello\n"


async def test_nobody_else_s_workspace_exists_but_for_an_admin(deployment: SshDeployment, ann: SshPerson) -> None:
    demo = await deployment.workspace(ann)
    bob, root = await deployment.person("bob"), await deployment.person("root", Role.ADMIN)
    for name in ("demo", str(demo.id), demo.slug, "nothing"):
        refused = await deployment.ssh(bob, "echo hello", name=name)
        assert (refused.code, refused.out) == (255, b"")
        assert b"or it is not yours" in refused.err
    assert (await deployment.ssh(root, "echo hello", name="demo")).code == 255, "by name alone, one's own"
    assert (await deployment.ssh(root, "echo hello", name=str(demo.id))).out == b"hello\n"
    assert [one["owner"] for one in deployment.audited()] == ["ann"]


@pytest.mark.parametrize("phase", [Phase.STANDBY, Phase.ARCHIVED])
async def test_a_sleeping_workspace_is_woken_with_progress(
    phase: Phase, deployment: SshDeployment, ann: SshPerson
) -> None:
    demo = await deployment.workspace(ann, phase)
    asking = asyncio.create_task(deployment.ssh(ann, "echo hello"))
    await eventually(lambda: deployment.database.state.rows[demo.id].desired_state is Desired.RUNNING)
    deployment.becomes(demo.id, operation=Operation.STARTING)
    await deployment.start(demo.id)
    deployment.becomes(demo.id, phase=Phase.RUNNING, operation=Operation.NONE)
    ended = await asking
    assert (ended.code, ended.out) == (0, b"hello\n")
    assert b"codehub: demo" in ended.err


async def test_without_room_the_answer_says_what_runs(deployment: SshDeployment, ann: SshPerson) -> None:
    await deployment.workspace(ann, name="first")
    await deployment.workspace(ann, Phase.STANDBY, name="second")
    refused = await deployment.ssh(ann, "echo hello", name="second")
    assert refused.code == 255
    assert b"first" in refused.err


async def test_a_workspace_in_error_is_explained(deployment: SshDeployment, ann: SshPerson) -> None:
    demo = await deployment.workspace(ann)
    now = await deployment.database.views().now()
    info = ErrorInfo(ErrorReason.DATA_LOST, "The home is gone.", "NONE", True, 1, "RUNNING", now)
    deployment.becomes(demo.id, phase=Phase.ERROR, error_info=info)
    refused = await deployment.ssh(ann, "echo hello")
    assert (refused.code, b"The home is gone." in refused.err) == (255, True)


@pytest.mark.parametrize("what", ["key", "account", "right"])
async def test_what_is_open_ends_when_it_is_taken_back(what: str, deployment: SshDeployment, ann: SshPerson) -> None:
    demo = await deployment.workspace(ann)
    root, other = await deployment.person("root", Role.ADMIN), await deployment.person("other", Role.ADMIN)
    mine = await connected(deployment, ann)
    others = await connected(deployment, other, str(demo.id))
    admin = Caller(root.user, f"session:{'0' * 64}", is_fresh=True)
    if what == "key":
        await deployment.keys.remove(ann.caller, ann.key_id)
    elif what == "account":
        await deployment.users.disable(admin, ann.user.id)
    else:
        await deployment.users.set_role(admin, other.user.id, Role.USER)
    gone, stays = (others, mine) if what == "right" else (mine, others)
    assert await ends(gone) == 255
    assert stays.returncode is None
    assert len(deployment.gateway.connections) == 1
    stays.terminate()
    await ends(stays)


@pytest.mark.parametrize("what", ["right", "key"])
async def test_a_connection_that_has_nothing_open_keeps_no_right(
    what: str, deployment: SshDeployment, ann: SshPerson, tmp_path: Path
) -> None:
    demo = await deployment.workspace(ann)
    root, other = await deployment.person("root", Role.ADMIN), await deployment.person("other", Role.ADMIN)
    control = ("-S", str(tmp_path / "control"))
    words = deployment.words(other, *control, "-M", "-N", "localhost", name=str(demo.id))
    master = await asyncio.create_subprocess_exec(*words)
    await eventually((tmp_path / "control").exists)
    if what == "right":
        await deployment.users.set_role(root.caller, other.user.id, Role.USER)
    else:  # and the bus does not tell
        await deployment.people.authorized_keys().remove(other.user.id, other.key_id, Actor("test"))
    later = deployment.words(other, *control, "localhost", "echo hello", name=str(demo.id))
    refused = await deployment.run(*later)
    assert (refused.code, refused.out) == (255, b"")
    assert deployment.audited() == []
    if what == "right":
        assert b"or it is not yours" in refused.err
        master.terminate()
    await ends(master)
    await eventually(lambda: not deployment.gateway.connections)


async def test_one_key_that_cannot_be_asked_for_keeps_no_other_in(deployment: SshDeployment, ann: SshPerson) -> None:
    people = [ann, await deployment.person("bob")]
    clients = [await deployment.client(person) for person in people]
    for person in people:  # and the bus does not tell
        await deployment.people.authorized_keys().remove(person.user.id, person.key_id, Actor("test"))
    deployment.failing = ["authorized_keys.find"]
    assert not await deployment.gateway._recheck(list(deployment.gateway.connections))
    assert len(deployment.gateway.connections) == 1
    deployment.failing = ["authorized_keys.find"]
    await deployment.gateway._hear({"user_id": next(iter(deployment.gateway.connections)).user_id})
    assert deployment.gateway._recheck_now.is_set(), "it is asked for again soon"
    assert await deployment.gateway._recheck(list(deployment.gateway.connections))
    assert not deployment.gateway.connections
    for client in clients:
        client.abort()
        await client.wait_closed()


async def test_one_person_has_so_many_connections(deployment: SshDeployment, ann: SshPerson) -> None:
    await deployment.workspace(ann)
    held = [await connected(deployment, ann) for _ in range(2)]
    refused = await deployment.ssh(ann, "echo hello")
    assert (refused.code, refused.out) == (255, b"")
    for process in held:
        process.terminate()
        await ends(process)
    await eventually(lambda: not deployment.gateway.connections)
    assert (await deployment.ssh(ann, "echo hello")).out == b"hello\n"


async def test_who_proves_no_key_has_little_time_and_few_connections(deployment: SshDeployment, ann: SshPerson) -> None:
    await deployment.workspace(ann)
    silent = [await asyncio.open_connection("127.0.0.1", deployment.port) for _ in range(8)]
    async with asyncio.timeout(SECONDS):
        for reader, _ in silent:
            await reader.read()  # until it is closed on us
    for _, writer in silent:
        writer.close()
    await eventually(lambda: not deployment.gateway.strangers)
    assert (await deployment.ssh(ann, "echo hello")).out == b"hello\n"


@pytest.mark.parametrize(
    "option",
    [
        "KexAlgorithms=diffie-hellman-group14-sha1",
        "Ciphers=aes128-cbc",
        "Ciphers=3des-cbc",
        "MACs=hmac-sha1,hmac-md5",
        "HostKeyAlgorithms=ssh-rsa",
    ],
)
async def test_old_algorithms_are_refused(option: str, deployment: SshDeployment, ann: SshPerson) -> None:
    await deployment.workspace(ann)
    extra = ("-o", "Ciphers=aes256-ctr") if option.startswith("MACs") else ()
    refused = await deployment.run(*deployment.words(ann, *extra, "-o", option, "localhost", "echo hello"))
    assert (refused.code, refused.out) == (255, b"")


async def test_there_are_no_passwords(deployment: SshDeployment, ann: SshPerson) -> None:
    await deployment.workspace(ann)
    only = ("-o", "PreferredAuthentications=password,keyboard-interactive", "-v")
    refused = await deployment.run(*deployment.words(ann, *only, "localhost", "echo hello"))
    assert refused.code == 255
    assert b"Permission denied (publickey)." in refused.err


async def test_reverse_forwarding_and_other_subsystems_are_refused(deployment: SshDeployment, ann: SshPerson) -> None:
    await deployment.workspace(ann)
    strict = ("-o", "ExitOnForwardFailure=yes", "-R", "0:localhost:1")
    refused = await deployment.run(*deployment.words(ann, *strict, "localhost", "echo hello"))
    assert (refused.code, refused.out) == (255, b"")
    refused = await deployment.run(*deployment.words(ann, "-s", "localhost", "netconf"))
    assert (refused.code, refused.out) == (255, b"")


async def test_a_workspace_that_is_stopped_ends_its_sessions(deployment: SshDeployment, ann: SshPerson) -> None:
    demo = await deployment.workspace(ann)
    process = await connected(deployment, ann)
    await deployment.runtime.remove_container(demo.id)
    assert await ends(process) == 255


async def test_a_use_of_the_key_is_recorded(deployment: SshDeployment, ann: SshPerson) -> None:
    await deployment.workspace(ann)
    await deployment.ssh(ann, "echo hello")
    [key] = await deployment.keys.list(ann.caller)
    assert key.last_used_at is not None
