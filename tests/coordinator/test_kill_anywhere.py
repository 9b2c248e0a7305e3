"""Every operation × every call the coordinator makes meanwhile × every way that call can end badly.

Each time the wish comes true, by the coordinator that lived on or by the next one; no byte is lost, nothing is left
behind, the row tells the truth and the ledger explains it, and the neighbour never notices.
"""

import pytest

from codehub.domain.workspace import Operation
from tests.coordinator.conftest import Tally
from tests.coordinator.cut_wire import Cut
from tests.coordinator.scenes import SCENES, Scene, calls, perform

PORTS = {"leadership", "db", "bus", "activity", "runtime"}
"""Every operation needs these; storage jobs and archives only some."""


USES_JOBS = {Operation.STARTING, Operation.RESTORING, Operation.ARCHIVING, Operation.DELETING}


def test_every_operation_has_a_scene() -> None:
    assert {operation for scene in SCENES for operation in scene.operations} == set(Operation) - {Operation.NONE}


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_the_calls_are_those_of_every_port(scene: Scene) -> None:
    ports = {name.split(".", 1)[0] for name in calls(scene)}
    assert ports >= PORTS
    assert ("jobs" in ports) is bool(USES_JOBS & set(scene.operations))


@pytest.mark.parametrize("cut", Cut, ids=lambda cut: cut.value)
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_whatever_happens_at_any_call_the_wish_comes_true_and_no_byte_is_lost(
    scene: Scene, cut: Cut, tally: Tally
) -> None:
    broken = []
    made = calls(scene)
    assert made, "no call to cut"
    for number, name in enumerate(made):
        try:
            perform(scene, cut, number)
        except AssertionError as error:
            broken.append(f"call {number} ({name}): {error}")
    tally(scene.name, len(made))
    assert broken == []
