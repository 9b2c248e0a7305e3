"""Every reason of the specification has a rule, and what people see survives the database."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codehub.domain import errors
from codehub.domain.errors import REASONS, BackendError, CircuitOpen, ErrorInfo, ErrorReason, Unreachable

SEEDS = {
    "Mismatch",
    "Unreachable",
    "ActionFailed",
    "Timeout",
    "RetryExceeded",
    "DataLost",
    "ImagePullFailed",
    "ContainerWithoutVolume",
    "ArchiveCorrupted",
    "ArchiveAccessError",
}


def test_the_reasons_are_those_of_the_seeds() -> None:
    assert {reason.value for reason in ErrorReason} == SEEDS
    assert set(REASONS) == set(ErrorReason)


@pytest.mark.parametrize("reason", ErrorReason)
def test_each_reason_tells_a_person_what_it_means_and_what_to_do(reason: ErrorReason) -> None:
    rule = REASONS[reason]
    assert rule.meaning.endswith(".")
    assert rule.what_to_do.endswith(".")
    assert rule.terminal_at_once or not rule.clears_itself


def test_only_the_observed_ones_clear_themselves() -> None:
    """Only two reasons clear themselves; every other terminal error is cleared by recover alone."""
    assert {reason for reason, rule in REASONS.items() if rule.clears_itself} == {
        ErrorReason.CONTAINER_WITHOUT_VOLUME,
        ErrorReason.ARCHIVE_ACCESS_ERROR,
    }


def test_only_silence_is_an_outage() -> None:
    assert [reason for reason, rule in REASONS.items() if rule.is_outage] == [ErrorReason.UNREACHABLE]


def test_an_outage_is_never_terminal_at_once() -> None:
    for reason in (ErrorReason.UNREACHABLE, ErrorReason.ACTION_FAILED, ErrorReason.MISMATCH):
        assert not REASONS[reason].terminal_at_once


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.dictionaries(st.text(), inner, max_size=3)
)


@given(
    st.builds(
        ErrorInfo,
        reason=st.sampled_from(ErrorReason),
        message=st.text(),
        operation=st.text(),
        is_terminal=st.booleans(),
        error_count=st.integers(0, 99),
        previous_phase=st.text(),
        occurred_at=st.datetimes(min_value=datetime(2000, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
        context=st.dictionaries(st.text(), JSON, max_size=3),
    )
)
def test_error_info_survives_json(info: ErrorInfo) -> None:
    assert ErrorInfo.from_json(json.loads(json.dumps(info.to_json()))) == info


def test_error_info_has_the_fields_of_the_design() -> None:
    info = ErrorInfo(ErrorReason.TIMEOUT, "m", "STARTING", True, 1, "STANDBY", datetime.now(UTC))
    assert set(info.to_json()) == {
        "reason",
        "message",
        "operation",
        "is_terminal",
        "error_count",
        "previous_phase",
        "context",
        "occurred_at",
    }


def test_the_tree_is_the_one_that_is_drawn() -> None:
    drawn = [line.split("─ ")[1].split()[0] for line in (errors.__doc__ or "").splitlines() if "─ " in line]
    in_code = {
        name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.CodeHubError)
    }
    assert set(drawn) | {"CodeHubError"} == in_code


def test_a_failure_carries_its_reason_and_context() -> None:
    failure = BackendError("no", reason=ErrorReason.IMAGE_PULL_FAILED, image="x")
    assert (failure.reason, failure.context, str(failure)) == (ErrorReason.IMAGE_PULL_FAILED, {"image": "x"}, "no")
    assert BackendError("no").reason is ErrorReason.ACTION_FAILED
    assert Unreachable("no").reason is CircuitOpen("no").reason is ErrorReason.UNREACHABLE
