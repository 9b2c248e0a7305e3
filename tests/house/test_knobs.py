"""A setting that nothing reads and a metric that nothing feeds are lies to the operator."""

import ast
import json
import re

from codehub import telemetry
from codehub.settings import Settings
from tests.house.project import ROOT, SOURCE, python_files, tree


def test_every_setting_is_read_somewhere() -> None:
    unread = set(Settings.model_fields) - names_used_outside("settings.py")
    assert sorted(unread) == []


def test_every_metric_is_fed_somewhere() -> None:
    declared = {name for name, value in vars(telemetry).items() if isinstance(value, telemetry.Metric)}
    unfed = declared - names_used_outside("telemetry.py")
    assert sorted(unfed) == []


def names_used_outside(file: str) -> set[str]:
    nodes = (node for path in python_files("src") if path != SOURCE / file for node in ast.walk(tree(path)))
    return {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in nodes
        if isinstance(node, ast.Attribute | ast.Name)
    }


def test_every_setting_and_metric_is_explained() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []
    assert [
        metric.name for metric in telemetry.METRICS if not metric.help or not metric.name.startswith("codehub_")
    ] == []


def test_the_grafana_board_asks_for_metrics_that_exist() -> None:
    board = json.loads((ROOT / "deploy" / "grafana" / "codehub.json").read_text())
    asked = {
        re.sub(r"_(bucket|sum|count)$", "", name)
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"codehub_\w+", target["expr"])
    }
    assert len(asked) > 10
    assert asked - {metric.name for metric in telemetry.METRICS} == set()
