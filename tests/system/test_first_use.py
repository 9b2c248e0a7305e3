"""The stranger's path: an empty HOME, `codehub up`, and from the printed password to a file that survives everything.

The IDE is the real one, from the cache that all runs share.
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import httpx
import psutil
import pytest

from codehub.adapters.ide import IdeError, ensure_code_server
from codehub.adapters.process.sandbox import find_sandbox_tools
from codehub.bootstrap.runtimes import ide_cache_dir
from codehub.bootstrap.services import Services, open_services
from codehub.cli.output import FAILED
from codehub.settings import load_settings
from tests.conftest import Tell
from tests.real_services import free_port
from tests.system.local_instance import TIMEOUT_SECONDS, Up, codehub, temporary_data_dir, those_of, up

pytestmark = [pytest.mark.system, pytest.mark.timeout(1200)]

NOTE = "what I wrote on the first day\n"


@pytest.fixture(scope="session")
def cache() -> Path:
    given = load_settings(database_url="postgresql://unused", redis_url="redis://unused", ide_command=None)
    try:
        installed = asyncio.run(ensure_code_server(ide_cache_dir(given), lambda text, fraction: None))
    except IdeError as error:
        pytest.skip(f"code-server is not in the cache and cannot be installed: {error}")
    return installed.directory.parent


@dataclass
class Stranger:
    """Somebody with a machine, an empty home and two terminals."""

    directory: Path
    cache: Path
    port: int
    sandbox: bool

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "HOME": str(self.directory / "home"),
            "PATH": f"{self.directory / 'bin'}:{os.environ['PATH']}",
            "CODEHUB_IDE_CACHE_DIR": str(self.cache),
            "COORDINATOR_ACTIVE_INTERVAL": "0.25",
        }

    def types(self, *words: str, stdin: str = "") -> str:
        done = codehub(self.environment, *words, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def knows(self, *words: str) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.types(*words, "--json"))
        return found

    @asynccontextmanager
    async def services(self) -> AsyncIterator[Services]:
        """What the runtime itself knows, through the file that `up` leaves for its operator."""
        found = json.loads((self.data / "running.json").read_text())
        addresses = {name: found[name] for name in ("database_url", "redis_url")}
        settings = load_settings(**addresses, data_dir=self.data, ide_cache_dir=self.cache, ide_command=None)
        async with open_services(settings) as services:
            yield services

    async def home(self, workspace_id: UUID) -> Path:
        """The directory that the workspace's own processes see as their home."""
        async with self.services() as services:
            row = await services.database.specs().get(workspace_id)
            assert row is not None
            assert row.home_store_key is not None
            return services.processes.homes.home(row.home_store_key)


@pytest.fixture(params=["bubblewrap", "no bubblewrap"])
def stranger(request: pytest.FixtureRequest, cache: Path) -> Iterator[Stranger]:
    sandbox = request.param == "bubblewrap"
    if sandbox and find_sandbox_tools() is None:
        pytest.skip("bubblewrap is not there or does not work")
    with temporary_data_dir() as directory:
        (directory / "home").mkdir()
        (directory / "bin").mkdir()
        if not sandbox:
            (directory / "bin" / "bwrap").symlink_to("/bin/false")
        yield Stranger(directory, cache, free_port(), sandbox)


async def test_from_nothing_to_a_file_that_survives(stranger: Stranger, tell: Tell) -> None:
    with up(stranger.data, stranger.port, stranger.environment) as first:
        assert first.password is not None
        assert f"http://localhost:{stranger.port}" in first.screen
        signs_in(stranger, first)
        workspace_id = await uses_the_ide(stranger)
        keeps_the_file(stranger)
        await finds_it_after(stranger, workspace_id, "start", "demo")
        stranger.types("ws", "delete", "demo", "--yes", "--wait")
        stranger.types("ws", "undelete", str(workspace_id), "--wait")
        await finds_it_after(stranger, workspace_id, "start", "demo")
        assert first.ended(signal.SIGINT) == 0
        assert complaints(first.log_tail(), tell) == []
        told = first.rest_of_the_screen()
        assert "1 workspace goes on: demo (admin)." in told
        assert "up --stop-all` stops" in told
    assert not (stranger.data / "running.json").exists()
    workspace = those_of(stranger.data)
    assert workspace, "workspaces go on"
    assert others_among(workspace, workspace_id) == []
    lasting = oldest(workspace)

    with up(stranger.data, stranger.port, stranger.environment) as second:
        assert "Password" not in second.screen
        shown = stranger.knows("ws", "show", "demo")  # still signed in
        assert (shown["id"], shown["phase"]) == (str(workspace_id), "RUNNING")
        assert lasting <= {one.pid for one in those_of(stranger.data)}
        await answers(stranger, workspace_id)
        kills_postgresql(stranger)
        assert second.process.wait(TIMEOUT_SECONDS) == FAILED
        said = second.log_tail()
        assert "codehub: PostgreSQL has ended by itself; its log is " in said
        assert "Start CodeHub again." in said
        assert "Traceback" not in said

    assert those_of(stranger.data), "nobody has stopped it yet"
    told = stranger.types("up", "--stop-all", "--data-dir", str(stranger.data))
    assert told.endswith("No workspace runs any more.\n")
    assert those_of(stranger.data) == []

    with up(stranger.data, stranger.port, stranger.environment) as third:
        assert stranger.knows("ws", "show", "demo")["phase"] == "STANDBY", "and nothing starts it again"
        assert stranger.types("ws", "start", "demo", "--wait").startswith("demo is RUNNING.")
        beside = stranger.types("up", "--stop-all", "--data-dir", str(stranger.data))
        assert beside == "Stopping 1 workspace …\nNo workspace runs any more.\n"
        assert stranger.knows("ws", "show", "demo")["phase"] == "STANDBY"
        assert third.ended(signal.SIGTERM) == 0
        assert third.rest_of_the_screen() == ""
    assert those_of(stranger.data) == []


