"""The authorizer: who asks, whose workspace it is and what phase it is in decide whether a request is forwarded.

One rule lets requests and sockets in (`WorkspaceCaller.may_enter`). What it found is remembered on the parsed headers,
so that a hot request touches neither PostgreSQL nor Redis; events withdraw it. GET never wakes: the page that answers
it asks for that itself, by a POST from its own origin. A browser sends its cookies along with requests that another
site made it send, so they alone prove nothing: a socket needs the exact Origin; a request with an Origin must have
ours, and without one the Sec-Fetch headers decide. Links may lead here from anywhere, frames may not.
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
    ENTERED_COOKIE,
    FORGET_ENTERED,
    OPEN_PATH,
    AccessServices,
    PlatformEndpoints,
    ReservedEndpoints,
    no_room_page,
    page_of,
    respond_with,
    sign_in_link,
    workspace_path,
)
from codehub.proxy.access.session_cache import Credential, cookie_value, credential_of
from codehub.proxy.access.sibling_ports import WantedPorts, preflight, sharing_headers, sibling_origin
from codehub.proxy.access.verdicts import (
    CachedAuthorization,
    Cap,
    Forward,
    Pending,
    Respond,
    Route,
    UpstreamFailure,
    Verdict,
)
from codehub.proxy.access.workspace_cache import CachedWorkspace
from codehub.proxy.access.workspace_request import WorkspaceRequest, accepts_pages, language_of
from codehub.proxy.http.parser import RequestHead
from codehub.proxy.http.responses import failure_problem, problem, redirect
from codehub.proxy.pages.content import (
    failure_page,
    no_listener_page,
    not_found_page,
    overload_page,
    own_address_page,
    signed_out_page,
    unavailable_page,
)
from codehub.proxy.pages.render import RESERVED, answer, asset
from codehub.proxy.presence.activity import Activities
from codehub.proxy.presence.tap import AppPresence, ide_tap
from codehub.usecases.workspace_access import WorkspaceCaller
from codehub.usecases.workspace_connection import confirmation

UNSUBSCRIBED_SECONDS: Final = 2.0
"""How long an authorization is remembered while the bus is not heard."""
AUDITED_SECONDS: Final = 3600.0
IDENTIFY_SECONDS: Final = 2.0
_OUR_PATH: Final = b"/" + RESERVED
_BY_PATH: Final = BY_PATH.encode()
_OPEN: Final = OPEN_PATH.encode()
_UUID_LENGTH: Final = 36


@dataclass(frozen=True, slots=True)
class AccessGrant:
    """On whose behalf a request or socket is open to a workspace, and what proved it."""

    caller: WorkspaceCaller
    credential: Credential
    entry: CachedWorkspace

    def log_fields(self) -> dict[str, str]:
        return {"workspace": str(self.entry.workspace.id), "user": str(self.caller.user.id)}


class Authorizer:
    def __init__(
        self,
        services: AccessServices,
        runtime: Runtime,
        activities: Activities,
        api: Endpoint,
        *,
        by_path: bool,
        provider: str | None = None,
    ) -> None:
        """`by_path`: workspaces are served below `/w/` of the platform's host too. `provider`: the name of the OpenID
        provider that people may sign in with."""
        self.now = 0.0
        """The time, which the app moves on regularly."""
        self._ide, self._port, self._platform_route = self.routes = Route("ide"), Route("port"), Route("api")
        self._addresses = services.addresses
        self._workspaces = services.workspaces
        self._sessions = services.sessions
        self._workspace_access = services.workspace_access
        self._endpoints = ReservedEndpoints(services)
        self._platform_endpoints = PlatformEndpoints(services, provider)
        self._runtime = runtime
        self._activities = activities
        self._api = Forward(api, route=self._platform_route, to_platform=True)
        self._by_path = by_path
        self._wanted = WantedPorts()
        self._audited_until: dict[tuple[UUID, UUID], float] = {}
        """Until when an admin's look into a workspace need not be written to the audit again."""

    # ── where to ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def decide(self, head: RequestHead) -> Verdict:
        cached = head.fields.cached_authorization
        if cached is not None and cached.until > self.now and head.target.startswith(cached.prefix):
            rest = head.target[len(cached.prefix) :]
            if not rest.startswith(RESERVED) and not is_port_proxy(rest):
                if cached.prefix != b"/":
                    return self._forward_by_path(head, cached)
                self._activities.requested(cached.activity, head.method, head.target, head.fields.body_length)
                return cached.forward
        place = self._addresses.place(head.fields.host)
        if isinstance(place, WorkspaceHost):
            return self._workspace(WorkspaceRequest(head, place.slug, place.port))
        if isinstance(place, Platform):
            return self._platform(head)
        shown = head.fields.host[:100].decode("latin-1")
        return problem(421, f"No site of this name is served here: {shown}.", "unknown_host")

    def _forward_by_path(self, head: RequestHead, cached: CachedAuthorization) -> Forward:
        target = cached.inner(head.target)
        self._activities.requested(cached.activity, head.method, target, head.fields.body_length)
        return replace(cached.forward, target=target)

    def _platform(self, head: RequestHead) -> Verdict:
        path = head.target.partition(b"?")[0]
        if path.startswith(_BY_PATH) and self._by_path:
            return self._by_path_request(head, path)
        if path.startswith(_OPEN):
            return self._platform_endpoints.serve(head)
        if path == b"/signin" and head.method in (b"GET", b"HEAD"):
            return self._platform_endpoints.sign_in(head)
        if path.startswith(_OUR_PATH):
            found = asset(path[len(_OUR_PATH) :], head.fields.header(b"if-none-match"))
            return found or problem(404, "There is nothing of this name here.", "not_found")
        return self._to_platform(head)

    def _to_platform(self, head: RequestHead) -> Verdict:
        """Forward to the API, which authorizes for itself: who asks decides only whose share of its connections is
        used."""
        credential = credential_of(head.fields, SESSION_COOKIE)
        if credential is None:
            return self._api
        caller = self._sessions.known(credential, self.now)
        if caller is None:
            return Pending(self._identified(credential))
        return replace(self._api, platform_user=caller.user.id)

    async def _identified(self, credential: Credential) -> Forward:
        """The verdict once the database has said who asks. If it does not answer, the asker counts as not signed in."""
        try:
            async with asyncio.timeout(IDENTIFY_SECONDS):
                caller = await self._sessions.find(credential, self.now)
        except (CodeHubError, TimeoutError):
            caller = None
        return self._api if caller is None else replace(self._api, platform_user=caller.user.id)

    def _by_path_request(self, head: RequestHead, path: bytes) -> Verdict:
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

    def _workspace(self, request: WorkspaceRequest) -> Verdict:
        name = request.reserved
        if name is not None:
            return self._endpoints.serve(request, name)
        if request.port is None and is_port_proxy(request.target[1:]):
            return self._port_proxy(request)
        credential = request.credential
        if credential is None:
            return preflight(request, self._addresses) or self._unauthenticated(request)
        caller, entry = self._sessions.known(credential, self.now), self._workspaces.known(request.name)
        if caller is None or entry is None or request.port is not None or self._needs_audit(caller, entry):
            return Pending(self._decide_later(request, credential), proven=caller is not None)
        if access_to(entry.workspace).action is not AccessAction.FORWARD:
            return Pending(self._decide_later(request, credential), proven=True)
        return self._remembered(request, credential, caller, entry) or self._admit(request, credential, caller, entry)

    def _remembered(
        self, request: WorkspaceRequest, credential: Credential, caller: WorkspaceCaller, entry: CachedWorkspace
    ) -> Forward | None:
        """The earlier verdict for the same credential with other headers, of which only the origin of the request is
        new."""
        kept = entry.admitted.get(credential)
        if kept is None or request.by_path or request.head.fields.upgrade:
            return None
        grant = kept.grant
        if not isinstance(grant, AccessGrant) or grant.caller is not caller or request.is_from_other_origin:
            return None
        if not request.with_token and is_cross_site(request, self._addresses, entry.workspace.slug):
            return None
        return self._remember(request, kept, entry, self._good_until(credential, caller))

    def _port_proxy(self, request: WorkspaceRequest) -> Respond:
        """Refuse the IDE's own port proxy: a port has an origin of its own, so that what answers there cannot use the
        IDE."""
        port, path = app_path(request.target) or (0, "")
        if request.is_navigation and not request.by_path and 0 < port < 65536:
            return redirect(self._addresses.workspace_origin(WorkspaceHost(str(request.name), port)) + path)
        return problem(404, "A port of a workspace is at a host of its own, not below its IDE.", "not_found")

    async def _decide_later(self, request: WorkspaceRequest, credential: Credential) -> Forward | Respond:
        """Decide by asking the caches and the database. A revocation meanwhile may be about this very caller: then
        both are asked again."""
        while True:
            heard = self._sessions.announcements
            verdict = await self._decide_once(request, credential)
            if isinstance(verdict, Respond) or heard == self._sessions.announcements:
                return verdict

    async def _decide_once(self, request: WorkspaceRequest, credential: Credential) -> Forward | Respond:
        try:
            caller = await self._sessions.find(credential, self.now)
            if caller is None:
                return self._unauthenticated(request)
            entry = await self._workspaces.find(request.name)
            if entry is not None and self._needs_audit(caller, entry):
                await self._workspace_access.audit_entry(caller, entry.workspace.id)
                self._audited_until[caller.user.id, entry.workspace.id] = self.now + AUDITED_SECONDS
            refused = self._refusal(request, caller, entry)
            if refused is not None or entry is None:
                return refused or self._not_found(request)
            if access_to(entry.workspace).action is not AccessAction.FORWARD:
                return await self._not_running(request, caller, entry)
            if request.port is not None:
                return await self._admit_to_port(request, credential, caller, entry, request.port)
            return self._admit(request, credential, caller, entry)
        except CodeHubError:
            return respond_with(unavailable_page(request.language), request)

    def _needs_audit(self, caller: WorkspaceCaller, entry: CachedWorkspace) -> bool:
        """Whether this is an admin in somebody else's workspace, without a ticket that would have left a trace."""
        workspace = entry.workspace
        if caller.workspace_id is not None or workspace.owner_id == caller.user.owner_id:
            return False
        return caller.owns(workspace) and self._audited_until.get((caller.user.id, workspace.id), 0.0) <= self.now

    def _unauthenticated(self, request: WorkspaceRequest) -> Respond:
        """The answer to somebody who is not signed in: the same whether there is such a workspace or not."""
        page = sibling_origin(request, self._addresses)
        if page is not None and not request.is_navigation:
            return self._not_joined(request, page)
        link = sign_in_link(request, self._addresses)
        if request.is_navigation and accepts_pages(request.head):
            return redirect(link)
        return respond_with(signed_out_page(request.language, link), request)

    def _not_joined(self, request: WorkspaceRequest, page: bytes) -> Respond:
        """The answer to a page of another port of the same workspace that brings no cookie which counts here."""
        place = self._addresses.place(page.partition(b"://")[2])
        if isinstance(place, WorkspaceHost) and request.port is not None:
            self._wanted.want(place, request.port)
        way = f"{page.decode()}/{RESERVED.decode()}ports?use={request.port}"
        said = problem(
            401,
            f"Pages of this port do not use port {request.port} yet: reload the page, or open {way} once. Requests "
            "need `credentials: 'include'`.",
            "unauthenticated",
        )
        return replace(said, headers=(*said.headers, *sharing_headers(page)))

    def _admit(
        self, request: WorkspaceRequest, credential: Credential, caller: WorkspaceCaller, entry: CachedWorkspace
    ) -> Forward | Respond:
        refused = self._refusal(request, caller, entry)
        if refused is not None:
            return refused
        if entry.endpoint is None:
            return respond_with(
                failure_page(UpstreamFailure.UNREACHABLE, request.language, entry.workspace.name), request
            )
        target = request.target
        forward = Forward(
            entry.endpoint,
            confirm=confirmation(entry.endpoint, lambda: self._runtime.endpoint(entry.workspace.id)),
            grant=AccessGrant(caller, credential, entry),
            target=target if request.by_path else None,
            shares_origin=request.by_path,
            tap=lambda: ide_tap(target, lambda: self._activities.seen(entry.activity)),
            counted_user=caller.user.id,
            route=self._ide,
            location=self._location(entry.workspace.slug, None),
        )
        if request.head.fields.upgrade:
            return forward  # what passes through it says whether somebody is there
        if not request.by_path:
            entry.admit(credential, forward)
        return self._remember(request, forward, entry, self._good_until(credential, caller))

    def _remember(self, request: WorkspaceRequest, forward: Forward, entry: CachedWorkspace, until: float) -> Forward:
        if not request.is_from_other_origin and until > self.now:
            cached = CachedAuthorization(forward, entry.activity, request.prefix, until)
            entry.remember(cached, self.now)
            request.head.fields.cached_authorization = cached
        self._activities.requested(entry.activity, request.head.method, request.target, request.head.fields.body_length)
        return forward

    async def _admit_to_port(
        self,
        request: WorkspaceRequest,
        credential: Credential,
        caller: WorkspaceCaller,
        entry: CachedWorkspace,
        port: int,
    ) -> Forward | Respond:
        """The verdict for a port. The runtime is asked each time: another program may listen there by now."""
        wanted = self._wanted.take(entry.workspace.slug, port) if request.is_document else ()
        if wanted:
            use = urlencode({"use": ",".join(map(str, wanted)), "to": workspace_path(request.target.decode("latin-1"))})
            return redirect(f"/{RESERVED.decode()}ports?{use}")
        endpoint = await self._runtime.port_endpoint(entry.workspace.id, port)
        sibling = sibling_origin(request, self._addresses)
        if sibling is not None and endpoint is not None and endpoint == entry.endpoint:
            # The IDE's own port, which no page of another port may use.
            return problem(403, "No page of a port may use the editor.", "cross_site")
        if endpoint is None:
            return respond_with(no_listener_page(port, entry.workspace.name, request.language), request)
        self._activities.requested(
            entry.activity, request.head.method, request.target, request.head.fields.body_length, port
        )
        return Forward(
            endpoint,
            confirm=confirmation(endpoint, lambda: self._runtime.port_endpoint(entry.workspace.id, port)),
            grant=AccessGrant(caller, credential, entry),
            tap=lambda: AppPresence(lambda: self._activities.seen(entry.activity)),
            counted_user=caller.user.id,
            pool_key=entry.workspace.id,
            read_by=sibling,
            route=self._port,
            location=self._location(entry.workspace.slug, port),
        )

    def _location(self, slug: str, port: int | None) -> Callable[[bytes], bytes]:
        return lambda location: self._addresses.public_location(location, slug, port)

    def _may_enter(self, request: WorkspaceRequest, caller: WorkspaceCaller, entry: CachedWorkspace) -> bool:
        """Whether the caller may enter; by path, their own workspace alone: pages of another's within the platform's
        origin could act as an admin."""
        own = entry.workspace.owner_id == caller.user.owner_id
        return caller.may_enter(entry.workspace, request.port) and (own or not request.by_path)

    def _refusal(
        self, request: WorkspaceRequest, caller: WorkspaceCaller, entry: CachedWorkspace | None
    ) -> Respond | None:
        """Why the request does not go on to the workspace; None: it may, if that runs."""
        if entry is None or not self._may_enter(request, caller, entry):
            return self._not_found(request)
        sent = self._cross_site_refusal(request, entry)
        if sent is not None:
            return sent
        return self._not_found(request) if access_to(entry.workspace).action is AccessAction.NOT_FOUND else None

    def _cross_site_refusal(self, request: WorkspaceRequest, entry: CachedWorkspace) -> Respond | None:
        """The refusal of what another site sent here. None: no other site did, or a link led to a host where it does no
        harm."""
        slug = entry.workspace.slug
        if not request.with_token and is_cross_site(request, self._addresses, slug):
            return problem(403, "Another site asked for this, in your name.", "cross_site")
        if not request.by_path or request.is_from_same_origin or not self._addresses.has_hosts:
            return None
        if not (request.is_navigation or request.is_from_other_origin):
            return None
        # Here its pages could act as whoever opened them, so no other site, its own host least of all, leads here. And
        # who typed an address may have been redirected here by any site: only a click on our own page leads on.
        own = self._addresses.workspace_origin(WorkspaceHost(slug)) + request.target.decode()
        if request.head.fields.header(b"sec-fetch-site") != b"none":
            return redirect(own)
        return respond_with(
            own_address_page(entry.workspace.name, own, request.head.target.decode(), request.language), request
        )

    async def _not_running(self, request: WorkspaceRequest, caller: WorkspaceCaller, entry: CachedWorkspace) -> Respond:
        """The page of a workspace that does not run. It asks for the wake by itself if a person came to start it."""
        if request.head.fields.upgrade:
            # In plain words: a socket that is accepted and closed at once looks like a connection to the IDE, which
            # then says nothing for minutes.
            return problem(503, "The workspace does not run.", "not_running")
        entered = cookie_value(request.head.fields, ENTERED_COOKIE) is not None
        came_with_ticket = entered and request.is_navigation
        wakes = access_to(entry.workspace).may_wake and (request.is_deliberate or came_with_ticket)
        workspace = entry.workspace
        page = await no_room_page(request, workspace, caller, self._workspace_access) if wakes else None
        if page is None:
            page = page_of(request, workspace, self._addresses, wakes=wakes)
            page = replace(page, unless_reloaded=page.wakes and not (request.has_user_activation or came_with_ticket))
        said = respond_with(page, request)
        return replace(said, headers=(*said.headers, FORGET_ENTERED)) if entered else said

    def _not_found(self, request: WorkspaceRequest) -> Respond:
        return respond_with(not_found_page(request.language, self._addresses.platform_origin()), request)

    def _good_until(self, credential: Credential, caller: WorkspaceCaller) -> float:
        if self._workspaces.is_current and self._sessions.is_current:
            return self._sessions.good_until(credential, caller)
        return self.now + UNSUBSCRIBED_SECONDS

    # ── what went wrong ──────────────────────────────────────────────────────────────────────────────────────────────

    def failed(self, head: RequestHead, forward: Forward, failure: UpstreamFailure) -> Respond:
        if not isinstance(forward.grant, AccessGrant):
            return failure_problem(failure)
        request = WorkspaceRequest(head, forward.grant.entry.workspace.slug)
        return respond_with(failure_page(failure, request.language, forward.grant.entry.workspace.name), request)

    def overloaded(self, head: RequestHead, cap: Cap) -> Respond:
        view = overload_page(cap, language_of(head))
        return answer(view, head.fields.header(b"accept"), language_of(head))


def is_cross_site(request: WorkspaceRequest, addresses: Addresses, slug: str) -> bool:
    """Whether another site made the browser send this request. Requests with a token are sent on purpose and need no
    such check."""
    fields = request.head.fields
    if fields.origin is not None:
        return not _is_allowed_origin(fields.origin, request, addresses, slug)
    if fields.upgrade:
        return True
    site = fields.header(b"sec-fetch-site")
    if site is None or site in (b"same-origin", b"none"):
        return False
    if not request.is_navigation:  # an image, a script: only the Referer says whose page asks
        return sibling_origin(request, addresses) is None
    return fields.header(b"sec-fetch-dest") != b"document" and request.port is None


def _is_allowed_origin(origin: bytes, request: WorkspaceRequest, addresses: Addresses, slug: str) -> bool:
    """Whether pages of this origin may send the request: the IDE's own origin alone may use the IDE; the ports of one
    workspace may use each other."""
    if request.port is not None and addresses.is_workspace_origin(origin, slug, request.head.fields.host):
        return True
    return addresses.is_same_origin(origin, request.head.fields.host)
