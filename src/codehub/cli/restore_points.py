"""Restore points from the terminal: listed, looked into, downloaded and gone back to."""

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Annotated
from urllib.parse import quote, unquote_to_bytes

import httpx
import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from codehub.cli import contexts, output
from codehub.cli.client import WAIT_SECONDS, AsJson, Client, Json, Timeout, Wait, Which, copy, find, segment
from codehub.cli.output import USAGE, ClientFailed
from codehub.cli.wait import finish

ENTRIES = 1000
"""Entries of a folder in one request, the most that the API gives."""

_POINT = {"help": "A restore point's id, or the beginning of one."}
Point = Annotated[str | None, typer.Option("--archive", "-a", show_default="the present one", **_POINT)]
PointToGoBackTo = Annotated[str | None, typer.Option("--archive", "-a", show_default="the newest", **_POINT)]


def register(app: typer.Typer) -> None:
    app.command("archives")(archives)
    app.command("files")(files)
    app.command("download")(download)
    app.command("restore")(restore)


def archives(workspace: Which, as_json: AsJson = False) -> None:
    """List the restore points; a star marks the present one. Each was read back and compared when it was made.

    Example: `codehub ws archives demo`
    """
    with Client(contexts.in_use()) as client:
        found = client.get(f"/workspaces/{find(client, workspace, deleted=True)['id']}/archives")["items"]
    rows = [
        (
            "*" if point["is_present"] else "",
            point["op_id"],
            output.ago(point["created_at"]),
            output.size(point["bytes"]),
            f"{point['files']:,}",
            "given up" if point["released_at"] else "",
        )
        for point in found
    ]
    empty = "No restore points yet: the first is made when the workspace is archived."
    output.listing(found, ("", "ARCHIVE", "MADE", "SIZE", "FILES", ""), rows, empty=empty, as_json=as_json)


def files(
    workspace: Which,
    path: Annotated[str, typer.Argument(help="A folder inside the home.")] = "",
    archive: Point = None,
    as_json: AsJson = False,
) -> None:
    """List a folder of a restore point, without starting anything: of the present one, unless another is named.

    Example: `codehub ws files demo project/src`
    """
    with Client(contexts.in_use()) as client:
        ws = find(client, workspace, deleted=True)
        point = _point(client, ws, archive, _present)
        tree = _folder(client, f"/workspaces/{ws['id']}/archives/{point}/tree?path={quote(os.fsencode(path), safe='')}")
    rows = [
        (
            f"{entry['mode']:04o}",
            output.size(entry["size"]) if entry["kind"] == "file" else "",
            entry["mtime"][:16].replace("T", " "),
            entry["name"] + ("/" if entry["kind"] == "folder" else f" → {entry['target']}" if entry["target"] else ""),
        )
        for entry in tree["entries"]
    ]
    output.listing(tree, ("MODE", "SIZE", "CHANGED", "NAME"), rows, empty="The folder is empty.", as_json=as_json)


def _folder(client: Client, address: str) -> Json:
    """All pages of a folder as one. The path is in the address, where alone bytes that are no text survive."""
    first = page = client.get(f"{address}&limit={ENTRIES}")
    entries = list(first["entries"])
    while page["next_cursor"] is not None:
        page = client.get(f"{address}&limit={ENTRIES}&cursor={page['next_cursor']}")
        entries += page["entries"]
    return {"path": first["path"], "entries": entries}


