"""The row: who writes what, and that it survives the database."""

import json
from dataclasses import FrozenInstanceError, fields
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codehub.domain.workspace import (
    SPEC_FIELDS,
    STATUS_FIELDS,
    Condition,
    Conditions,
    Desired,
    HomeContext,
    Operation,
    Phase,
    Progress,
    Workspace,
)
from tests.rows import NOW, workspace

OF_THE_STORE = {"id", "created_at", "updated_at", "version"}
OF_PEOPLE = {
    "desired_state",
    "recover_action",
    "recover_requested_at",
    "restore_from",
    "restore_requested_at",
    "undelete_requested_at",
    "deleted_at",
    "standby_ttl_seconds",
    "archive_ttl_seconds",
    "last_access_at",
    "name",
    "memo",
    "description",
}
OF_THE_CONTROLLER = {
    "conditions",
    "phase",
    "phase_changed_at",
    "observed_at",
    "operation",
    "op_started_at",
    "op_id",
    "archive_op_id",
    "archive_key",
    "home_store_key",
    "home",
    "error_reason",
    "error_count",
    "error_info",
    "retry_at",
}


def test_every_field_has_exactly_one_writer() -> None:
    names = {field.name for field in fields(Workspace)}
    assert set(SPEC_FIELDS) | set(STATUS_FIELDS) == names - OF_THE_STORE
    assert not set(SPEC_FIELDS) & set(STATUS_FIELDS)


def test_ownership_is_that_of_contract_three() -> None:
    assert set(SPEC_FIELDS) >= OF_PEOPLE
    assert set(STATUS_FIELDS) >= OF_THE_CONTROLLER


@pytest.mark.parametrize("wish", ["recover", "restore", "undelete"])
def test_a_wish_is_pending_until_it_is_handled_and_again_when_repeated(wish: str) -> None:
    def pending(**times: datetime) -> bool:
        return bool(getattr(workspace(**{f"{wish}_{name}": at for name, at in times.items()}), f"{wish}_pending"))

    later = NOW + timedelta(seconds=1)
    assert not pending()
    assert pending(requested_at=NOW)
    assert not pending(requested_at=NOW, handled_at=NOW)
    assert pending(requested_at=later, handled_at=NOW)
    assert workspace(**{f"{wish}_requested_at": NOW}).request_pending


def test_a_row_cannot_be_written_over() -> None:
    with pytest.raises(FrozenInstanceError):
        workspace().name = "other"  # type: ignore[misc]


TIMES = st.none() | st.datetimes(min_value=datetime(2000, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
CONDITIONS = st.builds(
    Condition,
    status=st.sampled_from((True, False, None)),
    reason=st.text(),
    message=st.text(),
    last_transition_time=TIMES,
)


def through_json(data: dict[str, object]) -> dict[str, object]:
    read: dict[str, object] = json.loads(json.dumps(data))
    return read


@given(st.builds(Conditions, CONDITIONS, CONDITIONS, CONDITIONS, CONDITIONS))
def test_conditions_survive_json(conditions: Conditions) -> None:
    data = through_json(conditions.to_json())
    assert set(data) == {"storage.volume_ready", "storage.archive_ready", "infra.container_ready", "policy.healthy"}
    assert Conditions.from_json(data) == conditions


@given(
    st.builds(
        HomeContext,
        incarnation=st.integers(0, 99),
        live=st.booleans(),
        restoring=st.none() | st.text(),
        deleting_volume=st.booleans(),
        marker=st.none() | st.tuples(st.text(), st.uuids()),
        ready_instance=st.none() | st.text(),
        passed_over=st.lists(st.integers(2, 99)).map(tuple),
    )
)
def test_the_home_survives_json(home: HomeContext) -> None:
    assert HomeContext.from_json(through_json(home.to_json())) == home


@given(st.builds(Progress, st.integers(0), st.integers(0), st.none() | st.integers(0), st.text()))
def test_progress_survives_json(progress: Progress) -> None:
    assert Progress.from_json(through_json(progress.to_json())) == progress


def test_a_container_counts_as_there_until_it_is_seen_gone() -> None:
    unknown = Condition(None, "docker.Running")
    assert workspace(conditions=Conditions(container_ready=unknown)).container_exists
    assert workspace(
        conditions=Conditions(container_ready=Condition(status=False, reason="docker.Exited"))
    ).container_exists
    assert not workspace().container_exists


@pytest.mark.parametrize(
    ("changes", "at_rest"),
    [
        ({}, True),
        ({"desired_state": Desired.RUNNING}, False),
        ({"operation": Operation.STARTING}, False),
        ({"restore_requested_at": NOW}, False),
        ({"restore_requested_at": NOW, "restore_handled_at": NOW}, True),
        ({"phase": Phase.ERROR}, True),
        ({"phase": Phase.ERROR, "recover_requested_at": NOW}, False),
        ({"phase": Phase.ERROR, "desired_state": Desired.DELETED}, False),
        ({"phase": Phase.DELETED, "desired_state": Desired.DELETED, "deleted_at": NOW}, True),
        ({"phase": Phase.STANDBY, "desired_state": Desired.DELETED, "deleted_at": NOW}, False),
        (
            {
                "phase": Phase.DELETED,
                "desired_state": Desired.DELETED,
                "deleted_at": NOW,
                "undelete_requested_at": NOW,
            },
            False,
        ),
    ],
)
def test_at_rest_is_when_nothing_is_left_to_do(changes: dict[str, Any], at_rest: bool) -> None:
    assert workspace(**changes).is_at_rest is at_rest
