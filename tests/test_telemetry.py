"""No secret and no endless line leaves by the log; every metric of the list is a collector that works."""

import io
import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from prometheus_client import generate_latest

from codehub import telemetry
from codehub.telemetry import (
    _SECRETS_IN_TEXT,
    MAX_ITEMS,
    MAX_TEXT,
    METRICS,
    REDACTED,
    Metrics,
    Scrubber,
    configure_logging,
    get_logger,
)


class Lines:
    def __init__(self) -> None:
        self.stream = io.StringIO()

    @property
    def all(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]

    @property
    def last(self) -> dict[str, Any]:
        return self.all[-1]


@pytest.fixture
def lines() -> Iterator[Lines]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    caught = Lines()
    configure_logging("json", stream=caught.stream, secrets=["s3cr3t-of-this-run"])
    yield caught
    root.handlers = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def test_a_line_carries_its_request(lines: Lines) -> None:
    with structlog.contextvars.bound_contextvars(request_id="r1"):
        get_logger("codehub.test").info("operation started", operation="STARTING")
    line = lines.last
    assert (line["event"], line["level"], line["operation"]) == ("operation started", "info", "STARTING")
    assert line["request_id"] == "r1"
    get_logger("codehub.test").info("elsewhere")
    assert "request_id" not in lines.last


def test_a_library_s_line_has_the_same_shape(lines: Lines) -> None:
    with structlog.contextvars.bound_contextvars(request_id="r1"):
        logging.getLogger("some.library").warning("lost %s", "redis://:hunter22@cache")
    assert lines.last["event"] == f"lost redis://:{REDACTED}@cache"
    assert (lines.last["level"], lines.last["request_id"]) == ("warning", "r1")


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "db_password",
        "token",
        "api_token",
        "session_tokens",
        "Authorization",
        "set-cookie",
        "api_key",
        "aws_secret_access_key",
        "ticket",
        "client.secret",
        "passphrase",
    ],
)
def test_a_secret_s_field_is_hidden(name: str, lines: Lines) -> None:
    get_logger("t").info("x", **{name: "hunter22"}, nested={"deep": [{name: "hunter22"}]})
    assert "hunter22" not in lines.stream.getvalue()
    assert lines.last[name] == REDACTED


@pytest.mark.parametrize(
    "name", ["archive_key", "home_store_key", "token_id", "token_count", "keyboard", "compass", "pass"]
)
def test_what_only_looks_like_a_secret_is_kept(name: str, lines: Lines) -> None:
    get_logger("t").info("x", **{name: "value"})
    assert lines.last[name] == "value"


@pytest.mark.parametrize(
    "text",
    [
        "connect to postgresql+asyncpg://codehub:hunter22@db:5432/codehub failed",
        "redis://:hunter22@cache/0",
        "Authorization: Bearer hunter22hunter22",
        "basic hunter22hunter22==",
        "GET /?token=hunter22&x=1",
        "PGPASSWORD=hunter22 psql",
        '{"password": "hunter22"}',
        "aws_secret_access_key = hunter22",
    ],
)
def test_a_secret_inside_a_text_is_hidden(text: str, lines: Lines) -> None:
    get_logger("t").warning(text, detail=text, error=ValueError(text))
    assert "hunter22" not in lines.stream.getvalue()


def test_a_secret_in_a_traceback_is_hidden(lines: Lines) -> None:
    try:
        raise ConnectionError("no answer from postgresql://codehub:hunter22@db")
    except ConnectionError:
        get_logger("t").exception("failed")
    assert "ConnectionError: no answer" in lines.last["exception"]
    assert "hunter22" not in lines.stream.getvalue()


def test_a_known_secret_is_hidden_wherever_it_stands(lines: Lines) -> None:
    get_logger("t").info("initdb said s3cr3t-of-this-run", items=["xs3cr3t-of-this-runx"])
    assert "s3cr3t" not in lines.stream.getvalue()


