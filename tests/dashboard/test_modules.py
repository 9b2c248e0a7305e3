"""The dashboard's pure modules, tested by node itself: `node --test` on the files beside this one."""

import os
import subprocess
from pathlib import Path

import pytest

from codehub.adapters.ide.toolchain import of_the_wheel

HERE = Path(__file__).parent


@pytest.mark.parametrize("file", sorted(HERE.glob("*.test.mjs")), ids=lambda path: path.stem)
def test_module(file: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NODE_")} | {"TZ": "UTC"}
    ran = subprocess.run(
        [of_the_wheel().node, "--test", "--test-reporter=spec", str(file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=environment,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
