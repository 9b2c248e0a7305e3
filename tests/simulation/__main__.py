"""`make sim SEEDS=n` searches; `make sim SEED=n` replays one seed exactly."""

import argparse
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter

import structlog

from tests.simulation.scenario import Outcome, play


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=300, help="how many seeds to search")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seed", type=int, help="replay this one, alone")
    parser.add_argument("--twice", type=int, default=10, help="replay so many of them again and compare the traces")
    parser.add_argument("--hunt", type=int, help="one seed after the other, at most so many, until one is broken")
    parser.add_argument("--log", action="store_true", help="show every step and the coordinators' log")
    options = parser.parse_args()
    _quiet(show=options.log)
    if options.seed is not None:
        outcome = play(options.seed, show=options.log)
        found = outcome.violation or "no violation"
        print(f"seed {outcome.seed}: {outcome.steps} steps, trace {outcome.trace[:16]}, {found}")
        return 1 if outcome.violation else 0
    if options.hunt is not None:
        return hunt(options.first, options.hunt)
    return search(options.first, options.seeds, options.twice)


def _quiet(*, show: bool) -> None:
    level = logging.DEBUG if show else logging.CRITICAL
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(level))


def _play(seed: int) -> Outcome:
    _quiet(show=False)
    return play(seed)


def hunt(first: int, most: int) -> int:
    for number, seed in enumerate(range(first, first + most), 1):
        outcome = play(seed)
        if outcome.violation:
            print(f"caught after {number} seeds (seed {seed}): {outcome.violation}")
            return 1
    print(f"not caught in {most} seeds")
    return 0


def search(first: int, count: int, twice: int) -> int:
    began = time.monotonic()
    outcomes: list[Outcome] = []
    faults: Counter[str] = Counter()
    with multiprocessing.Pool(os.cpu_count()) as pool:
        for outcome in pool.imap_unordered(_play, range(first, first + count), chunksize=2):
            outcomes.append(outcome)
            faults += outcome.faults
            if outcome.violation:
                print(f"seed {outcome.seed}: {outcome.violation}", flush=True)
    broken = [o for o in outcomes if o.violation]
    steps = sum(o.steps for o in outcomes)
    print(
        f"{count} seeds, {steps} steps, {sum(faults.values())} faults, {len(broken)} violations"
        f" in {time.monotonic() - began:.0f} s"
    )
    for kind, number in sorted(faults.items()):
        print(f"  {kind:28} {number}")
    return 1 if broken or not _replays(outcomes[:twice]) else 0


def _replays(sample: list[Outcome]) -> bool:
    """Whether the same seed alone, in this process, gives the same trace as in the batch."""
    differing = [o.seed for o in sample if play(o.seed).trace != o.trace]
    print(f"{len(sample)} seeds replayed alone: {len(differing)} traces differ {differing or ''}")
    return not differing


if __name__ == "__main__":
    sys.exit(main())
