"""Routes for restore points: listed, browsed and downloaded without starting anything.

Paths are bytes in a request, as file names are: what is no UTF-8 survives a round trip through `?path=`. A download is
saved by a browser and never shown, and ends when access is revoked; one that cannot go on breaks the connection, which
tells a client that half is not the whole. How many downloads and listings one user has under way is limited in each
process, since each reads an archive.
"""

import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Final
from urllib.parse import parse_qsl, quote
from uuid import UUID

from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from codehub.api import rendering
from codehub.api.access_watch import AccessWatch, StreamCaller, access_check
from codehub.api.dependencies import SIGNED, ApiParts, Cursor, Parts, Signed, WorkspaceId, problems
from codehub.api.rendering import json_response, timestamp
from codehub.api.schemas import ArchiveList, ArchiveShown, Tree
from codehub.domain.errors import Forbidden, Invalid, LimitReached
from codehub.domain.identity import Caller
from codehub.domain.ledger import AuditAction
from codehub.ports.archives import Content, to_bytes
from codehub.usecases.authorization import authorized_workspace
from codehub.usecases.restore_points import restore_point, workspace_with_restore_points

router = APIRouter(tags=["archives"])

LONGEST_PATH: Final = 4096
MOST_DOWNLOADS: Final = 4
MOST_LISTINGS: Final = 8
PathInside = Annotated[
    str,
    Query(max_length=3 * LONGEST_PATH, description="Inside the home; empty = the home itself.", examples=["project"]),
]
EntriesAtMost = Annotated[int, Query(ge=1, le=1_000, description="How many at most.")]


class ConcurrencyLimit:
    """How many of something one user may have under way in this process. `what` names it in the refusal."""

    def __init__(self, most: int, what: str, code: str) -> None:
        self._most, self._what, self._code = most, what, code
        self._by_user: Counter[UUID] = Counter()

    @contextmanager
    def slot(self, user_id: UUID) -> Iterator[None]:
        if self._by_user[user_id] >= self._most:
            message = f"You have {self._most} {self._what} under way. Try again when one of them is done."
            raise LimitReached(message, code=self._code)
        self._by_user[user_id] += 1
        try:
            yield
        finally:
            self._by_user[user_id] -= 1
            self._by_user += Counter()  # forgets whoever has none


