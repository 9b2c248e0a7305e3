"""The proxy's benchmark still runs, and measures what it says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]


def test_the_proxy_s_benchmark_runs(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers.json"
    command = [sys.executable, "-m", "bench.proxy", "--quick", "--only", "nginx", "codehub", "--json", str(numbers)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    proxies = {row["name"]: row for row in json.loads(numbers.read_text())["proxies"]}
    for what in ("requests", "p99_ms", "cpu_us", "messages", "download_mb"):
        assert all(value > 0 for value in proxies["codehub"][what]), what
    assert len(proxies["codehub"]["idle_mb"]) == 1
    assert "codehub" in done.stdout
