"""The document: whole, named, with examples; what it promises is what the fuzzing then holds the API to."""

from typing import Any

import pytest

from codehub.api.app import document
from codehub.api.schemas import WorkspaceShown

DOCUMENT = document()
OPERATIONS: list[tuple[str, dict[str, Any]]] = [
    (f"{method.upper()} {path}", operation)
    for path, item in DOCUMENT["paths"].items()
    for method, operation in item.items()
]
EVERY = [pytest.param(operation, id=name) for name, operation in OPERATIONS]
IN_THE_API = [pytest.param(operation, id=name) for name, operation in OPERATIONS if " /api/v1" in name]


def test_it_is_openapi_3_1_with_both_ways_to_sign_in() -> None:
    assert DOCUMENT["openapi"].startswith("3.1")
    schemes = DOCUMENT["components"]["securitySchemes"]
    assert schemes["session"]["in"] == "cookie"
    assert schemes["token"]["scheme"] == "bearer"


def test_every_operation_has_a_name_of_its_own() -> None:
    names = [operation["operationId"] for _, operation in OPERATIONS]
    assert len(set(names)) == len(names)
    assert all(name.isalpha() for name in names)


@pytest.mark.parametrize("operation", IN_THE_API)
def test_what_can_go_wrong_is_documented_as_a_problem(operation: dict[str, Any]) -> None:
    answers = operation["responses"]
    assert {"413", "431", "500", "502", "503"} <= set(answers)
    for status, answer in answers.items():
        if int(status) >= 400:
            [(kind, content)] = answer["content"].items()
            assert kind == "application/problem+json"
            assert content["schema"]["$ref"].endswith("/Problem")
    takes_input = operation.get("requestBody") or [p for p in operation.get("parameters", ()) if p["in"] != "cookie"]
    assert "422" in answers or not takes_input


@pytest.mark.parametrize("operation", EVERY)
def test_it_is_said_who_may(operation: dict[str, Any]) -> None:
    is_open = operation["operationId"] in {
        "signIn",
        "beginProviderSignIn",
        "finishProviderSignIn",
        "isAlive",
        "isReady",
    }
    assert is_open == ("security" not in operation)
    if not is_open:
        assert {"401", "403"} <= set(operation["responses"])


def test_bodies_and_the_workspace_have_examples() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    for name in ("WorkspaceCreate", "SignIn", "TokenCreate", "Restoration", "KeepAlive"):
        assert any("examples" in field for field in schemas[name]["properties"].values()), name
        assert schemas[name]["additionalProperties"] is False
    assert set(schemas["WorkspaceShown"]["required"]) == set(WorkspaceShown.model_fields)


def test_no_reference_leads_nowhere() -> None:
    schemas = DOCUMENT["components"]["schemas"]

    def references(value: object) -> set[str]:
        if isinstance(value, dict):
            own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
            return own.union(*(references(item) for item in value.values()))
        return set().union(*(references(item) for item in value)) if isinstance(value, list) else set()

    assert {ref for ref in references(DOCUMENT) if ref.removeprefix("#/components/schemas/") not in schemas} == set()
