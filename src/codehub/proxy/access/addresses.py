"""Which place a Host names: the platform, a workspace's own host, or a port inside one.

This is the only reader of the address pattern, so that what is handed out and what is let in cannot differ. Pure.
"""

import re
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes, urlsplit

from codehub.domain.naming import is_slug

_LOOPBACK = frozenset((b"localhost", b"127.0.0.1", b"[::1]"))
_PORT_LABEL = re.compile(r"([1-9][0-9]{0,4})--(.+)")
_APP_PATH = re.compile(rb"/(?:abs)?proxy/([0-9]{1,5})(?![^/?])/?(.*)", re.IGNORECASE)
_MOST_REMEMBERED = 4096
_OWN_MACHINE = re.compile(
    rb"http://(?:localhost|127(?:\.[0-9]{1,3}){3}|0\.0\.0\.0|\[::1\]):([0-9]{1,5})(?=[/?#]|$)", re.IGNORECASE
)
_MOST_DECODINGS = 3

_PORT_PROXIES = (b"proxy", b"absproxy")
"""The paths below which code-server would show a port of its machine as a page of its own origin, able to use the IDE
as whoever looks at it. It is told not to; other IDEs, and those that run from before, never see such a request either.
"""
_MAY_HIDE_A_PROXY = re.compile(rb"[pPaA]|[^?]*[%\\]|[^?]*/\.|[/.]")


@dataclass(frozen=True, slots=True)
class Platform:
    """The platform's own host: the API, the dashboard, and workspaces by path."""


@dataclass(frozen=True, slots=True)
class WorkspaceHost:
    slug: str
    port: int | None = None


PLATFORM = Platform()
Place = Platform | WorkspaceHost | None


class Addresses:
    def __init__(self, workspace_url: str, public_url: str | None = None) -> None:
        """`workspace_url` has `{slug}` in its host, or `{id}` in its path. `public_url` None: any other host is the
        platform's."""
        pattern = urlsplit(workspace_url)
        self.scheme = pattern.scheme.encode()
        self.has_hosts = "{slug}" in pattern.netloc
        """Whether workspaces have hosts of their own."""
        self._netloc = pattern.netloc
        host, _, port = pattern.netloc.partition(":")
        self._before, _, self._after = host.lower().partition("{slug}")
        self._port = f":{port}" if port else ""
        self._public = urlsplit(public_url) if public_url else None
        self._remembered: dict[bytes, Place] = {}

    def place(self, host: bytes) -> Place:
        """The place that a Host names; None: no site of this name is served here."""
        try:
            return self._remembered[host]
        except KeyError:
            if len(self._remembered) >= _MOST_REMEMBERED:
                self._remembered.clear()
            found = self._remembered[host] = self._place(host_name(host))
            return found

    def _place(self, name: bytes) -> Place:
        label = self._label(name.decode("latin-1"))
        if label is not None:
            port = _PORT_LABEL.fullmatch(label)
            slug = port[2] if port else label
            if not is_slug(slug) or (port and int(port[1]) > 65535):
                return None
            return WorkspaceHost(slug, int(port[1]) if port else None)
        if self._public is None or name in _LOOPBACK or name == (self._public.hostname or "").encode():
            return PLATFORM
        return None

    def _label(self, name: str) -> str | None:
        """The part of a host name that stands for `{slug}`; None: it is not of the pattern, or has another dot."""
        if not self.has_hosts or not (name.startswith(self._before) and name.endswith(self._after)):
            return None
        label = name[len(self._before) : len(name) - len(self._after)]
        return label if label and "." not in label else None

    def workspace_origin(self, host: WorkspaceHost) -> str:
        """The origin of a workspace's host, for example `http://demo-1.localhost:8000`."""
        label = host.slug if host.port is None else f"{host.port}--{host.slug}"
        return f"{self.scheme.decode()}://{self._netloc.replace('{slug}', label)}"

    def public_location(self, location: bytes, slug: str, port: int | None) -> bytes:
        """Translates a Location that names a port of the workspace's own machine (`http://localhost:3000/`) to that
        port's host, where a browser finds it. `port`: the port whose program says so; None: the IDE. Where people reach
        the platform under such a name, that is meant, unless the port that speaks means itself. Anything else stays as
        it is."""
        named = _OWN_MACHINE.match(location) if self.has_hosts else None
        if named is None or not 0 < int(named[1]) < 65536:
            return location
        inside = int(named[1])
        origin = urlsplit(self.platform_origin())
        if inside != port and inside == (origin.port or 80) and (origin.hostname or "").encode() in _LOOPBACK:
            return location
        return self.workspace_origin(WorkspaceHost(slug, inside)).encode() + location[named.end() :]

    def platform_origin(self) -> str:
        """The origin of the platform, where people sign in."""
        if self._public is not None:
            return f"{self._public.scheme}://{self._public.netloc}"
        base = self._after.lstrip(".-") if self.has_hosts else self._netloc.partition(":")[0]
        return f"{self.scheme.decode()}://{base}{self._port}"

    def is_same_origin(self, origin: bytes | None, host: bytes) -> bool:
        """Whether this is exactly the origin of what was asked for as `host`, as browsers write it. No Origin, `null`
        or a list is not."""
        return origin == self.scheme + b"://" + host.lower()

    def is_workspace_origin(self, origin: bytes, slug: str, host: bytes) -> bool:
        """Whether this Origin is of the workspace: its IDE, or one of its ports. What another program serves at another
        port of the same name is not."""
        scheme, _, named = origin.partition(b"://")
        place, here = self.place(named), host[len(host_name(host)) :]
        is_ours = scheme == self.scheme and named[len(host_name(named)) :] == here
        return is_ours and isinstance(place, WorkspaceHost) and place.slug == slug


def is_port_proxy(path: bytes) -> bool:
    """Whether the IDE's port proxy answers this path, which comes without its first slash. Also if it is written in
    another case, percent-encoded (once or again), with backslashes, repeated slashes or dot segments: a path that some
    program would decode to one of these is not passed on."""
    if _MAY_HIDE_A_PROXY.match(path) is None:
        return False
    path = path.partition(b"?")[0]
    for _ in range(_MOST_DECODINGS):
        if _is_below_a_proxy(path):
            return True
        path = unquote_to_bytes(path)
    return _is_below_a_proxy(path)


def _is_below_a_proxy(path: bytes) -> bool:
    segments: list[bytes] = []
    for segment in path.replace(b"\\", b"/").split(b"/"):
        if segments and segments[0].partition(b";")[0].lower() in _PORT_PROXIES:
            return True
        if segment == b"..":
            del segments[-1:]
        elif segment not in (b"", b"."):
            segments.append(segment)
    return False


def app_path(target: bytes) -> tuple[int, str] | None:
    """The port and the path that a plainly written address of the port proxy names; None for another target."""
    found = _APP_PATH.fullmatch(target)
    return (int(found[1]), f"/{found[2].decode()}") if found else None


def host_name(host: bytes) -> bytes:
    """The name in a Host header, without the port and in lower case."""
    if host.startswith(b"["):
        return host.partition(b"]")[0].lower() + b"]"
    return host.partition(b":")[0].lower()
