"""Finding the workspace that an argument names, by name, id or the beginning of an id, and the options that many verbs
share.
"""

import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated
from uuid import UUID

import typer

from codehub.cli import contexts
from codehub.cli.client import Client, Json
from codehub.cli.errors import ClientFailed
from codehub.domain.workspace import Desired

FEWEST_CHARACTERS = 4


def find(client: Client, wanted: str, *, deleted: bool = False) -> Json:
    """The workspace that is meant. A whole id may be a deleted one's; with `deleted`, so may a name or the beginning of
    an id that no living workspace has."""
    whole = whole_id(wanted)
    if whole is not None:
        try:
            return client.get(f"/workspaces/{whole}")
        except ClientFailed as failed:
            if failed.problem != "not_found":
                raise  # else: a name may look like an id
    living = list(client.pages("/workspaces"))
    gone = [] if fitting(living, wanted) else fitting(deleted_workspaces(client), wanted)
    if not gone:
        return chosen(living, wanted, "workspace", "codehub ws ls")
    found = chosen(gone, wanted, "deleted workspace", "codehub ws ls --deleted")
    if deleted:
        return found
    raise ClientFailed(f"{found['name']} was deleted. To bring it back: `codehub ws undelete {found['id'][:8]}`")


def deleted_workspaces(client: Client, search: str = "") -> list[Json]:
    """The deleted workspaces that can still be brought back."""
    found = client.pages("/workspaces", deleted=True, q=search or None)
    return [ws for ws in found if ws["purged_at"] is None]


def find_deleted(client: Client, wanted: str) -> UUID:
    """The id of a workspace that is deleted or about to be. A whole id is not looked up: undeleting says more of it."""
    whole = whole_id(wanted)
    if whole is not None:
        return whole
    on_their_way = [ws for ws in client.pages("/workspaces") if ws["desired_state"] == Desired.DELETED]
    candidates = [*deleted_workspaces(client), *on_their_way]
    return UUID(chosen(candidates, wanted, "deleted workspace", "codehub ws ls --deleted")["id"])


def whole_id(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def chosen(known: Sequence[Json], wanted: str, what: str, listing: str, name: str = "name") -> Json:
    """The item that is meant. `what` it is and what lists them are for the message if none fits, or several."""
    found = fitting(known, wanted, name)
    if len(found) == 1:
        return found[0]
    if found:
        several = ", ".join(f"{one[name]} ({one['id'][:13]})" for one in found)
        raise ClientFailed(f"{wanted!r} may be one of several: {several}. Say more of the id.")
    near = [one[name] for one in known if wanted and wanted.lower() in one[name].lower()]
    hint = f"Did you mean {shlex.quote(near[0])}?" if near else f"`{listing}` lists what there is."
    raise ClientFailed(f"There is no {what} {wanted!r}. {hint}")


def fitting(known: Sequence[Json], wanted: str, name: str = "name") -> list[Json]:
    """The items with that name; if there is none, with that name in another case; else whose id begins with it."""
    return (
        [one for one in known if one[name] == wanted]
        or [one for one in known if one[name].lower() == wanted.lower()]
        or [one for one in known if len(wanted) >= FEWEST_CHARACTERS and one["id"].startswith(wanted.lower())]
    )


def complete_names(incomplete: str) -> list[str]:
    return _completed(incomplete, lambda client: client.pages("/workspaces"))


def complete_deleted_names(incomplete: str) -> list[str]:
    return _completed(incomplete, deleted_workspaces)


def _completed(incomplete: str, known: Callable[[Client], Iterable[Json]]) -> list[str]:
    """The names for the shell's completion, which must never show an error."""
    try:
        with Client(contexts.in_use()) as client:
            return [ws["name"] for ws in known(client) if ws["name"].startswith(incomplete)]
    except Exception:  # noqa: BLE001 - whatever it is, the person is only typing
        return []


WAIT_SECONDS = 1800.0

AsJson = Annotated[bool, typer.Option("--json", help="Print data for programs.")]
Wait = Annotated[bool, typer.Option("--wait", "-w", help="Stay until it is done, and show progress.")]
Timeout = Annotated[float, typer.Option(metavar="SECONDS", min=0, help="How long to wait at most.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
_WHICH = {"metavar": "WORKSPACE", "help": "Name, id or beginning of an id."}
Which = Annotated[str, typer.Argument(autocompletion=complete_names, **_WHICH)]
WhichDeleted = Annotated[str, typer.Argument(autocompletion=complete_deleted_names, **_WHICH)]
