"""The rules for what people type and machines send to prove who they are. Pure.

Nothing here says which part of a sign-in was wrong: whoever guesses learns only that they guessed.
"""

import re
from ipaddress import IPv6Address, ip_address, ip_network

from codehub.domain.errors import Invalid

USERNAME_LENGTH = 64
PASSWORD_LEAST = 8
PASSWORD_MOST = 1024
TOKEN_PREFIX = "chub_"  # noqa: S105 - what every token begins with, so that scanners of leaked code know ours
SESSION_COOKIE = "__Host-codehub"
"""The session's cookie. The name of every other cookie of ours begins with it, so that one rule keeps all from
workspaces.
"""
TOKEN_NAME_LENGTH = 100
TOKEN_LEAST_SECONDS = 60
TOKEN_MOST_SECONDS = 366 * 24 * 3600
TOKENS_PER_USER = 100
SEEN_EVERY_SECONDS = 60
"""How often at most it is written that a session or a token is in use."""

TRIES_PER_ACCOUNT = 5
"""Free tries for one account from one address. Counted over all addresses, anybody's failures would keep the owner out.
"""
TRIES_PER_ADDRESS = 20
"""Free tries from one address, more than for an account: a whole office stands behind one address."""
LONGEST_WAIT_SECONDS = 15 * 60
TRIES_PER_ACCOUNT_ANYWHERE = 50
PACE_ANYWHERE_SECONDS = 1.0
"""The pause for one account beyond TRIES_PER_ACCOUNT_ANYWHERE, from any address: slow for guessing, short for the
owner.
"""
FAILURES_FADE_SECONDS = 24 * 3600

_USERNAME = re.compile(rf"[a-z0-9._-]{{1,{USERNAME_LENGTH}}}")
_NOT_IN_A_USERNAME = re.compile(r"[^a-z0-9._-]+")


def username_from(text: str) -> str:
    """The username as it is stored; raises Invalid if the text can be none."""
    name = text.strip().lower()
    if not _USERNAME.fullmatch(name):
        raise Invalid(f"A username has 1 to {USERNAME_LENGTH} of the characters a-z, 0-9, dot, underscore and hyphen.")
    return name


def possible_username(text: str) -> str:
    """A username to look somebody up by: what can be none becomes the empty one, which nobody has."""
    name = text.strip().lower()
    return name if _USERNAME.fullmatch(name) else ""


def username_suggestion(*claims: str | None) -> str:
    """The first of a provider's claims that leaves something to make a username of; an address counts to its @."""
    for claim in claims:
        name = _NOT_IN_A_USERNAME.sub("-", (claim or "").split("@")[0].lower()).strip("-.")
        if name:
            return name[:USERNAME_LENGTH]
    return "user"


def numbered_username(name: str, tail: str) -> str:
    return f"{name[: USERNAME_LENGTH - len(tail) - 1]}-{tail}"


def checked_password(password: str, username: str) -> str:
    """The password itself; raises Invalid. Only its length is ruled: other rules make people write it down."""
    if not PASSWORD_LEAST <= len(password) <= PASSWORD_MOST:
        raise Invalid(f"A password has {PASSWORD_LEAST} to {PASSWORD_MOST} characters.")
    if password.strip().lower() == username:
        raise Invalid("The password must not be the username.")
    return password


def checked_token_name(text: str) -> str:
    name = text.strip()
    if not name or len(name) > TOKEN_NAME_LENGTH or not name.isprintable():
        raise Invalid(f"A token's name has 1 to {TOKEN_NAME_LENGTH} printable characters.")
    return name


def checked_token_lifetime(seconds: int | None) -> int | None:
    if seconds is not None and not TOKEN_LEAST_SECONDS <= seconds <= TOKEN_MOST_SECONDS:
        raise Invalid(f"A token lives {TOKEN_LEAST_SECONDS} to {TOKEN_MOST_SECONDS} seconds, or without an end.")
    return seconds


def wait_seconds(failures: int, free_tries: int, longest: float = LONGEST_WAIT_SECONDS) -> float:
    """How long to wait from the last failure to the next try: nothing at first, then 1, 2, 4 … seconds."""
    if failures < free_tries:
        return 0.0
    return float(min(2 ** min(failures - free_tries, 10), longest))


def address_group(address: str) -> str:
    """The addresses that count as one guesser: one IPv4 address, or an IPv6 network as large as a household gets."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address[:64]
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    if parsed.ipv4_mapped:
        return str(parsed.ipv4_mapped)
    return str(ip_network((parsed.packed, 64), strict=False))


def one_line(text: str, most: int = 200) -> str:
    """Text that anybody may have sent, made fit to be shown and stored: bounded and printable."""
    return "".join(character for character in text[:most] if character.isprintable())
