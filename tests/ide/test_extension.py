"""The extension's notifications, tested by node itself: `node --test` on the file beside this one."""

import os
import subprocess
from pathlib import Path

from codehub.adapters.ide.toolchain import of_the_wheel


def test_text_of_others_is_no_link_in_a_notification() -> None:
    file = Path(__file__).parent / "extension.test.cjs"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NODE_")}
    ran = subprocess.run(
        [of_the_wheel().node, "--test", "--test-reporter=spec", str(file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=environment,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
