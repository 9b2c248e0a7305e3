"""The command line that runs JupyterLab as the IDE, wherever the operator has installed it.

The front door asks who may come in, and passes on the public host's name: so JupyterLab asks for no token and takes any
host. What stands on the command line is not the workspace's to change by a configuration file in its home.
"""

import shutil

from codehub.adapters.ide.command import CLONE
from codehub.adapters.ide.failure import IdeError

PROGRAM = "jupyter-lab"
_LAUNCH = f"""\
mkdir -p "$1"
{CLONE}
shift
exec "$@"
"""


def jupyterlab_command() -> list[str]:
    """Raises IdeError if there is no JupyterLab."""
    program = shutil.which(PROGRAM)
    if program is None:
        raise IdeError(
            f"CODEHUB_IDE=jupyterlab: there is no {PROGRAM} in the PATH of codehub. Install it (`pip install "
            "jupyterlab`, in an environment of its own if you like) and put its `bin` into that PATH"
        )
    return [
        *("sh", "-c", _LAUNCH, "codehub-ide", "{home}/.local/share/codehub"),
        *(program, "--no-browser", "--allow-root"),
        *("--ServerApp.sock={socket}", "--ServerApp.sock_mode=0600", "--ServerApp.root_dir={home}"),
        *("--IdentityProvider.token=", "--PasswordIdentityProvider.hashed_password="),
        "--ServerApp.allow_remote_access=True",
        # It would end the workspace, which looks like a failure from outside.
        "--ServerApp.quit_button=False",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]
