"""Whose port it is, on a machine where everybody shares them and in networks of their own: real listeners of two
workspaces and of a stranger."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from codehub.adapters.process import ProcessRuntime, sockets
from codehub.adapters.process.sandbox import find_sandbox_tools
from codehub.domain.naming import volume_name
from codehub.ports.runtime import ContainerSpec, Endpoint
from codehub.usecases.workspace_connection import connect
from tests.contracts.places import ProcessPlace
from tests.eventually import eventually

pytestmark = pytest.mark.system

NO_IPV6 = not sockets._has_loopback_6(sockets._OUR_NETWORK)
only_with_ipv6 = pytest.mark.skipif(NO_IPV6, reason="this machine has no address ::1")


@pytest.fixture(params=["process", "sandbox"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ProcessPlace]:
    if request.param == "sandbox" and find_sandbox_tools() is None:
        pytest.skip("bubblewrap is not there or does not work")
    place = ProcessPlace(tmp_path / "root", sandbox=request.param == "sandbox")
    yield place
    await place.close()


@pytest.fixture
def runtime(place: ProcessPlace) -> ProcessRuntime:
    return place.runtime()


@pytest.fixture
async def ours(runtime: ProcessRuntime) -> UUID:
    return await started(runtime)


@pytest.fixture
async def neighbour(runtime: ProcessRuntime) -> UUID:
    return await started(runtime)


async def started(runtime: ProcessRuntime) -> UUID:
    workspace_id = uuid4()
    await runtime.create_volume(workspace_id, volume_name(workspace_id, 1))
    await runtime.start_container(ContainerSpec(workspace_id, volume_name(workspace_id, 1), "image"))
    return workspace_id


async def said(endpoint: Endpoint) -> bytes:
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    word = await reader.read()
    writer.close()
    return word


@contextmanager
def stranger(host: str, port: int = 0, *, shared: bool = False) -> Iterator[int]:
    """A listener of the test's own process."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as server:
        if shared:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if ":" in host:
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        server.bind((host, port))
        server.listen()
        yield server.getsockname()[1]


