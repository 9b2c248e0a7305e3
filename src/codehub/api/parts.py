"""What the API is made from. The composition root fills this; nothing in here reads settings or names an adapter."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol
from urllib.parse import urlsplit

from codehub.domain.gc_rules import Retention
from codehub.ports.accounts import Audit, Templates, Tickets
from codehub.ports.archives import ArchiveContents
from codehub.ports.collector import CollectorView
from codehub.ports.runtime import Runtime
from codehub.ports.signals import Bus
from codehub.ports.stores import Leader
from codehub.ports.views import WorkspaceViews
from codehub.telemetry import Metrics
from codehub.usecases.authorization import Looks
from codehub.usecases.identity import Identity, Tokens
from codehub.usecases.lifecycle import Lifecycles
from codehub.usecases.oidc import Oidc
from codehub.usecases.users import People
from codehub.usecases.workspace_commands import Creation, RunningSlots, Wishes


@dataclass(frozen=True, slots=True)
class Site:
    """How we are reached. `public_url` None: whatever host the request names. `workspace_url`: a pattern with `{slug}`
    or `{id}`. `undo`: how long what was deleted can be brought back. Other times in seconds."""

    public_url: str | None = None
    workspace_url: str = "http://{slug}.localhost:8000/"
    runtime: str = "process"
    sse_prefix: str = "codehub:sse:"
    heartbeat: float = 30.0
    check_patience: float = 3.0
    undo: timedelta = Retention().undo

    @property
    def origin(self) -> str | None:
        if self.public_url is None:
            return None
        parts = urlsplit(self.public_url)
        return f"{parts.scheme}://{parts.netloc}".lower()


@dataclass(frozen=True, slots=True)
class Check:
    """One dependency. `required`: without it the API is of no use."""

    ask: Callable[[], Awaitable[object]]
    required: bool = False


class Pages(Protocol):
    """The dashboard, whatever it is made of. `files`: by their names below `/assets/{version}/`."""

    @property
    def version(self) -> str: ...

    @property
    def index(self) -> bytes: ...

    @property
    def files(self) -> Mapping[str, bytes]: ...


@dataclass(frozen=True, slots=True)
class ApiParts:
    identity: Identity
    people: People
    tokens: Tokens
    oidc: Oidc | None
    wishes: Wishes
    creation: Creation
    lifecycles: Lifecycles
    slots: RunningSlots
    views: WorkspaceViews
    contents: ArchiveContents
    templates: Templates
    tickets: Tickets
    audit: Audit
    looks: Looks
    collector: CollectorView
    runtime: Runtime
    bus: Bus
    metrics: Metrics
    leader: Callable[[], Awaitable[Leader | None]]
    gc_report: Callable[[], Awaitable[Mapping[str, object]]]
    checks: Mapping[str, Check] = field(default_factory=dict)
    site: Site = field(default_factory=Site)
    pages: Pages | None = None
