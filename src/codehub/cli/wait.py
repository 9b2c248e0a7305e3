"""`--wait`: what the workspace is doing until it is where it was asked to be, with a bar while bytes move."""

import shlex
import time
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from codehub.cli import output
from codehub.cli.client import Client, Json
from codehub.cli.output import TIMED_OUT, UNREACHABLE, ClientFailed

POLL_SECONDS = 0.4
SILENCE_SECONDS = 30.0
"""How long the API may be unreachable while waiting; one that restarts is back before that."""


def finish(client: Client, asked: Json, doing: str, *, wait: bool, timeout: float, as_json: bool) -> None:
    """Ends a verb that asked for something: prints so, or with `wait` stays until it is done."""
    ws = wait_until_at_rest(client, asked, timeout) if wait else asked
    if as_json:
        output.print_json(ws)
    elif wait:
        output.say(f"{ws['name']} is {ws['phase']}." + (f" {ws['url']}" if ws["phase"] == "RUNNING" else ""))
    elif ws["phase"] == "ERROR" and ws["is_at_rest"]:
        raise ClientFailed(f"{ws['name']} is in ERROR; the request is kept. See `codehub ws show {_quoted(ws)}`.")
    else:
        output.say(f"{doing} {ws['name']} ({ws['id'][:8]}). Follow it with `codehub ws show {_quoted(ws)}`.")


def wait_until_at_rest(client: Client, asked: Json, timeout: float) -> Json:
    """The workspace when nothing is left to do for it. Raises if it ends in ERROR or the time is over. `asked` is the
    answer to the request that is waited for."""
    with _Display() as shown:
        shown.update(asked)
        deadline = time.monotonic() + timeout
        while True:
            ws = _read(client, asked["id"])
            shown.update(ws)
            if ws["is_at_rest"]:
                if ws["phase"] == "ERROR":
                    raise ClientFailed(_why(ws))
                return ws
            if time.monotonic() > deadline:
                raise ClientFailed(_late(ws, timeout), TIMED_OUT)
            time.sleep(POLL_SECONDS)


def _read(client: Client, workspace_id: str) -> Json:
    deadline = time.monotonic() + SILENCE_SECONDS
    while True:
        try:
            return client.get(f"/workspaces/{workspace_id}")
        except ClientFailed as failed:
            if failed.code != UNREACHABLE or time.monotonic() > deadline:
                raise
            time.sleep(POLL_SECONDS)


def _why(ws: Json) -> str:
    error: dict[str, Any] = ws["error"] or {"reason": "unknown", "message": ""}
    return (
        f"{ws['name']} is in ERROR ({error['reason']}): {error['message']}\n"
        f"See `codehub ws events {_quoted(ws)}`; mend the cause, then `codehub ws recover {_quoted(ws)}`."
    )


def _late(ws: Json, timeout: float) -> str:
    doing = "" if ws["operation"] == "NONE" else f" ({ws['operation']})"
    return (
        f"{ws['name']} is {ws['phase']}{doing} after {output.span(timeout)}, and goes on by itself: see "
        f"`codehub ws show {_quoted(ws)}`."
    )


def _quoted(ws: Json) -> str:
    """What to call the workspace in a command: the id of a deleted one, whose name may be another's by then."""
    leaves = ws["desired_state"] == "DELETED" or ws["deleted_at"] is not None
    return ws["id"][:8] if leaves else shlex.quote(ws["name"])


class _Display:
    """Shows the progress of a workspace: on a terminal a live line, else one line for each change."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._last = ""
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar.start()
            self._task = self._bar.add_task("", total=None)
        return self

    def __exit__(self, *_: object) -> None:
        if self._task is not None:
            self._bar.stop()

    def update(self, ws: Json) -> None:
        if self._task is None:
            brief = f"{ws['name']}: {ws['phase']}" + ("" if ws["operation"] == "NONE" else f" · {ws['operation']}")
            if brief != self._last:
                output.note(brief)
            self._last = brief
            return
        text = f"{output.plain(ws['name'])}: {output.phase(ws).plain}"
        progress = ws["progress"] or {"bytes": 0, "total_bytes": None}
        self._bar.update(self._task, description=text, total=progress["total_bytes"], completed=progress["bytes"])
