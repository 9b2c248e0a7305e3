"""What the owner changes about a workspace: its name, its notes, its template, how soon it sleeps; and emptying it."""

from typing import Annotated

import typer

from codehub.cli import contexts, present
from codehub.cli.client import Client, Json
from codehub.cli.exits import USAGE
from codehub.cli.failures import ClientFailed
from codehub.cli.leases import seconds_of
from codehub.cli.lookup import PATIENCE, AsJson, Timeout, Wait, Which, Yes, find
from codehub.cli.wait import finish

NEVER, DEFAULT = "never", "default"
Ttl = Annotated[str | None, typer.Option(metavar="TIME", help="Such as 45m or 8h; never; default: the installation's.")]
_NO_CHANGE = "Say what to change: --description, --notes, --template, --git, --standby-ttl or --archive-ttl."


def register(app: typer.Typer) -> None:
    app.command("rename")(rename)
    app.command("set")(change)
    app.command("empty")(empty)


def rename(
    workspace: Which, name: Annotated[str, typer.Argument(help="Its new name.")], as_json: AsJson = False
) -> None:
    """Give it another name. Its address stays the same.

    Example: `codehub ws rename demo shop`
    """
    with Client(contexts.in_use()) as client:
        found = find(client, workspace)
        ws = client.patch(f"/workspaces/{found['id']}", {"name": name})
    if as_json:
        present.as_json(ws)
    else:
        present.say(f"{found['name']} is called {ws['name']} now.")


def change(
    workspace: Which,
    description: Annotated[str | None, typer.Option(help="What it is for.")] = None,
    notes: Annotated[str | None, typer.Option(help="Your own notes.")] = None,
    template: Annotated[str | None, typer.Option(help="What it runs from its next start on.")] = None,
    git: Annotated[str | None, typer.Option(help="The repository for a new home; empty: none.")] = None,
    standby_ttl: Ttl = None,
    archive_ttl: Ttl = None,
    as_json: AsJson = False,
) -> None:
    """Change its settings: only those that you name. `codehub ws show` shows them.

    Example: `codehub ws set demo --template python --standby-ttl 8h --archive-ttl never`
    """
    body: Json = {"description": description, "memo": notes, "template": template}
    body = {field: value for field, value in body.items() if value is not None}
    body |= {} if git is None else {"git_url": git or None}
    for field, text in (("standby_ttl_seconds", standby_ttl), ("archive_ttl_seconds", archive_ttl)):
        body |= {} if text is None else {field: ttl_of(text)}
    if not body:
        raise ClientFailed(_NO_CHANGE, USAGE)
    with Client(contexts.in_use()) as client:
        ws = client.patch(f"/workspaces/{find(client, workspace)['id']}", body)
    if as_json:
        present.as_json(ws)
    else:
        present.say(f"{ws['name']} is changed.")


def empty(
    workspace: Which,
    yes: Yes = False,
    wait: Wait = False,
    timeout: Timeout = PATIENCE,
    as_json: AsJson = False,
) -> None:
    """Give up its files and its archive, and keep the workspace. Restore points stay until the time for undo is over.

    Example: `codehub ws empty demo --yes --wait`
    """
    with Client(contexts.in_use()) as client:
        ws = find(client, workspace)
        question = f"Give up everything in {present.plain(ws['name'])} ({ws['id'][:8]})?"
        if not yes and not typer.confirm(question, err=True):
            raise ClientFailed("Nothing was given up.")
        ws = client.patch(f"/workspaces/{ws['id']}", {"desired_state": "PENDING", "discard_home": True})
        finish(client, ws, "Emptying", wait=wait, timeout=timeout, as_json=as_json)


def ttl_of(text: str) -> int | None:
    """Seconds; 0 is never, None is what the installation does by itself."""
    if text == DEFAULT:
        return None
    return 0 if text == NEVER else seconds_of(text)
