"""The IDE of the process runtime: code-server, installed on first use into a cache, by the node and npm of a wheel; or
a JupyterLab that the operator has installed.

Of code-server one exact version, its tarball checked against a hash of ours and its packages against its own lock
file. What stands in the cache under its final name is whole and has been run once; with it, nothing here needs a
network.
"""

from codehub.adapters.ide.cache import InstalledIde, Progress
from codehub.adapters.ide.command import ide_command, jupyterlab_command
from codehub.adapters.ide.install import code_server, ensure_code_server, is_installed
from codehub.adapters.ide.toolchain import IdeError

__all__ = [
    "IdeError",
    "InstalledIde",
    "Progress",
    "code_server",
    "ensure_code_server",
    "ide_command",
    "is_installed",
    "jupyterlab_command",
]