def outside_address() -> str:
    """Of this machine, not loopback. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        address: str = probe.getsockname()[0]
        return address


@pytest.mark.parametrize(
    ("listens", "found"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        pytest.param("::ffff:127.0.0.1", "127.0.0.1", marks=only_with_ipv6),
        pytest.param("::1", "::1", marks=only_with_ipv6),
        pytest.param("::", "::1", marks=only_with_ipv6),
    ],
)
async def test_the_address_is_where_it_listens(
    place: ProcessPlace, runtime: ProcessRuntime, ours: UUID, listens: str, found: str
) -> None:
    port = await place.listen(ours, host=listens, word="ours")
    endpoint = await runtime.port_endpoint(ours, port)
    assert endpoint == Endpoint(host=found, port=port)
    assert await said(endpoint) == b"ours"


async def test_what_listens_on_no_loopback_address_is_not_ours_to_show(
    place: ProcessPlace, runtime: ProcessRuntime, ours: UUID
) -> None:
    address = outside_address()
    port = await place.listen(ours, host=address)
    assert await runtime.port_endpoint(ours, port) is None


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "0.0.0.0", pytest.param("::1", marks=only_with_ipv6), pytest.param("::", marks=only_with_ipv6)],
)
async def test_a_stranger_s_port_is_not_ours(runtime: ProcessRuntime, ours: UUID, host: str) -> None:
    await eventually(lambda: runtime.answers(ours))
    with stranger(host) as port:
        assert await runtime.port_endpoint(ours, port) is None


@only_with_ipv6
async def test_two_on_one_port_get_each_their_own(
    place: ProcessPlace, runtime: ProcessRuntime, ours: UUID, neighbour: UUID
) -> None:
    port = await place.listen(ours, host="127.0.0.1", word="ours")
    await place.listen(neighbour, port, host="::1", word="theirs")
    found, theirs = await runtime.port_endpoint(ours, port), await runtime.port_endpoint(neighbour, port)
    assert (found, theirs) == (Endpoint(host="127.0.0.1", port=port), Endpoint(host="::1", port=port))
    assert (await said(Endpoint(host="127.0.0.1", port=port)), await said(Endpoint(host="::1", port=port))) == (
        b"ours",
        b"theirs",
    )


@only_with_ipv6
async def test_where_a_stranger_would_answer_first_we_do_not_go(
    place: ProcessPlace, runtime: ProcessRuntime, ours: UUID
) -> None:
    """Ours on every IPv6 address; a stranger on loopback, the one and then the other."""
    port = await place.listen(ours, host="::", word="ours/only6/shared")
    with ExitStack() as strangers:
        strangers.enter_context(stranger("127.0.0.1", port))
        endpoint = await runtime.port_endpoint(ours, port)
        assert endpoint == Endpoint(host="::1", port=port)
        assert await said(endpoint) == b"ours"
        if place.own_users:
            with pytest.raises(OSError, match="in use"):
                strangers.enter_context(stranger("::1", port, shared=True))
            return
        strangers.enter_context(stranger("::1", port, shared=True))
        assert await runtime.port_endpoint(ours, port) is None


async def test_an_address_of_its_own_wins_over_every_address(
    place: ProcessPlace, runtime: ProcessRuntime, ours: UUID, neighbour: UUID
) -> None:
    port = await place.listen(ours, host="127.0.0.1", word="ours/shared")
    if place.own_users:
        with pytest.raises(OSError, match="could not listen"):
            await place.listen(neighbour, port, host="0.0.0.0", word="theirs/shared")
        return
    await place.listen(neighbour, port, host="0.0.0.0", word="theirs/shared")
    endpoint = await runtime.port_endpoint(ours, port)
    assert endpoint == Endpoint(host="127.0.0.1", port=port)
    assert [await said(endpoint) for _ in range(10)] == [b"ours"] * 10
    assert await runtime.port_endpoint(neighbour, port) is None


async def test_a_port_shared_with_a_stranger_is_nobody_s(
    place: ProcessPlace, runtime: ProcessRuntime, ours: UUID, neighbour: UUID
) -> None:
    """The kernel deals the connections out to both, if they are of one user; of two, it lets only the first have it."""
    port = await place.listen(ours, word="ours/shared")
    assert await runtime.port_endpoint(ours, port) is not None
    await place.listen(ours, port, word="ours/shared")
    assert await runtime.port_endpoint(ours, port) is not None, "two workers of one program"
    if place.own_users:
        with pytest.raises(OSError, match="could not listen"):
            await place.listen(neighbour, port, word="theirs/shared")
        return
    await place.listen(neighbour, port, word="theirs/shared")
    assert await runtime.port_endpoint(ours, port) is None
    assert await runtime.port_endpoint(neighbour, port) is None


@only_with_ipv6
async def test_without_a_loopback_address_for_ipv6_the_other_one_is_tried(
    place: ProcessPlace, runtime: ProcessRuntime, ours: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in many containers: programs listen on `::`, and there is no `::1`."""
    port = await place.listen(ours, host="::", word="ours")
    monkeypatch.setattr(sockets, "_ADDRESSES_6", "none")
    endpoint = await runtime.port_endpoint(ours, port)
    assert endpoint == Endpoint(host="127.0.0.1", port=port)
    assert await said(endpoint) == b"ours"


