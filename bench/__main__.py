"""Runs every benchmark of this folder, each in a process of its own so that none warms another's caches."""

import subprocess
import sys
from pathlib import Path


def main() -> int:
    names = sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))
    failed = [name for name in names if subprocess.run([sys.executable, "-m", f"bench.{name}"], check=False).returncode]
    for name in failed:
        print(f"bench.{name} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
