"""Signing in at an OpenID provider: authorization code with PKCE, state and nonce.

All three are derived from one secret that only the browser's short-lived cookie holds; we keep its hash, once. Who
somebody is is (issuer, subject), never the email: that one can be given to somebody else.
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass

from codehub.domain.addresses import local_path, platform_path
from codehub.domain.credentials import numbered_username, one_line, username_suggestion
from codehub.domain.errors import Conflict, Unauthenticated
from codehub.domain.identity import Caller, User
from codehub.ports.accounts import NewUser, OpenIdProvider, ProviderIdentity
from codehub.ports.stores import Actor
from codehub.usecases.identity import Identity, actor_of, digest, new_session_token
from codehub.usecases.users import Isolates, always_isolated, refuse_second_user

LIFETIME_SECONDS = 10 * 60
"""How long somebody may take at the provider; the cookie's lifetime too."""

_NUMBERS = 20
_ANEW = ".anew"
"""The end of the secret of a sign-in by which somebody proves once more who they are."""
NOT_OURS = "This sign-in was not begun in this browser, or too long ago. Begin again."


@dataclass(frozen=True, slots=True)
class SignedIn:
    caller: Caller
    session_token: str
    next_path: str


@dataclass(frozen=True, slots=True)
class Oidc:
    provider: OpenIdProvider
    identity: Identity
    allowed: frozenset[str] = frozenset()
    """Emails and `@domains`, in lower case, that may come in; empty: everybody whom the provider knows."""
    isolates: Isolates = always_isolated
    has_hosts: bool = False
    """Workspaces have hosts of their own: nobody comes back to one within the platform's origin."""

    async def start(self, next_path: str | None = None, *, anew: bool = False) -> tuple[str, str]:
        """Where to send the browser, and the secret for its short-lived cookie. `anew`: somebody who is signed in
        proves once more who they are; the provider is to ask, and their session stays."""
        secret = new_session_token() + (_ANEW if anew else "")
        challenge = hashlib.sha256(_derive(secret, "verifier").encode()).digest()
        url = await self.provider.authorization_url(
            state=_derive(secret, "state"),
            nonce=_derive(secret, "nonce"),
            challenge=_base64url(challenge),
            anew=anew,
        )
        back_to = platform_path(next_path) if self.has_hosts else local_path(next_path)
        await self.identity.sign_in_state.begin_provider_sign_in(digest(secret), back_to, LIFETIME_SECONDS)
        return url, secret

    async def finish(
        self,
        params: Mapping[str, str],
        state_cookie: str | None,
        address: str,
        agent: str,
        session_token: str | None = None,
    ) -> SignedIn:
        """Signs in whom the provider sent back with the query `params`. `session_token`: of who is signed in
        already; it counts only for a sign-in that was begun anew, by the same person."""
        secret = state_cookie or ""
        if not hmac.compare_digest(params.get("state", "").encode(), _derive(secret, "state").encode()):
            raise Unauthenticated(NOT_OURS)
        next_path = await self.identity.sign_in_state.finish_provider_sign_in(digest(secret))
        if next_path is None:
            raise Unauthenticated(NOT_OURS)
        if "code" not in params:
            reason = one_line(params.get("error", "no code came back"), 80)
            raise Unauthenticated(f"The provider did not sign you in ({reason}). Try again, or ask an admin.")
        who = await self.provider.identify(
            code=params["code"], verifier=_derive(secret, "verifier"), nonce=_derive(secret, "nonce")
        )
        self._refuse_unlisted(who)
        user = await self._known(who) or await self._create_user(who, address)
        if secret.endswith(_ANEW) and session_token:
            proven = await self._proven(user, session_token, who, address)
            if proven is not None:
                return SignedIn(proven, session_token, next_path)
        caller, new_token = await self.identity.open_session(
            user, address, agent, "sign_in_oidc", proven_at=who.authenticated_at
        )
        return SignedIn(caller, new_token, next_path)

    async def _proven(self, user: User, session_token: str, who: ProviderIdentity, address: str) -> Caller | None:
        """The caller of that session, freshly proven; None if it has ended or is somebody else's."""
        identity = self.identity
        try:
            caller = await identity.caller(session_token=session_token, address=address)
        except Unauthenticated:
            return None
        if caller.user.id != user.id or caller.session_id is None:
            return None
        proven_at, actor = who.authenticated_at, actor_of(caller)
        done = await identity.accounts.prove_session(caller.session_id, identity.rules, actor, proven_at=proven_at)
        return caller if done else None

    def _refuse_unlisted(self, who: ProviderIdentity) -> None:
        """Unauthenticated unless the person is on the list, asked at every sign-in so that who is taken off stays
        out."""
        email = (who.email or "").lower() if who.email_verified else ""
        if self.allowed and not self.allowed & {email, f"@{email.rpartition('@')[2]}"}:
            raise Unauthenticated("The provider knows you, but you are not on this installation's list. Ask an admin.")

    async def _known(self, who: ProviderIdentity) -> User | None:
        return await self.identity.accounts.user_of_identity(who.issuer, who.subject)

    async def _create_user(self, who: ProviderIdentity, address: str) -> User:
        """A new user under the first free name; the same person signing in twice at once is one user."""
        await refuse_second_user(self.identity.accounts, self.isolates)
        name = username_suggestion(who.preferred_username, who.email)
        user_id = self.identity.ids.new()
        numbered = [numbered_username(name, str(number)) for number in range(2, _NUMBERS)]
        for candidate in (name, *numbered, numbered_username(name, user_id.hex[:12])):
            new = NewUser(user_id, candidate, issuer=who.issuer, subject=who.subject)
            try:
                return await self.identity.accounts.create_user(new, Actor(candidate, address=one_line(address)))
            except Conflict as taken:
                if taken.code == "identity_taken" and (user := await self._known(who)):
                    return user
                if taken.code != "username_taken":
                    raise
        raise Conflict(f"No username like {name} is free. Ask an admin for help.", "username_taken")


def _derive(secret: str, purpose: str) -> str:
    return _base64url(
        hmac.digest(secret[:512].encode("utf-8", "replace"), f"codehub oidc {purpose}".encode(), "sha256")
    )


def _base64url(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).decode().rstrip("=")