class Download(Response):
    """A response that opens its content only when it is sent, and closes it whatever happens."""

    def __init__(self, downloader: StreamCaller, opening: Callable[[], AbstractAsyncContextManager[Content]]) -> None:
        super().__init__()
        self._downloader = downloader
        self._opening = opening

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        downloads: ConcurrencyLimit = scope["app"].state.downloads
        access: AccessWatch = scope["app"].state.access
        downloader = self._downloader
        with downloads.slot(downloader.user_id):
            try:
                async with downloader.interruption:
                    with access.watching(downloader):
                        await self._sent(scope, receive, send)
            except TimeoutError as error:
                if downloader.why is None:
                    raise
                raise Forbidden("You may no longer read this restore point. Sign in again, or ask an admin.") from error

    async def _sent(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._opening() as content:
            headers = {"Content-Disposition": disposition(content.name)}
            if content.size is not None:
                headers["Content-Length"] = str(content.size)
            # Not the type we would guess: what a home holds must never run in our origin.
            stream = StreamingResponse(content.chunks, headers=headers, media_type="application/octet-stream")
            await stream(scope, receive, send)


def disposition(name: str) -> str:
    """The header for saving under this name, which comes from a home: no quote, line end or path gets into it."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in " ._-+") else "_" for c in name)[:100].strip() or "file"
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(to_bytes(name), safe='')}"


@router.get(
    "/workspaces/{workspace_id}/archives",
    operation_id="listArchives",
    responses=problems(*SIGNED, 404, 422),
)
async def list_archives(parts: Parts, caller: Signed, workspace_id: WorkspaceId) -> ArchiveList:
    """Newest first. Each was read back and compared before the home it holds was given up."""
    owned = await workspace_with_restore_points(parts.views, caller, workspace_id)
    points = await parts.views.restore_points(workspace_id)
    await parts.access_audit.viewed(caller, owned, AuditAction.LIST_ARCHIVES)
    shown = ({**asdict(point), "is_present": point.key == owned.workspace.archive_key} for point in points)
    return ArchiveList(items=[ArchiveShown.model_validate(point) for point in shown])


@router.get(
    "/workspaces/{workspace_id}/archives/{op_id}/tree",
    operation_id="listArchiveFolder",
    response_model=Tree,
    responses=problems(*SIGNED, 404, 422, 429),
)
async def list_folder(
    request: Request,
    parts: Parts,
    caller: Signed,
    workspace_id: WorkspaceId,
    op_id: UUID,
    path: PathInside = "",
    limit: EntriesAtMost = 500,
    cursor: Cursor = None,
) -> Response:
    """What is directly inside: folders first, then by name."""
    owned = await workspace_with_restore_points(parts.views, caller, workspace_id)
    inside = _path(request, path)
    kind = _cursor_kind(op_id, inside)
    start = rendering.decode_number(kind, cursor) or 0
    listings: ConcurrencyLimit = request.app.state.listings
    with listings.slot(caller.user.id):
        point = await restore_point(parts.views, owned, op_id)
        listing = await parts.contents.tree(point.key, inside, start, limit, owner=owned.workspace.owner_id)
    if not start:
        await parts.access_audit.viewed(caller, owned, AuditAction.LIST_ARCHIVE, _audit_details(op_id, inside))
    entries = [
        {
            "name": _readable(entry.name),
            "path": quote(to_bytes(f"{inside}/{entry.name}" if inside else entry.name)),
            "kind": entry.kind.value,
            "size": entry.size,
            "mode": entry.mode,
            "mtime": timestamp(entry.mtime),
            "target": None if entry.target is None else _readable(entry.target),
        }
        for entry in listing.entries
    ]
    following = rendering.encode_cursor(kind, str(start + limit)) if listing.has_more else None
    return json_response({"path": _readable(inside), "entries": entries, "next_cursor": following})


def _cursor_kind(op_id: UUID, inside: str) -> str:
    """The kind of a cursor: which folder it is for, however long the path."""
    return f"tree:{hashlib.blake2s(op_id.bytes + to_bytes(inside), digest_size=8).hexdigest()}"


def _bytes(description: str) -> dict[int | str, dict[str, Any]]:
    schema = {"type": "string", "format": "binary"}
    return {200: {"description": description, "content": {"application/octet-stream": {"schema": schema}}}}


@router.get(
    "/workspaces/{workspace_id}/archives/{op_id}/content",
    operation_id="downloadFromArchive",
    response_class=Response,
    responses={**_bytes("The bytes of a file, or a folder as a tar."), **problems(*SIGNED, 404, 422, 429)},
)
async def download(
    request: Request, parts: Parts, caller: Signed, workspace_id: WorkspaceId, op_id: UUID, path: PathInside = ""
) -> Response:
    """Never shown by a browser, always saved. No byte that is not the archive's is ever given."""
    owned = await workspace_with_restore_points(parts.views, caller, workspace_id)
    inside = _path(request, path)
    point = await restore_point(parts.views, owned, op_id)
    opened = parts.contents.content(point.key, inside, owner=owned.workspace.owner_id)
    audit = partial(
        parts.access_audit.downloaded, caller, owned, AuditAction.DOWNLOAD_FROM_ARCHIVE, _audit_details(op_id, inside)
    )
    return Download(_downloader(request, parts, caller, workspace_id), lambda: _audited(opened, audit))


@router.get(
    "/workspaces/{workspace_id}/archives/{op_id}/original",
    operation_id="downloadArchive",
    response_class=Response,
    responses={**_bytes("A tar, compressed with zstd."), **problems(*SIGNED, 404, 422, 429)},
)
async def download_original(
    request: Request, parts: Parts, caller: Signed, workspace_id: WorkspaceId, op_id: UUID
) -> Response:
    """The whole home as it is stored, also where it holds too many files to be browsed."""
    owned = await workspace_with_restore_points(parts.views, caller, workspace_id)
    point = await restore_point(parts.views, owned, op_id)
    opened = parts.contents.original(point.key)
    audit = partial(parts.access_audit.downloaded, caller, owned, AuditAction.DOWNLOAD_ARCHIVE, {"archive": str(op_id)})
    return Download(_downloader(request, parts, caller, workspace_id), lambda: _audited(opened, audit))


@asynccontextmanager
async def _audited(
    opened: AbstractAsyncContextManager[Content], audit: Callable[[], Awaitable[None]]
) -> AsyncIterator[Content]:
    """The content, audited once it is known to be there and before its first byte is given."""
    async with opened as content:
        await audit()
        yield content


def _audit_details(op_id: UUID, inside: str) -> dict[str, str]:
    return {"archive": str(op_id), "path": _readable(inside)}


def _downloader(request: Request, parts: ApiParts, caller: Caller, workspace_id: UUID) -> StreamCaller:
    async def may_read(now: Caller) -> None:
        await authorized_workspace(parts.views, now, workspace_id, deleted=True)

    return StreamCaller(caller.user.id, access_check(request, parts, may_read))


def _path(request: Request, decoded: str) -> str:
    """The path from the raw query, since the framework's decoding loses the bytes that are no text."""
    if not decoded:
        return ""
    query = parse_qsl(request.scope["query_string"].decode("latin-1"), errors="surrogateescape")
    path = next((value for name, value in query if name == "path"), "")
    if len(to_bytes(path)) > LONGEST_PATH or "\x00" in path:
        raise Invalid(f"A path has at most {LONGEST_PATH} bytes and no NUL.", "path")
    return path


def _readable(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
