"""The IDE of workspaces that are processes of this machine: installed, and its command line."""

import shlex
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from codehub.adapters.ide import (
    IdeError,
    InstalledIde,
    Progress,
    code_server,
    ensure_code_server,
    ide_command,
    jupyterlab_command,
)
from codehub.bootstrap.paths import ide_cache_dir
from codehub.settings import Settings

__all__ = ["IdeError", "InstalledIde", "Progress", "ide", "install_ide"]


async def install_ide(settings: Settings, progress: Progress) -> InstalledIde | None:
    """Installs code-server unless it is there. None if the settings name another IDE, or if images contain it."""
    if settings.ide_command or settings.runtime != "process":
        return None
    if settings.ide == "jupyterlab":
        jupyterlab_command()
        return None
    return await ensure_code_server(ide_cache_dir(settings), progress)


def ide(settings: Settings) -> tuple[list[str], list[Path]]:
    """The IDE's command line, and what of this machine it needs to see. Whoever starts workspaces installs it first."""
    if settings.ide_command:
        command = shlex.split(settings.ide_command)
        return command, programs(command)
    if settings.ide == "jupyterlab":
        command = jupyterlab_command()
        return command, programs(command)
    installed = code_server(ide_cache_dir(settings))
    command = ide_command(installed)
    return command, [*programs(command), installed.directory]


def programs(command: Sequence[str]) -> list[Path]:
    """What the IDE's command line names outside the system's directories, for a sandbox to show."""
    named = [Path(word) for word in (shutil.which(command[0]) or "", *command) if word.startswith("/")]
    named += [path.resolve() for path in named]
    places = {path.parent for path in named}
    interpreters = {Path(sys.prefix), Path(sys.base_prefix)}.union(*map(python_environment, named))
    return sorted(path for path in places | interpreters if path.is_dir() and path != Path("/"))


def python_environment(program: Path) -> set[Path]:
    """Of a program in a Python virtual environment: that environment and the interpreter that it was made from. Of one
    in a conda environment: that environment. Of any other nothing."""
    prefix = program.parent.parent
    if (prefix / "conda-meta").is_dir():
        return {prefix}
    lines: list[str] = []
    with suppress(OSError):
        lines = (prefix / "pyvenv.cfg").read_text().splitlines()
    found = {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)}
    if "home" not in found:
        return set()
    interpreter = (prefix / "bin" / "python").resolve()
    return {prefix, Path(found["home"]).parent, interpreter.parent.parent}
