"""Modules of native code: most come prebuilt, the others are compiled where there is a compiler and missed where not.

Whether one is needed is found by loading it, so a machine that the prebuilt ones do not fit compiles those too.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from codehub.adapters.ide.programs import Programs

MODULES = {
    "@vscode/spdlog": "the IDE's own log files are not written",
    "@vscode/native-watchdog": "an extension host may outlive a crashed IDE until its workspace stops",
    "node-pty": "terminals do not work",
    "@parcel/watcher": "files changed outside the editor are not noticed",
}
"""name: what is missed without it"""

_COMPILERS = ("g++", "c++", "clang++")


async def make_native_modules(programs: Programs, modules: Path) -> tuple[str, ...]:
    """Notes on what could not be made."""
    compiler = find_compiler(os.environ)
    notes = []
    for name, missed in MODULES.items():
        if await _loads(programs, modules / name):
            continue
        if compiler is None:
            notes.append(f"{name} is not there, {missed}: install a C++ compiler and make, then install the IDE again")
        elif why := await _compile(programs, modules / name, compiler):
            notes.append(f"{name} could not be compiled, {missed}: {why}")
    return tuple(notes)


def find_compiler(environ: Mapping[str, str]) -> str | None:
    if shutil.which("make", path=environ.get("PATH")) is None:
        return None
    wanted = [environ["CXX"]] if environ.get("CXX") else _COMPILERS
    return next((name for name in wanted if shutil.which(name.split()[0], path=environ.get("PATH"))), None)


async def _loads(programs: Programs, module: Path) -> bool:
    return (await programs.node(module, "-e", "require(process.argv[1])", module)).code == 0


async def _compile(programs: Programs, module: Path, compiler: str) -> str:
    """Empty if it loads now, else why not."""
    given = {
        "CXX": compiler,
        # A module's build file asks `node` where its headers are, and this machine may have no other.
        "PATH": f"{programs.tools.node.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        # By variable, because node-gyp lets variables win over its own options.
        "npm_config_nodedir": str(programs.tools.root),
        "npm_config_devdir": str(programs.scratch / "node-gyp"),
        "npm_config_python": sys.executable,
    }
    ran = await programs.node(module, programs.tools.node_gyp, "rebuild", extra=given)
    if ran.code == 0 and await _loads(programs, module):
        return ""
    return next((word for word in ran.words if "error" in word.lower()), ran.ending)
