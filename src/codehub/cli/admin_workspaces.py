"""Everybody's workspaces and what they are made from, for an admin who is signed in."""

import json
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from codehub.cli import contexts, output
from codehub.cli.client import AsJson, Client, Json, Yes, chosen, segment
from codehub.cli.output import USAGE, ClientFailed
from codehub.domain.errors import ErrorReason
from codehub.domain.workspace import Phase, RecoverAction

templates = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="""What workspaces may be made from: the list of images, and the room each gets.

    Example: `codehub admin templates ls`""",
)

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def register(app: typer.Typer) -> None:
    app.command("workspaces")(list_workspaces)
    app.command("errors")(errors)
    app.add_typer(templates, name="templates")


def list_workspaces(
    search: Annotated[str, typer.Argument(help="Only those whose name or description has this.")] = "",
    phase: Annotated[Phase | None, typer.Option(case_sensitive=False, help="Only those in this phase.")] = None,
    owner: Annotated[str | None, typer.Option(help="Only this person's.")] = None,
    deleted: Annotated[bool, typer.Option("--deleted", help="The deleted ones instead.")] = False,
    as_json: AsJson = False,
) -> None:
    """List everybody's workspaces.

    Example: `codehub admin workspaces --owner ann --phase running`
    """
    with Client(contexts.in_use()) as client:
        query: Json = {"q": search or None, "phase": phase.value if phase else None}
        if owner is not None:
            everybody = list(client.pages("/admin/users"))
            query["owner"] = chosen(everybody, owner, "user", "codehub admin users ls", name="username")["id"]
        found = list(client.pages("/admin/workspaces", deleted=str(deleted).lower(), **query))
    rows = [(ws["owner"], ws["name"], ws["id"], output.phase(ws), output.ago(ws["last_access_at"])) for ws in found]
    output.listing(found, ("OWNER", "NAME", "ID", "STATE", "LAST USED"), rows, empty="Nothing found.", as_json=as_json)


