"""What is asked of the front door itself on a workspace's host: coming in with a ticket, the state for a page that
waits, and the wake, which only a POST from our own page or with a token can be.

From the platform's host to a workspace's: signing in, and the ticket for whoever comes without a visit.

`/open/{slug}?to=/path&port=3000` is where a workspace's host sends them. A link from anywhere may lead there, so the
ticket it gives wakes nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
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
from codehub.proxy.access.session_cache import JOINED_COOKIE, VISIT_COOKIE, SessionCache, cookie_value, credential_of
from codehub.proxy.access.sibling_ports import ports_in, sharing_headers, sibling_origin
from codehub.proxy.access.verdicts import Forward, Header, Pending, Respond, Verdict
from codehub.proxy.access.workspace_cache import CachedWorkspace, WorkspaceCache
from codehub.proxy.access.workspace_request import WorkspaceRequest, is_prefetch, spoken
from codehub.proxy.http.parser import RequestHead
from codehub.proxy.http.responses import problem, redirect
from codehub.proxy.pages.models import (
    PageModel,
    limit_view,
    making_room,
    no_cookie,
    not_found,
    owner_limit_view,
    signed_out,
    unavailable,
    view_of,
)
from codehub.proxy.pages.render import answer, asset, ports_page, sign_in_page, state
from codehub.usecases.workspace_access import Visitor, WorkspaceAccess
from codehub.usecases.workspace_commands import SlotUsage

RESERVED_PATH: Final = f"/{RESERVED}"
OPEN_PATH: Final = "/open/"


@dataclass(frozen=True, slots=True)
class SignInRedirect:
    entrance: WorkspaceAccess
    directory: WorkspaceCache
    visitors: SessionCache
    addresses: Addresses
    now: Callable[[], float]
    provider: str | None = None
    """The name of the OpenID provider that people may sign in with."""

    def sign_in(self, head: RequestHead) -> Respond:
        return sign_in_page(spoken(head), self.provider, has_hosts=self.addresses.has_hosts)

    def serve(self, head: RequestHead) -> Verdict:
        slug = head.target.partition(b"?")[0][len(OPEN_PATH) :].decode("latin-1").rstrip("/")
        call = WorkspaceRequest(head, slug)
        if head.method != b"GET" or is_prefetch(head):
            return problem(405, "This address is followed, when somebody follows it.", "method_not_allowed")
        return Pending(self._kindly(call))

    async def _kindly(self, call: WorkspaceRequest) -> Respond:
        site = self.addresses.platform_origin()
        try:
            return await self._hand_over(call)
        except NotFound:
            view = not_found(call.language, site)
        except CodeHubError:
            view = unavailable(call.language)
        return answer(view, call.head.fields.header(b"accept"), call.language)

    async def _hand_over(self, call: WorkspaceRequest) -> Respond:
        slug, to = str(call.name), way_in(call.query.get("to"))
        port = call.query.get("port")
        if not is_slug(slug) or (port is not None and not (port.isdecimal() and 0 < int(port[:6]) < 65536)):
            raise NotFound("There is no such workspace, or it is not yours.")
        number = None if port is None else int(port)
        credential = credential_of(call.head.fields, SESSION_COOKIE)
        visitor = await self.visitors.find(credential, self.now()) if credential else None
        if visitor is None:
            return redirect(f"/signin?{urlencode({'next': open_path(slug, number, to)})}")
        if not self.addresses.has_hosts:
            return await self._by_path(visitor, slug, to)
        query = urlencode({"ticket": await self.entrance.ticket(visitor, slug, number), "to": to})
        origin = self.addresses.workspace_origin(WorkspaceHost(slug, number))
        return redirect(f"{origin}/{ENTRANCE}?{query}")

    async def _by_path(self, visitor: Visitor, slug: str, to: str) -> Respond:
        """The answer names its id, so nobody else gets it."""
        entry = await self.directory.find(slug)
        if entry is None or not visitor.owns(entry.workspace):
            raise NotFound("There is no such workspace, or it is not yours.")
        return redirect(f"{BY_PATH}{entry.workspace.id}{to}")


def open_path(slug: str, port: int | None, to: str) -> str:
    query = {} if port is None else {"port": str(port)}
    if to != "/":
        query["to"] = to
    return f"{OPEN_PATH}{slug}?{urlencode(query)}" if query else f"{OPEN_PATH}{slug}"


def way_in(to: str | None) -> str:
    """A path of the workspace's own, never one of ours: those have effects."""
    path = local_path(to)
    return "/" if path.startswith(RESERVED_PATH) else path


_ENTER: Final = ENTRANCE.removeprefix(RESERVED).encode()
ARRIVED_COOKIE: Final = f"{SESSION_COOKIE}-arrived"
ARRIVED_SECONDS: Final = 30
POLL_SECONDS: Final = 25.0
NO_ROOM_STATUS: Final = 502
"""Of the page that a person gets; the wake itself is refused with 429."""

Desk = Callable[[WorkspaceRequest], Awaitable[Respond]]


