"""Where to go after signing in: a path of this very site, whatever somebody wrote into the link. Pure.

What a browser might read as another site (`//host`, a backslash, either of them encoded) fits no rule here, and
neither does a dot segment: the browser would go to another path than the one that was looked at.
"""

import re

MOST = 2000

_SEGMENT = r"[A-Za-z0-9\-._~!$&'()*+,;=:@%]+"
_LOCAL = re.compile(rf"(?P<path>/(?:{_SEGMENT}(?:/{_SEGMENT})*/?)?)(?P<query>\?[A-Za-z0-9\-._~!$&'()*+,;=:@%/?]*)?")
_DISGUISED = re.compile(r"%(?:2f|5c|[01][0-9a-f]|7f)|%(?![0-9a-f]{2})|/(?:\.|%2e){1,2}(?:/|$)", re.IGNORECASE)

BY_PATH = "/w/"
"""Below it workspaces are served within the platform's own origin."""


def local_path(text: str | None) -> str:
    """The path with its query, without fragment; the front page if it is anything else."""
    address = (text or "")[: MOST + 1].split("#")[0]
    found = _LOCAL.fullmatch(address)
    if not found or len(address) > MOST or _DISGUISED.search(found["path"]):
        return "/"
    return address


def platform_path(text: str | None) -> str:
    """Like `local_path`, but never into a workspace: where workspaces have hosts of their own, whoever follows a link
    to the sign-in page must not end on a page that a workspace wrote, in the platform's own origin."""
    path = local_path(text)
    return "/" if f"{path.partition('?')[0]}/".startswith(BY_PATH) else path
