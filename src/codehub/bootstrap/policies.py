"""From settings to the policies of the domain, of sessions and of the controller."""

from codehub.coordinator.context import Tuning
from codehub.coordinator.retention_runner import RecordAges
from codehub.domain.admission import RunningLimits
from codehub.domain.failures import Policy
from codehub.domain.gc_rules import Retention
from codehub.domain.gc_safety import GcLimits
from codehub.domain.idle import IdlePolicy
from codehub.domain.workspace import Operation
from codehub.ports.accounts import SessionRules
from codehub.settings import Settings


def session_rules(settings: Settings) -> SessionRules:
    return SessionRules(
        settings.session_idle_seconds, settings.session_lifetime_seconds, settings.session_fresh_seconds
    )


def limits(settings: Settings) -> RunningLimits:
    return RunningLimits(settings.max_running_per_user, settings.max_running_global, settings.max_workspaces_per_user)


def retention(settings: Settings) -> Retention:
    return Retention(
        restore_points=settings.restore_points_kept,
        undo_seconds=settings.gc_deleted_retention_seconds,
        grace_seconds=settings.gc_grace_seconds,
        prefix=settings.archive_prefix,
    )


def tuning(settings: Settings) -> Tuning:
    deadlines = {
        Operation.STARTING: settings.reconciler_starting_timeout,
        Operation.STOPPING: settings.reconciler_stopping_timeout,
        Operation.ARCHIVING: settings.reconciler_archiving_timeout,
        Operation.RESTORING: settings.reconciler_restoring_timeout,
    }
    return Tuning(
        idle_interval=settings.coordinator_idle_interval,
        active_interval=settings.coordinator_active_interval,
        active_duration=settings.coordinator_active_duration,
        ttl_interval=settings.coordinator_ttl_interval,
        gc_interval=settings.coordinator_gc_interval,
        usage_interval=settings.coordinator_usage_interval,
        usage_metrics_per_workspace=settings.usage_metrics_per_workspace,
        workers=settings.coordinator_workers,
        sse_prefix=settings.redis_channel_sse_prefix,
        wake_prefix=settings.redis_channel_wake_prefix,
        policy=Policy(settings.reconciler_max_retries, archive_prefix=settings.archive_prefix, deadlines=deadlines),
        idle=IdlePolicy(
            standby_ttl=settings.ttl_standby_seconds,
            archive_ttl=settings.ttl_archive_seconds,
            max_lifetime=settings.max_lifetime_seconds,
            flush_seconds=round(settings.activity_flush_interval),
        ),
        limits=limits(settings),
        retention=retention(settings),
        retention_interval=settings.coordinator_retention_interval,
        ages=RecordAges(
            settings.retention_ledger_seconds,
            settings.retention_audit_seconds,
            settings.retention_idempotency_seconds,
            session_rules(settings),
        ),
        gc_limits=GcLimits(per_run=settings.gc_most_per_run),
    )