@dataclass(frozen=True, slots=True)
class ReservedEndpoints:
    entrance: WorkspaceAccess
    directory: WorkspaceCache
    visitors: SessionCache
    addresses: Addresses
    now: Callable[[], float]

    def serve(self, call: WorkspaceRequest, name: bytes) -> Verdict:
        found = asset(name, call.head.fields.header(b"if-none-match"))
        if found is not None:
            return found
        desks: Mapping[tuple[bytes, bytes], Desk] = {
            (b"GET", _ENTER): self.enter,
            (b"GET", b"arrived"): self.arrived,
            (b"GET", b"state"): self.tell,
            (b"GET", b"ports"): self.ports,
            (b"GET", b"join"): self.join,
            (b"POST", b"wake"): self.wake,
        }
        desk = desks.get((call.head.method, name))
        if desk is None or is_prefetch(call.head):
            return problem(404, "There is nothing of this name here.", "not_found")
        known = call.credential is not None and self.visitors.known(call.credential, self.now()) is not None
        return Pending(self._kindly(desk, call), proven=known)

    async def _kindly(self, desk: Desk, call: WorkspaceRequest) -> Forward | Respond:
        try:
            return await desk(call)
        except NotFound:
            view = not_found(call.language, self.addresses.platform_origin())
        except CodeHubError:
            view = unavailable(call.language)
        return self.shown(call, view)

    def shown(self, call: WorkspaceRequest, view: PageModel) -> Respond:
        if call.reserved in (b"state", b"wake"):
            return state(view, view.status)
        return answer(view, call.head.fields.header(b"accept"), call.language, call.prefix)

    def view_of(self, call: WorkspaceRequest, workspace: Workspace, *, wakes: bool = False) -> PageModel:
        site = self.addresses.platform_origin()
        return view_of(workspace, access_to(workspace), call.language, wakes=wakes, public_url=site)

    def signed_out(self, call: WorkspaceRequest) -> PageModel:
        to = way_in(call.target.decode("latin-1"))
        if call.by_path:
            back = f"/workspaces/{call.name}" if self.addresses.has_hosts else call.prefix.decode() + to[1:]
            return signed_out(call.language, f"/signin?{urlencode({'next': back})}")
        return signed_out(call.language, self.addresses.platform_origin() + open_path(str(call.name), call.port, to))

    # ── coming in ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def enter(self, call: WorkspaceRequest) -> Respond:
        """A ticket becomes a cookie of this host alone."""
        to = way_in(call.query.get("to"))
        entered = await self.entrance.enter(call.query.get("ticket", ""))
        entry = await self.directory.find(call.name)
        place = (entry.workspace.id, call.port) if entry else None
        if entry is None or entered is None or (entered[0].workspace_id, entered[0].port) != place:
            return self._once_more(call, to)
        ticket, secret = entered
        cookies = [_cookie(VISIT_COOKIE, secret, int(self.entrance.identity.rules.absolute_seconds))]
        if ticket.wakes and access_to(entry.workspace).action is not AccessAction.FORWARD:
            cookies.append(_cookie(ARRIVED_COOKIE, "1", ARRIVED_SECONDS))
        return redirect(f"{RESERVED_PATH}arrived?{urlencode({'to': to})}", tuple(cookies))

    def _once_more(self, call: WorkspaceRequest, to: str) -> Respond:
        """A ticket that is used up is no reason to turn away who has come in with it before."""
        if cookie_value(call.head.fields, VISIT_COOKIE):
            return redirect(to)
        return redirect(self.addresses.platform_origin() + open_path(str(call.name), call.port, to))

    async def arrived(self, call: WorkspaceRequest) -> Respond:
        """A browser that did not keep the cookie would be sent in circles: it is told instead."""
        if cookie_value(call.head.fields, VISIT_COOKIE):
            return redirect(way_in(call.query.get("to")))
        return self.shown(call, no_cookie(call.language))

    # ── other ports of the same workspace ────────────────────────────────────────────────────────────────────────────

    async def ports(self, call: WorkspaceRequest) -> Respond:
        """At a port's host: a page that joins the ports of `use`, and goes on to `to`."""
        found = await self._let_in(call)
        if found is None:
            return redirect(self.signed_out(call).actions[0].link or "/")
        if call.port is None or not call.is_document:
            return problem(404, "There is nothing of this name here.", "not_found")
        entry, visitor = found
        slug, joins = entry.workspace.slug, {}
        for port in ports_in(call.query.get("use", "")):
            if port != call.port:
                origin = self.addresses.workspace_origin(WorkspaceHost(slug, port))
                ticket = await self.entrance.ticket_beside(visitor, slug, port)
                joins[origin] = f"{origin}{RESERVED_PATH}join?{urlencode({'ticket': ticket})}"
        to = way_in(call.query.get("to"))
        return ports_page(joins, to, call.language) if joins else redirect(to)

    async def join(self, call: WorkspaceRequest) -> Respond:
        """A ticket, fetched by our page at another port's host, becomes a cookie for the pages of that site."""
        origin, entry = sibling_origin(call, self.addresses), await self.directory.find(call.name)
        entered = await self.entrance.enter(call.query.get("ticket", "")) if origin and entry else None
        if origin is None or entry is None or entered is None:
            return problem(401, "This ticket is unknown, used or too old.", "unauthenticated")
        ticket, secret = entered
        if (ticket.workspace_id, ticket.port) != (entry.workspace.id, call.port):
            return problem(401, "This ticket is unknown, used or too old.", "unauthenticated")
        seconds = int(self.entrance.identity.rules.absolute_seconds)
        cookies = (_cookie(VISIT_COOKIE, secret, seconds), _joined_cookie(secret, seconds))
        return Respond(204, (*sharing_headers(origin), (b"Cache-Control", b"no-store"), *cookies))

    # ── waiting and waking ───────────────────────────────────────────────────────────────────────────────────────────

    async def tell(self, call: WorkspaceRequest) -> Respond:
        """The view, as soon as it differs from what the page has seen."""
        found = await self._let_in(call)
        if found is None:
            return self.shown(call, self.signed_out(call))
        entry, deadline = found[0], self.now() + POLL_SECONDS
        while True:
            changed, view = entry.changed, self.view_of(call, entry.workspace)
            left = deadline - self.now()
            if view.version != call.query.get("seen") or left <= 0:
                return state(view)
            try:
                async with asyncio.timeout(left):
                    await changed.wait()
            except TimeoutError:
                return state(view)

    async def wake(self, call: WorkspaceRequest) -> Respond:
        if not call.with_token and not self._from_our_page(call):
            return problem(403, "A workspace is started by its own page, or with a token.", "cross_site")
        found = await self._let_in(call)
        if found is None:
            return self.shown(call, self.signed_out(call))
        entry, visitor = found
        if (instead := call.query.get("instead")) is not None:
            return await self._make_room(call, entry.workspace, visitor, instead)
        try:
            woken = await self.entrance.wake(visitor, entry.workspace.id)
        except LimitReached:
            view = _limit(call, entry.workspace, visitor, await self.entrance.standing(entry.workspace))
            return state(view, view.status)
        return state(self.view_of(call, woken), 202)

    async def no_room(self, call: WorkspaceRequest, workspace: Workspace, visitor: Visitor) -> PageModel | None:
        """What a person who comes to start it is told at once if the limit forbids it. None: there is room."""
        standing = await self.entrance.standing(workspace)
        if standing.has_room_for(workspace):
            return None
        return replace(_limit(call, workspace, visitor, standing), status=NO_ROOM_STATUS)

    async def _make_room(self, call: WorkspaceRequest, workspace: Workspace, visitor: Visitor, instead: str) -> Respond:
        try:
            other = UUID(instead)
        except ValueError:
            return problem(422, "`instead` is not a workspace's id.", "invalid")
        if workspace.desired_state is Desired.RUNNING:
            return state(self.view_of(call, workspace), 202)  # its page wants no room for what has its place
        gives_way = await self.entrance.give_way(visitor, other, workspace)
        return state(making_room(workspace, gives_way, call.language), 202)

    def _from_our_page(self, call: WorkspaceRequest) -> bool:
        fields = call.head.fields
        kind = (fields.header(b"content-type") or b"").partition(b";")[0].strip().lower()
        return kind == b"application/json" and self.addresses.is_own(fields.origin, fields.host)

    async def _let_in(self, call: WorkspaceRequest) -> tuple[CachedWorkspace, Visitor] | None:
        """None if nobody is signed in; NotFound unless the workspace is the visitor's."""
        credential = call.credential
        visitor = await self.visitors.find(credential, self.now()) if credential else None
        if visitor is None:
            return None
        entry = await self.directory.find(call.name)
        if entry is None or not visitor.may_enter(entry.workspace, call.port):
            raise NotFound("There is no such workspace, or it is not yours.")
        return entry, visitor


def _limit(call: WorkspaceRequest, workspace: Workspace, visitor: Visitor, standing: SlotUsage) -> PageModel:
    """Only its owner is shown what else of theirs runs: the pages of this host can read what an admin is told here."""
    if workspace.owner_id != visitor.user.owner_id:
        return owner_limit_view(workspace, call.language)
    return limit_view(workspace, standing.holders, call.language, limit=standing.max_running)


def _cookie(name: str, value: str, seconds: int) -> Header:
    return b"Set-Cookie", f"{name}={value}; Path=/; Max-Age={seconds}; Secure; HttpOnly; SameSite=Lax".encode()


def _joined_cookie(secret: str, seconds: int) -> Header:
    """Sent along from another site, but only from within the top-level site that it was set in."""
    kept = f"Path=/; Max-Age={seconds}; Secure; HttpOnly; SameSite=None; Partitioned"
    return b"Set-Cookie", f"{JOINED_COOKIE}={secret}; {kept}".encode()


ARRIVED_ONCE: Final = _cookie(ARRIVED_COOKIE, "", 0)
"""Said with the page that has acted on it."""
