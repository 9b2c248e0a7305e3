"""`codehub up` as a process on a directory of its own, and the view on whatever it left running."""

import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from tests.system.deployment import CODEHUB

TIMEOUT_SECONDS = 120.0


@contextmanager
def temporary_data_dir() -> Iterator[Path]:
    """Short, so that the sockets are inside. Whatever runs on it ends with it."""
    with tempfile.TemporaryDirectory(prefix="codehub-up-") as name:
        directory = Path(name)
        try:
            yield directory
        finally:
            for process in those_of(directory):
                with suppress(psutil.NoSuchProcess):  # it went with another
                    process.kill()
            psutil.wait_procs(those_of(directory), 10)


def those_of(directory: Path) -> list[psutil.Process]:
    """Every process that has anything to do with this directory."""
    found = []
    for process in psutil.process_iter():
        try:
            about = [process.cwd(), *process.cmdline(), *process.environ().values()]
        except psutil.Error:
            continue
        if any(str(directory) in text for text in about):
            found.append(process)
    return found


@dataclass
class Up:
    process: subprocess.Popen[str]
    screen: str
    errors: IO[str]

    @property
    def password(self) -> str | None:
        found = re.search(r"^ +Password: (\S+)$", self.screen, re.MULTILINE)
        return found[1] if found else None

    def ended(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT_SECONDS)

    def rest_of_the_screen(self) -> str:
        """What it said after the first screen, once it has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.read()

    def log_tail(self) -> str:
        self.errors.seek(0)
        return self.errors.read()


@contextmanager
def up(directory: Path, port: int, environment: dict[str, str]) -> Iterator[Up]:
    """Running, with its first screen read, when it yields."""
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [CODEHUB, "up", "--data-dir", str(directory), "--port", str(port), "--ssh-port", "0"],
            env={"CODEHUB_RUNTIME": "process", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        running = Up(process, "", errors)
        try:
            running.screen = _first_screen(running)
            yield running
        finally:
            process.kill()


def _first_screen(running: Up) -> str:
    assert running.process.stdout is not None
    lines: list[str] = []
    while not lines or " ws create " not in lines[-1]:
        line = running.process.stdout.readline()
        if not line:
            raise AssertionError("".join(lines) + running.log_tail())
        lines.append(line)
    return "".join(lines)


def codehub(environment: dict[str, str], *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [CODEHUB, *words],
        env=environment,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
        cwd=environment["HOME"],
    )
