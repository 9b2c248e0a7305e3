"""The real IDE: installed as people get it, run as a workspace, inside bubblewrap and without.

It is installed once into a cache that all runs share (CODEHUB_IDE_CACHE_DIR, else the user's own), so only the first
run on a machine pays for it.
"""

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from uuid import UUID, uuid4

import httpx
import psutil
import pytest

from codehub.adapters.ide import IdeError, InstalledIde, ensure_code_server, ide_command
from codehub.adapters.ide.command import FIRST_SETTINGS
from codehub.adapters.process import ProcessRuntime
from codehub.adapters.process.sandbox import HOME_INSIDE, find_sandbox_tools
from codehub.adapters.process.table import orphans
from codehub.bootstrap.runtimes import ide, ide_cache_dir
from codehub.domain.naming import volume_name
from codehub.domain.workspace import Desired, Phase
from codehub.ports.runtime import ContainerSpec
from codehub.settings import Settings, load_settings
from tests.eventually import eventually
from tests.system.deployment import CODEHUB, deployed

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

SETTINGS = ".local/share/code-server/User/settings.json"
TIMEOUT_SECONDS = 150.0

TERMINAL = """
const terminal = require(process.argv[1] + "/node-pty").spawn(process.env.SHELL, ["-i"], {name: "xterm-256color"});
terminal.onData(text => process.stdout.write(text));
terminal.onExit(({exitCode}) => process.exit(exitCode));
terminal.write("tty; echo home=$HOME lang=$LANG; printf '%s' 'gr\u00fc\u00df' | wc -m; git --version\\r");
terminal.write("$NODE_EXEC_PATH --version; echo made > by-a-terminal; exit 7\\r");
"""
"""What the IDE's terminals are made of: node-pty and the shell, with the workspace's environment."""


def load() -> Settings:
    return load_settings(database_url="postgresql://unused", redis_url="redis://unused", ide_command=None)


@pytest.fixture(scope="session")
def installed() -> InstalledIde:
    try:
        return asyncio.run(ensure_code_server(ide_cache_dir(load()), lambda text, fraction: None))
    except IdeError as error:
        pytest.skip(f"code-server is not in the cache and cannot be installed: {error}")


class Machine:
    def __init__(self, root: Path, *, sandbox: bool) -> None:
        self.command, self.readable = ide(load())
        self._root, self.sandbox = root, sandbox
        self.key = uuid4()
        self.runtime = self.running(self.command)

    def running(self, command: list[str]) -> ProcessRuntime:
        return ProcessRuntime(self._root, "here", command, sandbox=self.sandbox, readable=self.readable)

    @property
    def volume(self) -> str:
        return volume_name(self.key, 1)

    @property
    def home(self) -> Path:
        return self.runtime.homes.home(self.volume)

    @property
    def spec(self) -> ContainerSpec:
        return ContainerSpec(self.key, self.volume, "image")

    def output(self) -> str:
        return (self._root / "containers" / str(self.key) / "output").read_text()

    async def start(self) -> Path:
        await self.runtime.start_container(self.spec)
        await eventually(lambda: self.runtime.answers(self.key), TIMEOUT_SECONDS)
        endpoint = await self.runtime.endpoint(self.key)
        assert endpoint is not None
        assert endpoint.socket is not None
        return Path(endpoint.socket)


@pytest.fixture(params=["sandbox", "plain"])
async def machine(request: pytest.FixtureRequest, installed: InstalledIde) -> AsyncIterator[Machine]:
    if request.param == "sandbox" and find_sandbox_tools() is None:
        pytest.skip("bubblewrap is not there or does not work")
    with tempfile.TemporaryDirectory(prefix="codehub-ide-") as directory:
        machine = Machine(Path(directory), sandbox=request.param == "sandbox")
        await machine.runtime.create_volume(machine.key, machine.volume)
        try:
            yield machine
        finally:
            await machine.runtime.remove_container(machine.key)


def client(socket: Path) -> httpx.AsyncClient:
    transport = httpx.AsyncHTTPTransport(uds=str(socket))
    return httpx.AsyncClient(transport=transport, base_url="http://ws.localhost", timeout=TIMEOUT_SECONDS)