async def test_a_kernel_that_does_not_tell_children_is_asked_for_parents(
    place: ProcessPlace, runtime: ProcessRuntime, ours: UUID, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = await place.listen(ours)
    monkeypatch.setattr(sockets, "_OWN_CHILDREN", tmp_path / "none")
    assert await runtime.port_endpoint(ours, port) == Endpoint(host="127.0.0.1", port=port)
    with stranger("127.0.0.1") as other:
        assert await runtime.port_endpoint(ours, other) is None


async def test_only_the_workspace_s_own_processes_are_looked_at(
    place: ProcessPlace, runtime: ProcessRuntime, ours: UUID, neighbour: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = await place.listen(ours)
    await eventually(lambda: runtime.answers(neighbour))  # the script before it, with programs of its own, has ended
    looked: list[int] = []

    def noted(pid: int) -> Iterator[str]:
        looked.append(pid)
        return original(pid)

    original = sockets._descriptors
    monkeypatch.setattr(sockets, "_descriptors", noted)
    assert await runtime.port_endpoint(neighbour, port) is None
    theirs = runtime._containers.look(neighbour)
    assert theirs
    assert set(looked) == set(sockets._tree(theirs.pid))
    looked.clear()
    assert await runtime.port_endpoint(neighbour, 1) is None
    assert looked == [], "nobody listens there: there is nothing to look for"


@pytest.fixture
async def apart(tmp_path: Path) -> AsyncIterator[ProcessPlace]:
    """Each workspace has a network of its own."""
    found = find_sandbox_tools()
    if found is None or found.slirp4netns is None:
        pytest.skip("bubblewrap or slirp4netns is not there or does not work")
    place = ProcessPlace(tmp_path / "root", own_network=True)
    yield place
    await place.close()


async def heard(endpoint: Endpoint) -> bytes:
    """As the front door connects."""
    told: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    class Listens(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            told.set_result(data)

    await connect(endpoint, Listens)
    return await asyncio.wait_for(told, 10)


@pytest.mark.parametrize(
    ("listens", "found"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        pytest.param("::1", "::1", marks=only_with_ipv6),
        pytest.param("::", "::1", marks=only_with_ipv6),
    ],
)
async def test_the_front_door_reaches_a_port_in_a_network_of_its_own(
    apart: ProcessPlace, listens: str, found: str
) -> None:
    runtime = apart.runtime()
    ours = await started(runtime)
    port = await apart.listen(ours, host=listens, word="ours")
    endpoint = await runtime.port_endpoint(ours, port)
    assert endpoint is not None
    assert (endpoint.host, endpoint.port) == (found, port)
    assert [await heard(endpoint) for _ in range(3)] == [b"ours"] * 3
    with pytest.raises(ConnectionRefusedError):
        await said(Endpoint(host=found, port=port))


async def test_in_networks_of_their_own_all_have_the_same_port(apart: ProcessPlace) -> None:
    """A stranger's on the machine, ours and a neighbour's: each gets its own."""
    runtime = apart.runtime()
    ours, neighbour = await started(runtime), await started(runtime)
    with stranger("127.0.0.1") as port:
        assert await runtime.port_endpoint(ours, port) is None
        for workspace_id in (ours, neighbour):
            await apart.listen(workspace_id, port, word=workspace_id.hex)
        for workspace_id in (ours, neighbour):
            endpoint = await runtime.port_endpoint(workspace_id, port)
            assert endpoint is not None
            assert await heard(endpoint) == workspace_id.hex.encode()
    gone = await runtime.port_endpoint(neighbour, port)
    assert gone is not None
    await runtime.remove_container(neighbour)
    with pytest.raises(OSError, match="No such file"):
        await heard(gone)


REACHES = "import socket, sys; print(socket.create_connection((sys.argv[1], int(sys.argv[2])), 10).recv(9))"


async def test_from_a_network_of_its_own_there_is_a_way_out(apart: ProcessPlace) -> None:
    """To an address of this machine that is not loopback: it goes the way that every other address does."""
    runtime = apart.runtime()
    ours = await started(runtime)
    spec = ContainerSpec(ours, volume_name(ours, 1), "image")
    async with await asyncio.start_server(greet, outside_address(), 0) as server:
        host, port = server.sockets[0].getsockname()
        code, output = await runtime.run_inside(spec, [sys.executable, "-c", REACHES, host, str(port)])
    assert (code, output) == (0, "b'hello'\n")


async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"hello")
    writer.close()


async def test_a_workspace_whose_way_out_is_lost_ends_and_says_so(apart: ProcessPlace) -> None:
    runtime = apart.runtime()
    ours = await started(runtime)
    await eventually(lambda: runtime.answers(ours))
    entry = runtime._containers.look(ours)
    assert entry is not None
    (router,) = (pid for pid in sockets._tree(entry.pid) if b"slirp4netns" in command_of(pid).split(b"\0")[0])
    os.kill(router, signal.SIGKILL)

    async def ended() -> bool:
        return not (await runtime.containers())[ours].running

    await eventually(ended)
    assert "slirp4netns ended" in (await runtime.containers())[ours].detail
    assert list(sockets._tree(entry.pid)) == []


def command_of(pid: int) -> bytes:
    return Path("/proc", str(pid), "cmdline").read_bytes()


@pytest.mark.parametrize("own_network", [True, False])
async def test_who_is_stopped_in_a_sandbox_may_say_goodbye(tmp_path: Path, own_network: bool) -> None:
    """What holds the sandbox from outside is spared until what runs inside has ended."""
    found = find_sandbox_tools(own_network=own_network)
    if found is None or (own_network and found.slirp4netns is None):
        pytest.skip("bubblewrap or slirp4netns is not there or does not work")
    script = "trap 'echo bye > bye; exit 0' TERM; echo noted > /dev/stderr; echo ready > ready; sleep 60 & wait"
    runtime = ProcessRuntime(tmp_path / "root", "here", ["sh", "-c", script], sandbox=True, own_network=own_network)
    ours = await started(runtime)
    home = runtime.homes.home(volume_name(ours, 1))
    await eventually(lambda: asyncio.to_thread((home / "ready").exists))
    assert "noted" in await runtime.logs(ours, 5)
    await runtime.remove_container(ours)
    assert (home / "bye").read_text() == "bye\n"
