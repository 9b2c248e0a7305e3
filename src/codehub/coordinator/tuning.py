"""How often and how patiently the coordinator does what it does."""

from dataclasses import dataclass, field

from codehub.coordinator.retention_runner import RecordAges
from codehub.domain.admission import RunningLimits
from codehub.domain.failures import Policy
from codehub.domain.gc_rules import Retention
from codehub.domain.gc_safety import GcLimits
from codehub.domain.idle import IdlePolicy


@dataclass(frozen=True, slots=True)
class Tuning:
    """Times in seconds."""

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
