"""What the coordinator works with: the ports it needs, its settings, and what all components of one term share.

The composition root fills Dependencies and Tuning once; a TermContext is made anew for each term, so that nothing of an
old term is used in the next.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from codehub.coordinator.backends import Backends, Breaker, IdentityCheck
from codehub.coordinator.queue import WorkQueue
from codehub.coordinator.retention_runner import RecordAges, Records
from codehub.domain.admission import RunningLimits
from codehub.domain.failures import Policy
from codehub.domain.gc_rules import Retention
from codehub.domain.gc_safety import GcLimits
from codehub.domain.idle import IdlePolicy
from codehub.ports.archives import Archives
from codehub.ports.collector import CollectorMarks, CollectorView
from codehub.ports.jobs import Jobs
from codehub.ports.runtime import Runtime
from codehub.ports.signals import Activity, Bus, ChangeFeed, Clock, Ids, Notifier
from codehub.ports.stores import (
    Actor,
    BackendIdentities,
    Leadership,
    Templates,
    Term,
    WorkspaceSpecs,
    WorkspaceStatuses,
)
from codehub.telemetry import Metrics
from codehub.usecases.start_secrets import WorkspaceSecrets
from codehub.usecases.workspace_commands import WorkspaceCommands


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Every port the coordinator needs; the composition root fills it."""

    leadership: Leadership
    statuses: Callable[[int], WorkspaceStatuses]
    specs: WorkspaceSpecs
    collector: CollectorView
    marks: Callable[[int], CollectorMarks]
    backend_identities: BackendIdentities
    install: str
    feed: ChangeFeed
    bus: Bus
    activity: Activity
    runtime: Runtime
    jobs: Jobs
    archives: Archives
    notifier: Notifier
    clock: Clock
    ids: Ids
    metrics: Metrics
    records: Records | None = None
    """The stores whose old records are deleted; None: they are kept for ever."""
    templates: Templates | None = None
    """The templates of containers; None: a container gets its image and nothing else."""
    secrets: WorkspaceSecrets | None = None
    """What people and templates keep for workspaces; None: a container gets none of it."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """How often the coordinator does what it does, and by which rules. Times are in seconds."""

    idle_interval: float = 15.0
    active_interval: float = 1.0
    active_duration: float = 30.0
    ttl_interval: float = 60.0
    gc_interval: float = 14400.0
    retention_interval: float = 3600.0
    gc_request_interval: float = 5.0
    inventory_interval: float = 300.0
    call_seconds: float = 60.0
    workers: int = 16
    sse_prefix: str = "codehub:sse:"
    wake_prefix: str = "codehub:wake:"
    policy: Policy = field(default_factory=Policy)
    idle: IdlePolicy = field(default_factory=IdlePolicy)
    limits: RunningLimits = field(default_factory=RunningLimits)
    retention: Retention = field(default_factory=Retention)
    ages: RecordAges = field(default_factory=RecordAges)
    gc_limits: GcLimits = field(default_factory=GcLimits)


@dataclass(frozen=True, slots=True)
class TermContext:
    """What all components of one leader's term share."""

    term: Term
    tuning: Tuning
    backends: Backends
    statuses: WorkspaceStatuses
    specs: WorkspaceSpecs
    commands: WorkspaceCommands
    queue: WorkQueue
    templates: Templates | None
    secrets: WorkspaceSecrets | None
    notifier: Notifier
    clock: Clock
    ids: Ids
    metrics: Metrics

    def actor(self, name: str) -> Actor:
        """A robot user of this term, which is refused once the term is over."""
        return Actor(name, self.term.epoch)


def term_context(
    term: Term, dependencies: Dependencies, tuning: Tuning, backend_changed: Callable[[str, str | None], None]
) -> TermContext:
    """Build what one term shares. `backend_changed` hears a backend's name and, when it falls silent, the error; when
    it answers again, None."""
    clock, metrics, prefix = dependencies.clock, dependencies.metrics, tuning.policy.archive_prefix
    breakers = {name: Breaker(name, clock, metrics, backend_changed) for name in ("runtime", "jobs", "archives")}
    identities = IdentityCheck(dependencies.backend_identities, term.epoch, clock, dependencies.install, prefix)
    ports = dependencies.runtime, dependencies.jobs, dependencies.archives
    return TermContext(
        term=term,
        tuning=tuning,
        backends=Backends(*ports, term, clock, breakers, identities, tuning.call_seconds),
        statuses=dependencies.statuses(term.epoch),
        specs=dependencies.specs,
        commands=WorkspaceCommands(dependencies.specs, tuning.limits),
        queue=WorkQueue(clock),
        templates=dependencies.templates,
        secrets=dependencies.secrets,
        notifier=dependencies.notifier,
        clock=clock,
        ids=dependencies.ids,
        metrics=metrics,
    )