def download(
    workspace: Which,
    path: Annotated[str, typer.Argument(help="A file, or a folder (as tar); the whole home without it.")] = "",
    archive: Point = None,
    whole: Annotated[bool, typer.Option("--whole", help="All of it, as it is stored: a .tar.zst.")] = False,
    destination: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to; `-` is stdout.", show_default="its own name")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Fetch a file or a folder from a restore point, whatever state the workspace is in.

    Examples:
    - `codehub ws download demo notes.txt`
    - `codehub ws download demo project -o - | tar -t`
    - `codehub ws download demo --whole`

    """
    if whole and path:
        raise ClientFailed("--whole is all of it: leave the path out.", USAGE)
    with Client(contexts.in_use()) as client:
        ws = find(client, workspace, deleted=True)
        point = f"/workspaces/{ws['id']}/archives/{_point(client, ws, archive, _present)}"
        inside = "original" if whole else f"content?path={quote(os.fsencode(path), safe='')}"
        with client.download(f"{point}/{inside}") as answer:
            if destination is not None and str(destination) == "-":
                copy(answer, sys.stdout.buffer)
                return
            home = f"{ws['name']}{'.tar.zst' if whole else '.tar'}"
            target = _target(destination, _name(home, path, answer), force=force)
            size = _save(answer, target)
    output.say(f"{target}: {output.size(size)}")


def _target(destination: Path | None, name: str, *, force: bool) -> Path:
    target = destination or Path(name)
    if target.is_dir():
        target /= name
    if target.exists() and not force:
        raise ClientFailed(f"{target} is there already. Say --force, or --output another name.")
    return target


def _name(home: str, path: str, answer: httpx.Response) -> str:
    """The name to save under, from the response, without anything that leads out of the current directory."""
    _, _, encoded = answer.headers.get("Content-Disposition", "").partition("filename*=UTF-8''")
    name = os.fsdecode(unquote_to_bytes(encoded)) if path.strip("/") else home
    name = name.replace("/", "_").replace("\0", "_")
    return name if name.strip(".") else "download"


def _save(answer: httpx.Response, target: Path) -> int:
    """Saves a download, under another name until it is complete, and returns its size."""
    part = target.with_name(f".codehub-{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            size = _with_bar(answer, file, target.name)
        part.replace(target)
    except OSError as error:
        raise ClientFailed(f"{target} cannot be written: {error.strerror}.") from error
    finally:
        part.unlink(missing_ok=True)
    return size


def _with_bar(answer: httpx.Response, file: IO[bytes], name: str) -> int:
    expected = answer.headers.get("Content-Length")
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(output.plain(name), total=int(expected) if expected else None)
        return copy(answer, file, lambda size: bar.update(task, completed=size))


def restore(
    workspace: Which,
    archive: PointToGoBackTo = None,
    wait: Wait = False,
    timeout: Timeout = WAIT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Go back to a restore point. What is in the home now is archived first, so this can be undone.

    Example: `codehub ws restore demo --archive 0b9f7a52-51c3-4d0c-8f4e-3a5d2c9e7b60 --wait`
    """
    with Client(contexts.in_use()) as client:
        ws = find(client, workspace)
        ws = client.post(f"/workspaces/{ws['id']}/restore", {"archive": _point(client, ws, archive, _newest)})
        finish(client, ws, "Restoring", wait=wait, timeout=timeout, as_json=as_json)


def _point(client: Client, ws: Json, archive: str | None, default: Callable[[Sequence[Json]], Json]) -> str:
    """The id of the restore point that is meant: the whole id or its beginning; without either, the default one."""
    found = client.get(f"/workspaces/{ws['id']}/archives")["items"]
    if archive is None:
        if not found:
            advice = f"`codehub ws archive {shlex.quote(ws['name'])}` makes one"
            raise ClientFailed(f"{ws['name']} has no restore point yet: {advice}.")
        return segment(default(found)["op_id"])
    fitting = [point for point in found if point["op_id"].startswith(archive.lower())]
    if len(fitting) != 1:
        what = "no restore point" if not fitting else "more than one restore point"
        listing = f"codehub ws archives {shlex.quote(ws['name'])}"
        raise ClientFailed(f"{ws['name']} has {what} {archive!r}. See `{listing}`.")
    return segment(fitting[0]["op_id"])


def _newest(points: Sequence[Json]) -> Json:
    """The newest restore point that was not given up; if all were, the newest of those."""
    return next((point for point in points if not point["released_at"]), points[0])


def _present(points: Sequence[Json]) -> Json:
    """The restore point that the home stands on, which `codehub ws archives` marks with a star; else the newest."""
    return next((point for point in points if point["is_present"]), _newest(points))
