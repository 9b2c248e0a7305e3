"""`make test-long`: the full numbers, with what they showed kept in docs/evidence under the commit they were run on."""

import os
import platform
import subprocess
import sys
from collections import deque
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KEPT_LINES = 40
COMMANDS = (
    ("pytest", "-q", "-n", "2", "--dist", "loadfile", "-m", "long"),
    ("python", "-m", "tests.simulation", "--seeds", "2000"),
    ("python", "-m", "tests.mutants"),
    ("python", "-m", "bench"),
)


def main() -> int:
    commit = git("rev-parse", "--short", "HEAD") + ("-dirty" if git("status", "--porcelain") else "")
    began = datetime.now(UTC)
    report = [
        f"# {commit}",
        "",
        f"{began:%Y-%m-%d %H:%M} UTC, {os.cpu_count()} cores, Python {platform.python_version()}.",
    ]
    failed = False
    for command in COMMANDS:
        code, tail = run(command)
        failed |= code != 0
        report += ["", f"## `{' '.join(command)}`: exit {code}", "", "```text", *tail, "```"]
    path = ROOT / "docs" / "evidence" / f"{began:%Y-%m-%d}-{commit}.md"
    path.write_text("\n".join(report) + "\n")
    print(f"kept in {path.relative_to(ROOT)}")
    return 1 if failed else 0


def run(command: tuple[str, ...]) -> tuple[int, list[str]]:
    """Shown as it comes; its end is kept."""
    program = Path(sys.executable).parent / command[0]
    tail: deque[str] = deque(maxlen=KEPT_LINES)
    with subprocess.Popen(
        [program, *command[1:]], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as child:
        for line in child.stdout or ():
            print(line, end="", flush=True)
            tail.append(line.rstrip())
    return child.returncode, list(tail)


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
