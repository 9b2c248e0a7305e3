"""Where one is signed in, from a terminal."""

from typing import Annotated

import typer

from codehub.cli import contexts, present
from codehub.cli.client import Client, segment
from codehub.cli.lookup import AsJson, chosen

sessions = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="""The browsers that you are signed in with.

    Example: `codehub sessions ls`""",
)


def register(app: typer.Typer) -> None:
    app.add_typer(sessions, name="sessions")


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
