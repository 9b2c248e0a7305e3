"""`make sim-mutants`: each planted bug must be found by the search, and the table says after how many seeds; a few,
in code that the search does not run, by the test they name."""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutants.catalogue import MUTANTS
from tests.mutants.patches import DoesNotApply, Mutant, copy_tree, plant

CAUGHT = re.compile(r"^caught after (\d+) seeds \(seed (\d+)\): (.*)$", re.MULTILINE)
WALL_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Hunt:
    """The result of one search. `seeds` is how many were run until the bug showed (0: a test showed it); None if it did
    not, and `finding` says why."""

    name: str
    seeds: int | None
    seed: int | None
    finding: str
    seconds: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="NAME", action="append", help="this mutant alone (may be repeated)")
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds may be needed (%(default)s)")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the results there")
    parser.add_argument("--list", action="store_true", help="name the mutants and stop")
    options = parser.parse_args()
    mutants = [m for m in MUTANTS if not options.only or m.name in options.only]
    unknown = set(options.only or ()) - {m.name for m in mutants}
    if unknown:
        parser.error(f"there is no mutant {', '.join(sorted(unknown))}; --list names them")
    if options.list:
        print(*(m.name for m in mutants), sep="\n")
        return 0
    hunts = list(hunt_all(mutants, options.first, options.seeds))
    if options.json:
        options.json.write_text(json.dumps([asdict(h) for h in hunts], indent=2) + "\n")
    return summary(hunts)


def hunt_all(mutants: list[Mutant], first: int, seeds: int) -> Iterator[Hunt]:
    width = max(len(m.name) for m in mutants)
    print(f"{'planted bug':{width}}  seeds  found as")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done in as_completed([pool.submit(hunt, mutant, first, seeds) for mutant in mutants]):
            found = done.result()
            number = "never" if found.seeds is None else str(found.seeds)
            print(f"{found.name:{width}}  {number:>5}  {found.finding}", flush=True)
            yield found


def hunt(mutant: Mutant, first: int, seeds: int) -> Hunt:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as place:
        tree = Path(place)
        copy_tree(tree)
        try:
            plant(mutant, tree)
        except DoesNotApply as error:
            return Hunt(mutant.name, None, None, f"DOES NOT APPLY: {error}", 0.0)
        if mutant.test:
            return tested(mutant, tree, began)
        output = search(tree, first, seeds)
    found = CAUGHT.search(output)
    seconds = round(time.monotonic() - began, 1)
    if found is None:
        return Hunt(mutant.name, None, None, f"NOT CAUGHT: {last_line(output)}", seconds)
    return Hunt(mutant.name, int(found[1]), int(found[2]), found[3], seconds)


def tested(mutant: Mutant, tree: Path, began: float) -> Hunt:
    """Run the test that a mutant names: only one that ran and failed has caught the bug."""
    output = in_tree(tree, "pytest", "-q", "-p", "no:cacheprovider", str(mutant.test))
    failed = re.search(r"^\d+ failed", output, re.MULTILINE)
    seconds = round(time.monotonic() - began, 1)
    if failed is None:
        return Hunt(mutant.name, None, None, f"NOT CAUGHT by {mutant.test}: {last_line(output)}", seconds)
    return Hunt(mutant.name, 0, None, f"by {mutant.test}", seconds)


def search(tree: Path, first: int, seeds: int) -> str:
    return in_tree(tree, "tests.simulation", "--first", str(first), "--hunt", str(seeds))


def in_tree(tree: Path, module: str, *words: str) -> str:
    command = [sys.executable, "-m", module, *words]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tree / "src"), str(tree)))}
    try:
        played = subprocess.run(
            command,
            cwd=tree,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=WALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"gave up after {WALL_SECONDS:.0f} s"
    return played.stdout


def last_line(output: str) -> str:
    return (output.strip().splitlines() or ["no output"])[-1]


def summary(hunts: list[Hunt]) -> int:
    missed = [h.name for h in hunts if h.seeds is None]
    tests = sum(h.seeds == 0 for h in hunts)
    needed = sorted(h.seeds for h in hunts if h.seeds)
    print(f"{len(needed) + tests} of {len(hunts)} planted bugs caught, {tests} of them by the test they name", end="")
    print(f"; the median needed {needed[len(needed) // 2]} seeds, the worst {needed[-1]}" if needed else "")
    if missed:
        print("missed: " + ", ".join(missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
