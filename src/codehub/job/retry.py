"""Three tries for what may pass by itself, with back-off; everything else fails at once."""

import time
from collections.abc import Callable
from typing import TypeVar

from codehub.job.failure import JobFailed
from codehub.job.progress import Progress

T = TypeVar("T")
TRIES = 3


def with_tries(attempt: Callable[[int], T], progress: Progress, backoff_seconds: float) -> T:
    """`attempt` gets its number, from 0."""
    for number in range(TRIES):
        try:
            return attempt(number)
        except JobFailed as failure:
            if not failure.transient or number == TRIES - 1:
                raise
            progress.warn(f"{failure.message}; trying again")
            time.sleep(backoff_seconds * 4**number)
    raise AssertionError("unreachable")
