"""The requests that the proxy answers itself, on a workspace's host and on the platform's.

On a workspace's host, below `/_codehub/`: entering with a ticket, the state for a page that waits and for an editor
that is open, the wake, and keeping the workspace up; the last two only by a POST from a page of that very host or with
a token. On the platform's host: the sign-in page, and the ticket for whoever comes to a workspace without a visit.
`/open/{slug}?to=/path&port=3000` is where a workspace's host sends them; a link from anywhere may lead there, so the
ticket it gives wakes nothing.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlencode
from uuid import UUID

from codehub.domain.access import AccessAction, access_to
from codehub.domain.addresses import BY_PATH, ENTRANCE, RESERVED, local_path
from codehub.domain.credentials import SESSION_COOKIE
from codehub.domain.errors import CodeHubError, LimitReached, NotFound
from codehub.domain.naming import is_slug
from codehub.domain.workspace import Desired, Workspace
from codehub.proxy.access.addresses import Addresses, WorkspaceHost
from codehub.proxy.access.session_cache import (
    JOINED_COOKIE,
    VISIT_COOKIE,
    Credential,
    SessionCache,
    cookie_value,
    credential_of,
)
from codehub.proxy.access.sibling_ports import ports_in, sharing_headers, sibling_origin
from codehub.proxy.access.verdicts import Header, Pending, Respond, Verdict
from codehub.proxy.access.workspace_cache import CachedWorkspace, WorkspaceCache
from codehub.proxy.access.workspace_request import WorkspaceRequest, is_prefetch, language_of
from codehub.proxy.http.parser import RequestHead
from codehub.proxy.http.responses import problem, redirect
from codehub.proxy.pages.content import (
    PageModel,
    limit_page,
    making_room_page,
    no_cookie_page,
    not_found_page,
    owner_limit_page,
    signed_out_page,
    unavailable_page,
    workspace_page,
)
from codehub.proxy.pages.render import answer, asset, editor_state, editor_version, ports_page, sign_in_page, state
from codehub.usecases.identity import actor_of
from codehub.usecases.lifecycle import Lifecycles
from codehub.usecases.workspace_access import WorkspaceAccess, WorkspaceCaller
from codehub.usecases.workspace_commands import SlotUsage

RESERVED_PATH: Final = f"/{RESERVED}"
OPEN_PATH: Final = "/open/"
_ENTER: Final = ENTRANCE.removeprefix(RESERVED).encode()
ENTERED_COOKIE: Final = f"{SESSION_COOKIE}-arrived"
ENTERED_SECONDS: Final = 30
POLL_SECONDS: Final = 25.0
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
NO_ROOM_STATUS: Final = 502
"""The status of the page that tells a person that there is no room; the wake itself is refused with 429."""
Handler = Callable[[WorkspaceRequest], Awaitable[Respond]]


@dataclass(frozen=True, slots=True)
class AccessServices:
    """What the authorizer and the endpoints ask: who somebody is, which workspace is meant, and what its address is."""

    workspace_access: WorkspaceAccess
    workspaces: WorkspaceCache
    sessions: SessionCache
    addresses: Addresses
    lifecycles: Lifecycles
    now: Callable[[], float]

    async def caller(self, credential: Credential | None) -> WorkspaceCaller | None:
        return None if credential is None else await self.sessions.find(credential, self.now())


def respond_with(page: PageModel, request: WorkspaceRequest) -> Respond:
    if request.reserved in (b"state", b"wake", b"editor", b"keep"):
        return state(page, page.status)
    return answer(page, request.head.fields.header(b"accept"), request.language, request.prefix)


async def with_error_pages(handler: Handler, request: WorkspaceRequest, addresses: Addresses) -> Respond:
    """The answer of a handler, or the page for what it raised."""
    try:
        return await handler(request)
    except NotFound:
        return respond_with(not_found_page(request.language, addresses.platform_origin()), request)
    except CodeHubError:
        return respond_with(unavailable_page(request.language), request)


def sign_in_link(request: WorkspaceRequest, addresses: Addresses) -> str:
    """The address at which somebody signs in who asked for this, and which leads back."""
    to = workspace_path(request.target.decode("latin-1"))
    if request.by_path:
        back = f"/workspaces/{request.name}" if addresses.has_hosts else request.prefix.decode() + to[1:]
        return f"/signin?{urlencode({'next': back})}"
    return addresses.platform_origin() + open_path(str(request.name), request.port, to)


def page_of(request: WorkspaceRequest, workspace: Workspace, addresses: Addresses, *, wakes: bool = False) -> PageModel:
    site = addresses.platform_origin()
    return workspace_page(workspace, access_to(workspace), request.language, wakes=wakes, public_url=site)


async def no_room_page(
    request: WorkspaceRequest, workspace: Workspace, caller: WorkspaceCaller, workspace_access: WorkspaceAccess
) -> PageModel | None:
    """The page for a person who comes to start a workspace when the limit forbids it. None: there is room."""
    usage = await workspace_access.slot_usage(workspace)
    if usage.has_room_for(workspace):
        return None
    return replace(_limit(request, workspace, caller, usage), status=NO_ROOM_STATUS)


class PlatformEndpoints:
    def __init__(self, services: AccessServices, provider: str | None) -> None:
        """`provider`: the name of the OpenID provider that people may sign in with."""
        self._services = services
        self._addresses = services.addresses
        self._provider = provider

    def sign_in(self, head: RequestHead) -> Respond:
        return sign_in_page(language_of(head), self._provider, has_hosts=self._addresses.has_hosts)

    def serve(self, head: RequestHead) -> Verdict:
        slug = head.target.partition(b"?")[0][len(OPEN_PATH) :].decode("latin-1").rstrip("/")
        request = WorkspaceRequest(head, slug)
        if head.method != b"GET" or is_prefetch(head):
            return problem(405, "This address is followed, when somebody follows it.", "method_not_allowed")
        return Pending(with_error_pages(self._open, request, self._addresses))

    async def _open(self, request: WorkspaceRequest) -> Respond:
        slug, to = str(request.name), workspace_path(request.query.get("to"))
        port = request.query.get("port")
        if not is_slug(slug) or (port is not None and not (port.isdecimal() and 0 < int(port[:6]) < 65536)):
            raise NotFound("There is no such workspace, or it is not yours.")
        number = None if port is None else int(port)
        caller = await self._services.caller(credential_of(request.head.fields, SESSION_COOKIE))
        if caller is None:
            return redirect(f"/signin?{urlencode({'next': open_path(slug, number, to)})}")
        if not self._addresses.has_hosts:
            return await self._by_path(caller, slug, to)
        query = urlencode({"ticket": await self._services.workspace_access.ticket(caller, slug, number), "to": to})
        origin = self._addresses.workspace_origin(WorkspaceHost(slug, number))
        return redirect(f"{origin}/{ENTRANCE}?{query}")

    async def _by_path(self, caller: WorkspaceCaller, slug: str, to: str) -> Respond:
        """Redirect to the workspace below `/w/`. The answer names the workspace's id, so nobody else gets it."""
        entry = await self._services.workspaces.find(slug)
        if entry is None or not caller.owns(entry.workspace):
            raise NotFound("There is no such workspace, or it is not yours.")
        return redirect(f"{BY_PATH}{entry.workspace.id}{to}")


