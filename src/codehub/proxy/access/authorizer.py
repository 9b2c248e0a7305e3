"""The gate in earnest: session → owner → phase → forward, wait or refuse.

One rule lets requests and sockets in (`Visitor.may_enter`). What it found is kept as a pass on the parsed headers, so
that a hot request touches neither PostgreSQL nor Redis; events take passes back. GET never wakes: the page that we
answer with asks for that itself, by a POST from its own origin.

Requests that another site made the browser send. Its cookies come along with them, so they prove nothing.

A socket needs the exact Origin. A request with an Origin must have ours; without one, the browser's own word on where
it comes from decides. Links may lead here from anywhere, frames may not. The ports of one workspace may use each other.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlencode
from uuid import UUID

from codehub.domain.access import AccessAction, access_to
from codehub.domain.addresses import BY_PATH
from codehub.domain.credentials import SESSION_COOKIE
from codehub.domain.errors import CodeHubError
from codehub.ports.runtime import Endpoint, Runtime
from codehub.proxy.access.addresses import Addresses, Platform, WorkspaceHost, app_path, is_port_proxy
from codehub.proxy.access.endpoints import (
    ARRIVED_COOKIE,
    ARRIVED_ONCE,
    OPEN_PATH,
    ReservedEndpoints,
    SignInRedirect,
    way_in,
)
from codehub.proxy.access.session_cache import Credential, SessionCache, cookie_value, credential_of
from codehub.proxy.access.sibling_ports import WantedPorts, preflight, sharing_headers, sibling_origin
from codehub.proxy.access.verdicts import Cap, Forward, Pending, Respond, Route, UpstreamFailure, Verdict
from codehub.proxy.access.workspace_cache import CachedAuthorization, CachedWorkspace, WorkspaceCache
from codehub.proxy.access.workspace_request import WorkspaceRequest, accepts_pages, spoken
from codehub.proxy.http.parser import RequestHead
from codehub.proxy.http.responses import plain_failure, problem, redirect
from codehub.proxy.http.upstream import confirmation
from codehub.proxy.pages.models import (
    PageModel,
    crowded_view,
    failure_view,
    no_listener,
    not_found,
    own_address,
    unavailable,
)
from codehub.proxy.pages.render import RESERVED, answer, asset
from codehub.proxy.presence.activity import Activities
from codehub.proxy.presence.tap import AppPresence, ide_tap
from codehub.usecases.workspace_access import Visitor


def is_foreign(call: WorkspaceRequest, addresses: Addresses, slug: str) -> bool:
    """Not for callers with a token: that is sent on purpose."""
    fields = call.head.fields
    if fields.origin is not None:
        return not _is_ours(fields.origin, call, addresses, slug)
    if fields.upgrade:
        return True
    site = fields.header(b"sec-fetch-site")
    if site is None or site in (b"same-origin", b"none"):
        return False
    if not call.is_navigation:  # an image, a script: only the Referer says whose page asks
        return sibling_origin(call, addresses) is None
    return fields.header(b"sec-fetch-dest") != b"document" and call.port is None


def _is_ours(origin: bytes, call: WorkspaceRequest, addresses: Addresses, slug: str) -> bool:
    """The IDE's own origin alone may use the IDE; the ports of one workspace may use each other."""
    if call.port is not None and addresses.is_of(origin, slug, call.head.fields.host):
        return True
    return addresses.is_own(origin, call.head.fields.host)


DEAF_SECONDS: Final = 2.0
"""How long a pass lasts while the bus cannot be heard."""
NOTED_SECONDS: Final = 3600.0
RECOGNISED_SECONDS: Final = 2.0
_OUR_PATH: Final = b"/" + RESERVED
_BY_PATH: Final = BY_PATH.encode()
_OPEN: Final = OPEN_PATH.encode()
_UUID_LENGTH: Final = 36


@dataclass(frozen=True, slots=True)
class Label:
    """On whose behalf something is open to a workspace, and what proved it."""

    visitor: Visitor
    credential: Credential
    entry: CachedWorkspace

    def ids(self) -> dict[str, str]:
        return {"workspace": str(self.entry.workspace.id), "user": str(self.visitor.user.id)}


