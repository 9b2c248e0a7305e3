"""`codehub`: the verbs, and one place where an error becomes one clear line and an exit code."""

import sys
from typing import Annotated

import typer

from codehub.cli import (
    account,
    admin,
    admin_secrets,
    admin_users,
    admin_workspaces,
    backup,
    doctor,
    ide,
    login,
    serve,
    tokens,
    up,
    workspaces,
)
from codehub.cli.output import run_and_explain

app = typer.Typer(
    name="codehub",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="""CodeHub: cloud development environments whose homes survive anything.

    Examples:

    - `codehub up` runs everything on this machine
    - `codehub login`, then `codehub ws create demo --wait` and `codehub ws open demo`
    - `codehub migrate && codehub coordinator` is one part of a real deployment
    - `codehub admin leader` says who leads

    Exit codes: 0 done · 1 failed · 2 wrong usage or settings, or not signed in · 3 CodeHub, a database or a backend
    does not answer · 4 the database's schema is not this program's · 5 --wait ran out of time · 130 interrupted.""",
)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"codehub {version('codehub')}")
        raise typer.Exit


@app.callback()
def program(
    _version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    pass


app.command()(up.up)
backup.register(admin.app)
app.command()(doctor.doctor)
serve.register(app)
login.register(app)
app.add_typer(workspaces.app, name="ws")
app.add_typer(tokens.app, name="token")
account.register(app)
admin_users.register(admin.app)
admin_secrets.register(admin.app)
admin_workspaces.register(admin.app)
app.add_typer(admin.app, name="admin")
app.add_typer(ide.app, name="ide")
serve.register_job(app)


def main() -> None:
    sys.exit(run_and_explain(app))
