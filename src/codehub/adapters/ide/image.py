"""`python -m codehub.adapters.ide.image DIRECTORY`: the same code-server for a container image, and its `launch`.

Run while the workspace image is built. The directory is then whole: node is in it too.
"""

import asyncio
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from codehub.adapters.ide.command import LOOPBACK, ide_command
from codehub.adapters.ide.install import ensure_code_server

HOME = "/home/coder"


def install(directory: Path) -> None:
    installed = asyncio.run(ensure_code_server(directory, lambda _text, _done: None))
    if installed.notes:
        sys.exit("\n".join(installed.notes))
    node = directory / "bin" / "node"
    node.parent.mkdir()
    shutil.copy2(installed.node, node)
    command = [word.replace("{home}", HOME) for word in ide_command(replace(installed, node=node), LOOPBACK)]
    launch = directory / "launch"
    launch.write_text(f"#!/bin/sh\nexec {shlex.join(command)}\n")
    launch.chmod(0o755)
    directory.chmod(0o755)
    installed.directory.chmod(0o755)


if __name__ == "__main__":
    install(Path(sys.argv[1]).absolute())
