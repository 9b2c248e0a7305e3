"""`codehub ws`: what a person does with workspaces: create, start, stop, change, delete, open and wait."""

import shlex
import webbrowser
from typing import Annotated, Any
from uuid import uuid4

import typer

from codehub.cli import commands, contexts, events, leases, output, restore_points
from codehub.cli.client import (
    WAIT_SECONDS,
    AsJson,
    Client,
    Json,
    Timeout,
    Wait,
    Which,
    WhichDeleted,
    Yes,
    deleted_workspaces,
    find,
    find_deleted,
)
from codehub.cli.leases import seconds_of
from codehub.cli.output import FAILED, USAGE, ClientFailed
from codehub.cli.wait import finish, wait_until_at_rest
from codehub.domain.workspace import RecoverAction

NEVER, DEFAULT = "never", "default"
Ttl = Annotated[str | None, typer.Option(metavar="TIME", help="Such as 45m or 8h; never; default: the installation's.")]
_NO_CHANGE = "Say what to change: --description, --notes, --template, --git, --ref, --standby-ttl or --archive-ttl."

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="""Your workspaces: create, start, stop, look inside. WORKSPACE is a name, an id, or the beginning of an id.

    Examples:

    - `codehub ws create demo --wait` and `codehub ws open demo`
    - `codehub ws stop demo`, `codehub ws archive demo --wait`
    - `codehub ws archives demo`, `codehub ws download demo notes.txt`""",
)


@app.command("ls")
def list_workspaces(
    search: Annotated[str, typer.Argument(help="Only those whose name or description has this.")] = "",
    phase: Annotated[str | None, typer.Option(help="Only those in this phase, such as RUNNING.")] = None,
    gone: Annotated[bool, typer.Option("--deleted", help="Those that were deleted and can be brought back.")] = False,
    as_json: AsJson = False,
) -> None:
    """List your workspaces.

    Examples: `codehub ws ls --phase RUNNING` · `codehub ws ls --deleted`
    """
    if gone:
        if phase:
            raise ClientFailed("A deleted workspace is in no phase: --deleted and --phase do not go together.", USAGE)
        _list_deleted(search, as_json=as_json)
        return
    with Client(contexts.in_use()) as client:
        found = list(client.pages("/workspaces", q=search or None, phase=phase.upper() if phase else None))
    rows = [(ws["name"], ws["id"][:8], output.phase(ws), output.ago(ws["last_access_at"]), ws["url"]) for ws in found]
    empty = "Nothing found." if search or phase else "No workspaces yet. Make one: `codehub ws create demo --wait`"
    output.listing(found, ("NAME", "ID", "STATE", "LAST USED", "ADDRESS"), rows, empty=empty, as_json=as_json)


def _list_deleted(search: str, *, as_json: bool) -> None:
    with Client(contexts.in_use()) as client:
        found = deleted_workspaces(client, search)
    rows = [(ws["name"], ws["id"][:8], output.ago(ws["deleted_at"]), output.ago(ws["undo_until"])) for ws in found]
    output.listing(
        found,
        ("NAME", "ID", "DELETED", "GONE FOR GOOD"),
        rows,
        empty="Nothing that was deleted can be brought back.",
        as_json=as_json,
    )


@app.command("templates")
def list_templates(as_json: AsJson = False) -> None:
    """List what workspaces can be made from.

    Example: `codehub ws templates`
    """
    with Client(contexts.in_use()) as client:
        found = client.get("/templates")["items"]
    rows = [(t["name"], t["image_ref"] or "(the runtime's own)", t["description"]) for t in found]
    output.listing(
        found,
        ("NAME", "IMAGE", "DESCRIPTION"),
        rows,
        empty="There is none: ask an administrator for one.",
        as_json=as_json,
    )


@app.command("limits")
def show_limits(as_json: AsJson = False) -> None:
    """Say how many you may run at once, and which ones hold your slots.

    Example: `codehub ws limits`
    """
    with Client(contexts.in_use()) as client:
        limits = client.get("/limits")
    if as_json:
        output.print_json(limits)
        return
    output.facts(
        (
            ("running slots in use", f"{limits['running']} of {limits['max_running']}"),
            ("held by", ", ".join(holder["name"] for holder in limits["holders"])),
            ("by everybody", f"{limits['running_global']} of {limits['max_running_global']}"),
            ("undo of a delete", output.span(limits["undo_seconds"])),
        )
    )


