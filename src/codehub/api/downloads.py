"""Downloads from archives: saved by a browser and never shown, ended when access is revoked, and limited in number.

A download that cannot go on breaks the connection, which tells a client that half is not the whole. How many downloads
and listings one person has under way is counted in this process, since each reads an archive.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import ClassVar
from urllib.parse import quote
from uuid import UUID

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from codehub.api.access_watch import AccessWatch, StillAllowed
from codehub.domain.errors import Forbidden, LimitReached
from codehub.ports.archives import Content, to_bytes


class ConcurrencyLimit:
    most: ClassVar[int]
    what: ClassVar[str]
    code: ClassVar[str]

    def __init__(self) -> None:
        self._by_person: Counter[UUID] = Counter()

    @contextmanager
    def slot(self, user_id: UUID) -> Iterator[None]:
        if self._by_person[user_id] >= self.most:
            message = f"You have {self.most} {self.what} under way. Try again when one of them is done."
            raise LimitReached(message, code=self.code)
        self._by_person[user_id] += 1
        try:
            yield
        finally:
            self._by_person[user_id] -= 1
            self._by_person += Counter()  # forgets whoever has none


class Downloads(ConcurrencyLimit):
    most = 4
    what = "downloads"
    code = "download_limit"


class Listings(ConcurrencyLimit):
    most = 8
    what = "listings of archives"
    code = "listing_limit"


class Downloader:
    """The caller of a download. `why`: why it was ended, which interrupts whatever it waits for."""

    def __init__(self, user_id: UUID, still_allowed: StillAllowed) -> None:
        self.user_id = user_id
        self.still_allowed = still_allowed
        self.why: str | None = None
        self.interruption = asyncio.timeout(None)

    def end(self, why: str) -> None:
        if self.why is None:
            self.why = why
            self.interruption.reschedule(asyncio.get_running_loop().time())


class Download(Response):
    """A response that opens its content only when it is sent, and closes it whatever happens."""

    def __init__(self, downloader: Downloader, opening: Callable[[], AbstractAsyncContextManager[Content]]) -> None:
        super().__init__()
        self._downloader = downloader
        self._opening = opening

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        downloads: Downloads = scope["app"].state.downloads
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
