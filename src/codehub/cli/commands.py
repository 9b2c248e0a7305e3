"""`codehub ws exec`: a command inside a workspace, whose output and exit code become ours."""

import base64
import json
import sys
from typing import Annotated

import typer

from codehub.cli import contexts
from codehub.cli.client import Client, Json, Which, find
from codehub.cli.output import UNREACHABLE, USAGE, ClientFailed


def register(app: typer.Typer) -> None:
    takes_a_command: dict[str, object] = {"ignore_unknown_options": True, "allow_interspersed_args": False}
    app.command("exec", context_settings=takes_a_command)(exec_command)


def exec_command(
    workspace: Which,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND…", help="After `--`.")],
    env: Annotated[list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="A variable for it.")] = None,
    cwd: Annotated[str | None, typer.Option(help="Where it runs: absolute, or below the home.")] = None,
    stdin: Annotated[bool, typer.Option("--stdin", help="Give it our standard input: text, up to 1 MiB.")] = False,
) -> None:
    """Run a command inside a running workspace, without a terminal. The exit code is the command's. Options come before
    the workspace's name.

    Examples: `codehub ws exec demo -- pytest -q` · `codehub ws exec --cwd project demo -- make test`
    """
    words = command[1:] if command[:1] == ["--"] else command
    if not words:
        raise ClientFailed("There is nothing to run. Example: codehub ws exec demo -- pytest -q", USAGE)
    body = {"argv": words, "env": _variables(env or []), "cwd": cwd, "stdin": sys.stdin.read() if stdin else ""}
    with Client(contexts.in_use()) as client:
        path = f"/workspaces/{find(client, workspace)['id']}/exec"
        with client.streamed(path, body) as lines:
            for line in filter(None, lines):
                said: Json = json.loads(line)
                if "exit_code" in said:
                    raise typer.Exit(said["exit_code"])
                if "error" in said:
                    raise ClientFailed(str(said["detail"]), UNREACHABLE)
                _say(said)
    raise ClientFailed("The connection ended before the command did.", UNREACHABLE)


def _variables(given: list[str]) -> dict[str, str]:
    pairs = [one.partition("=") for one in given]
    if any(not equals or not name for name, equals, _ in pairs):
        raise ClientFailed("A variable is NAME=VALUE.", USAGE)
    return {name: value for name, _, value in pairs}


def _say(said: Json) -> None:
    data = base64.b64decode(said["base64"]) if "base64" in said else said["text"].encode()
    stream = sys.stderr if said["stream"] == "stderr" else sys.stdout
    stream.flush()
    if hasattr(stream, "buffer"):
        stream.buffer.write(data)
        stream.buffer.flush()
    else:
        stream.write(data.decode(errors="replace"))
