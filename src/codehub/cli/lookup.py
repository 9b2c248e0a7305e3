"""Which one is meant: by name, by id, or by the beginning of an id that only one has.

The options that many verbs share, so that they read and complete alike everywhere.
"""

import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated
from uuid import UUID

import typer

from codehub.cli import contexts
from codehub.cli.client import Client, Json
from codehub.cli.failures import ClientFailed
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
    """Also one that is only about to be deleted. A whole id is not looked for: the answer to a wish says more."""
    whole = whole_id(wanted)
    if whole is not None:
        return whole
    on_their_way = [ws for ws in client.pages("/workspaces") if ws["desired_state"] == Desired.DELETED]
    return UUID(
        chosen([*deleted_workspaces(client), *on_their_way], wanted, "deleted workspace", "codehub ws ls --deleted")[
            "id"
        ]
    )


def whole_id(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def chosen(known: Sequence[Json], wanted: str, what: str, listing: str, name: str = "name") -> Json:
    """The one of these. `what` they are and what lists them are for the sentence if there is none, or several."""
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
    """Those whose name it is; if there is none, those whose name it is in other letters' case; else those whose id
    begins with it."""
    return (
        [one for one in known if one[name] == wanted]
        or [one for one in known if one[name].lower() == wanted.lower()]
        or [one for one in known if len(wanted) >= FEWEST_CHARACTERS and one["id"].startswith(wanted.lower())]
    )


def names(incomplete: str) -> list[str]:
    return _completed(incomplete, lambda client: client.pages("/workspaces"))


def deleted_names(incomplete: str) -> list[str]:
    return _completed(incomplete, deleted_workspaces)


def _completed(incomplete: str, known: Callable[[Client], Iterable[Json]]) -> list[str]:
    """For the shell's completion, which must never show an error."""
    try:
        with Client(contexts.in_use()) as client:
            return [ws["name"] for ws in known(client) if ws["name"].startswith(incomplete)]
    except Exception:  # noqa: BLE001 - whatever it is, the person is only typing
        return []


PATIENCE = 1800.0

AsJson = Annotated[bool, typer.Option("--json", help="Print data for programs.")]
Wait = Annotated[bool, typer.Option("--wait", "-w", help="Stay until it is done, and show progress.")]
Timeout = Annotated[float, typer.Option(metavar="SECONDS", min=0, help="How long to wait at most.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
_WHICH = {"metavar": "WORKSPACE", "help": "Name, id or beginning of an id."}
Which = Annotated[str, typer.Argument(autocompletion=names, **_WHICH)]
WhichDeleted = Annotated[str, typer.Argument(autocompletion=deleted_names, **_WHICH)]
