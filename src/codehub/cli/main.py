"""`codehub`: the verbs, and one place where an error becomes one clear line and an exit code."""

import sys

import typer

from codehub.cli import admin, job, serve
from codehub.cli.exits import explained

app = typer.Typer(
    name="codehub",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="""CodeHub: cloud development environments whose homes survive anything.

    Examples:

    - `codehub up` runs everything on this machine
    - `codehub migrate && codehub coordinator` is one part of a real deployment
    - `codehub admin leader` says who leads

    Exit codes: 0 done · 1 failed · 2 wrong usage or settings · 3 a database or backend does not answer · 4 the
    database's schema is not this program's.""",
)
serve.register(app)
app.add_typer(admin.app, name="admin")
job.register(app)


def main() -> None:
    sys.exit(explained(app))
