"""A hint is believed over a look that was begun before it, however fresh that look is."""

from codehub.domain.workspace import Desired, Phase
from tests.coordinator.harness import CoordinatorHarness, in_virtual_time
from tests.rows import WORKSPACE_ID, with_home


@in_virtual_time
async def test_after_a_hint_an_older_look_says_nothing() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(with_home(desired_state=Desired.RUNNING), volume=())
    await harness.converge()
    assert harness.row.phase is Phase.RUNNING
    await harness.clock.sleep(0.01)
    await harness.observer.active_pass([WORKSPACE_ID])
    harness.states.runtime.kill(WORKSPACE_ID)
    before = await harness.observer.facts(harness.row)
    assert before.container is not None
    assert before.container.running, "the last look is fresh enough"
    harness.observer.distrust(WORKSPACE_ID)
    after = await harness.observer.facts(harness.row)
    assert after.container is not None
    assert not after.container.running
