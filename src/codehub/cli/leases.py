"""Holding a workspace up: for some time, or for as long as a command runs."""

import contextlib
import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Annotated

import typer

from codehub.cli import contexts, output
from codehub.cli.client import AsJson, Client, Json, Which, find
from codehub.cli.output import USAGE, ClientFailed

RENEW_SECONDS = 60.0
HORIZON_SECONDS = 300
"""How long a renewed lease lasts: long enough that a few renewals may fail."""
NOT_EXECUTABLE, NOT_FOUND = 126, 127
"""Exit codes that shells use for these."""
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def register(app: typer.Typer) -> None:
    app.command("keepalive")(keepalive)
    takes_a_command: dict[str, object] = {"ignore_unknown_options": True, "allow_interspersed_args": False}
    app.command("hold", context_settings=takes_a_command)(hold)
    app.command("run", context_settings=takes_a_command)(run)


def keepalive(
    workspace: Which,
    duration: Annotated[str, typer.Argument(help="Such as 90s, 45m, 2h; 0 lets go.")] = "1h",
    as_json: AsJson = False,
) -> None:
    """Keep it from being stopped or archived for being idle. You can still stop it yourself.

    Example: `codehub ws keepalive demo 2h`
    """
    seconds = seconds_of(duration)
    with Client(contexts.in_use()) as client:
        lease = _hold(client, find(client, workspace)["id"], seconds)
    output.outcome(lease, lease["message"], as_json=as_json)


def hold(
    workspace: Which,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND…", help="After `--`.")],
) -> None:
    """Run a command on this computer, and keep the workspace up for as long as it runs. The exit code is the command's.

    Example: `codehub ws hold demo -- rsync -a data/ elsewhere:data/`
    """
    words = _words(command)
    if not words:
        raise ClientFailed("There is nothing to run. Example: codehub ws hold demo -- make train", USAGE)
    with Client(contexts.in_use()) as client, _held(client, find(client, workspace)["id"]):
        code = _run(words)
    raise typer.Exit(code if code >= 0 else 128 - code)


def run(
    workspace: Which,
    command: Annotated[list[str] | None, typer.Argument(metavar="COMMAND…", help="After `--`.")] = None,
) -> None:
    """Runs nothing, and exits with 1: `codehub ws exec` runs a command inside the workspace, `codehub ws hold` one on
    this computer while the workspace is kept up.

    Example: `codehub ws run demo -- make train` names both commands to choose from.
    """
    words = _words(command or []) or ["make", "train"]
    inside, here = (shlex.join(["codehub", "ws", verb, workspace, "--", *words]) for verb in ("exec", "hold"))
    raise ClientFailed(f"Nothing was run. To run it inside the workspace: `{inside}`; on this computer: `{here}`")


def _words(command: Sequence[str]) -> list[str]:
    return list(command[1:] if command and command[0] == "--" else command)


@contextlib.contextmanager
def _held(client: Client, workspace_id: str) -> Iterator[None]:
    _hold(client, workspace_id, HORIZON_SECONDS)
    over = threading.Event()
    renewing = threading.Thread(target=_renew, args=(client, workspace_id, over), daemon=True)
    renewing.start()
    try:
        yield
    finally:
        over.set()
        renewing.join()
        _let_go(client, workspace_id)


def _run(words: Sequence[str]) -> int:
    """Runs a command to its end and passes signals on to it, except Ctrl-C, which a terminal sends to both."""
    received: list[int] = []
    process: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        if process is not None and number != signal.SIGINT:
            process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        process = subprocess.Popen(words)
        for number in received:  # while it was being started
            process.send_signal(number)
        return process.wait()
    except FileNotFoundError as error:
        raise ClientFailed(f"There is no program {words[0]!r}.", NOT_FOUND) from error
    except OSError as error:
        raise ClientFailed(f"{words[0]!r} cannot be run: {error.strerror}.", NOT_EXECUTABLE) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _renew(client: Client, workspace_id: str, over: threading.Event) -> None:
    while not over.wait(RENEW_SECONDS):
        try:
            _hold(client, workspace_id, HORIZON_SECONDS)
        except ClientFailed as failed:
            output.note(f"codehub: the workspace could not be kept up this time: {failed}")


def _let_go(client: Client, workspace_id: str) -> None:
    try:
        _hold(client, workspace_id, 0)
    except ClientFailed as failed:
        output.note(f"codehub: the workspace is held for up to {HORIZON_SECONDS} s more: {failed}")


def _hold(client: Client, workspace_id: str, seconds: int) -> Json:
    return client.post(f"/workspaces/{workspace_id}/keepalive", {"seconds": seconds})


def seconds_of(duration: str) -> int:
    found = re.fullmatch(r"(\d{1,9})([smhd]?)", duration.strip().lower(), re.ASCII)
    if found is None:
        raise ClientFailed(f"{duration!r} is no duration. Examples: 90s, 45m, 2h, 1d.", USAGE)
    return int(found[1]) * _UNITS[found[2] or "s"]
