"""The IDE of workspaces that are processes of this machine."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from codehub.adapters.ide import IdeError, InstalledIde, Progress, code_server, ensure_code_server, ide_command
from codehub.bootstrap.places import ide_cache_dir
from codehub.settings import Settings

__all__ = ["IdeError", "InstalledIde", "Progress", "ide", "install_ide"]


async def install_ide(settings: Settings, progress: Progress) -> InstalledIde | None:
    """None if the settings name another IDE, or images have it. Returns at once, and says nothing, if it is there."""
    if settings.ide_command or settings.runtime != "process":
        return None
    return await ensure_code_server(ide_cache_dir(settings), progress)


def ide(settings: Settings) -> tuple[list[str], list[Path]]:
    """The IDE's command line, and what of this machine it needs to see. Whoever starts workspaces installs it first."""
    if settings.ide_command:
        command = shlex.split(settings.ide_command)
        return command, programs(command)
    installed = code_server(ide_cache_dir(settings))
    command = ide_command(installed)
    return command, [*programs(command), installed.directory]


def programs(command: Sequence[str]) -> list[Path]:
    """What the IDE's command line names outside the system's directories, for a sandbox to show."""
    named = [Path(word) for word in command if word.startswith("/")]
    places = {path.parent for path in named} | {path.resolve().parent for path in named}
    interpreter = {Path(sys.prefix), Path(sys.base_prefix)}
    return sorted(path for path in places | interpreter if path.is_dir() and path != Path("/"))
