"""`python -m tests.proxy.recording.record_applications [NAME ...]`: drive a tab of each and keep what it says.

The versions that `applications` names are installed with pip and npm, once, into a folder. noVNC also needs Debian's
`tigervnc-standalone-server` and `xterm`.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import httpx
from playwright.async_api import Page

from codehub.ports.runtime import Endpoint
from codehub.proxy.access.verdicts import Forward
from tests.chromium import chromium
from tests.proxy.harness import ProxyHarness
from tests.proxy.recording.applications import APPLICATION_TAPES, APPLICATIONS, Application, Person
from tests.proxy.recording.recorder import Recorder
from tests.proxy.recording.tape import write
from tests.real_services import free_port

PROGRAMS = Path.home() / ".cache" / "codehub-applications"
PATIENCE = 300.0
SETTLES = 20.0
ALONE = 340.0
"""How long a tab is recorded: eleven pings of Vite."""
WORKS = 100.0
ALONE_AGAIN = 240.0


def install(name: str, application: Application, programs: Path) -> None:
    """Install what an application needs, which blocks. What is there already is not looked at again."""
    programs.mkdir(parents=True, exist_ok=True)
    if application.python and not (programs / name).is_dir():
        subprocess.run([sys.executable, "-m", "venv", programs / name], check=True)
        subprocess.run([programs / name / "bin" / "pip", "install", "--quiet", *application.python], check=True)
    wanted = [each for each in application.node if not (programs / "node/node_modules" / _package(each)).is_dir()]
    if wanted:
        (programs / "node").mkdir(exist_ok=True)
        subprocess.run(["npm", "install", "--no-audit", "--no-fund", *wanted], cwd=programs / "node", check=True)


def _package(wanted: str) -> str:
    return wanted.rpartition("@")[0]


@asynccontextmanager
async def served(application: Application, programs: Path) -> AsyncIterator[Endpoint]:
    """Wait until the application answers."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="codehub-application-") as name:
        folder = Path(name)
        for path, text in application.files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        for packages in ("node_modules",):  # an import in the folder is found as in a project of one's own
            (folder / packages).symlink_to(programs / "node" / packages)
        words = [
            word.format(programs=programs, port=port, folder=folder) if "{" in word else word
            for word in application.command
        ]
        environment = {**os.environ, "HOME": name, "NEXT_TELEMETRY_DISABLED": "1", "GRADIO_ANALYTICS_ENABLED": "0"}
        with (folder / "output.log").open("w") as output:
            process = subprocess.Popen(
                words, cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True
            )
        try:
            await _answers(port, folder / "output.log")
            yield Endpoint(host="127.0.0.1", port=port)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            await asyncio.to_thread(process.wait, PATIENCE)


async def _answers(port: int, output: Path) -> None:
    try:
        async with asyncio.timeout(PATIENCE), httpx.AsyncClient(timeout=PATIENCE) as client:
            while True:
                with suppress(httpx.TransportError):
                    await client.get(f"http://127.0.0.1:{port}/")
                    return
                await asyncio.sleep(0.5)
    except TimeoutError:
        raise AssertionError(output.read_text()[-2000:]) from None


@asynccontextmanager
async def page(port: int, application: Application) -> AsyncIterator[Page]:
    """A tab in which the application can be worked with."""
    async with chromium() as browser:
        opened = await browser.new_page()
        await opened.goto(f"http://w.localhost:{port}{application.path}", timeout=PATIENCE * 1000)
        await opened.wait_for_selector(application.ready, timeout=PATIENCE * 1000)
        yield opened


async def record(name: str, programs: Path, to: Path) -> None:
    application = APPLICATIONS[name]
    recorder = Recorder()
    async with (
        served(application, programs) as endpoint,
        ProxyHarness(endpoint, forward=Forward(endpoint, tap=recorder.plain_tap)) as proxy,
    ):
        recorder.note_requests(proxy)
        recorder.mark("load")
        async with page(proxy.port, application) as opened:
            recorder.mark("settling")
            await asyncio.sleep(SETTLES)
            recorder.mark("quiet before")
            await asyncio.sleep(ALONE)
            recorder.mark("work")
            await application.works(Person(opened, asyncio.get_running_loop().time() + WORKS))
            recorder.mark("quiet after")
            await asyncio.sleep(ALONE_AGAIN)
            recorder.mark("end")
    about = {"application": name, "recorded": f"{datetime.now(UTC):%Y-%m-%d}"}
    about["versions"] = " ".join((*application.python, *application.node))
    path = to / f"{name}.jsonl.zst"
    write(path, about, recorder.entries)
    print(f"{path}: {path.stat().st_size} bytes, {len(recorder.entries)} entries", flush=True)


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(APPLICATIONS)}; all if none")
    parser.add_argument("--to", type=Path, default=APPLICATION_TAPES, metavar="FOLDER")
    parser.add_argument("--programs", type=Path, default=PROGRAMS, metavar="FOLDER")
    chosen = parser.parse_args()
    if unknown := set(chosen.names) - set(APPLICATIONS):
        parser.error(f"no such application: {', '.join(sorted(unknown))}")
    chosen.to.mkdir(parents=True, exist_ok=True)
    names = chosen.names or sorted(APPLICATIONS)
    for name in names:
        await asyncio.to_thread(install, name, APPLICATIONS[name], chosen.programs.absolute())
    async with asyncio.TaskGroup() as tasks:
        for name in names:
            tasks.create_task(record(name, chosen.programs.absolute(), chosen.to))
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
