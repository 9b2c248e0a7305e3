"""The options that many verbs share, so that they read and complete alike everywhere."""

from typing import Annotated

import typer

from codehub.cli.finding import deleted_names, names

PATIENCE = 1800.0

AsJson = Annotated[bool, typer.Option("--json", help="Print data for programs.")]
Wait = Annotated[bool, typer.Option("--wait", "-w", help="Stay until it is done, and show progress.")]
Timeout = Annotated[float, typer.Option(metavar="SECONDS", min=0, help="How long to wait at most.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
_WHICH = {"metavar": "WORKSPACE", "help": "Name, id or beginning of an id."}
Which = Annotated[str, typer.Argument(autocompletion=names, **_WHICH)]
WhichDeleted = Annotated[str, typer.Argument(autocompletion=deleted_names, **_WHICH)]