def errors(
    reason: Annotated[
        ErrorReason | None, typer.Option(metavar="REASON", case_sensitive=False, help="Only for this reason.")
    ] = None,
    recover: Annotated[
        RecoverAction | None, typer.Option(metavar="ACTION", help=f"Recover them: {', '.join(RecoverAction)}.")
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """List what is in ERROR and what to do about it; with --recover, do it. Exit code 1 if one was refused.

    Example: `codehub admin errors --reason ImagePullFailed --recover retry`
    """
    with Client(contexts.in_use()) as client:
        found = list(client.pages("/admin/errors", reason=reason.value if reason else None))
        if recover is None:
            _show_errors(client, found, reason, as_json=as_json)
            return
        # Those that were seen, and no others that came meanwhile.
        if found and not yes and not typer.confirm(f"Recover {len(found)} by {recover.value}?", err=True):
            raise ClientFailed("Nothing was recovered.")
        outcomes = [one for some in _by(found, 500) for one in _recovered(client, some, recover)]
    _show_outcomes(found, outcomes, as_json=as_json)


def _by(found: list[Json], count: int) -> list[list[Json]]:
    return [found[start : start + count] for start in range(0, len(found), count)]


def _recovered(client: Client, some: list[Json], action: RecoverAction) -> list[Json]:
    body = {"action": action.value, "ids": [ws["id"] for ws in some]}
    outcomes: list[Json] = client.post("/admin/errors/recover", body)["items"]
    return outcomes


def _show_errors(client: Client, found: list[Json], reason: ErrorReason | None, *, as_json: bool) -> None:
    if as_json:
        output.print_json(found)
        return
    rows = []
    for ws in found:
        error = ws["error"] or {"reason": "", "message": "", "occurred_at": ws["phase_changed_at"]}
        rows.append((ws["owner"], ws["name"], ws["id"], error["reason"], output.ago(error["occurred_at"])))
        rows.append(("", "", "", f"  {error['message']}", ""))
    output.table(("OWNER", "NAME", "ID", "REASON", "SINCE"), rows, empty="Nothing is in ERROR.")
    if found:
        for group in client.get("/admin/errors", limit=200, reason=reason.value if reason else None)["reasons"]:
            print()
            output.say(f"{group['reason']}: {group['meaning']} {group['what_to_do']}")


def _show_outcomes(found: list[Json], outcomes: list[Json], *, as_json: bool) -> None:
    if as_json:
        output.print_json(outcomes)
    else:
        by_id = {ws["id"]: ws for ws in found}
        rows = [
            (
                by_id[one["id"]]["owner"],
                by_id[one["id"]]["name"],
                one["id"],
                "asked" if one["accepted"] else one["detail"],
            )
            for one in outcomes
        ]
        output.table(("OWNER", "NAME", "ID", "OUTCOME"), rows, empty="Nothing is in ERROR.")
    if not all(one["accepted"] for one in outcomes):
        raise typer.Exit(1)


@templates.command("ls")
def list_templates(as_json: AsJson = False) -> None:
    """List the templates, those that are disabled too.

    Example: `codehub admin templates ls`
    """
    with Client(contexts.in_use()) as client:
        found = client.get("/admin/templates")["items"]
    rows = [
        (
            t["name"],
            "disabled" if t["disabled_at"] else "",
            t["image_ref"] or "(the runtime's own)",
            t["cpu"] or "",
            output.size(t["memory_bytes"]) if t["memory_bytes"] else "",
            output.size(t["disk_bytes"]) if t["disk_bytes"] else "",
            "yes" if t["sudo"] else "",
            t["description"],
        )
        for t in found
    ]
    output.listing(
        found,
        ("NAME", "", "IMAGE", "CPU", "MEMORY", "DISK", "SUDO", "DESCRIPTION"),
        rows,
        empty="No templates.",
        as_json=as_json,
    )


@templates.command("set")
def set_template(  # noqa: PLR0913, PLR0917 - an admin's choices
    name: Annotated[str, typer.Argument(help="What people choose it by.")],
    image: Annotated[str | None, typer.Option(help="The image; empty: the runtime's own.")] = None,
    description: Annotated[str | None, typer.Option(help="What it is for.")] = None,
    env: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="May be repeated; replaces all.")] = None,
    cpu: Annotated[float | None, typer.Option(help="Cores.")] = None,
    memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Such as 4G or 512Mi.")] = None,
    disk: Annotated[str | None, typer.Option(metavar="SIZE", help="Such as 20G.")] = None,
    pids: Annotated[int | None, typer.Option(help="Processes at once.")] = None,
    sudo: Annotated[
        bool | None, typer.Option("--sudo/--no-sudo", help="Let people become root inside their own container.")
    ] = None,
    kubernetes: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="What a cluster is told, as a JSON object in a file; - is what is piped in."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a template, or change what is named of one; a disabled one is enabled.

    Examples: `codehub admin templates set python --image registry.example.com/python:3.12 --memory 4G`,
    `codehub admin templates set packages --sudo`, `codehub admin templates set gpu --kubernetes gpu.json`
    """
    chosen_values: Json = {
        "image_ref": image,
        "description": description,
        "env": None if env is None else dict(_pair(word) for word in env),
        "cpu": cpu,
        "memory_bytes": None if memory is None else bytes_of(memory),
        "disk_bytes": None if disk is None else bytes_of(disk),
        "pids": pids,
        "sudo": sudo,
        "kubernetes": None if kubernetes is None else _json_object(kubernetes),
    }
    with Client(contexts.in_use()) as client:
        known = {t["name"]: t for t in client.get("/admin/templates")["items"]}
        body = {field: known[name][field] for field in chosen_values} if name in known else {}
        body |= {field: value for field, value in chosen_values.items() if value is not None}
        made = client.put(f"/admin/templates/{segment(name)}", body)
    output.outcome(made, f"{made['name']} is {'changed' if name in known else 'made'}.", as_json=as_json)


@templates.command("disable")
def disable_template(name: Annotated[str, typer.Argument(help="The template's name.")]) -> None:
    """Let nothing new be made from it; what exists goes on.

    Example: `codehub admin templates disable python`
    """
    with Client(contexts.in_use()) as client:
        client.delete(f"/admin/templates/{segment(name)}")
    output.say(f"{name} is disabled.")


def _json_object(path: str) -> Json:
    """The JSON object in the file, or on the standard input."""
    try:
        found = json.loads(sys.stdin.read() if path == "-" else Path(path).read_text())
    except OSError as error:
        raise ClientFailed(f"{path} cannot be read: {error.strerror}.", USAGE) from error
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ClientFailed(f"{path} holds no JSON object.", USAGE)
    return found


def _pair(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals or not name:
        raise ClientFailed(f"{word!r} is no NAME=VALUE.", USAGE)
    return name, value


def bytes_of(size: str) -> int:
    found = re.fullmatch(r"(\d{1,12})([kmgt]?i?)b?", size.strip().lower(), re.ASCII)
    if found is None or found[2] not in _UNITS:
        raise ClientFailed(f"{size!r} is no size. Examples: 512Mi, 4G, 20G.", USAGE)
    return int(found[1]) * _UNITS[found[2]]