@app.command("create")
def create(  # noqa: PLR0913, PLR0917 - a person's choices
    name: Annotated[str, typer.Argument(help="What to call it.")],
    template: Annotated[str, typer.Option(help="What it is made from.")] = "default",
    git: Annotated[str | None, typer.Option(help="A repository to clone into the home.")] = None,
    ref: Annotated[str | None, typer.Option(help="Its branch or tag; else its default branch.")] = None,
    description: Annotated[str, typer.Option(help="What it is for.")] = "",
    state: Annotated[str, typer.Option(help="RUNNING, STANDBY or ARCHIVED.")] = "RUNNING",
    standby_ttl: Ttl = None,
    archive_ttl: Ttl = None,
    wait: Wait = False,
    timeout: Timeout = WAIT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Make a workspace and start it. When all running slots are in use it is made asleep, and says so;
    with --wait the exit code is then 1.

    Examples: `codehub ws create demo --wait` ·
    `codehub ws create shop --git https://git.example.com/team/shop.git --ref release/1.2`
    """
    body: Json = {"name": name, "template": template, "description": description, "desired_state": state.upper()}
    body["asleep_if_full"] = True
    chosen: dict[str, Any] = {
        "git_url": git,
        "git_ref": ref,
        "standby_ttl_seconds": standby_ttl and ttl_of(standby_ttl),
        "archive_ttl_seconds": archive_ttl and ttl_of(archive_ttl),
    }
    body |= {field: value for field, value in chosen.items() if value is not None}
    with Client(contexts.in_use()) as client:
        ws = client.post("/workspaces", body, {"Idempotency-Key": str(uuid4())})
        is_full = ws["desired_state"] != body["desired_state"]
        if is_full:
            output.note(_made_asleep(client, ws))
        finish(client, ws, "Made", wait=wait, timeout=timeout, as_json=as_json)
    if is_full and wait:
        raise typer.Exit(FAILED)


def _made_asleep(client: Client, ws: Json) -> str:
    limits = client.get("/limits")
    start = f"`codehub ws start {shlex.quote(ws['name'])}`"
    if limits["running"] < limits["max_running"]:
        return f"{ws['name']} is made asleep: the whole installation is full at the moment. Later: {start}"
    if not limits["max_running"]:
        return f"{ws['name']} is made asleep: you may not run any workspace. Ask an administrator to raise your limit."
    holders = ", ".join(holder["name"] for holder in limits["holders"])
    return (
        f"{ws['name']} is made asleep: {limits['running']} of your {limits['max_running']} running slots are in use, "
        f"by {holders}. Stop one of them, then: {start}"
    )


@app.command("show")
def show(workspace: Which, as_json: AsJson = False) -> None:
    """Show one workspace: where it is, what it is doing and using, what is wrong. A deleted one too, while it can come
    back.

    Examples: `codehub ws show demo` · `codehub ws show demo --json | jq .usage.disk`
    """
    with Client(contexts.in_use()) as client:
        ws = find(client, workspace, deleted=True)
        ws = {**ws, "usage": usage_now(client, ws)}
    if as_json:
        output.print_json(ws)
        return
    error = ws["error"]
    output.facts(
        (
            ("name", ws["name"]),
            ("id", ws["id"]),
            ("description", ws["description"]),
            ("state", output.phase(ws)),
            ("wanted", ws["desired_state"]),
            ("since", output.ago(ws["phase_changed_at"])),
            ("address", ws["url"]),
            ("template", ws["template"]),
            ("image", _image(ws)),
            ("git repository", ws["git_url"]),
            ("branch or tag", ws["git_ref"]),
            ("sleeps after", _ttl(ws["standby_ttl_seconds"])),
            ("is archived after", _ttl(ws["archive_ttl_seconds"])),
            *usage_facts(ws["usage"]),
            ("notes", ws["memo"]),
            ("last used", output.ago(ws["last_access_at"])),
            ("error", f"{error['reason']}: {error['message']}" if error else None),
            ("deleted", output.ago(ws["deleted_at"])),
            ("can be brought back", _until(ws["undo_until"])),
        )
    )


def _image(ws: Json) -> str:
    """The image that the workspace runs, and the one that its next start gets, if that is another."""
    present_one, coming = (ws[name] or "(the runtime's own)" for name in ("image_ref", "next_image_ref"))
    if present_one == coming or not ws["conditions"]["infra.container_ready"]["status"]:
        return coming
    return f"{present_one}; from its next start {coming}"


def usage_now(client: Client, ws: Json) -> Json | None:
    """What a running workspace uses; None if that is not known, or if the server is too old to tell."""
    if ws["phase"] != "RUNNING" or ws["deleted_at"]:
        return None
    try:
        now: Json | None = client.get(f"/workspaces/{ws['id']}/usage")["now"]
    except ClientFailed as failed:
        if failed.problem != "not_found":
            raise
        return None
    return now


def usage_facts(usage: Json | None) -> list[tuple[str, str | None]]:
    if usage is None:
        return []
    cpu, disk = usage["cpu"], usage["disk"] or {}
    processors = (
        f"{cpu:.2f}" + (f" of {usage['cpu_limit']:g}" if usage["cpu_limit"] else "") if cpu is not None else None
    )
    free = (
        "" if disk.get("limit_bytes") or disk.get("free_bytes") is None else f", {output.size(disk['free_bytes'])} free"
    )
    held = _held(disk.get("used_bytes"), disk.get("limit_bytes"))
    return [
        ("processors in use", processors),
        ("memory", _held(usage["memory_bytes"], usage["memory_limit_bytes"])),
        ("disk", held and held + free),
        *(("warning", warning["message"]) for warning in usage["warnings"]),
    ]


def _held(used: int | None, limit: int | None) -> str | None:
    if used is None:
        return None
    return output.size(used) + (f" of {output.size(limit)}" if limit else "")


def _ttl(seconds: int | None) -> str | None:
    return None if seconds is None else output.span(seconds) if seconds else "never"


def _until(moment: str | None) -> str | None:
    return None if moment is None else f"until {moment[:16].replace('T', ' ')} UTC ({output.ago(moment)})"


@app.command("start")
def start(workspace: Which, wait: Wait = False, timeout: Timeout = WAIT_SECONDS, as_json: AsJson = False) -> None:
    """Start it; one that is archived is restored first.

    Example: `codehub ws start demo --wait`
    """
    _request(workspace, "RUNNING", "Starting", wait=wait, timeout=timeout, as_json=as_json)


@app.command("stop")
def stop(workspace: Which, wait: Wait = False, timeout: Timeout = WAIT_SECONDS, as_json: AsJson = False) -> None:
    """Stop it. The home stays on disk.

    Example: `codehub ws stop demo --wait`
    """
    _request(workspace, "STANDBY", "Stopping", wait=wait, timeout=timeout, as_json=as_json)


@app.command("archive")
def archive(workspace: Which, wait: Wait = False, timeout: Timeout = WAIT_SECONDS, as_json: AsJson = False) -> None:
    """Stop it and put its home into the archive. It comes back whole when it is started.

    Example: `codehub ws archive demo --wait`
    """
    _request(workspace, "ARCHIVED", "Archiving", wait=wait, timeout=timeout, as_json=as_json)


@app.command("delete")
def delete(
    workspace: Which,
    yes: Yes = False,
    wait: Wait = False,
    timeout: Timeout = WAIT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Delete it. Its home is archived first; `codehub ws undelete` brings it back within a week (or what was set).

    Example: `codehub ws delete demo --yes`
    """
    with Client(contexts.in_use()) as client:
        ws = find(client, workspace)
        if not yes and not typer.confirm(f"Delete {output.plain(ws['name'])} ({ws['id'][:8]})?", err=True):
            raise ClientFailed("Not deleted.")
        ws = client.delete(f"/workspaces/{ws['id']}")
        if not as_json:
            window = output.span(client.get("/limits")["undo_seconds"])
            output.note(f"It can be brought back for {window}: codehub ws undelete {ws['id']}")
        finish(client, ws, "Deleting", wait=wait, timeout=timeout, as_json=as_json)


@app.command("undelete")
def undelete(
    workspace: WhichDeleted,
    wait: Wait = False,
    timeout: Timeout = WAIT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Bring a deleted workspace back, while its undo window is open.

    `codehub ws ls --deleted` lists them. Example: `codehub ws undelete demo --wait`
    """
    with Client(contexts.in_use()) as client:
        ws = client.post(f"/workspaces/{find_deleted(client, workspace)}/undelete")
        finish(client, ws, "Bringing back", wait=wait, timeout=timeout, as_json=as_json)


@app.command("recover")
def recover(
    workspace: Which,
    action: Annotated[
        RecoverAction, typer.Option(metavar="ACTION", help=f"How: {', '.join(RecoverAction)}.")
    ] = RecoverAction.RETRY,
    archive: Annotated[str | None, typer.Option(help="The restore point's id, for use_archive.")] = None,
    wait: Wait = False,
    timeout: Timeout = WAIT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Bring it out of ERROR once the cause is mended.

    Example: `codehub ws recover demo --action use_archive --wait`
    """
    with Client(contexts.in_use()) as client:
        found = find(client, workspace)
        body = {"action": action.value} | ({} if archive is None else {"archive": archive})
        ws = client.post(f"/workspaces/{found['id']}/recover", body)
        finish(client, ws, "Recovering", wait=wait, timeout=timeout, as_json=as_json)


@app.command("open")
def open_workspace(
    workspace: Which,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="A port inside it, in place of the IDE.")] = None,
    only_print: Annotated[bool, typer.Option("--print", help="Print the address; open no browser.")] = False,
    timeout: Timeout = WAIT_SECONDS,
) -> None:
    """Start it if it sleeps, and open it in the browser. The address lets in once, for a minute.

    Examples: `codehub ws open demo` · `codehub ws open demo --port 8080`
    """
    with Client(contexts.in_use()) as client:
        ws = find(client, workspace)
        if ws["phase"] != "RUNNING" or ws["desired_state"] != "RUNNING":
            ws = client.patch(f"/workspaces/{ws['id']}", {"desired_state": "RUNNING"})
            ws = wait_until_at_rest(client, ws, timeout)
        url = client.post(f"/workspaces/{ws['id']}/ticket", {} if port is None else {"port": port})["url"]
    print(url)
    if not only_print and not webbrowser.open(url):
        output.note("No browser could be opened; open the address above.")


