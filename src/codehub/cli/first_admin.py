"""`codehub admin first-admin`: somebody must be able to sign in to an installation that `codehub up` did not make."""

from typing import Annotated

import typer

from codehub.cli.admin import with_services
from codehub.cli.exits import FAILED


def register(app: typer.Typer) -> None:
    app.command("first-admin")(first_admin)


def first_admin(username: Annotated[str, typer.Option(help="The name to sign in with.")] = "admin") -> None:
    """Make the first account of a new installation, an admin, and show its password once. Exit code 1 if there is any.

    Example: `codehub migrate && codehub admin first-admin`
    """
    password = with_services(lambda services: services.ensure_admin(username))
    if password is None:
        print(
            "There are accounts already, so nothing was made. An admin makes more: `codehub admin users create NAME`."
        )
        raise typer.Exit(FAILED)
    print(
        f"Username: {username}\nPassword: {password}\n\nThis password is shown only now. Sign in with `codehub login`."
    )
