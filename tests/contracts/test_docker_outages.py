"""An engine that is cut off, hangs or breaks within an answer has not answered: a real one behind a proxy that does so.
Only what it says itself is a failure."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from uuid import UUID, uuid4

import aiohttp
import pytest
from aiodocker import DockerError

from codehub.adapters.docker import DockerRuntime, Engine
from codehub.adapters.docker import engine as engine_module
from codehub.adapters.docker.engine import doing
from codehub.domain.errors import BackendError, ErrorReason, Unreachable
from codehub.domain.naming import volume_name
from codehub.ports.runtime import ContainerSpec, Resources
from tests.contracts.places import DockerPlace
from tests.docker_engine import DockerTestbed
from tests.faulty_proxy import Break, BreakingProxy, breaking

SOCKET = Path("/var/run/docker.sock")


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (900, "Cannot connect to Docker Engine"),
        (502, "Bad Gateway"),
        (503, "the engine is shutting down"),
        (500, 'connection error: desc = "transport: Error while dialing: connection refused": unavailable'),
        (500, "rpc error: code = Unavailable desc = transport is closing"),
        (500, "context canceled"),
        (500, "write unix @->/run/containerd/containerd.sock: write: broken pipe"),
    ],
)
def test_an_engine_without_its_parts_has_not_answered(status: int, message: str) -> None:
    with pytest.raises(Unreachable), doing("it cannot be done"):
        raise DockerError(status, message)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (409, "volume is in use"),
        (404, "No such container: ws-1"),
        (400, "invalid reference format"),
        (500, "failed to create shim: no space left on device"),
        (500, "driver failed programming external connectivity"),
    ],
)
def test_what_an_engine_says_itself_is_a_failure(status: int, message: str) -> None:
    with pytest.raises(BackendError) as failure, doing("it cannot be done"):
        raise DockerError(status, message)
    assert failure.value.reason is ErrorReason.ACTION_FAILED
    assert not isinstance(failure.value, Unreachable)


@pytest.fixture
def cut(tmp_path: Path) -> Iterator[tuple[Path, BreakingProxy]]:
    """An engine's socket, and what breaks there."""
    with breaking(SOCKET, tmp_path / "docker.sock") as (_, proxy):
        yield tmp_path / "docker.sock", proxy


@pytest.fixture
async def place(docker_testbed: DockerTestbed, tmp_path: Path) -> AsyncIterator[DockerPlace]:
    place = DockerPlace(docker_testbed, tmp_path)
    yield place
    await place.close()


@asynccontextmanager
async def behind(cut: tuple[Path, BreakingProxy], place: DockerPlace) -> AsyncIterator[DockerRuntime]:
    """Through the proxy, but for the isolation of its network, which stands."""
    engine = Engine(f"unix://{cut[0]}")
    runtime = DockerRuntime(engine, place.site, isolation=place.runtime().isolation, grace_seconds=1)
    yield runtime
    cut[1].choose = lambda: None
    await runtime.close()
    await engine.close()


@pytest.fixture
async def runtime(cut: tuple[Path, BreakingProxy], place: DockerPlace) -> AsyncIterator[DockerRuntime]:
    async with behind(cut, place) as runtime:
        yield runtime


@pytest.fixture
async def another(cut: tuple[Path, BreakingProxy], place: DockerPlace) -> AsyncIterator[DockerRuntime]:
    """Another coordinator's, with connections of its own."""
    async with behind(cut, place) as runtime:
        yield runtime


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[object]]:
    """Inside the block an engine that hangs is given up sooner than otherwise: by looks, and by whoever connects for
    the first time there, in all its calls."""

    @contextmanager
    def block() -> Iterator[None]:
        with monkeypatch.context() as patched:
            patched.setattr(engine_module, "_TIMEOUT", aiohttp.ClientTimeout(total=8, sock_connect=2))
            patched.setattr(engine_module, "_LOOK_SECONDS", 4.0)
            yield

    return block


def effects(runtime: DockerRuntime, key: UUID) -> dict[str, Callable[[], Awaitable[object]]]:
    """In an order in which each can be done once those before it were."""
    volume = volume_name(key, 1)
    spec = ContainerSpec(key, volume, "", {}, Resources(memory_bytes=64 << 20))
    return {
        "create the volume": lambda: runtime.create_volume(key, volume),
        "start": lambda: runtime.start_container(spec),
        "look": lambda: runtime.containers([key]),
        "look at volumes": lambda: runtime.volumes([key]),
        "stop": lambda: runtime.remove_container(key),
        "delete the volume": lambda: runtime.delete_volume(key, volume),
    }


@pytest.mark.system
@pytest.mark.parametrize("way", [way for way in Break if way is not Break.HANG], ids=str)
async def test_an_engine_that_breaks_off_has_not_answered(
    runtime: DockerRuntime, cut: tuple[Path, BreakingProxy], way: Break
) -> None:
    for effect in effects(runtime, uuid4()).values():
        cut[1].choose = lambda: way
        with pytest.raises(Unreachable):
            await effect()
        cut[1].choose = lambda: None
        await effect()


@pytest.mark.system
async def test_an_engine_that_hangs_has_not_answered(
    runtime: DockerRuntime,
    another: DockerRuntime,
    cut: tuple[Path, BreakingProxy],
    impatient: Callable[[], AbstractContextManager[object]],
) -> None:
    """Once it answers, it may take its time: whoever gave it up so soon would give up a busy one too."""
    key = uuid4()
    for effect, again in zip(effects(runtime, key).values(), effects(another, key).values(), strict=True):
        cut[1].choose = lambda: Break.HANG
        with impatient(), pytest.raises(Unreachable):
            await effect()
        cut[1].choose = lambda: None
        await again()


@pytest.mark.system
@pytest.mark.parametrize("seed", range(5))
async def test_an_engine_that_breaks_off_at_random_has_not_answered(
    runtime: DockerRuntime, cut: tuple[Path, BreakingProxy], seed: int
) -> None:
    chance = random.Random(seed)
    ways = [way for way in Break if way is not Break.HANG]
    cut[1].choose = lambda: chance.choice(ways) if chance.random() < 0.4 else None
    for name, effect in effects(runtime, uuid4()).items():
        for _ in range(100):
            try:
                await effect()
                break
            except Unreachable:
                await asyncio.sleep(0)
        else:
            raise AssertionError(f"{name}: not once in a hundred times")
