"""One request for a workspace, whatever its address: on a host of its own, or below `/w/{id}/` of the platform's."""

from dataclasses import dataclass
from functools import cached_property
from typing import Final
from urllib.parse import parse_qsl
from uuid import UUID

from codehub.domain.credentials import SESSION_COOKIE
from codehub.proxy.access.session_cache import JOINED_COOKIE, VISIT_COOKIE, Credential, credential_of
from codehub.proxy.http.parser import RequestHead
from codehub.proxy.pages.render import RESERVED
from codehub.proxy.pages.texts import Language, language

_MOST_VALUES: Final = 10


@dataclass(frozen=True)
class WorkspaceRequest:
    """A request for a workspace. `name`: the workspace's slug, or its id. `prefix`: the part of the target that the
    workspace does not see."""

    head: RequestHead
    name: str | UUID
    port: int | None = None
    prefix: bytes = b"/"

    @property
    def target(self) -> bytes:
        """The target as the workspace sees it."""
        return b"/" + self.head.target[len(self.prefix) :]

    @property
    def reserved(self) -> bytes | None:
        """The name of a reserved path, which the proxy answers and never the workspace, without its query; None for
        another."""
        rest = self.head.target[len(self.prefix) :]
        return rest[len(RESERVED) :].partition(b"?")[0] if rest.startswith(RESERVED) else None

    @cached_property
    def query(self) -> dict[str, str]:
        text = self.head.target.partition(b"?")[2].decode("latin-1")
        try:
            return dict(parse_qsl(text, max_num_fields=_MOST_VALUES))
        except ValueError:
            return {}

    @cached_property
    def credential(self) -> Credential | None:
        """What proves who asks. By path the platform's own session counts; a workspace's own host never sees it."""
        if self.by_path:
            return credential_of(self.head.fields, SESSION_COOKIE)
        found = credential_of(self.head.fields, VISIT_COOKIE)
        return credential_of(self.head.fields, JOINED_COOKIE) if found is None and self.port is not None else found

    @property
    def by_path(self) -> bool:
        return self.prefix != b"/"

    @property
    def with_token(self) -> bool:
        credential = self.credential
        return credential is not None and credential[0] == "token"

    @property
    def language(self) -> Language:
        return language_of(self.head)

    @property
    def is_navigation(self) -> bool:
        """Whether somebody navigates there, as far as the browser says; one that says nothing is judged by what it
        accepts."""
        fields = self.head.fields
        if self.head.method != b"GET" or fields.upgrade or is_prefetch(self.head):
            return False
        mode = fields.header(b"sec-fetch-mode")
        return mode == b"navigate" if mode is not None else accepts_pages(self.head)

    @property
    def is_document(self) -> bool:
        """Whether somebody navigates there in a tab of its own, not in a frame."""
        return self.is_navigation and self.head.fields.header(b"sec-fetch-dest") in (None, b"document")

    @property
    def is_deliberate(self) -> bool:
        """Whether a person wants this very workspace: the address was typed or taken from a bookmark, which no page can
        do, or a page of the same origin led here and the browser vouches for a person's act. What a page does by
        itself, a reload above all, comes from the same origin without that."""
        site = self.head.fields.header(b"sec-fetch-site")
        if not self.is_document:
            return False
        return site == b"none" or (site == b"same-origin" and self.has_user_activation)

    @property
    def has_user_activation(self) -> bool:
        """Whether the browser says that a person's act led here: a click, a key, its own reload button. Some browsers
        never do."""
        return self.head.fields.header(b"sec-fetch-user") == b"?1"

    @property
    def is_from_same_origin(self) -> bool:
        """Whether a page of the very same origin asks, as far as the browser says."""
        return self.head.fields.header(b"sec-fetch-site") == b"same-origin"

    @property
    def is_from_other_origin(self) -> bool:
        """Whether a page of another origin led here. Whether that is allowed depends on more than the headers."""
        return self.head.fields.header(b"sec-fetch-site") in (b"cross-site", b"same-site")


def language_of(head: RequestHead) -> Language:
    return language(head.fields.header(b"accept-language"))


def accepts_pages(head: RequestHead) -> bool:
    return b"text/html" in (head.fields.header(b"accept") or b"").lower()


def is_prefetch(head: RequestHead) -> bool:
    """Whether a browser asks in advance, before anybody wanted to go there."""
    names = (b"sec-purpose", b"purpose", b"x-moz")
    return any(b"pre" in (head.fields.header(name) or b"").lower() for name in names)