def open_path(slug: str, port: int | None, to: str) -> str:
    query = {} if port is None else {"port": str(port)}
    if to != "/":
        query["to"] = to
    return f"{OPEN_PATH}{slug}?{urlencode(query)}" if query else f"{OPEN_PATH}{slug}"


def workspace_path(to: str | None) -> str:
    """The path of a workspace to go on to, never one of the reserved ones: those have effects."""
    path = local_path(to)
    return "/" if path.startswith(RESERVED_PATH) else path


class ReservedEndpoints:
    def __init__(self, services: AccessServices) -> None:
        self._services = services
        self._addresses = services.addresses
        self._workspace_access = services.workspace_access
        self._lifecycles = services.lifecycles

    def serve(self, request: WorkspaceRequest, name: bytes) -> Verdict:
        found = asset(name, request.head.fields.header(b"if-none-match"))
        if found is not None:
            return found
        handlers: Mapping[tuple[bytes, bytes], Handler] = {
            (b"GET", _ENTER): self.enter,
            (b"GET", b"arrived"): self.check_cookie,
            (b"GET", b"state"): self.poll_state,
            (b"GET", b"editor"): self.poll_editor,
            (b"GET", b"asleep"): self.leave_editor,
            (b"GET", b"ports"): self.ports,
            (b"GET", b"join"): self.join,
            (b"POST", b"wake"): self.wake,
            (b"POST", b"keep"): self.keep,
        }
        handler = handlers.get((request.head.method, name))
        if handler is None or is_prefetch(request.head):
            return problem(404, "There is nothing of this name here.", "not_found")
        credential, services = request.credential, self._services
        known = credential is not None and services.sessions.known(credential, services.now()) is not None
        return Pending(with_error_pages(handler, request, self._addresses), proven=known)

    # ── coming in ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def enter(self, request: WorkspaceRequest) -> Respond:
        """Exchange a ticket for a cookie of this host alone."""
        to = workspace_path(request.query.get("to"))
        redeemed = await self._workspace_access.enter(request.query.get("ticket", ""))
        entry = await self._services.workspaces.find(request.name)
        place = (entry.workspace.id, request.port) if entry else None
        if entry is None or redeemed is None or (redeemed[0].workspace_id, redeemed[0].port) != place:
            return self._retry_entry(request, to)
        ticket, secret = redeemed
        cookies = [_cookie(VISIT_COOKIE, secret, int(self._workspace_access.identity.rules.absolute_seconds))]
        if ticket.wakes and access_to(entry.workspace).action is not AccessAction.FORWARD:
            cookies.append(_cookie(ENTERED_COOKIE, "1", ENTERED_SECONDS))
        return redirect(f"{RESERVED_PATH}arrived?{urlencode({'to': to})}", tuple(cookies))

    def _retry_entry(self, request: WorkspaceRequest, to: str) -> Respond:
        """Let somebody in who came with a used ticket and has the cookie already; send others for a new one."""
        if cookie_value(request.head.fields, VISIT_COOKIE):
            return redirect(to)
        return redirect(self._addresses.platform_origin() + open_path(str(request.name), request.port, to))

    async def check_cookie(self, request: WorkspaceRequest) -> Respond:
        """Go on if the browser kept the cookie. One that did not would be sent in circles: it is told instead."""
        if cookie_value(request.head.fields, VISIT_COOKIE):
            return redirect(workspace_path(request.query.get("to")))
        return respond_with(no_cookie_page(request.language), request)

    # ── other ports of the same workspace ────────────────────────────────────────────────────────────────────────────

    async def ports(self, request: WorkspaceRequest) -> Respond:
        """A page, at a port's host, that joins the ports of `use` and goes on to `to`."""
        found = await self._authorized(request)
        if found is None:
            return redirect(sign_in_link(request, self._addresses))
        if request.port is None or not request.is_document:
            return problem(404, "There is nothing of this name here.", "not_found")
        entry, caller = found
        slug, joins = entry.workspace.slug, {}
        for port in ports_in(request.query.get("use", "")):
            if port != request.port:
                origin = self._addresses.workspace_origin(WorkspaceHost(slug, port))
                ticket = await self._workspace_access.ticket_beside(caller, slug, port)
                joins[origin] = f"{origin}{RESERVED_PATH}join?{urlencode({'ticket': ticket})}"
        to = workspace_path(request.query.get("to"))
        return ports_page(joins, to, request.language) if joins else redirect(to)

    async def join(self, request: WorkspaceRequest) -> Respond:
        """Exchange a ticket, fetched by our page at another port's host, for a cookie for the pages of that site."""
        origin, entry = sibling_origin(request, self._addresses), await self._services.workspaces.find(request.name)
        redeemed = await self._workspace_access.enter(request.query.get("ticket", "")) if origin and entry else None
        if origin is None or entry is None or redeemed is None:
            return problem(401, "This ticket is unknown, used or too old.", "unauthenticated")
        ticket, secret = redeemed
        if (ticket.workspace_id, ticket.port) != (entry.workspace.id, request.port):
            return problem(401, "This ticket is unknown, used or too old.", "unauthenticated")
        seconds = int(self._workspace_access.identity.rules.absolute_seconds)
        cookies = (_cookie(VISIT_COOKIE, secret, seconds), _joined_cookie(secret, seconds))
        return Respond(204, (*sharing_headers(origin), (b"Cache-Control", b"no-store"), *cookies))

    # ── waiting and waking ───────────────────────────────────────────────────────────────────────────────────────────

    async def poll_state(self, request: WorkspaceRequest) -> Respond:
        """Answer with the page as soon as it differs from what the browser has seen, or after a while."""
        found = await self._authorized(request)
        if found is None:
            return self._signed_out(request)
        entry = found[0]
        await self._changed(entry, request, lambda: page_of(request, entry.workspace, self._addresses).version)
        return state(page_of(request, entry.workspace, self._addresses))

    async def _changed(self, entry: CachedWorkspace, request: WorkspaceRequest, version: Callable[[], str]) -> None:
        """Returns as soon as the version is not the one that the browser has seen, or after a while."""
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS):
                while True:
                    changed = entry.changed
                    if version() != request.query.get("seen"):
                        return
                    await changed.wait()

    async def poll_editor(self, request: WorkspaceRequest) -> Respond:
        """Answer an open editor with its workspace's state as soon as that differs from what it has seen."""
        found = await self._authorized(request)
        if found is None or request.port is not None:
            return self._signed_out(request)
        entry = found[0]
        await self._changed(entry, request, lambda: editor_version(entry.workspace))
        return await self._editor_state(request, entry)

    async def leave_editor(self, request: WorkspaceRequest) -> Respond:
        """The page that an editor gives its window to when there is nothing behind it. It starts nothing by itself,
        and goes on to `to` when the workspace runs."""
        found = await self._authorized(request)
        if found is None:
            return redirect(sign_in_link(request, self._addresses))
        workspace = found[0].workspace
        if access_to(workspace).action is AccessAction.FORWARD:
            return redirect(request.prefix.decode() + workspace_path(request.query.get("to"))[1:])
        return respond_with(page_of(request, workspace, self._addresses), request)

    async def keep(self, request: WorkspaceRequest) -> Respond:
        """Somebody in the editor says that they are at work: once, or for so many seconds to come."""
        if not request.with_token and not self._from_our_page(request):
            return problem(403, "A workspace is kept up by its own page, or with a token.", "cross_site")
        found = await self._authorized(request)
        if found is None or request.port is not None:
            return self._signed_out(request)
        entry, caller = found
        seconds, actor = request.query.get("seconds"), actor_of(caller)
        if seconds is None:
            await self._lifecycles.note_activity(entry.workspace, actor)
        elif _NUMBER.fullmatch(seconds):
            await self._lifecycles.keep_alive(entry.workspace, int(seconds), actor)
        else:
            return problem(422, "`seconds` is not a number of seconds.", "invalid")
        return await self._editor_state(request, entry)

    async def _editor_state(self, request: WorkspaceRequest, entry: CachedWorkspace) -> Respond:
        workspace = entry.workspace
        forecast = await self._lifecycles.stop_forecast(workspace.id)
        dashboard = f"{self._addresses.platform_origin()}/workspaces/{workspace.id}"
        return editor_state(workspace, forecast, page_of(request, workspace, self._addresses), dashboard)

    async def wake(self, request: WorkspaceRequest) -> Respond:
        if not request.with_token and not self._from_our_page(request):
            return problem(403, "A workspace is started by its own page, or with a token.", "cross_site")
        found = await self._authorized(request)
        if found is None:
            return self._signed_out(request)
        entry, caller = found
        if (instead := request.query.get("instead")) is not None:
            return await self._make_room(request, entry.workspace, caller, instead)
        try:
            woken = await self._workspace_access.wake(caller, entry.workspace.id)
        except LimitReached:
            usage = await self._workspace_access.slot_usage(entry.workspace)
            return respond_with(_limit(request, entry.workspace, caller, usage), request)
        return state(page_of(request, woken, self._addresses), 202)

    async def _make_room(
        self, request: WorkspaceRequest, workspace: Workspace, caller: WorkspaceCaller, instead: str
    ) -> Respond:
        try:
            other = UUID(instead)
        except ValueError:
            return problem(422, "`instead` is not a workspace's id.", "invalid")
        if workspace.desired_state is Desired.RUNNING:
            # It has its place already: no room need be made for it.
            return state(page_of(request, workspace, self._addresses), 202)
        gives_way = await self._workspace_access.give_way(caller, other, workspace)
        return state(making_room_page(workspace, gives_way, request.language), 202)

    def _from_our_page(self, request: WorkspaceRequest) -> bool:
        fields = request.head.fields
        kind = (fields.header(b"content-type") or b"").partition(b";")[0].strip().lower()
        return kind == b"application/json" and self._addresses.is_same_origin(fields.origin, fields.host)

    def _signed_out(self, request: WorkspaceRequest) -> Respond:
        return respond_with(signed_out_page(request.language, sign_in_link(request, self._addresses)), request)

    async def _authorized(self, request: WorkspaceRequest) -> tuple[CachedWorkspace, WorkspaceCaller] | None:
        """The workspace and who asks; None if nobody is signed in. Raises NotFound unless the caller may enter it."""
        caller = await self._services.caller(request.credential)
        if caller is None:
            return None
        entry = await self._services.workspaces.find(request.name)
        if entry is None or not caller.may_enter(entry.workspace, request.port):
            raise NotFound("There is no such workspace, or it is not yours.")
        return entry, caller


def _limit(request: WorkspaceRequest, workspace: Workspace, caller: WorkspaceCaller, usage: SlotUsage) -> PageModel:
    """The page of a limit that is reached. Only the owner is shown what else of theirs runs: the pages of this host can
    read what an admin is told here."""
    if workspace.owner_id != caller.user.owner_id:
        return owner_limit_page(workspace, request.language)
    return limit_page(workspace, usage.holders, request.language, limit=usage.max_running)


def _cookie(name: str, value: str, seconds: int) -> Header:
    return b"Set-Cookie", f"{name}={value}; Path=/; Max-Age={seconds}; Secure; HttpOnly; SameSite=Lax".encode()


def _joined_cookie(secret: str, seconds: int) -> Header:
    """A cookie that is sent along from another site, but only from within the top-level site that it was set in."""
    kept = f"Path=/; Max-Age={seconds}; Secure; HttpOnly; SameSite=None; Partitioned"
    return b"Set-Cookie", f"{JOINED_COOKIE}={secret}; {kept}".encode()


FORGET_ENTERED: Final = _cookie(ENTERED_COOKIE, "", 0)
"""The header that removes the cookie, sent with the page that has acted on it."""
