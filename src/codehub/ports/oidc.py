"""Somebody else who knows our people: one OpenID Connect provider."""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Identified:
    """`issuer` and `subject` are who it is; the rest helps to name a new user, and a verified email to
    say whether they may come in at all."""

    issuer: str
    subject: str
    preferred_username: str | None = None
    email: str | None = None
    email_verified: bool = False
    authenticated_at: datetime | None = None
    """When they proved to the provider who they are; None: it does not say."""


class OpenIdProvider(Protocol):
    """Raises Unreachable if the provider does not answer in time or answers nonsense."""

    async def authorization_url(self, *, state: str, nonce: str, challenge: str, anew: bool = False) -> str:
        """Where to send the browser. `challenge`: the S256 challenge of the verifier. `anew`: the provider asks who
        they are even if it has just been told."""
        ...

    async def identify(self, *, code: str, verifier: str, nonce: str) -> Identified:
        """Unauthenticated if the provider refuses the code, or if its signed answer is not meant for us, for this
        sign-in (`nonce`) and for now."""
        ...
