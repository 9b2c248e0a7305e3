"""The Helm chart as its tests see it: rendered by the real helm, without a cluster."""

import base64
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "codehub"
RELEASE, NAMESPACE = "codehub", "hub"
NEW = ("policy/v1/PodDisruptionBudget", "autoscaling/v2/HorizontalPodAutoscaler")
"""What a cluster of today offers and one of 1.20 does not."""
STORES: dict[str, Any] = {"trial": {name: {"enabled": True} for name in ("postgresql", "redis", "archives")}}
TRIAL: dict[str, Any] = {**STORES, "generated": {"anew": True}}
"""A trial as it is rendered here: there is no cluster that could tell what was generated before."""
EXTERNAL: dict[str, Any] = {
    "database": {"url": "postgresql://codehub:secret@db/codehub"},
    "redis": {"existingSecret": "our-redis"},
    "archives": {"url": "s3://archives", "existingSecret": "our-store"},
    "secretsKeys": {"existingSecret": "our-keys"},
}
EVERYTHING: dict[str, Any] = {
    **EXTERNAL,
    "hosts": {"hub": "hub.example.com", "workspaces": "ws.example.com"},
    "ingress": {"enabled": True, "className": "nginx"},
    "api": {"autoscaling": {"enabled": True}},
    "proxy": {"autoscaling": {"enabled": True}},
    "serviceMonitor": {"enabled": True, "apiTokenSecret": "our-token"},
}

Manifest = dict[str, Any]


@cache
def helm_program() -> str:
    """The path of helm, which its wheel puts beside Python; without it the test is skipped."""
    program = Path(sysconfig.get_path("scripts"), "helm")
    if not program.exists():
        pytest.skip("helm is not there: its wheel is for Linux on x86-64")
    return str(program)


def run_helm(*words: str, values: Mapping[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(dict(values or {}), file)
        command = [helm_program(), *words, "--values", file.name]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def render(values: Mapping[str, Any], *words: str, chart: Path = CHART) -> list[Manifest]:
    """Every object that an install makes, its hooks and tests included."""
    done = run_helm("template", RELEASE, str(chart), "--namespace", NAMESPACE, *words, values=values)
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found]


def refusal(values: Mapping[str, Any], *words: str) -> str:
    done = run_helm("template", RELEASE, str(CHART), "--namespace", NAMESPACE, *words, values=values)
    assert done.returncode != 0
    return done.stderr


def named(objects: list[Manifest], kind: str, name: str) -> Manifest:
    (found,) = [one for one in objects if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def secret_data(objects: list[Manifest], name: str) -> dict[str, str]:
    """What the Secret holds, in plain text."""
    return {key: base64.b64decode(value).decode() for key, value in named(objects, "Secret", name)["data"].items()}


def of_kind(objects: list[Manifest], kind: str) -> list[Manifest]:
    return [one for one in objects if one["kind"] == kind]


def pods(objects: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """The name of each object that makes pods, and the pod's own part of it."""
    for one in objects:
        if one["kind"] in {"Deployment", "StatefulSet", "Job"}:
            yield one["metadata"]["name"], one["spec"]["template"]
        elif one["kind"] == "Pod":
            yield one["metadata"]["name"], one


def containers(pod: Manifest) -> list[Manifest]:
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def hooks(one: Manifest) -> set[str]:
    """The moments at which helm runs this object, empty for an ordinary part of the release."""
    told = one["metadata"].get("annotations", {}).get("helm.sh/hook", "")
    return {name for name in told.split(",") if name}
