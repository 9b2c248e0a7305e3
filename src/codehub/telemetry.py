"""Logs and metrics, for operators.

Log lines never carry a secret, and are never without bound. Metrics are one list; the collectors and
docs/reference/metrics.md are both made from it.
"""

import logging
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import IO, Literal

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from structlog.types import EventDict, Processor, WrappedLogger

# ── logs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

REDACTED = "[redacted]"
MAX_TEXT = 4_000
MAX_ITEMS = 50
MAX_DEPTH = 4

_NAMES = r"(?:pass(?:word|wd|phrase)|secret|token|ticket|cookie|authorization|credentials?|api_?key|access_?key)"
_SECRET_FIELD = re.compile(rf"(?:^|[_\-.]){_NAMES}s?(?:$|[_\-.](?!id$|count$|name$))", re.IGNORECASE)
# Every repetition is bounded, so that a hostile line costs no more than its length.
_SECRETS_IN_TEXT = (
    (re.compile(r"(\b[a-z][a-z0-9+.\-]{0,20}://[^\s/:@]{0,200}:)[^\s@]{1,500}(?=@)", re.IGNORECASE), rf"\1{REDACTED}"),
    (re.compile(r"(\b(?:bearer|basic)\s{1,5})[\w\-.~+/=]{8,}", re.IGNORECASE), rf"\1{REDACTED}"),
    (
        re.compile(
            rf"(\b[\w\-]{{0,40}}{_NAMES}[\"']?\s{{0,5}}[=:]\s{{0,5}}[\"']?)(?!\[redacted)[^\s\"',;&]+",
            re.IGNORECASE,
        ),
        rf"\1{REDACTED}",
    ),
)


