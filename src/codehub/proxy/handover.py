"""From the platform's host to a workspace's: signing in, and the ticket for whoever comes without a visit.

`/open/{slug}?to=/path&port=3000` is where a workspace's host sends them. A link from anywhere may lead there, so the
ticket it gives wakes nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from codehub.domain.addresses import BY_PATH, ENTRANCE, RESERVED, local_path
from codehub.domain.credentials import SESSION_COOKIE
from codehub.domain.errors import CodeHubError, NotFound
from codehub.domain.naming import is_slug
from codehub.proxy.addresses import Addresses, WorkspaceHost
from codehub.proxy.call import Call, is_prefetch, spoken
from codehub.proxy.directory import Directory
from codehub.proxy.gate import Respond, Verdict, Wait
from codehub.proxy.pages import answer, sign_in_page
from codehub.proxy.request import RequestHead
from codehub.proxy.responses import problem, redirect
from codehub.proxy.view import not_found, unavailable
from codehub.proxy.visitors import Visitors, credential_of
from codehub.usecases.workspace_access import Entrance, Visitor

RESERVED_PATH: Final = f"/{RESERVED}"
OPEN_PATH: Final = "/open/"


@dataclass(frozen=True, slots=True)
class Handover:
    entrance: Entrance
    directory: Directory
    visitors: Visitors
    addresses: Addresses
    now: Callable[[], float]
    provider: str | None = None
    """The name of the OpenID provider that people may sign in with."""

    def sign_in(self, head: RequestHead) -> Respond:
        return sign_in_page(spoken(head), self.provider, has_hosts=self.addresses.has_hosts)

    def serve(self, head: RequestHead) -> Verdict:
        slug = head.target.partition(b"?")[0][len(OPEN_PATH) :].decode("latin-1").rstrip("/")
        call = Call(head, slug)
        if head.method != b"GET" or is_prefetch(head):
            return problem(405, "This address is followed, when somebody follows it.", "method_not_allowed")
        return Wait(self._kindly(call))

    async def _kindly(self, call: Call) -> Respond:
        site = self.addresses.platform_origin()
        try:
            return await self._hand_over(call)
        except NotFound:
            view = not_found(call.language, site)
        except CodeHubError:
            view = unavailable(call.language)
        return answer(view, call.head.fields.header(b"accept"), call.language)

    async def _hand_over(self, call: Call) -> Respond:
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
