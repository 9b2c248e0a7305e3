"""Requests that another site made the browser send. Its cookies come along with them, so they prove nothing.

A socket needs the exact Origin. A request with an Origin must have ours; without one, the browser's own word on where
it comes from decides. Links may lead here from anywhere, frames may not. The ports of one workspace may use each other.
"""

from codehub.proxy.addresses import Addresses
from codehub.proxy.call import Call
from codehub.proxy.sibling_ports import sibling_origin


def is_foreign(call: Call, addresses: Addresses, slug: str) -> bool:
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


def _is_ours(origin: bytes, call: Call, addresses: Addresses, slug: str) -> bool:
    """The IDE's own origin alone may use the IDE; the ports of one workspace may use each other."""
    if call.port is not None and addresses.is_of(origin, slug, call.head.fields.host):
        return True
    return addresses.is_own(origin, call.head.fields.host)
