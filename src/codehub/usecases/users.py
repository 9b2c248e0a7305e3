"""Accounts, as admins manage them; there is always an admin left.

Who may come in, and as what, is changed by a session whose person has just proved who they are: a token, or a session
that was left open, would else make itself an account or a password that outlives it. A limit is changed by any admin.

A runtime that does not keep workspaces apart is for one person: a second account is refused, whoever asks.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from codehub.domain import identity as rules
from codehub.domain.credentials import checked_password, possible_username, username_from
from codehub.domain.errors import Conflict, Invalid, NotFound
from codehub.domain.identity import Caller, Role, Scope, User
from codehub.ports.accounts import Accounts, NewUser, Passwords, UserDecision
from codehub.ports.signals import Ids
from codehub.usecases.identity import actor_of, new_password
from codehub.usecases.revocations import Revocations

Isolates = Callable[[], Awaitable[bool]]
"""Asks whether workspaces are isolated from each other and from CodeHub's own port."""

_WHY = (
    "Workspaces are not kept from each other and from CodeHub's own port here, so one person alone may use them. "
    "Install bubblewrap and slirp4netns (apt-get install bubblewrap slirp4netns) or use another runtime"
)
_PAGE = 100
MOST_PER_PAGE = 200
MOST_RUNNING = 10_000


async def always_isolated() -> bool:
    return True


async def refuse_second_user(accounts: Accounts, isolates: Isolates) -> None:
    """Conflict if there is a user already and workspaces are not isolated."""
    if await isolates() or not await accounts.users("", 1):
        return
    raise Conflict(f"{_WHY}, then make the account.", "no_isolation")


async def refuse_several_users(accounts: Accounts, isolates: Isolates) -> None:
    """Conflict if workspaces are not isolated and several users, who are not disabled, have accounts: from when
    workspaces were isolated, or were thought to be. Asked before anything is served."""
    if await isolates():
        return
    count, after = 0, ""
    while page := await accounts.users(after, _PAGE):
        count, after = count + sum(user.disabled_at is None for user in page), page[-1].username
    if count > 1:
        raise Conflict(f"{_WHY}; {count} people have accounts.", "no_isolation")


@dataclass(frozen=True, slots=True)
class Users:
    accounts: Accounts
    passwords: Passwords
    revocations: Revocations
    ids: Ids
    isolates: Isolates = always_isolated

    async def create(
        self,
        caller: Caller,
        username: str,
        role: Role = Role.USER,
        password: str | None = None,
        max_running: int | None = None,
    ) -> tuple[User, str | None]:
        """The new user, and the password if one was generated: it is returned this once."""
        caller.must(Scope.ADMIN)
        caller.must_be_fresh()
        name = username_from(username)
        chosen = new_password() if password is None else checked_password(password, name)
        await refuse_second_user(self.accounts, self.isolates)
        stored = await self.passwords.hash(chosen)
        new = NewUser(self.ids.new(), name, role, stored, max_running=_checked_limit(max_running))
        user = await self.accounts.create_user(new, actor_of(caller))
        return user, chosen if password is None else None

    async def list(
        self, caller: Caller, after: str | None = None, limit: int = 50
    ) -> tuple[Sequence[User], str | None]:
        """A page in the order of usernames, and the cursor (`after`) of the next one if there is any."""
        caller.must(Scope.ADMIN)
        limit = max(1, min(limit, MOST_PER_PAGE))
        found = await self.accounts.users(possible_username(after or ""), limit + 1)
        page = found[:limit]
        return page, page[-1].username if len(found) > limit else None

    async def get(self, caller: Caller, user_id: UUID) -> User:
        """The user. An admin may see anybody, others only themselves."""
        caller.must(Scope.READ if caller.user.id == user_id else Scope.ADMIN)
        user = await self.accounts.user(user_id)
        if user is None:
            raise NotFound(f"There is no user {user_id}.")
        return user

    async def disable(self, caller: Caller, user_id: UUID) -> User:
        """Ends the user's sessions at once; their tokens stop working until the user is enabled again."""

        def decide(user: User, other_admins: int, now: datetime) -> User:
            return rules.disabled(user, now, other_admins)

        user = await self._change_access(caller, user_id, decide, "disable_user")
        await self.revocations.user_disabled(user_id)
        return user

    async def enable(self, caller: Caller, user_id: UUID) -> User:
        caller.must(Scope.ADMIN)
        await refuse_second_user(self.accounts, self.isolates)
        return await self._change_access(
            caller, user_id, lambda user, _others, _now: rules.enabled(user), "enable_user"
        )

    async def set_role(self, caller: Caller, user_id: UUID, role: Role) -> User:
        def decide(user: User, other_admins: int, _now: datetime) -> User:
            return rules.changed_role(user, role, other_admins)

        user = await self._change_access(caller, user_id, decide, "set_role")
        await self.revocations.role_changed(user_id)
        return user

    async def set_max_running(self, caller: Caller, user_id: UUID, max_running: int | None) -> User:
        limit = _checked_limit(max_running)
        return await self._change(
            caller, user_id, lambda user, _others, _now: rules.limited(user, limit), "set_max_running"
        )

    async def reset_password(self, caller: Caller, user_id: UUID) -> str:
        """The new password, returned this once. All of the user's sessions end, and their tokens are revoked."""
        caller.must(Scope.ADMIN)
        caller.must_be_fresh()
        password = new_password()
        stored = await self.passwords.hash(password)
        ended = await self.accounts.set_password(
            user_id, stored, actor_of(caller), "reset_password", revoke_tokens=True
        )
        await self.revocations.ended(user_id, ended)
        return password

    async def _change_access(self, caller: Caller, user_id: UUID, decide: UserDecision, action: str) -> User:
        caller.must(Scope.ADMIN)
        caller.must_be_fresh()
        return await self._change(caller, user_id, decide, action)

    async def _change(self, caller: Caller, user_id: UUID, decide: UserDecision, action: str) -> User:
        caller.must(Scope.ADMIN)
        return await self.accounts.change_user(user_id, decide, actor_of(caller), action)


def _checked_limit(limit: int | None) -> int | None:
    if limit is not None and not 0 <= limit <= MOST_RUNNING:
        raise Invalid(f"A person's own limit is 0 to {MOST_RUNNING}, or none for the installation's.")
    return limit
