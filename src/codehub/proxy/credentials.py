"""Which cookies and tokens are ours: they never reach a workspace, and no workspace sets one."""

from typing import Final

from codehub.domain.credentials import SESSION_COOKIE, TOKEN_PREFIX

OUR_COOKIES: Final = SESSION_COOKIE.lower().encode()
OUR_TOKENS: Final = TOKEN_PREFIX.encode()


def names_ours(cookie: bytes) -> bool:
    """Would a browser send this cookie back under a name of ours? A nameless one comes back as its bare value."""
    return cookie.lstrip(b" \t=").lower().startswith(OUR_COOKIES)


def without_ours(cookies: list[bytes]) -> bytes:
    """One Cookie header of all, without the cookies that are ours."""
    whole = cookies[0] if len(cookies) == 1 else b"; ".join(cookies)
    if OUR_COOKIES not in whole.lower():
        return whole
    pairs = (pair.strip(b" \t") for pair in whole.split(b";"))
    return b"; ".join(pair for pair in pairs if pair and not names_ours(pair))


def is_our_token(authorization: bytes) -> bool:
    scheme, _, token = authorization.partition(b" ")
    return scheme.lower() == b"bearer" and token.strip(b" \t").startswith(OUR_TOKENS)