def test_no_field_is_endless(lines: Lines) -> None:
    get_logger("t").info(
        "x" * 1_000_000, many=list(range(10_000)), keys={str(n): n for n in range(10_000)}, raw=b"x" * 1_000_000
    )
    assert len(lines.stream.getvalue()) < 4 * MAX_TEXT
    assert "[1000000 characters in all]" in lines.last["event"]
    assert lines.last["many"][-1] == f"[{10_000 - MAX_ITEMS} more]"
    assert lines.last["raw"] == "[1000000 bytes]"


def test_a_long_traceback_keeps_its_end(lines: Lines) -> None:
    try:
        raise RuntimeError("padding " * 5_000 + "the cause")
    except RuntimeError:
        get_logger("t").exception("failed")
    assert lines.last["exception"].startswith("Traceback")
    assert lines.last["exception"].endswith("the cause")


def test_no_half_of_a_secret_is_left_where_a_text_is_cut(lines: Lines) -> None:
    for offset in range(40):
        filler = "y" * (MAX_TEXT // 2 - 20 + offset)
        secret = "password=hunter22hunter22"
        get_logger("t").info(f"{filler} {secret} {'z' * 3 * MAX_TEXT} {secret} {filler}")
    assert "hunter22" not in lines.stream.getvalue()


@pytest.mark.parametrize("hostile", ["a-", "a://a:", "password", "bearer "])
def test_a_hostile_line_costs_no_more_than_its_length(hostile: str) -> None:
    """Measured against itself: eight times as long costs eight times as much, not sixty-four."""
    scrub = Scrubber()

    def cost(length: int) -> float:
        text = hostile * (length // len(hostile))
        began = time.process_time()
        for _ in range(5):
            for pattern, replacement in _SECRETS_IN_TEXT:
                pattern.sub(replacement, text)
        return time.process_time() - began

    assert min(cost(8_000) for _ in range(5)) < 32 * min(cost(1_000) for _ in range(5))
    assert len(scrub.text(hostile * 50_000)) < 2 * MAX_TEXT


def test_lines_below_the_level_are_dropped(lines: Lines) -> None:
    configure_logging("json", "warning", stream=lines.stream)
    get_logger("t").info("quiet")
    logging.getLogger("library").info("quiet")
    get_logger("t").warning("loud")
    assert [line["event"] for line in lines.all] == ["loud"]


def test_console_lines_are_for_people(lines: Lines) -> None:
    configure_logging("console", stream=lines.stream)
    get_logger("t").info("started", token="hunter22", workspace="w1")
    text = lines.stream.getvalue()
    assert "started" in text
    assert "workspace=w1" in text
    assert "hunter22" not in text


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_every_metric_can_be_fed_and_read(metric: telemetry.Metric) -> None:
    metrics = Metrics()
    labels = dict.fromkeys(metric.labels, "x")
    match metric.kind:
        case "counter":
            metrics.add(metric, 2, **labels)
        case "gauge":
            metrics.set(metric, 2, **labels)
        case "histogram":
            metrics.observe(metric, 2, **labels)
    text = generate_latest(metrics.registry).decode()
    shown = f"{metric.name}_sum" if metric.kind == "histogram" else metric.name
    label_text = "{" + ",".join(f'{name}="x"' for name in metric.labels) + "}" if metric.labels else ""
    assert f"{shown}{label_text} 2.0" in text


def test_two_processes_worth_of_metrics_live_side_by_side() -> None:
    first, second = Metrics(), Metrics()
    first.set(telemetry.EPOCH, 3)
    assert "codehub_leader_epoch 0.0" in generate_latest(second.registry).decode()


def test_names_follow_prometheus_habits() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    assert all(metric.name.endswith("_total") == (metric.kind == "counter") for metric in METRICS)
    assert all(metric.name.endswith("_seconds") for metric in METRICS if metric.kind == "histogram")