class Scrubber:
    """Hides secrets in a log line and shortens its fields, just before it is written."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = sorted({secret for secret in secrets if secret}, key=len, reverse=True)

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        return {key: self._field(key, value, 0) for key, value in event.items()}

    def text(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        # Cut first so that a huge text costs little, and far from what is kept, so that no half of a secret is.
        size = len(text)
        text = _ends(text, 16 * MAX_TEXT, size)
        for pattern, replacement in _SECRETS_IN_TEXT:
            text = pattern.sub(replacement, text)
        return _ends(text, MAX_TEXT, size)

    def _field(self, key: object, value: object, depth: int) -> object:
        if isinstance(key, str) and _SECRET_FIELD.search(key) and value is not None:
            return REDACTED
        return self._value(value, depth)

    def _value(self, value: object, depth: int) -> object:
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, bytes):
            return f"[{len(value)} bytes]"
        if depth < MAX_DEPTH and isinstance(value, Mapping):
            kept = {str(k): self._field(k, v, depth + 1) for k, v in list(value.items())[:MAX_ITEMS]}
            return kept | _more(len(value))
        if depth < MAX_DEPTH and isinstance(value, list | tuple | set | frozenset):
            return [self._value(v, depth + 1) for v in list(value)[:MAX_ITEMS]] + list(_more(len(value)).values())
        return self.text(value if isinstance(value, str) else str(value))


def _ends(text: str, limit: int, size: int) -> str:
    """The text, shortened in the middle: a message says most at its beginning, a traceback at its end."""
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]} … [{size} characters in all] … {text[-limit // 2 :]}"


def _more(size: int) -> dict[str, str]:
    return {"…": f"[{size - MAX_ITEMS} more]"} if size > MAX_ITEMS else {}


def configure_logging(
    form: Literal["auto", "json", "console"] = "auto",
    level: str = "info",
    *,
    secrets: Iterable[str] = (),
    stream: IO[str] | None = None,
) -> None:
    """Writes CodeHub's and every library's log lines in one format to one stream, with the `secrets` hidden."""
    out = stream or sys.stderr
    console = form == "console" or (form == "auto" and out.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    final: list[Processor] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.format_exc_info,
        Scrubber(secrets),
        structlog.dev.ConsoleRenderer(colors=out.isatty()) if console else structlog.processors.JSONRenderer(),
    ]
    handler = logging.StreamHandler(out)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=final, foreign_pre_chain=shared))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


# ── metrics ──────────────────────────────────────────────────────────────────────────────────────────────────────────

Kind = Literal["counter", "gauge", "histogram"]

_LATENCIES = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_WORK = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = _LATENCIES


RECONCILE_SECONDS = Metric(
    "codehub_reconcile_seconds", "histogram", "One reconcile of one workspace: load to act.", ("outcome",)
)
PASS_SECONDS = Metric("codehub_pass_seconds", "histogram", "One observation pass over the workspaces.", ("kind",))
LAST_GOOD_PASS = Metric(
    "codehub_last_good_pass_timestamp_seconds", "gauge", "When the last full pass succeeded; its age is readiness."
)
QUEUE_DEPTH = Metric("codehub_queue_depth", "gauge", "Workspaces that are due and wait for a worker.")
ROWS_FORGOTTEN = Metric("codehub_rows_forgotten_total", "counter", "Old records that retention deleted.", ("kind",))
ROWS_WRITTEN = Metric(
    "codehub_rows_written_total", "counter", "Workspace rows the controller wrote; a settled fleet adds none."
)
STALE_WRITES = Metric("codehub_stale_writes_total", "counter", "Writes refused since our term or operation was over.")
OPERATIONS_STARTED = Metric("codehub_operations_started_total", "counter", "Operations recorded.", ("operation",))
OPERATIONS_COMPLETED = Metric(
    "codehub_operations_completed_total", "counter", "Operations observed to be done.", ("operation",)
)
OPERATIONS_FAILED = Metric(
    "codehub_operations_failed_total", "counter", "Failed attempts, retried or not.", ("operation", "reason")
)
OPERATION_SECONDS = Metric(
    "codehub_operation_seconds", "histogram", "From recording an operation to observing it done.", ("operation",), _WORK
)
TERMINAL_ERRORS = Metric(
    "codehub_terminal_errors_total", "counter", "Workspaces sent to ERROR; a person has to act.", ("reason",)
)
BREAKER_STATE = Metric("codehub_breaker_state", "gauge", "Circuit breaker: 0 closed, 1 open.", ("backend",))
ISOLATION_DISTURBED = Metric(
    "codehub_isolation_disturbed_total",
    "counter",
    "Times that the rules which isolate workspaces were missing; `holds`: whether they could be put back.",
    ("holds",),
)
IS_LEADER = Metric("codehub_is_leader", "gauge", "1 while this coordinator leads.")
EPOCH = Metric("codehub_leader_epoch", "gauge", "The fencing epoch of our last term.")
EVENTS_PUBLISHED = Metric("codehub_events_published_total", "counter", "Messages put on the bus.", ("channel",))
EVENT_GAPS = Metric("codehub_event_gaps_total", "counter", "Starts of the notification feed; each causes a resync.")
ACTIVITY_DRAINED = Metric("codehub_activity_drained_total", "counter", "Activity marks moved from the bus to rows.")
TTL_STOPS = Metric(
    "codehub_ttl_stops_total", "counter", "Workspaces that the TTL runner stopped or archived.", ("ttl",)
)
TTL_HELD = Metric("codehub_ttl_held_total", "counter", "TTL runs that stopped nobody since activity could not be read.")
GC_RUNS = Metric("codehub_gc_runs_total", "counter", "Runs of the garbage collector.", ("outcome",))
GC_REFUSALS = Metric(
    "codehub_gc_refusals_total",
    "counter",
    "Sweeps refused since they looked catastrophic; a person should look.",
    ("check",),
)
GC_GARBAGE = Metric("codehub_gc_garbage", "gauge", "What nobody protects, as the last run saw it.", ("kind",))
GC_SWEPT = Metric("codehub_gc_swept_total", "counter", "What the collector deleted.", ("kind",))
COMPONENT_RESTARTS = Metric(
    "codehub_component_restarts_total", "counter", "Components that ended and were started again.", ("component",)
)
USAGE_PASS_SECONDS = Metric(
    "codehub_usage_pass_seconds",
    "histogram",
    "Measuring the running workspaces: `compute` or `disk`.",
    ("kind",),
    _WORK,
)
USAGE_MEASURED = Metric(
    "codehub_usage_workspaces", "gauge", "Running workspaces by what is known of them in the last sample.", ("known",)
)
USAGE_CPU = Metric(
    "codehub_usage_cpu_cores",
    "gauge",
    "Processors that running workspaces use: their sum, median, 90th percentile and maximum.",
    ("runtime", "statistic"),
)
USAGE_MEMORY = Metric(
    "codehub_usage_memory_bytes", "gauge", "Memory of running workspaces, in the same way.", ("runtime", "statistic")
)
USAGE_DISK = Metric(
    "codehub_usage_disk_bytes", "gauge", "What their homes hold, in the same way.", ("runtime", "statistic")
)
USAGE_WARNINGS = Metric("codehub_usage_warnings", "gauge", "Running workspaces that are warned.", ("warning",))
WORKSPACE_CPU = Metric(
    "codehub_workspace_cpu_cores", "gauge", "Processors in use (USAGE_METRICS_PER_WORKSPACE).", ("workspace",)
)
WORKSPACE_MEMORY = Metric(
    "codehub_workspace_memory_bytes", "gauge", "Memory (USAGE_METRICS_PER_WORKSPACE).", ("workspace",)
)
WORKSPACE_DISK = Metric(
    "codehub_workspace_disk_bytes", "gauge", "What the home holds (USAGE_METRICS_PER_WORKSPACE).", ("workspace",)
)
NOTIFICATIONS = Metric("codehub_notifications_total", "counter", "Notices to admins by webhook.", ("outcome",))

HTTP_REQUESTS = Metric(
    "codehub_http_requests_total", "counter", "Requests the API answered.", ("method", "route", "status")
)
HTTP_SECONDS = Metric("codehub_http_seconds", "histogram", "From a request to the end of its answer.", ("route",))
EVENT_LISTENERS = Metric("codehub_event_listeners", "gauge", "Open event streams of this process.")
EVENT_LISTENERS_CUT = Metric(
    "codehub_event_listeners_cut_total", "counter", "Event streams ended by us: too slow, or signed out.", ("why",)
)

PROXY_REQUESTS = Metric(
    "codehub_proxy_requests_total", "counter", "Requests the front door answered, by class.", ("route", "status")
)
PROXY_CONNECTIONS = Metric("codehub_proxy_connections", "gauge", "Open connections to the front door.")
PROXY_TURNED_AWAY = Metric(
    "codehub_proxy_turned_away_total", "counter", "Connections that came beyond a cap of the front door.", ("cap",)
)
PROXY_SOCKETS = Metric("codehub_proxy_sockets", "gauge", "Those of them that are WebSockets.")

METRICS: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))


class Metrics:
    """The metrics of one process, on a registry of its own, so that two can exist side by side."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._counters = {m.name: Counter(m.name, m.help, m.labels, registry=self.registry) for m in _of("counter")}
        self._gauges = {m.name: Gauge(m.name, m.help, m.labels, registry=self.registry) for m in _of("gauge")}
        self._histograms = {
            m.name: Histogram(m.name, m.help, m.labels, buckets=m.buckets, registry=self.registry)
            for m in _of("histogram")
        }

    def add(self, metric: Metric, amount: float = 1, **labels: str) -> None:
        counter = self._counters[metric.name]
        (counter.labels(**labels) if metric.labels else counter).inc(amount)

    def set(self, metric: Metric, value: float, **labels: str) -> None:
        gauge = self._gauges[metric.name]
        (gauge.labels(**labels) if metric.labels else gauge).set(value)

    def clear(self, metric: Metric) -> None:
        """Forgets every value of a gauge with labels: what is not known any more is no longer told."""
        self._gauges[metric.name].clear()

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        histogram = self._histograms[metric.name]
        (histogram.labels(**labels) if metric.labels else histogram).observe(value)


def _of(kind: Kind) -> list[Metric]:
    return [metric for metric in METRICS if metric.kind == kind]
