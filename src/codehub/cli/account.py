"""One's own account from a terminal: the password, and where one is signed in."""

import sys
from typing import Annotated

import typer

from codehub.cli import contexts, present
from codehub.cli.client import Client, segment
from codehub.cli.finding import chosen
from codehub.cli.login import asked
from codehub.cli.options import AsJson

sessions = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="""The browsers that you are signed in with.

    Example: `codehub sessions ls`""",
)


def register(app: typer.Typer) -> None:
    app.command()(password)
    app.add_typer(sessions, name="sessions")


def password(
    stdin: Annotated[
        bool, typer.Option("--password-stdin", help="Read the present and the new one, a line each, from a pipe.")
    ] = False,
) -> None:
    """Change your password. All other sessions end.

    Example: `codehub password`
    """
    context = contexts.in_use()
    with Client(context) as client:
        username = client.get("/session")["user"]["username"]
    if stdin:
        old, new = (sys.stdin.readline().rstrip("\r\n") for _ in range(2))
    else:
        old, new = (asked("Password", "--password-stdin", shown) for shown in ("Present password", "New password"))
    with Client(contexts.Context(context.url)) as client:
        _, cookie = client.sign_in(username, old)
        try:
            client.with_session(cookie, "PUT", "/session/password", {"old_password": old, "new_password": new})
        finally:
            client.with_session(cookie, "DELETE", "/session")
    present.say("The password was changed. All other sessions have ended.")


@sessions.command("ls")
def list_sessions(as_json: AsJson = False) -> None:
    """List the browsers that you are signed in with.

    Example: `codehub sessions ls`
    """
    with Client(contexts.in_use()) as client:
        found = client.get("/sessions")["items"]
    if as_json:
        present.as_json(found)
        return
    rows = [(s["id"][:8], s["agent"][:60], s["address"], present.ago(s["last_seen_at"])) for s in found]
    present.table(("ID", "PROGRAM", "FROM", "LAST SEEN"), rows, empty="You are signed in with no browser.")


@sessions.command("end")
def end_session(session: Annotated[str, typer.Argument(help="Its id or the beginning of it.")]) -> None:
    """Sign a browser out.

    Example: `codehub sessions end 3f1c22ab`
    """
    with Client(contexts.in_use()) as client:
        known = [{**found, "name": found["id"]} for found in client.get("/sessions")["items"]]
        found = chosen(known, session, "session", "codehub sessions ls")
        client.delete(f"/sessions/{segment(found['id'])}")
    present.say("That browser is signed out.")