def rename(
    workspace: Which, name: Annotated[str, typer.Argument(help="Its new name.")], as_json: AsJson = False
) -> None:
    """Give it another name. Its address stays the same.

    Example: `codehub ws rename demo shop`
    """
    with Client(contexts.in_use()) as client:
        found = find(client, workspace)
        ws = client.patch(f"/workspaces/{found['id']}", {"name": name})
    output.outcome(ws, f"{found['name']} is called {ws['name']} now.", as_json=as_json)


def change(  # noqa: PLR0913, PLR0917 - a person's choices
    workspace: Which,
    description: Annotated[str | None, typer.Option(help="What it is for.")] = None,
    notes: Annotated[str | None, typer.Option(help="Your own notes.")] = None,
    template: Annotated[str | None, typer.Option(help="What it runs from its next start on.")] = None,
    git: Annotated[str | None, typer.Option(help="The repository for a new home; empty: none.")] = None,
    ref: Annotated[str | None, typer.Option(help="Its branch or tag; empty: its default branch.")] = None,
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
    body |= {} if ref is None else {"git_ref": ref or None}
    for field, text in (("standby_ttl_seconds", standby_ttl), ("archive_ttl_seconds", archive_ttl)):
        body |= {} if text is None else {field: ttl_of(text)}
    if not body:
        raise ClientFailed(_NO_CHANGE, USAGE)
    with Client(contexts.in_use()) as client:
        ws = client.patch(f"/workspaces/{find(client, workspace)['id']}", body)
    output.outcome(ws, f"{ws['name']} is changed.", as_json=as_json)


def empty(
    workspace: Which,
    yes: Yes = False,
    wait: Wait = False,
    timeout: Timeout = WAIT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Give up its files and its archive, and keep the workspace. Restore points stay until the time for undo is over.

    Example: `codehub ws empty demo --yes --wait`
    """
    with Client(contexts.in_use()) as client:
        ws = find(client, workspace)
        question = f"Give up everything in {output.plain(ws['name'])} ({ws['id'][:8]})?"
        if not yes and not typer.confirm(question, err=True):
            raise ClientFailed("Nothing was given up.")
        ws = client.patch(f"/workspaces/{ws['id']}", {"desired_state": "PENDING", "discard_home": True})
        finish(client, ws, "Emptying", wait=wait, timeout=timeout, as_json=as_json)


def ttl_of(text: str) -> int | None:
    """A TTL option in seconds; 0 is never, None the installation's default."""
    if text == DEFAULT:
        return None
    return 0 if text == NEVER else seconds_of(text)


def _request(workspace: str, desired: str, doing: str, *, wait: bool, timeout: float, as_json: bool) -> None:
    with Client(contexts.in_use()) as client:
        found = find(client, workspace)
        ws = client.patch(f"/workspaces/{found['id']}", {"desired_state": desired})
        finish(client, ws, doing, wait=wait, timeout=timeout, as_json=as_json)


events.register(app)
restore_points.register(app)
leases.register(app)
commands.register(app)
app.command("rename")(rename)
app.command("set")(change)
app.command("empty")(empty)
