"""The benchmarks still run, and what must hold at any speed holds: no write for settled workspaces, no event lost."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contracts import s3
from tests.docker_engine import DockerTestbed
from tests.kubernetes_cluster import KUBECONFIG, KubernetesTestbed

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
HUNG_SECONDS = 600


def test_the_controller_s_benchmark_runs_and_sees_no_row_written(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers.json"
    command = [sys.executable, "-m", "bench.controller", "--quick", "--json", str(numbers)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HUNG_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(numbers.read_text())
    passes = [row for row in found["passes"] if row["what"] == "steady pass"]
    assert [(row["workspaces"], row["loaded"], row["written"]) for row in passes] == [(100, 0, 0), (1000, 0, 0)]
    assert all(row["operations_per_second"] > 0 for row in found["wishes"])
    assert "wish to operation" in done.stdout


def test_the_api_s_benchmark_runs_and_every_listener_hears_every_change(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers.json"
    command = [sys.executable, "-m", "bench.api", "--quick", "--json", str(numbers)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HUNG_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(numbers.read_text())
    assert [(row["missed"], row["cut"]) for row in found["listening"]] == [(0, 0), (0, 0)]
    assert all(row[who]["per_second"] > 0 for row in found["calls"] for who in ("ours", "framework", "sql"))
    assert "from COMMIT to the bytes" in done.stdout


def test_the_start_s_benchmark_runs(docker_testbed: DockerTestbed, tmp_path: Path) -> None:
    numbers = tmp_path / "numbers.json"
    command = [sys.executable, "-m", "bench.start", "--quick", "--json", str(numbers)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HUNG_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(numbers.read_text())["rows"]
    assert [row["starts"] for row in rows] == [2, 2, 2, 2]
    assert all(0 < row["p50_ms"] <= row["p99_ms"] for row in rows)
    assert "overhead at p50" in done.stdout


@pytest.mark.kubernetes
def test_the_start_s_benchmark_runs_on_a_cluster(kubernetes_testbed: KubernetesTestbed, tmp_path: Path) -> None:
    numbers = tmp_path / "numbers.json"
    command = [sys.executable, "-m", "bench.start", "--quick", "--runtime", "kubernetes", "--json", str(numbers)]
    with s3.rclone(tmp_path / "buckets", kubernetes_testbed.address) as endpoint:
        given = {
            "KUBECONFIG": KUBECONFIG,
            "CODEHUB_KUBERNETES_NAMESPACE": kubernetes_testbed.namespace,
            "CODEHUB_ARCHIVE_URL": f"s3://{s3.BUCKET}",
            "CODEHUB_S3_ENDPOINT": endpoint,
            "AWS_ACCESS_KEY_ID": s3.KEY_ID,
            "AWS_SECRET_ACCESS_KEY": s3.SECRET,
        }
        environ = {**os.environ, **given}
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=HUNG_SECONDS, check=False, env=environ
        )
    assert done.returncode == 0, done.stderr
    assert [row["starts"] for row in json.loads(numbers.read_text())["rows"]] == [2, 2, 2, 2], done.stdout
