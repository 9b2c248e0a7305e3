"""A seed decides everything: run again, alone or among others, it is the same to the last step; and no seed breaks a
rule.
"""

import logging
from collections.abc import Iterator

import pytest
import structlog

from tests.simulation.scenario import play

SEEDS = range(1, 11)
TWICE = (3, 7)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Silences the log: what coordinators log while everything around them fails would bury what a test says."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


def test_a_seed_told_alone_and_in_a_batch_is_the_same_story() -> None:
    alone = {seed: play(seed).trace for seed in TWICE}
    batch = {seed: play(seed).trace for seed in SEEDS}
    assert alone == {seed: batch[seed] for seed in TWICE}
    assert len(set(batch.values())) == len(batch), "different seeds tell different stories"


def test_a_few_stories_break_no_rule() -> None:
    outcomes = [play(seed) for seed in SEEDS]
    assert [f"seed {o.seed}: {o.violation}" for o in outcomes if o.violation] == []
    assert all(o.steps > 100 for o in outcomes)
    assert sum((o.faults for o in outcomes), start=outcomes[0].faults).total() > 100
