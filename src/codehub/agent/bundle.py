"""`python -m codehub.agent.bundle DIRECTORY`: the agent with an interpreter and libraries of its own.

Run while CodeHub's image is built. A workspace's image may be anybody's, with any C library or without Python; the
directory needs nothing of it but a kernel. What it holds is what the agent loads, found by loading it.
"""

import compileall
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import codehub

PLACE = "/usr/local/lib/codehub-agent"


def command(place: str, module: str) -> tuple[str, ...]:
    """The words that run a module of the agent's where the directory is at `place`."""
    loader = (f"{place}/lib/loader", "--library-path", f"{place}/lib")
    return (*loader, f"{place}/bin/codehub-agent", "-I", "-S", "-B", "-m", module)


COMMAND = command(PLACE, "codehub.agent")
"""Runs the agent where the directory is at PLACE."""

# OpenSSL is left out: one hash is all it would be used for, and Python brings that itself.
_LOADED = """\
import json, runpy, sys
sys.modules["_hashlib"] = None
sys.path.insert(0, sys.argv[1])
import codehub.agent.__main__
print(json.dumps([f for f in (getattr(module, "__file__", None) for module in sys.modules.values()) if f]))
"""
_LIBRARY = re.compile(r"(/\S+) \(0x")


def bundle(directory: Path) -> None:
    python = Path(sys.executable).resolve()
    ours, stdlib = Path(codehub.__file__).parent.parent, Path(sysconfig.get_path("stdlib"))
    modules = directory / "lib" / stdlib.name
    (modules / "lib-dynload").mkdir(parents=True)  # else the interpreter says that it misses it
    natives = [python]
    for file in _loaded_files(python, ours):
        root = ours if file.is_relative_to(ours / "codehub") else stdlib
        target = modules / file.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
        if file.suffix == ".so":
            natives.append(file)
    (directory / "bin").mkdir()
    shutil.copy(python, directory / "bin" / "codehub-agent")
    for library in {library for native in natives for library in _libraries(native)}:
        is_loader = library.name.startswith("ld-")
        shutil.copy(library, directory / "lib" / ("loader" if is_loader else library.name))
    compileall.compile_dir(modules, quiet=1)


def _loaded_files(python: Path, ours: Path) -> list[Path]:
    said = subprocess.run([python, "-I", "-S", "-c", _LOADED, ours], capture_output=True, text=True, check=True).stdout
    return [Path(name) for name in json.loads(said)]


def _libraries(native: Path) -> list[Path]:
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    env = {"PATH": os.defpath, **kept}
    said = subprocess.run(["ldd", native], capture_output=True, text=True, check=True, env=env).stdout
    return [Path(name) for name in _LIBRARY.findall(said)]


if __name__ == "__main__":
    bundle(Path(sys.argv[1]).absolute())
