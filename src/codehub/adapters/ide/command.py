"""The command lines that run an IDE: an installed code-server, or the JupyterLab that the operator has installed.

Each is a template for the process runtime, and code-server's for images too. Everything that a person changes is below
the home and is archived with it. A repository that was asked for is cloned once, beside the IDE's start, and again at
the next start if that failed: for code-server by the program in `setup/`, which also tells the editor how it goes and
does what else the workspace was given (ADR 30). The front door decides who may come in, so the IDE asks for no
password; where it listens is on the command line, which no configuration file in the home changes.
`python -m codehub.adapters.ide.command DIRECTORY`, run while the workspace image is built, installs the same
code-server for containers, with node and its `launch`.
"""

import asyncio
import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from codehub.adapters.ide.cache import InstalledIde
from codehub.adapters.ide.install import ensure_code_server
from codehub.adapters.ide.toolchain import IdeError

DATA = "{home}/.local/share/code-server"

FIRST_SETTINGS = json.dumps(
    {
        "chat.disableAIFeatures": True,
        "workbench.secondarySideBar.defaultVisibility": "hidden",
        "editor.minimap.autohide": "mouseover",
    },
    indent=4,
)
"""For a home without any: the parts that those features need are not installed, and on a telephone the editor would
have no room beside the second side bar, nor its text beside the minimap."""

_LAUNCH = """\
home=$1 data=$2 settings=$2/User/settings.json setup=$4
[ -e "$settings" ] || { mkdir -p "${settings%/*}" && printf '%s\\n' "$3" > "$settings"; }
shift 4
export NODE_EXEC_PATH="$1"
[ ! -d "$data/User/Backups" ] || "$1" "$setup" backups "$data"
folder=$home
if [ -n "${CODEHUB_GIT_URL:-}${CODEHUB_DOTFILES_URL:-}" ]; then
    folder=$("$1" "$setup" folder "$home")
    [ -d "$folder" ] || folder=$home
    { "$1" "$setup" run "$home" "$@" || "$1" "$setup" ended "$home"; } &
else
    rm -f "$home/.local/state/codehub/setup.json"
fi
exec "$@" "$folder"
"""
"""Arguments: the home, code-server's data, its first settings, the setup program, and the command line to run."""

_LAUNCH_JUPYTERLAB = """\
mkdir -p "$1"
cloned=$1/cloned
if [ -n "${CODEHUB_GIT_URL:-}" ] && [ ! -e "$cloned" ]; then
    name=${CODEHUB_GIT_URL%"${CODEHUB_GIT_URL##*[!/]}"}
    name=${name##*[/:]}
    name=${name%.git}
    name=${name#"${name%%[!.]*}"}
    name=$(printf %s "$name" | LC_ALL=C tr -c 'A-Za-z0-9_.+@=,~-' '[-*]' | cut -c 1-100)
    case $name in
        "") name=repository ;;
        bin|node_modules) name=$name-repository ;;
    esac
    (cd "$HOME" && GIT_TERMINAL_PROMPT=0 git clone ${CODEHUB_GIT_REF:+"--branch=$CODEHUB_GIT_REF"} \
        -- "$CODEHUB_GIT_URL" "./$name" && : > "$cloned") &
fi
shift
exec "$@"
"""
"""The folder is called as `nameOf` in `setup/clone.js` does it: never a hidden one, nor one that holds programs."""

HOME = "/home/coder"
JUPYTERLAB = "jupyter-lab"
SOCKET = ("--socket", "{socket}", "--socket-mode", "600", "--session-socket", "{socket}.cli")
LOOPBACK = ("--bind-addr", "127.0.0.1:8080")
"""In a container: only the agent beside it leads there, and asks whoever comes for a proof."""


def ide_command(installed: InstalledIde, listening: Sequence[str] = SOCKET) -> list[str]:
    return [
        *("sh", "-c", _LAUNCH, "codehub-ide", "{home}", DATA, FIRST_SETTINGS, str(installed.setup)),
        *(str(installed.node), str(installed.entry)),
        *("--config", str(installed.configuration)),
        *listening,
        *("--auth", "none"),
        *("--user-data-dir", DATA, "--extensions-dir", f"{DATA}/extensions"),
        "--disable-telemetry",
        "--disable-update-check",
        "--disable-workspace-trust",
        "--disable-getting-started-override",
        # It would show any port of the machine, a neighbour's too, as a page of the IDE's own origin.
        "--disable-proxy",
    ]


def jupyterlab_command() -> list[str]:
    """The command line that runs JupyterLab. Raises IdeError if there is none."""
    program = shutil.which(JUPYTERLAB)
    if program is None:
        raise IdeError(
            f"CODEHUB_IDE=jupyterlab: there is no {JUPYTERLAB} in the PATH of codehub. Install it (`pip install "
            "jupyterlab`, in an environment of its own if you like) and put its `bin` into that PATH"
        )
    return [
        *("sh", "-c", _LAUNCH_JUPYTERLAB, "codehub-ide", "{home}/.local/share/codehub"),
        *(program, "--no-browser", "--allow-root"),
        *("--ServerApp.sock={socket}", "--ServerApp.sock_mode=0600", "--ServerApp.root_dir={home}"),
        *("--IdentityProvider.token=", "--PasswordIdentityProvider.hashed_password="),
        "--ServerApp.allow_remote_access=True",
        # It would end the workspace, which looks like a failure from outside.
        "--ServerApp.quit_button=False",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]


def install(directory: Path) -> None:
    """Installs code-server for a container image. The directory is then whole: node is in it too."""
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
