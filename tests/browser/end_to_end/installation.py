"""A whole CodeHub as one `codehub up` serves it, and its people: what they ask of the API, and their homes on disk."""

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil

from tests.proxy.recording.workbench import FILES, SETTINGS, SETTINGS_FILE
from tests.real_services import free_port
from tests.system.local_instance import Up, temporary_data_dir, up

TIMEOUT_SECONDS = 90.0
COOKIE = "__Host-codehub"
PASSWORD = "correct horse battery staple"
QUICK = {
    "COORDINATOR_ACTIVE_INTERVAL": "0.25",
    "COORDINATOR_IDLE_INTERVAL": "1",
    "ACTIVITY_FLUSH_INTERVAL": "1",
    "COORDINATOR_TTL_INTERVAL": "1",
}
Json = dict[str, Any]


@dataclass(frozen=True)
class Workspace:
    """One workspace, as the API shows it to one person."""

    http: httpx.Client
    data: Path
    id: str
    name: str
    url: str
    """Of its own host, with a slash at its end."""

    @property
    def path(self) -> str:
        return f"/api/v1/workspaces/{self.id}"

    @property
    def slug(self) -> str:
        return (urlsplit(self.url).hostname or "").partition(".")[0]

    @property
    def by_path(self) -> str:
        site = urlsplit(self.url)
        return f"http://localhost:{site.port}/w/{self.id}/"

    def of_port(self, port: int) -> str:
        return self.url.replace("http://", f"http://{port}--")

    @property
    def home(self) -> Path:
        """As it is on the disk; inside, it has another name."""
        [volume] = (self.data / "runtime" / "volumes").glob(f"ws-{self.id}-home*")
        return volume / "home"

    def furnish(self) -> None:
        """A few files, and settings that let a test read the terminal."""
        for file, text in {**FILES, SETTINGS_FILE: json.dumps(SETTINGS)}.items():
            (self.home / file).parent.mkdir(parents=True, exist_ok=True)
            (self.home / file).write_text(text)

    def shown(self) -> Json:
        answer = self.http.get(self.path)
        assert answer.status_code == 200, answer.text
        shown: Json = answer.json()
        return shown

    async def shows(self, wanted: Callable[[Json], bool]) -> Json:
        seen: Json = {}
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while not wanted(seen := self.shown()):
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"it does not come to that: {seen}") from None
        return seen

    async def becomes(self, phase: str) -> Json:
        """At rest where it was wished."""
        return await self.shows(
            lambda ws: ws["phase"] == phase and ws["operation"] == "NONE" and ws["desired_state"] == phase
        )

    async def brought_to(self, desired: str) -> Json:
        answer = self.http.patch(self.path, json={"desired_state": desired})
        assert answer.status_code in (200, 202), answer.text
        return await self.becomes(desired)

    def ticket(self, **order: object) -> str:
        """The address to go to, as the dashboard gets it."""
        answer = self.http.post(f"{self.path}/ticket", json=order)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["url"])

    def is_asleep(self) -> bool:
        """And nobody wants anything else."""
        ws = self.shown()
        return (ws["phase"], ws["desired_state"], ws["operation"]) == ("STANDBY", "STANDBY", "NONE")

    def kill(self) -> None:
        """Everything of it at once, as when the machine's memory runs out."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing of it runs meanwhile, as when its machine is cut off; its connections stay open."""
        stopped = self.processes()
        for process in stopped:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        try:
            yield
        finally:
            for process in stopped:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.resume()

    def processes(self) -> list[psutil.Process]:
        record = json.loads((self.data / "runtime" / "containers" / self.id / "record.json").read_text())
        supervisor = psutil.Process(record["pid"])
        return [supervisor, *supervisor.children(recursive=True)]

    def starts(self) -> int:
        """How often it was started, by its own ledger."""
        answer = self.http.get(f"{self.path}/events", params={"limit": 200})
        return sum(
            entry["kind"] == "operation_began" and entry["after"] == "STARTING" for entry in answer.json()["items"]
        )


@dataclass(frozen=True)
class Person:
    username: str
    http: httpx.Client
    data: Path
    password: str = PASSWORD

    async def workspace(self, name: str, phase: str = "STANDBY", **more: object) -> Workspace:
        """A new one, whose home has a few files, arrived."""
        answer = self.http.post("/api/v1/workspaces", json={"name": name, "desired_state": "STANDBY", **more})
        assert answer.status_code == 201, answer.text
        made = Workspace(self.http, self.data, answer.json()["id"], name, answer.json()["url"])
        await made.becomes("STANDBY")
        made.furnish()
        if phase != "STANDBY":
            await made.brought_to(phase)
        return made

    def leaves(self) -> None:
        """Nothing of theirs stays up. A connection that was kept may be closed just as it is used again."""
        for workspace in self.http.get("/api/v1/workspaces").json()["items"]:
            with contextlib.suppress(httpx.RemoteProtocolError):
                self.http.patch(f"/api/v1/workspaces/{workspace['id']}", json={"desired_state": "STANDBY"})


@dataclass
class Installation:
    port: int
    data: Path
    running: Up
    open: ExitStack
    environment: dict[str, str] = field(default_factory=dict)
    people: int = 0

    @property
    def url(self) -> str:
        return f"http://localhost:{self.port}"

    def client(self, username: str, password: str) -> httpx.Client:
        """Signed in as a browser is: with the cookie, from our own origin."""
        headers = {"Host": f"localhost:{self.port}", "Origin": self.url}
        client = self.open.enter_context(
            httpx.Client(base_url=f"http://127.0.0.1:{self.port}", headers=headers, timeout=TIMEOUT_SECONDS)
        )
        answer = client.post("/api/v1/session", json={"username": username, "password": password})
        assert answer.status_code == 201, answer.text
        client.headers["Cookie"] = f"{COOKIE}={answer.cookies[COOKIE]}"
        client.cookies.clear()
        return client

    def restart(self) -> None:
        """Killed, and started again on what it left."""
        before = self.running
        before.process.kill()
        before.process.wait()
        self.running = self.open.enter_context(up(self.data, self.port, self.environment))
        self.running.screen = before.screen + self.running.screen  # the password is shown only once

    @property
    def administrator(self) -> Person:
        return Person("admin", self.admin, self.data, self.running.password or "")

    @cached_property
    def admin(self) -> httpx.Client:
        return self.client("admin", self.running.password or "")

    def person(self, **limits: int) -> Person:
        """Somebody new, who is no administrator."""
        self.people += 1
        username = f"ann{self.people}"
        body = {"username": username, "password": PASSWORD, **limits}
        if self.running.password is not None:  # the first sign-in may be long ago
            proof = self.admin.post("/api/v1/session/proof", json={"password": self.running.password})
            assert proof.status_code == 204, proof.text
        answer = self.admin.post("/api/v1/admin/users", json=body)
        assert answer.status_code == 201, answer.text
        return Person(username, self.client(username, PASSWORD), self.data)


@contextmanager
def installation(cache: Path, **settings: str) -> Iterator[Installation]:
    with temporary_data_dir() as directory:
        (directory / "home").mkdir()
        environment = {
            "HOME": str(directory / "home"),
            "PATH": os.environ["PATH"],
            "CODEHUB_IDE_CACHE_DIR": str(cache),
            **QUICK,
            **settings,
        }
        port = free_port()
        with up(directory / "data", port, environment) as running, ExitStack() as clients:
            yield Installation(port, directory / "data", running, clients, environment)
