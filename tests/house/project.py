"""The project as house tests see it: its files, with or without git."""

import ast
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "codehub"
NOT_OURS = {".git", ".venv", "__pycache__", "build", "dist"}


@cache
def project_files() -> tuple[Path, ...]:
    """What is or could be committed. A copy without its history (a tarball) is walked instead."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0 and (ROOT / ".git").exists():
        found = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        found = [path for path in ROOT.rglob("*") if not ignored(path.relative_to(ROOT))]
    return tuple(sorted(path for path in found if path.is_file()))


def ignored(path: Path) -> bool:
    return any(
        part in NOT_OURS or part.endswith(("_cache", ".egg-info")) or part == ".hypothesis" for part in path.parts
    )


def python_files(*places: str) -> list[Path]:
    return [
        path
        for path in project_files()
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in (places or ("src", "tests", "bench", "docs"))
    ]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))
