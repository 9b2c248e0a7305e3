"""`python -m tests.proxy.recording [SCENARIO ...]`: drive a real tab and keep what it says."""

import argparse
import asyncio
import sys
from datetime import UTC, datetime
from pathlib import Path

from codehub.adapters.ide import ensure_code_server
from codehub.adapters.process.sandbox import find_sandbox_tools
from codehub.bootstrap.runtimes import ide_cache_dir
from codehub.settings import load_settings
from tests.chromium import installed
from tests.proxy.recording.scenarios import SCENARIOS, session
from tests.proxy.recording.tape import TAPES, write


async def record(name: str, version: str, folder: Path) -> None:
    scenario = SCENARIOS[name]
    async with session(scenario) as under_way:
        await scenario.plays(under_way)
    about = {"scenario": name, "code-server": version, "recorded": f"{datetime.now(UTC):%Y-%m-%d}"}
    path = folder / f"{name}.jsonl.zst"
    write(path, about, under_way.recorder.entries)
    print(f"{path}: {path.stat().st_size} bytes, {len(under_way.recorder.entries)} entries", flush=True)


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)}; all if none")
    parser.add_argument("--to", type=Path, default=TAPES, metavar="FOLDER")
    chosen = parser.parse_args()
    if unknown := set(chosen.scenarios) - set(SCENARIOS):
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    if installed() is None or find_sandbox_tools() is None:
        print("A recording needs chromium, and bubblewrap for a home without this machine's names.", file=sys.stderr)
        return 1
    settings = load_settings(database_url="postgresql://unused", redis_url="redis://unused")
    ide = await ensure_code_server(ide_cache_dir(settings), lambda text, fraction: None)
    chosen.to.mkdir(parents=True, exist_ok=True)
    for name in chosen.scenarios or SCENARIOS:
        await record(name, ide.version, chosen.to)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
