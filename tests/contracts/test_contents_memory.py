"""Whatever the size of an archive, looking into it and taking something out of it costs little memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.job.harness import JobHarness

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]
LIMIT = 64 << 20
SIZE = 256 << 20

# A process of its own, for a peak cannot be taken back; not ru_maxrss, which begins with the parent's. `slow`
# lets the thread run as far ahead as it is allowed to.
MEASURE = """
import asyncio, re, sys
from pathlib import Path
from codehub.adapters.object_store.contents import ObjectContents

def peak():
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) * 1024

async def taken(context, slow):
    total = 0
    async with context as content:
        async for chunk in content.chunks:
            total += len(chunk)
            if slow:
                await asyncio.sleep(0.002)
    return total

async def main(url, key):
    contents = ObjectContents(url)
    await taken(contents.content(key, ""), slow=False)  # what is imported and allocated once is not the archive's
    before = peak()
    await contents.tree(sys.argv[3], "")
    totals = [
        await taken(contents.content(sys.argv[3], "large"), slow=True),
        await taken(contents.content(sys.argv[3], ""), slow=False),
        await taken(contents.original(sys.argv[3]), slow=True),
        await taken(contents.content(sys.argv[3], "sparse"), slow=False),
    ]
    print(peak() - before, *totals)

asyncio.run(main(*sys.argv[1:3]))
"""


def test_memory_is_bounded(tmp_path: Path) -> None:
    harness = JobHarness(tmp_path)
    small, harness.key = harness.key, "homes/7f1c/op-0/home.tar.zst"
    (harness.home / "tiny").mkdir()
    assert harness.archive().code == 0
    tiny, harness.key = harness.key, small
    with (harness.home / "large").open("wb") as file:
        for _ in range(SIZE >> 22):
            file.write(os.urandom(4 << 20))
    with (harness.home / "sparse").open("wb") as file:
        file.truncate(SIZE)
    for number in range(2000):
        (harness.home / "tiny" / f"{number}").touch()
    assert harness.archive().code == 0
    command = [sys.executable, "-c", MEASURE, harness.store_url, tiny, harness.key]
    grown, *totals = map(int, subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split())
    print(f"an archive of {SIZE >> 20} MB: {grown >> 20} MB more")
    assert totals[0] == totals[3] == SIZE
    assert min(totals) >= SIZE
    assert grown < LIMIT
