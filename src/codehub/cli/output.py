"""How answers look in a terminal: tables, ages and sizes for people, JSON for programs."""

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from codehub.cli.errors import printable

COLOURS = {
    "RUNNING": "green",
    "STANDBY": "cyan",
    "ARCHIVED": "blue",
    "PENDING": "yellow",
    "ERROR": "bold red",
    "DELETED": "dim",
}
WIDE = 400
_STEPS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def console() -> Console:
    """A console as wide as the terminal; where there is none, as wide as the text."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)


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
