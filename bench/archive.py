"""The storage job against the pipelines one would type by hand, on the same tree in the same run.

`tar -c | zstd -T0 -3 | sha256sum` and `zstd -d | tar -x` prove nothing, keep no attributes and do not wait for the
disk; the job does all of that, and should still take at most 1.3 times as long (1.7 with the read-back).
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from uuid import UUID

MAKE_HOME = """
import os, random, sys
root, files, total = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dice = random.Random(7)
words = [bytes(dice.choices(b"abcdefghijklmnopqrstuvwxyz_", k=dice.randint(2, 11))) for _ in range(6000)]
ends = [b"\\n", b":\\n    ", b"(\\n", b" = "]
text = b"".join(b" ".join(dice.choices(words, k=12)) + dice.choice(ends) for _ in range(500_000))
noise = dice.randbytes(len(text))
sizes = [dice.lognormvariate(8.5, 1.5) for _ in range(files)]
scale = total / sum(sizes)
for number, size in enumerate(sizes):
    directory = f"{root}/group-{number // 2500}/part-{number // 50}"
    if number % 50 == 0:
        os.makedirs(directory)
    pool = noise if dice.random() < 0.25 else text
    length = min(int(size * scale), len(pool) - 1)
    start = dice.randrange(len(pool) - length)
    with open(f"{directory}/file-{number}.txt", "wb") as file:
        file.write(pool[start : start + length])
"""


@dataclass(frozen=True)
class Measured:
    seconds: float
    cpu: float
    """The seconds of processor; on a machine that others use, the steadier of the two."""
    peak_mb: float


@dataclass(frozen=True)
class Row:
    what: str
    seconds: float
    cpu: float
    peak_mb: float
    ratio: float | None
    aim: float | None


def pipeline(*commands: list[str], output: Path | None = None) -> Measured:
    """Run each command's output into the next; the memory is the sum of their peaks."""
    began = time.perf_counter()
    children: list[subprocess.Popen[bytes]] = []
    with (output or Path(os.devnull)).open("wb") as sink:
        for command in commands:
            last = command is commands[-1]
            source = children[-1].stdout if children else subprocess.DEVNULL
            children.append(subprocess.Popen(command, stdin=source, stdout=sink if last else subprocess.PIPE))
            if children[:-1] and (pipe := children[-2].stdout):
                pipe.close()
    peak, cpu = 0, 0.0
    for child in children:
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == 0, child.args
        peak += usage.ru_maxrss
        cpu += usage.ru_utime + usage.ru_stime
    return Measured(time.perf_counter() - began, cpu, peak / 1024)


def job(arguments: list[str], until_step: str = "") -> tuple[Measured, float]:
    """Run a storage job; returns what the whole took, and the seconds until `until_step` began."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "codehub.job", *arguments]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    reached = 0.0
    for line in child.stdout or ():
        if not reached and json.loads(line).get("step") == until_step:
            reached = time.perf_counter() - began
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    cpu = usage.ru_utime + usage.ru_stime
    return Measured(time.perf_counter() - began, cpu, usage.ru_maxrss / 1024), reached


class Bench:
    def __init__(self, directory: Path) -> None:
        self.home = directory / "home"
        self.archives = directory / "archives"
        self.target = directory / "target"
        self.by_hand = directory / "by-hand.tar.zst"
        self.runs: dict[str, list[Measured]] = {}
        self.archives.mkdir()
        self.home.mkdir()

    def make_home(self, files: int, total: int) -> None:
        subprocess.run([sys.executable, "-c", MAKE_HOME, self.home, str(files), str(total)], check=True)
        pack = ["tar", "-C", str(self.home), "-c", "."]
        pipeline(pack, ["zstd", "-T0", "-3", "-q"], output=self.by_hand)

    def round(self, number: int) -> None:
        place = ["--store", self.archives.as_uri(), "--key", f"bench/{number}/home.tar.zst"]
        pack = ["tar", "-C", str(self.home), "-c", "."]
        self._settle()
        self._keep("tar | zstd | sha256sum", pipeline(pack, ["zstd", "-T0", "-3", "-q"], ["sha256sum"]))
        self._settle()
        whole, unproven = job(["archive", "--volume", str(self.home), *place], until_step="prove")
        self._keep("archive, without read-back", replace(whole, seconds=unproven))
        self._keep("archive, with read-back", whole)
        unpack = ["tar", "-C", str(self.target), "-x"]
        self._settle()
        began = time.perf_counter()
        plain = pipeline(["zstd", "-dc", str(self.by_hand)], unpack)
        subprocess.run(["sync", "-f", self.target], check=True)
        self._keep("zstd -d | tar -x", plain)
        self._keep("zstd -d | tar -x, on disk", replace(plain, seconds=time.perf_counter() - began))
        self._settle()
        restore = ["restore", "--volume", str(self.target), *place, "--op-id", str(UUID(int=1))]
        self._keep("restore, on disk", job(restore)[0])

    def rows(self) -> list[Row]:
        by_hand = self._median("tar | zstd | sha256sum").seconds
        unpack = self._median("zstd -d | tar -x").seconds
        unpack_on_disk = self._median("zstd -d | tar -x, on disk").seconds
        return [
            self._row("tar | zstd | sha256sum"),
            self._row("archive, without read-back", by_hand, 1.3),
            self._row("archive, with read-back", by_hand, 1.7),
            self._row("zstd -d | tar -x"),
            self._row("zstd -d | tar -x, on disk", unpack),
            self._row("restore, on disk", unpack, 1.3),
            self._row("restore, on disk", unpack_on_disk, 1.3),
        ]

    def _settle(self) -> None:
        """Clear the target and write everything to disk, so that nobody pays for what the one before left to write."""
        shutil.rmtree(self.target, ignore_errors=True)
        self.target.mkdir()
        os.sync()

    def _keep(self, what: str, measured: Measured) -> None:
        self.runs.setdefault(what, []).append(measured)

    def _median(self, what: str) -> Measured:
        runs = self.runs[what]
        seconds, cpu = (statistics.median(getattr(run, name) for run in runs) for name in ("seconds", "cpu"))
        return Measured(seconds, cpu, max(run.peak_mb for run in runs))

    def _row(self, what: str, against: float | None = None, aim: float | None = None) -> Row:
        measured = self._median(what)
        ratio = None if against is None else round(measured.seconds / against, 2)
        return Row(what, round(measured.seconds, 2), round(measured.cpu, 2), round(measured.peak_mb), ratio, aim)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=50_000)
    parser.add_argument("--bytes", type=int, default=1_000_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    missing = [name for name in ("tar", "zstd", "sha256sum") if shutil.which(name) is None]
    if missing:
        print(f"bench.archive needs {', '.join(missing)}: nothing measured")
        return 0
    with tempfile.TemporaryDirectory(prefix="codehub-bench-archive-") as directory:
        bench = Bench(Path(directory))
        bench.make_home(chosen.files, chosen.bytes)
        for number in range(chosen.rounds):
            bench.round(number)
        rows = bench.rows()
    print(f"{chosen.files} files, {chosen.bytes} bytes, median of {chosen.rounds} rounds, {os.cpu_count()} cores")
    print(f"{'':30}{'seconds':>9}{'cpu':>8}{'peak MB':>9}{'ratio':>7}{'aim':>6}")
    for row in rows:
        print(f"{row.what:30}{row.seconds:9}{row.cpu:8}{row.peak_mb:9}{row.ratio or '':>7}{row.aim or '':>6}")
    print(json.dumps({"bench": "archive", "rows": [asdict(row) for row in rows]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
