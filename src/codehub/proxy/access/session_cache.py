"""Who cookies and tokens proved somebody to be, kept so that a request need not ask the database again.

An entry is kept for a minute, or until the bus says that a session ended, a token was revoked, or a user lost a right.
While the bus is not heard, nothing is kept.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

from codehub.domain.credentials import SESSION_COOKIE, TOKEN_PREFIX
from codehub.ports.signals import Bus
from codehub.proxy.http.parser import RequestFields
from codehub.usecases.bus_listener import BusListener, Message
from codehub.usecases.revocations import AUTH_CHANNEL
from codehub.usecases.workspace_access import WorkspaceAccess, WorkspaceCaller

VISIT_COOKIE: Final = f"{SESSION_COOKIE}-visit"
JOINED_COOKIE: Final = f"{SESSION_COOKIE}-joined"
"""The cookie of a port's host that pages of another port of the same workspace send, from within their own site."""
MOST_SESSIONS: Final = 20_000
TRUST_SECONDS: Final = 60.0
_LONGEST_SECRET: Final = 512

Key = TypeVar("Key", bound=Hashable)
Found = TypeVar("Found")

Credential = tuple[str, str]
"""The kind of a credential (visit, session, token) and its secret."""


@dataclass(frozen=True, slots=True)
class _Known:
    caller: WorkspaceCaller
    until: float


class SingleFlight(Generic[Key, Found]):
    """Looks each thing up once, however many ask for it at the same time."""

    def __init__(self) -> None:
        self._running: dict[Key, asyncio.Future[Found]] = {}

    async def do(self, key: Key, look_up: Callable[[], Coroutine[Any, Any, Found]]) -> Found:
        running = self._running.get(key)
        if running is None:
            running = self._running[key] = asyncio.ensure_future(look_up())
            running.add_done_callback(lambda done: self._finished(key, done))
        return await asyncio.shield(running)

    def forget(self) -> None:
        """Forget the look-ups under way: whoever asks from now on gets no answer that was begun before."""
        self._running.clear()

    def _finished(self, key: Key, done: "asyncio.Future[Found]") -> None:
        if self._running.get(key) is done:
            del self._running[key]


class SessionCache:
    def __init__(
        self, workspace_access: WorkspaceAccess, bus: Bus, left: Callable[[Callable[[WorkspaceCaller], bool]], None]
    ) -> None:
        """`left` is told which callers may no longer be here."""
        self.listener = BusListener(bus, AUTH_CHANNEL, self._hear, subscribed=self._forget_all, lost=self._distrust)
        self._workspace_access = workspace_access
        self._left = left
        self._known: dict[Credential, _Known] = {}
        self._lookups: SingleFlight[Credential, WorkspaceCaller | None] = SingleFlight()
        self.announcements = 0
        """How many revocations were heard: what was found before the last of them may be out of date."""

    @property
    def is_current(self) -> bool:
        """Whether revocations are heard as they happen, so that what is remembered still holds."""
        return self.listener.is_subscribed

    def known(self, credential: Credential, now: float) -> WorkspaceCaller | None:
        found = self._known.get(credential)
        return found.caller if found is not None and self.is_current and found.until > now else None

    async def find(self, credential: Credential, now: float) -> WorkspaceCaller | None:
        return self.known(credential, now) or await self._lookups.do(credential, lambda: self._look(credential, now))

    def good_until(self, credential: Credential, caller: WorkspaceCaller) -> float:
        """When the database has to be asked again: at once, if this is not the caller that is remembered."""
        found = self._known.get(credential)
        return found.until if found is not None and found.caller is caller else 0.0

    async def _look(self, credential: Credential, now: float) -> WorkspaceCaller | None:
        kind, secret = credential
        ask: Mapping[str, Callable[[str], Awaitable[WorkspaceCaller | None]]] = {
            "visit": self._workspace_access.visiting,
            "session": self._workspace_access.signed_in,
            "token": self._workspace_access.with_token,
        }
        before = self.announcements
        caller = await ask[kind](secret)
        # What was announced while we asked may be newer than the answer: then it is good for this once alone.
        if caller is not None and before == self.announcements:
            if len(self._known) >= MOST_SESSIONS:
                self._known.clear()
            self._known[credential] = _Known(caller, now + TRUST_SECONDS)
        return caller

    # ── hearing ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _distrust(self) -> None:
        self._left(lambda _: False)  # nobody that we know of; but what was decided while we heard is no longer good

    def _forget_all(self) -> None:
        self._forget(lambda _: True)

    async def _hear(self, message: Message) -> None:
        try:
            gone = _who(message)
        except (KeyError, ValueError, TypeError, AttributeError):
            return
        self._forget(gone)
        self._left(gone)

    def _forget(self, gone: Callable[[WorkspaceCaller], bool]) -> None:
        self.announcements += 1
        self._lookups.forget()  # their answers may be older than this
        for credential in [key for key, known in self._known.items() if gone(known.caller)]:
            del self._known[credential]


def _who(message: Message) -> Callable[[WorkspaceCaller], bool]:
    user_id = UUID(message["user_id"])
    if message["type"] == "signed_out":
        sessions = frozenset(message["session_ids"])
        return lambda caller: caller.session_id in sessions
    if message["type"] == "token_revoked":
        token_id = UUID(message["token_id"])
        return lambda caller: caller.token_id == token_id
    if message["type"] == "ssh_key_removed":
        return lambda _caller: False  # nobody comes here with an SSH key
    return lambda caller: caller.user.id == user_id


def credential_of(fields: RequestFields, cookie: str) -> Credential | None:
    """The token of a request, else the value of this cookie: whoever sends a token means it."""
    if fields.authorization is not None:
        scheme, _, token = fields.authorization.partition(b" ")
        text = token.strip(b" \t").decode("latin-1")
        if scheme.lower() == b"bearer" and text.startswith(TOKEN_PREFIX):
            return "token", text[:_LONGEST_SECRET]
    secret = cookie_value(fields, cookie)
    if secret is None:
        return None
    return ("session" if cookie == SESSION_COOKIE else "visit"), secret


def cookie_value(fields: RequestFields, name: str) -> str | None:
    """The value of the first cookie of this name: `__Host-` cookies cannot be set by another host."""
    wanted = name.encode() + b"="
    for header in fields.cookies or ():
        for pair in header.split(b";"):
            pair = pair.strip(b" \t")  # noqa: PLW2901 - trimmed
            if pair.startswith(wanted):
                return pair[len(wanted) :].decode("latin-1")[:_LONGEST_SECRET] or None
    return None