async def test_it_serves_the_workbench(machine: Machine) -> None:
    socket = await machine.start()
    assert (socket.stat().st_mode & 0o777, socket.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    async with client(socket) as browser:
        assert (await browser.get("/healthz")).json()["status"] in {"alive", "expired"}
        page = await browser.get("/", follow_redirects=True)
    assert page.status_code == 200
    assert "vscode-workbench-web-configuration" in page.text
    seen = HOME_INSIDE if machine.sandbox else machine.home
    assert page.url.params["folder"] == str(seen)
    [bound] = [line for line in machine.output().splitlines() if "HTTP server listening on" in line]
    assert bound.endswith(str(socket))


@pytest.mark.parametrize(("origin", "status"), [("http://ws.localhost", 101), ("http://evil.example", 403)])
async def test_the_workbench_s_connection(origin: str, status: int, machine: Machine, installed: InstalledIde) -> None:
    commit = json.loads((installed.package / "package.json").read_text())["commit"]
    reader, writer = await asyncio.open_unix_connection(await machine.start())
    query = f"reconnectionToken={uuid4()}&reconnection=false&skipWebSocketFrames=false"
    lines = [
        f"GET /stable-{commit}?{query} HTTP/1.1",
        *("Host: ws.localhost", f"Origin: {origin}", "Connection: Upgrade", "Upgrade: websocket"),
        *("Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "", ""),
    ]
    writer.write("\r\n".join(lines).encode())
    async with asyncio.timeout(TIMEOUT_SECONDS):
        answer = await reader.readline()
    writer.close()
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())


async def test_a_terminal_works(machine: Machine, installed: InstalledIde) -> None:
    launch = ide_command(installed)
    through_node = launch[: launch.index(str(installed.entry))]
    modules = installed.package / "lib" / "vscode" / "node_modules"
    runtime = machine.running([*through_node, "-e", TERMINAL, str(modules)])
    await runtime.start_container(machine.spec)

    async def ended() -> bool:
        return not (await runtime.containers())[machine.key].running

    await eventually(ended, TIMEOUT_SECONDS)
    said, seen = machine.output(), HOME_INSIDE if machine.sandbox else machine.home
    assert (await runtime.containers())[machine.key].detail.startswith("ended with exit code 7"), said
    assert "/dev/pts/" in said
    assert f"home={seen} " in said
    assert "\n4\n" in said  # letters, not bytes
    assert ("git version" in said) == (shutil.which("git") is not None)
    assert "\nv24." in said
    assert (machine.home / "by-a-terminal").read_text() == "made\n"


async def test_stopping_ends_all_of_it(machine: Machine) -> None:
    socket = await machine.start()
    async with client(socket) as browser:
        await browser.get("/", follow_redirects=True)
    instance = (await machine.runtime.containers())[machine.key].instance
    programs = programs_of(instance)
    assert list(programs.values()).count("node") >= 2  # it forks
    await machine.runtime.remove_container(machine.key)
    assert [one for one in programs if one.is_running()] == []


def programs_of(instance: str) -> dict[psutil.Process, str]:
    """Its processes, but for those that end while they are looked at."""
    found = {}
    for pid in orphans(instance):
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            found[process] = Path(next(iter(process.cmdline()), "")).name
    return found


async def test_what_a_person_sets_is_there_after_a_stop(machine: Machine) -> None:
    await machine.start()
    path = machine.home / SETTINGS
    assert json.loads(path.read_text()) == json.loads(FIRST_SETTINGS)
    path.write_text('{"editor.fontSize": 20}')
    await machine.runtime.remove_container(machine.key)
    async with client(await machine.start()) as browser:
        assert (await browser.get("/", follow_redirects=True)).status_code == 200
    assert path.read_text() == '{"editor.fontSize": 20}'
    assert sorted(entry.name for entry in machine.home.iterdir()) == [".cache", ".local"]


async def test_nothing_in_the_cache_is_changed_by_a_workspace(machine: Machine, installed: InstalledIde) -> None:
    before = newest(installed.directory)
    async with client(await machine.start()) as browser:
        await browser.get("/", follow_redirects=True)
    assert newest(installed.directory) == before


def newest(directory: Path) -> tuple[int, float]:
    times = [path.lstat().st_mtime for path in directory.rglob("*")]
    return len(times), max(times)


# ── as people start it ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def cache(installed: InstalledIde) -> dict[str, str]:
    return {"CODEHUB_IDE_CACHE_DIR": str(installed.directory.parent), "CODEHUB_IDE_COMMAND": ""}


def test_installing_beforehand(cache: dict[str, str], installed: InstalledIde) -> None:
    done = subprocess.run(
        [CODEHUB, "ide", "install"],
        env={"PATH": os.environ["PATH"]} | cache,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    first = f"code-server {installed.version} is installed in {installed.directory}."
    assert done.stdout.splitlines()[0] == first


async def test_a_coordinator_runs_it_without_being_told(
    cache: dict[str, str], logged_database: str, fresh_redis: str
) -> None:
    async with deployed(logged_database, fresh_redis) as site:
        site.start(**cache)
        key: UUID = await site.create(Desired.RUNNING)
        await site.settled(key, Phase.RUNNING)
        endpoint = await site.services.runtime.endpoint(key)
        assert endpoint is not None
        async with client(Path(endpoint.socket or "")) as browser:
            page = await browser.get("/", follow_redirects=True)
        assert "vscode-workbench-web-configuration" in page.text
        assert (await site.home(key) / SETTINGS).exists()
        await site.brought_to(key, Desired.STANDBY)
