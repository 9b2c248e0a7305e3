"""Every operation × every call the coordinator makes meanwhile × every way that call can end badly.

Each time the wish comes true, by the coordinator that lived on or by the next one; no byte is lost, nothing is left
behind, the row tells the truth and the ledger explains it, and the neighbour never notices.
"""

import pytest

from codehub.domain.workspace import Operation
from tests.coordinator.conftest import Tally
from tests.coordinator.interrupted_network import Interruption
from tests.coordinator.operation_scenarios import OPERATION_SCENARIOS, OperationScenario, calls, run_interrupted

PORTS = {"leadership", "db", "bus", "activity", "runtime"}
"""The ports that every operation needs; storage jobs and archives only some."""


USES_JOBS = {Operation.STARTING, Operation.RESTORING, Operation.ARCHIVING, Operation.DELETING}


def test_every_operation_has_a_scenario() -> None:
    assert {operation for scenario in OPERATION_SCENARIOS for operation in scenario.operations} == set(Operation) - {
        Operation.NONE
    }


@pytest.mark.parametrize("scenario", OPERATION_SCENARIOS, ids=lambda scenario: scenario.name)
def test_the_calls_are_those_of_every_port(scenario: OperationScenario) -> None:
    ports = {name.split(".", 1)[0] for name in calls(scenario)}
    assert ports >= PORTS
    assert ("jobs" in ports) is bool(USES_JOBS & set(scenario.operations))


@pytest.mark.parametrize("interruption", Interruption, ids=lambda interruption: interruption.value)
@pytest.mark.parametrize("scenario", OPERATION_SCENARIOS, ids=lambda scenario: scenario.name)
def test_whatever_happens_at_any_call_the_wish_comes_true_and_no_byte_is_lost(
    scenario: OperationScenario, interruption: Interruption, tally: Tally
) -> None:
    broken = []
    made = calls(scenario)
    assert made, "no call to interrupt"
    for number, name in enumerate(made):
        try:
            run_interrupted(scenario, interruption, number)
        except AssertionError as error:
            broken.append(f"call {number} ({name}): {error}")
    tally(scenario.name, len(made))
    assert broken == []
