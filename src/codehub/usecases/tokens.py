"""Personal tokens: what a script may do for its owner, and never more than whoever made it could.

Only a session whose person has just proved who they are makes them: whoever steals a token, or a session, cannot make
another credential that lives on when the stolen one is revoked.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from uuid import UUID

from codehub.domain.credentials import TOKENS_PER_USER, checked_token_lifetime, checked_token_name
from codehub.domain.errors import NotFound
from codehub.domain.identity import ApiToken, Caller, Scope, scopes_for
from codehub.ports.accounts import Accounts, NewToken
from codehub.ports.signals import Ids
from codehub.usecases.announcements import Announcements
from codehub.usecases.identity import actor_of
from codehub.usecases.new_secrets import digest, new_api_token


@dataclass(frozen=True, slots=True)
class Tokens:
    accounts: Accounts
    announcements: Announcements
    ids: Ids

    async def create(
        self,
        caller: Caller,
        name: str,
        scopes: Collection[Scope],
        expires_in_seconds: int | None = None,
    ) -> tuple[ApiToken, str]:
        """The token and its secret, which is shown this once."""
        caller.must(Scope.WRITE)
        caller.must_be_fresh()
        secret = new_api_token()
        new = NewToken(
            id=self.ids.new(),
            user_id=caller.user.id,
            name=checked_token_name(name),
            token_hash=digest(secret),
            scopes=scopes_for(caller, scopes),
            lifetime_seconds=checked_token_lifetime(expires_in_seconds),
        )
        return await self.accounts.create_token(new, TOKENS_PER_USER, actor_of(caller)), secret

    async def list(self, caller: Caller) -> Sequence[ApiToken]:
        caller.must(Scope.READ)
        return await self.accounts.tokens(caller.user.id)

    async def revoke(self, caller: Caller, token_id: UUID) -> None:
        caller.must(Scope.WRITE)
        if not await self.accounts.revoke_token(caller.user.id, token_id, actor_of(caller)):
            raise NotFound("You have no such token.")
        await self.announcements.token_revoked(caller.user.id, token_id)
