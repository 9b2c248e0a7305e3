"""What commands print: tables, ages and sizes for people, JSON for programs; and for an error one line on stderr that
says what to do, with an exit code that a script can test."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.exceptions import Abort, TyperException

from codehub.domain.errors import CodeHubError, Refused, Unreachable

FAILED = 1
USAGE = 2
UNREACHABLE = 3
SCHEMA = 4
TIMED_OUT = 5
INTERRUPTED = 130

COLOURS = {
    "RUNNING": "green",
    "STANDBY": "cyan",
    "ARCHIVED": "blue",
    "PENDING": "yellow",
    "ERROR": "bold red",
    "DELETED": "dim",
}
_STEPS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


class ClientFailed(Exception):
    """Ends a command with its message. `code`: the exit code. `problem`: the API's own code, if it gave one."""

    def __init__(self, message: str, code: int = FAILED, problem: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.problem = problem


def run_and_explain(app: Callable[..., object]) -> int:
    """Runs the command line and returns its exit code; an expected error becomes a sentence, not a traceback."""
    try:
        # What a verb returns is nothing; a number is the exit code that it asked for.
        asked = app(standalone_mode=False)
        sys.stdout.flush()  # here, where a reader that has gone is no error
    except TyperException as wrong:
        return _wrong_usage(wrong)
    except Abort:  # a question that nobody answered
        print(file=sys.stderr)  # the question stands on a line of its own
        return _say("given up; nothing was changed.", INTERRUPTED)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `… | head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        code, advice = _meaning(error)
        if code is None:
            raise
        return _say(f"{error}{advice}", code)
    return asked if isinstance(asked, int) else 0


def _wrong_usage(wrong: TyperException) -> int:
    """Prints Typer's own words on one line. Without words, the help was asked for by saying nothing, and is printed."""
    described = wrong.format_message().strip().rstrip(".")
    where = getattr(getattr(wrong, "ctx", None), "command_path", "codehub")
    return _say(f"{described}. See `{where} --help`.", USAGE) if described else USAGE


def _meaning(error: Exception) -> tuple[int | None, str]:
    if isinstance(error, ClientFailed):
        return error.code, ""
    from codehub.bootstrap.runtimes import IdeError
    from codehub.bootstrap.services import EmbeddedError, SchemaMismatch
    from codehub.settings import SettingsError

    meanings: tuple[tuple[type[Exception], int, str], ...] = (
        (SettingsError, USAGE, ""),
        (Refused, USAGE, ""),
        (SchemaMismatch, SCHEMA, ""),
        (
            Unreachable,
            UNREACHABLE,
            ". Is it running, and is its address right (CODEHUB_DATABASE_URL, CODEHUB_REDIS_URL)?",
        ),
        (CodeHubError, FAILED, ""),
        (EmbeddedError, FAILED, ""),
        (IdeError, FAILED, ""),
    )
    return next(((code, advice) for kind, code, advice in meanings if isinstance(error, kind)), (None, ""))


def _say(message: str, code: int) -> int:
    for line in message.splitlines() or [""]:
        print(f"codehub: {printable(line)}", file=sys.stderr)
    return code


def printable(text: str) -> str:
    """The text without control characters, which a terminal would obey."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def console() -> Console:
    """A console as wide as the terminal; where there is none, wide enough that no line is broken."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 400)


def _print(shown: Table) -> None:
    """Prints a table; into a pipe or a file, without the spaces that fill a column."""
    printer = console()
    if sys.stdout.isatty():
        printer.print(shown)
        return
    with printer.capture() as captured:
        printer.print(shown)
    for line in captured.get().splitlines():
        print(line.rstrip())


def print_json(data: object) -> None:
    print(json.dumps(data, indent=2))  # all ASCII: no character in it can control a terminal


def listing(
    data: object, columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str, as_json: bool
) -> None:
    """Prints the data for programs, or the rows for people."""
    if as_json:
        print_json(data)
    else:
        table(columns, rows, empty=empty)


def outcome(data: object, text: str, *, as_json: bool) -> None:
    """Prints the data for programs, or one sentence for people."""
    if as_json:
        print_json(data)
    else:
        say(text)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        shown.add_column(column, overflow="fold")
    count = 0
    for row in rows:
        shown.add_row(*(cell if isinstance(cell, Text) else Text(plain(cell)) for cell in row))
        count += 1
    if count:
        _print(shown)
    else:
        print(empty)


def facts(pairs: Iterable[tuple[str, object]]) -> None:
    """Prints names and values, one pair below the other; what has no value is left out."""
    shown = Table(box=None, pad_edge=False, show_header=False)
    shown.add_column(style="bold")
    shown.add_column(overflow="fold")
    for name, value in pairs:
        if value not in (None, "", []):
            shown.add_row(name, value if isinstance(value, Text) else Text(plain(value)))
    _print(shown)


def plain(value: object) -> str:
    return "" if value is None else printable(str(value))


def phase(ws: dict[str, Any]) -> Text:
    text = Text(ws["phase"], COLOURS.get(ws["phase"], ""))
    if ws["operation"] != "NONE":
        text.append(f" · {doing(ws)}", "default")
    elif ws["desired_state"] != ws["phase"] and ws["phase"] != "ERROR":
        text.append(f" → {ws['desired_state']}", "default")
    return text


def doing(ws: dict[str, Any]) -> str:
    words: str = ws["operation"].lower().replace("_", " ")
    progress = ws["progress"]
    if progress and progress["bytes"]:
        total = progress["total_bytes"]
        words += f" {size(progress['bytes'])}" + (f" of {size(total)}" if total else "")
    return words


def size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def span(seconds: float) -> str:
    whole = int(seconds)
    for length, unit in _STEPS:
        if whole >= length * (2 if unit != "s" else 1):
            return f"{whole // length} {unit}"
    return "0 s"


def ago(moment: str | None) -> str:
    if moment is None:
        return ""
    seconds = (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()
    return f"{span(seconds)} ago" if seconds >= 0 else f"in {span(-seconds)}"


def say(text: str) -> None:
    print(printable(text))


def note(text: str) -> None:
    """Prints a message on stderr, so that stdout holds nothing but data."""
    print(printable(text), file=sys.stderr, flush=True)