def signs_in(stranger: Stranger, running: Up) -> None:
    address = f"http://localhost:{stranger.port}"
    words = ("login", address, "-u", "admin", "--password-stdin")
    wrong = codehub(stranger.environment, *words, stdin="guess\n")
    assert wrong.returncode != 0
    said = stranger.types(*words, stdin=f"{running.password}\n")
    assert said == f"Signed in to {address} as admin. Try `codehub ws ls`.\n"
    config = stranger.directory / "home" / ".config" / "codehub" / "contexts.json"
    assert config.stat().st_mode & 0o777 == 0o600
    assert running.password is not None
    assert running.password not in config.read_text()


async def uses_the_ide(stranger: Stranger) -> UUID:
    said = stranger.types("ws", "create", "demo", "--wait")
    assert said.startswith("demo is RUNNING. http://demo-")
    assert said.endswith(f".localhost:{stranger.port}/\n")
    workspace_id = UUID(str(stranger.knows("ws", "show", "demo")["id"]))
    await answers(stranger, workspace_id)
    (await stranger.home(workspace_id) / "notes.txt").write_text(NOTE)
    return workspace_id


async def answers(stranger: Stranger, workspace_id: UUID) -> None:
    """The IDE's page, at the workspace's own endpoint."""
    async with stranger.services() as services:
        endpoint = await services.runtime.endpoint(workspace_id)
    assert endpoint is not None
    assert endpoint.socket is not None
    transport = httpx.AsyncHTTPTransport(uds=endpoint.socket)
    async with httpx.AsyncClient(transport=transport, base_url="http://ws.localhost", timeout=60) as browser:
        assert (await browser.get("/healthz")).status_code == 200
        page = await browser.get("/", follow_redirects=True)
    assert page.status_code == 200
    assert "vscode-workbench-web-configuration" in page.text


def keeps_the_file(stranger: Stranger) -> None:
    assert stranger.types("ws", "stop", "demo", "--wait") == "demo is STANDBY.\n"
    assert stranger.types("ws", "archive", "demo", "--wait") == "demo is ARCHIVED.\n"
    assert "notes.txt" in stranger.types("ws", "files", "demo")
    assert stranger.types("ws", "download", "demo", "notes.txt", "-o", "-") == NOTE
    stranger.types("ws", "download", "demo", "notes.txt")
    assert (stranger.directory / "home" / "notes.txt").read_text() == NOTE


async def finds_it_after(stranger: Stranger, workspace_id: UUID, *verb: str) -> None:
    assert stranger.types("ws", *verb, "--wait").startswith("demo is RUNNING.")
    assert (await stranger.home(workspace_id) / "notes.txt").read_text() == NOTE
    await answers(stranger, workspace_id)


def complaints(log: str, tell: Tell) -> list[str]:
    """All but warnings, which are told: on a slow machine a connection may be lost and found again."""
    warnings = [line for line in log.splitlines() if line.startswith("{") and json.loads(line)["level"] == "warning"]
    for line in warnings:
        tell(f"`codehub up` warned: {line}")
    return [line for line in log.splitlines() if line not in warnings]


def others_among(processes: list[psutil.Process], workspace_id: UUID) -> list[list[str]]:
    """The commands of those that have nothing to do with the workspace and still run."""
    found = []
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            if not belongs_to(one, workspace_id):
                found.append(one.cmdline())
    return found


def oldest(processes: list[psutil.Process]) -> set[int]:
    """What keeps the IDE, the IDE, and its first child: whatever else it forks may end at any time."""
    born = {}
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            born[one.pid] = one.create_time()
    return set(sorted(born, key=lambda pid: born[pid])[:3])


def belongs_to(process: psutil.Process, workspace_id: UUID) -> bool:
    """The IDE, what it forked, and what keeps it."""
    words = [word for one in (process, *process.parents()) for word in one.cmdline()]
    return any(known in word for word in words for known in (str(workspace_id), workspace_id.hex))


def kills_postgresql(stranger: Stranger) -> None:
    pid = int((stranger.data / "postgres" / "data" / "postmaster.pid").read_text().splitlines()[0])
    psutil.Process(pid).kill()
