"""Contract 3 as types: each column has one side, and neither store has a method of the other."""

from dataclasses import fields

from codehub.domain.workspace import SPEC_FIELDS, STATUS_FIELDS, Workspace
from codehub.ports.stores import WorkspaceSpecs, WorkspaceStatuses

OF_THE_DATABASE = {"id", "created_at", "updated_at", "version"}


def test_every_column_has_one_writer() -> None:
    assert set(SPEC_FIELDS) & set(STATUS_FIELDS) == set()
    assert {field.name for field in fields(Workspace)} - OF_THE_DATABASE == {*SPEC_FIELDS, *STATUS_FIELDS}


def test_wishes_are_people_s_and_observations_the_controller_s() -> None:
    assert {"desired_state", "deleted_at", "standby_ttl_seconds", "last_access_at"} <= set(SPEC_FIELDS)
    assert {"conditions", "phase", "operation", "op_id", "archive_key", "error_info", "home"} <= set(STATUS_FIELDS)


def test_neither_store_has_the_other_s_methods() -> None:
    assert methods(WorkspaceSpecs) & methods(WorkspaceStatuses) == set()


def methods(store: type) -> set[str]:
    return {name for name in vars(store) if not name.startswith("_")}
