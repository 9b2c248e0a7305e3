"""`codehub ws events`, `logs` and `lifecycle`: what happened to a workspace, and why it is up or will stop."""

from typing import Annotated

import typer

from codehub.cli import contexts, output
from codehub.cli.client import AsJson, Client, Which, find, whole_id


def register(app: typer.Typer) -> None:
    app.command("events")(events)
    app.command("logs")(logs)
    app.command("lifecycle")(lifecycle)


def events(
    workspace: Which,
    most: Annotated[int, typer.Option("-n", min=1, max=10_000, help="How many of the newest.")] = 30,
    as_json: AsJson = False,
) -> None:
    """What happened to it, who wanted it and why; the newest last.

    Example: `codehub ws events demo -n 100`
    """
    with Client(contexts.in_use()) as client:
        found = list(client.pages(f"/workspaces/{find(client, workspace, deleted=True)['id']}/events", most=most))[::-1]
    rows = []
    for entry in found:
        change = " → ".join(_short(part) for part in (entry["before"], entry["after"]) if part)
        why = " · ".join(part for part in (entry["reason"], entry["message"]) if part)
        rows.append((entry["at"][:19].replace("T", " "), entry["actor"], entry["kind"], change, why))
    output.listing(
        found, ("AT (UTC)", "WHO", "WHAT", "CHANGE", "WHY"), rows, empty="Nothing has happened yet.", as_json=as_json
    )


def _short(part: str) -> str:
    """The id in a restore point's key, by which people know it; other text as it is."""
    workspace_id, _, rest = part.partition("/")
    return rest.partition("/")[0] if whole_id(workspace_id) else part


def logs(
    workspace: Which, tail: Annotated[int, typer.Option("-n", min=1, max=2_000, help="How many lines.")] = 200
) -> None:
    """The last lines its IDE printed.

    Example: `codehub ws logs demo -n 50`
    """
    with Client(contexts.in_use()) as client:
        text = client.get(f"/workspaces/{find(client, workspace)['id']}/logs", tail=tail)["text"]
    for line in text.splitlines():
        output.say(line)
    if not text:
        output.note("Nothing: no container is there, or it has printed nothing.")


def lifecycle(workspace: Which, as_json: AsJson = False) -> None:
    """Why is it up, when will it stop, what keeps it from stopping, why did it stop.

    Example: `codehub ws lifecycle demo`
    """
    with Client(contexts.in_use()) as client:
        told = client.get(f"/workspaces/{find(client, workspace)['id']}/lifecycle")
    if as_json:
        output.print_json(told)
        return
    up, last = told["why_up"], told["last_stop"]
    stops = f"{output.ago(told['stops_at'])} ({told['stop_reason']})" if told["stops_at"] else None
    output.facts(
        (
            ("state", f"{told['phase']} (wanted: {told['desired_state']})"),
            ("up because", f"{up['reason']}, by {up['actor']}, {output.ago(up['at'])}" if up else None),
            ("last activity", output.ago(told["last_activity_at"]) or "none seen"),
            ("stops", stops or "not by itself"),
            ("then becomes", told["becomes"]),
            *(("kept by", f"{kept['kind']}: {kept['message']}") for kept in told["blocked_by"]),
            ("last stop", f"{last['reason']}, by {last['actor']}, {output.ago(last['at'])}" if last else None),
        )
    )
