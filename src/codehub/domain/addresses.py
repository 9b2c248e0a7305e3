"""Where a browser reaches a workspace, and which paths it may be sent to after signing in. Pure.

A workspace's own host is another site to the browser, which sends it no cookie of the platform: whoever goes there
brings a ticket. At a path of the platform's host the session's cookie comes along; but there every port would be the
same site, so ports have no address. After signing in people go to a path of this very site, whatever the link says:
what a browser might read as another site (`//host`, a backslash, either of them encoded) fits no rule here, nor does a
dot segment.
"""

import re
from urllib.parse import urlencode
from uuid import UUID

from codehub.domain.errors import Conflict

RESERVED = "_codehub/"
"""The path below a workspace's own host that is answered by CodeHub and never reaches the workspace."""
ENTRANCE = f"{RESERVED}enter"
"""The path that takes a `ticket`, and in `to` the path to go on to."""

BY_PATH = "/w/"
"""The path below which workspaces are served within the platform's own origin."""

_NAMES = ("{slug}", "{id}")
_LONGEST = 2000
_SEGMENT = r"[A-Za-z0-9\-._~!$&'()*+,;=:@%]+"
_LOCAL = re.compile(rf"(?P<path>/(?:{_SEGMENT}(?:/{_SEGMENT})*/?)?)(?P<query>\?[A-Za-z0-9\-._~!$&'()*+,;=:@%/?]*)?")
_DISGUISED = re.compile(r"%(?:2f|5c|[01][0-9a-f]|7f)|%(?![0-9a-f]{2})|/(?:\.|%2e){1,2}(?:/|$)", re.IGNORECASE)


def has_own_host(pattern: str) -> bool:
    """Whether each workspace has a host name of its own. `pattern`: an address with `{slug}` or `{id}` in it."""
    host, _path = _parted(pattern)
    return any(name in host for name in _NAMES)


def workspace_url(pattern: str, slug: str, workspace_id: UUID, port: int | None = None) -> str:
    """The address of a workspace or, with `port`, of a port inside it: Conflict `ports_need_subdomains` where
    workspaces have no hosts of their own."""
    if port is None:
        return _filled(pattern, slug, workspace_id)
    if not has_own_host(pattern):
        raise Conflict(
            "Here workspaces are paths of one host, so their ports cannot be told apart. An admin can give each a host "
            "of its own: CODEHUB_WORKSPACE_URL with {slug} in the host's name.",
            "ports_need_subdomains",
        )
    host, path = _parted(pattern)
    for name in _NAMES:
        host = host.replace(name, f"{port}--{name}")
    return _filled(host + path, slug, workspace_id)


def entry_url(
    pattern: str, slug: str, workspace_id: UUID, ticket: str, port: int | None = None, path: str = "/"
) -> str:
    """The address that lets somebody in with a ticket and leads to `path`. At a path of the platform's host no ticket
    is needed."""
    base = workspace_url(pattern, slug, workspace_id, port)
    base = base if base.endswith("/") else f"{base}/"
    if not has_own_host(pattern):
        return base + path.removeprefix("/")
    words = {"ticket": ticket} if path == "/" else {"ticket": ticket, "to": path}
    return f"{base}{ENTRANCE}?{urlencode(words)}"


def _parted(pattern: str) -> tuple[str, str]:
    """A pattern as two parts: scheme and host, and the path."""
    scheme, _, rest = pattern.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host}", slash + path


def _filled(pattern: str, slug: str, workspace_id: UUID) -> str:
    return pattern.replace("{slug}", slug).replace("{id}", str(workspace_id))


def local_path(text: str | None) -> str:
    """The path and query of an address of this site, without its fragment; `/` if the text is anything else."""
    address = (text or "")[: _LONGEST + 1].split("#")[0]
    found = _LOCAL.fullmatch(address)
    if not found or len(address) > _LONGEST or _DISGUISED.search(found["path"]):
        return "/"
    return address


def platform_path(text: str | None) -> str:
    """Like `local_path`, but never into a workspace: where workspaces have hosts of their own, whoever follows a link
    to the sign-in page must not end on a page that a workspace wrote, in the platform's own origin."""
    path = local_path(text)
    return "/" if f"{path.partition('?')[0]}/".startswith(BY_PATH) else path