class Authorizer:
    def __init__(
        self,
        reception: ReservedEndpoints,
        handover: SignInRedirect,
        runtime: Runtime,
        activities: Activities,
        api: Endpoint,
        *,
        by_path: bool,
    ) -> None:
        """`by_path`: workspaces are served below `/w/` of the platform's host too."""
        self.now = 0.0
        """Moved on by whoever ticks."""
        self._ide, self._port, self._platform_route = self.routes = Route("ide"), Route("port"), Route("api")
        self._addresses: Addresses = reception.addresses
        self._directory: WorkspaceCache = reception.directory
        self._visitors: SessionCache = reception.visitors
        self._reception = reception
        self._handover = handover
        self._runtime = runtime
        self._activities = activities
        self._api = Forward(api, route=self._platform_route, ours=True)
        self._by_path = by_path
        self._wanted = WantedPorts()
        self._noted: dict[tuple[UUID, UUID], float] = {}
        """Which admin's look into which workspace is in the audit, and until when that is enough."""

    # ── where to ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def decide(self, head: RequestHead) -> Verdict:
        given = head.fields.passport
        if given is not None and given.until > self.now and head.target.startswith(given.prefix):
            rest = head.target[len(given.prefix) :]
            if not rest.startswith(RESERVED) and not is_port_proxy(rest):
                if given.prefix != b"/":
                    return self._below_again(head, given)
                self._activities.requested(given.entry, head.method, head.target, head.fields.body_length)
                return given.forward
        place = self._addresses.place(head.fields.host)
        if isinstance(place, WorkspaceHost):
            return self._workspace(WorkspaceRequest(head, place.slug, place.port))
        if isinstance(place, Platform):
            return self._platform(head)
        return problem(421, f"No site of this name is served here: {_shown(head.fields.host)}.", "unknown_host")

    def _below_again(self, head: RequestHead, given: CachedAuthorization) -> Forward:
        target = given.inner(head.target)
        self._activities.requested(given.entry, head.method, target, head.fields.body_length)
        return replace(given.forward, target=target)

    def _platform(self, head: RequestHead) -> Verdict:
        path = head.target.partition(b"?")[0]
        if path.startswith(_BY_PATH) and self._by_path:
            return self._below(head, path)
        if path.startswith(_OPEN):
            return self._handover.serve(head)
        if path == b"/signin" and head.method in (b"GET", b"HEAD"):
            return self._handover.sign_in(head)
        if path.startswith(_OUR_PATH):
            found = asset(path[len(_OUR_PATH) :], head.fields.header(b"if-none-match"))
            return found or problem(404, "There is nothing of this name here.", "not_found")
        return self._to_platform(head)

    def _to_platform(self, head: RequestHead) -> Verdict:
        """The API authorizes for itself. Who asks decides here only whose share of its connections is used."""
        credential = credential_of(head.fields, SESSION_COOKIE)
        if credential is None:
            return self._api
        visitor = self._visitors.known(credential, self.now)
        if visitor is None:
            return Pending(self._recognised(credential))
        return replace(self._api, person=visitor.user.id)

    async def _recognised(self, credential: Credential) -> Forward:
        """Who cannot be recognised now, because the database does not answer, is served like a stranger."""
        try:
            async with asyncio.timeout(RECOGNISED_SECONDS):
                visitor = await self._visitors.find(credential, self.now)
        except (CodeHubError, TimeoutError):
            visitor = None
        return self._api if visitor is None else replace(self._api, person=visitor.user.id)

    def _below(self, head: RequestHead, path: bytes) -> Verdict:
        name, slash, _ = path[len(_BY_PATH) :].partition(b"/")
        try:
            workspace_id = UUID(name.decode()) if len(name) == _UUID_LENGTH else None
        except ValueError:
            workspace_id = None
        if workspace_id is None:
            return problem(404, "There is no such workspace, or it is not yours.", "not_found")
        prefix = b"%b%b/" % (_BY_PATH, name)
        if not slash:
            return redirect(prefix.decode())
        return self._workspace(WorkspaceRequest(head, workspace_id, prefix=prefix))

    # ── who, and what for ────────────────────────────────────────────────────────────────────────────────────────────

    def _workspace(self, call: WorkspaceRequest) -> Verdict:
        name = call.reserved
        if name is not None:
            return self._reception.serve(call, name)
        if call.port is None and is_port_proxy(call.target[1:]):
            return self._port_proxy(call)
        credential = call.credential
        if credential is None:
            return preflight(call, self._addresses) or self._nobody(call)
        visitor, entry = self._visitors.known(credential, self.now), self._directory.known(call.name)
        if visitor is None or entry is None or call.port is not None or self._is_unnoted(visitor, entry):
            return Pending(self._look(call, credential), proven=visitor is not None)
        if access_to(entry.workspace).action is not AccessAction.FORWARD:
            return Pending(self._look(call, credential), proven=True)
        return self._known(call, credential, visitor, entry) or self._admit(call, credential, visitor, entry)

    def _known(
        self, call: WorkspaceRequest, credential: Credential, visitor: Visitor, entry: CachedWorkspace
    ) -> Forward | None:
        """Let in before, with other headers: only where these come from is new."""
        kept = entry.admitted.get(credential)
        if kept is None or call.by_path or call.head.fields.upgrade:
            return None
        label = kept.label
        if not isinstance(label, Label) or label.visitor is not visitor or call.from_elsewhere:
            return None
        if not call.with_token and is_foreign(call, self._addresses, entry.workspace.slug):
            return None
        return self._passed(call, kept, entry, self._good_until(credential, visitor))

    def _port_proxy(self, call: WorkspaceRequest) -> Respond:
        """A port has an origin of its own, so that what answers there cannot use the IDE."""
        port, path = app_path(call.target) or (0, "")
        if call.is_navigation and not call.by_path and 0 < port < 65536:
            return redirect(self._addresses.workspace_origin(WorkspaceHost(str(call.name), port)) + path)
        return problem(404, "A port of a workspace is at a host of its own, not below its IDE.", "not_found")

    async def _look(self, call: WorkspaceRequest, credential: Credential) -> Forward | Respond:
        """What is announced while we look may be about this very visitor: then we look again."""
        while True:
            heard = self._visitors.announcements
            verdict = await self._look_once(call, credential)
            if isinstance(verdict, Respond) or heard == self._visitors.announcements:
                return verdict

    async def _look_once(self, call: WorkspaceRequest, credential: Credential) -> Forward | Respond:
        try:
            visitor = await self._visitors.find(credential, self.now)
            if visitor is None:
                return self._nobody(call)
            entry = await self._directory.find(call.name)
            if entry is not None and self._is_unnoted(visitor, entry):
                await self._reception.entrance.note_look(visitor, entry.workspace.id)
                self._noted[visitor.user.id, entry.workspace.id] = self.now + NOTED_SECONDS
            refused = self._refusal(call, visitor, entry)
            if refused is not None or entry is None:
                return refused or self._missing(call)
            if access_to(entry.workspace).action is not AccessAction.FORWARD:
                return await self._explained(call, visitor, entry)
            if call.port is not None:
                return await self._admit_to_port(call, credential, visitor, entry, call.port)
            return self._admit(call, credential, visitor, entry)
        except CodeHubError:
            return self._shown(call, unavailable(call.language))

    def _is_unnoted(self, visitor: Visitor, entry: CachedWorkspace) -> bool:
        """An admin, in somebody else's workspace, without a ticket that would have left a trace."""
        workspace = entry.workspace
        if visitor.workspace_id is not None or workspace.owner_id == visitor.user.owner_id:
            return False
        return visitor.owns(workspace) and self._noted.get((visitor.user.id, workspace.id), 0.0) <= self.now

    def _nobody(self, call: WorkspaceRequest) -> Respond:
        """The same whether there is such a workspace or not."""
        page = sibling_origin(call, self._addresses)
        if page is not None and not call.is_navigation:
            return self._not_joined(call, page)
        view = self._reception.signed_out(call)
        if call.is_navigation and accepts_pages(call.head) and view.actions[0].link:
            return redirect(view.actions[0].link)
        return self._shown(call, view)

    def _not_joined(self, call: WorkspaceRequest, page: bytes) -> Respond:
        """A page of another port of the same workspace asks, and brings no cookie that counts here."""
        place = self._addresses.place(page.partition(b"://")[2])
        if isinstance(place, WorkspaceHost) and call.port is not None:
            self._wanted.want(place, call.port)
        way = f"{page.decode()}/{RESERVED.decode()}ports?use={call.port}"
        said = problem(
            401,
            f"Pages of this port do not use port {call.port} yet: reload the page, or open {way} once. Requests need "
            "`credentials: 'include'`.",
            "unauthenticated",
        )
        return replace(said, headers=(*said.headers, *sharing_headers(page)))

    def _admit(
        self, call: WorkspaceRequest, credential: Credential, visitor: Visitor, entry: CachedWorkspace
    ) -> Forward | Respond:
        refused = self._refusal(call, visitor, entry)
        if refused is not None:
            return refused
        if entry.endpoint is None:
            return self._shown(call, failure_view(UpstreamFailure.UNREACHABLE, call.language, entry.workspace.name))
        target = call.target
        forward = Forward(
            entry.endpoint,
            confirm=confirmation(entry.endpoint, lambda: self._runtime.endpoint(entry.workspace.id)),
            label=Label(visitor, credential, entry),
            target=target if call.by_path else None,
            shares_origin=call.by_path,
            tap=lambda: ide_tap(target, lambda: self._activities.seen(entry)),
            holder=visitor.user.id,
            route=self._ide,
            location=self._location(entry.workspace.slug, None),
        )
        if call.head.fields.upgrade:
            return forward  # what passes through it says whether somebody is there
        if not call.by_path:
            entry.admit(credential, forward)
        return self._passed(call, forward, entry, self._good_until(credential, visitor))

    def _passed(self, call: WorkspaceRequest, forward: Forward, entry: CachedWorkspace, until: float) -> Forward:
        if not call.from_elsewhere and until > self.now:
            given = CachedAuthorization(forward, entry, call.prefix, until)
            entry.give(given, self.now)
            call.head.fields.passport = given
        self._activities.requested(entry, call.head.method, call.target, call.head.fields.body_length)
        return forward

    async def _admit_to_port(
        self, call: WorkspaceRequest, credential: Credential, visitor: Visitor, entry: CachedWorkspace, port: int
    ) -> Forward | Respond:
        """Asked anew each time: another may listen there by now."""
        wanted = self._wanted.take(entry.workspace.slug, port) if call.is_document else ()
        if wanted:
            use = urlencode({"use": ",".join(map(str, wanted)), "to": way_in(call.target.decode("latin-1"))})
            return redirect(f"/{RESERVED.decode()}ports?{use}")
        endpoint = await self._runtime.port_endpoint(entry.workspace.id, port)
        sibling = sibling_origin(call, self._addresses)
        if sibling is not None and endpoint is not None and endpoint == entry.endpoint:
            # The IDE's own port, which no page of another port may use.
            return problem(403, "No page of a port may use the editor.", "cross_site")
        if endpoint is None:
            return self._shown(call, no_listener(port, entry.workspace.name, call.language))
        self._activities.requested(entry, call.head.method, call.target, call.head.fields.body_length, port)
        return Forward(
            endpoint,
            confirm=confirmation(endpoint, lambda: self._runtime.port_endpoint(entry.workspace.id, port)),
            label=Label(visitor, credential, entry),
            tap=lambda: AppPresence(lambda: self._activities.seen(entry)),
            holder=visitor.user.id,
            kept_for=entry.workspace.id,
            read_by=sibling,
            route=self._port,
            location=self._location(entry.workspace.slug, port),
        )

    def _location(self, slug: str, port: int | None) -> Callable[[bytes], bytes]:
        return lambda location: self._addresses.public_location(location, slug, port)

    def _may_enter(self, call: WorkspaceRequest, visitor: Visitor, entry: CachedWorkspace) -> bool:
        """By path, one's own alone: pages of another's within the platform's origin could act as an admin."""
        own = entry.workspace.owner_id == visitor.user.owner_id
        return visitor.may_enter(entry.workspace, call.port) and (own or not call.by_path)

    def _refusal(self, call: WorkspaceRequest, visitor: Visitor, entry: CachedWorkspace | None) -> Respond | None:
        """None: go on to the workspace, if it runs."""
        if entry is None or not self._may_enter(call, visitor, entry):
            return self._missing(call)
        sent = self._sent_here(call, entry)
        if sent is not None:
            return sent
        return self._missing(call) if access_to(entry.workspace).action is AccessAction.NOT_FOUND else None

    def _sent_here(self, call: WorkspaceRequest, entry: CachedWorkspace) -> Respond | None:
        """By another site. None: by nobody, or by a link to a host where it does no harm."""
        slug = entry.workspace.slug
        if not call.with_token and is_foreign(call, self._addresses, slug):
            return problem(403, "Another site asked for this, in your name.", "cross_site")
        if not call.by_path or call.is_from_same_origin or not self._addresses.has_hosts:
            return None
        if not (call.is_navigation or call.from_elsewhere):
            return None
        # Here its pages could act as whoever opened them, so no other site, its own host least of all, leads here. And
        # who typed an address may have been redirected here by any site: only a click on our own page leads on.
        own = self._addresses.workspace_origin(WorkspaceHost(slug)) + call.target.decode()
        if call.head.fields.header(b"sec-fetch-site") != b"none":
            return redirect(own)
        return self._shown(call, own_address(entry.workspace.name, own, call.head.target.decode(), call.language))

    async def _explained(self, call: WorkspaceRequest, visitor: Visitor, entry: CachedWorkspace) -> Respond:
        """It does not run: a page says so, and asks for the wake by itself if a person came to start it."""
        if call.head.fields.upgrade:
            # In plain words: a socket that is accepted and closed at once looks like a connection to the IDE, which
            # then says nothing for minutes.
            return problem(503, "The workspace does not run.", "not_running")
        arrived = cookie_value(call.head.fields, ARRIVED_COOKIE) is not None
        came_with_ticket = arrived and call.is_navigation
        wakes = access_to(entry.workspace).may_wake and (call.is_deliberate or came_with_ticket)
        view = await self._reception.no_room(call, entry.workspace, visitor) if wakes else None
        if view is None:
            view = self._reception.view_of(call, entry.workspace, wakes=wakes)
            view = replace(view, unless_reloaded=view.wakes and not (call.has_user_activation or came_with_ticket))
        said = self._shown(call, view)
        return replace(said, headers=(*said.headers, ARRIVED_ONCE)) if arrived else said

    def _missing(self, call: WorkspaceRequest) -> Respond:
        return self._shown(call, not_found(call.language, self._addresses.platform_origin()))

    def _shown(self, call: WorkspaceRequest, view: PageModel) -> Respond:
        return answer(view, call.head.fields.header(b"accept"), call.language, call.prefix)

    def _good_until(self, credential: Credential, visitor: Visitor) -> float:
        if self._directory.hears and self._visitors.hears:
            return self._visitors.good_until(credential, visitor)
        return self.now + DEAF_SECONDS

    # ── what went wrong ──────────────────────────────────────────────────────────────────────────────────────────────

    def failed(self, head: RequestHead, forward: Forward, failure: UpstreamFailure) -> Respond:
        if not isinstance(forward.label, Label):
            return plain_failure(failure)
        call = WorkspaceRequest(head, forward.label.entry.workspace.slug)
        return self._shown(call, failure_view(failure, call.language, forward.label.entry.workspace.name))

    def crowded(self, head: RequestHead, cap: Cap) -> Respond:
        view = crowded_view(cap, spoken(head))
        return answer(view, head.fields.header(b"accept"), spoken(head))


def _shown(host: bytes) -> str:
    return host[:100].decode("latin-1")
