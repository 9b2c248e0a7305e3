"""Where a browser reaches a workspace: at a host of its own, or at a path of ours. Pure.

A host of its own is another site to the browser, which sends it no cookie of ours: whoever goes there brings a ticket.
At a path of ours the session's cookie comes along; but there every port would be the same site, so there are none.
"""

from urllib.parse import urlencode
from uuid import UUID

from codehub.domain.errors import Conflict

RESERVED = "_codehub/"
"""Below a workspace's own host: ours, and never the workspace's to see."""
ENTRANCE = f"{RESERVED}enter"
"""There too: takes `ticket`, and `to`, the path to go on to."""

_NAMES = ("{slug}", "{id}")


def has_own_host(pattern: str) -> bool:
    """`pattern`: an address with `{slug}` or `{id}` in it."""
    host, _path = _parted(pattern)
    return any(name in host for name in _NAMES)


def workspace_url(pattern: str, slug: str, workspace_id: UUID, port: int | None = None) -> str:
    """With `port`, that of a port inside: Conflict `ports_need_subdomains` where workspaces have no hosts."""
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
    """Where to go, in one step. `path`: a local one, to arrive at. At a path of ours the ticket is not needed."""
    base = workspace_url(pattern, slug, workspace_id, port)
    base = base if base.endswith("/") else f"{base}/"
    if not has_own_host(pattern):
        return base + path.removeprefix("/")
    words = {"ticket": ticket} if path == "/" else {"ticket": ticket, "to": path}
    return f"{base}{ENTRANCE}?{urlencode(words)}"


def _parted(pattern: str) -> tuple[str, str]:
    """Scheme and host, and the rest."""
    scheme, _, rest = pattern.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host}", slash + path


def _filled(pattern: str, slug: str, workspace_id: UUID) -> str:
    return pattern.replace("{slug}", slug).replace("{id}", str(workspace_id))
