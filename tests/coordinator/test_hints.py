"""A hint is believed over a look that was begun before it, however fresh that look is."""

from codehub.domain.workspace import Desired, Phase
from tests.coordinator.workshop import Workshop, in_virtual_time
from tests.rows import WORKSPACE_ID, with_home


@in_virtual_time
async def test_after_a_hint_an_older_look_says_nothing() -> None:
    shop = await Workshop.open()
    shop.place(with_home(desired_state=Desired.RUNNING), volume=())
    await shop.converge()
    assert shop.row.phase is Phase.RUNNING
    await shop.clock.sleep(0.01)
    await shop.observer.active_pass([WORKSPACE_ID])
    shop.worlds.runtime.kill(WORKSPACE_ID)
    before = await shop.observer.facts(shop.row)
    assert before.container is not None
    assert before.container.running, "the last look is fresh enough"
    shop.observer.distrust(WORKSPACE_ID)
    after = await shop.observer.facts(shop.row)
    assert after.container is not None
    assert not after.container.running
