"""Templates: what a workspace could be made from."""

from typing import Any

import pytest

from codehub.domain.errors import Invalid
from codehub.domain.template import KubernetesOptions, Template, checked_template, must_fit

GOOD_IMAGES = (
    "ide",
    "ide:1",
    "team/ide:1.2-rc_3",
    "localhost/ide",
    "registry.example.com/team/sub__part/ide-x.y:latest",
    "10.0.0.1:5000/ide",
    "builder:5000/ide:1",
    "ide@sha256:" + "0" * 64,
)
BAD_IMAGES = (
    "two words",
    "UPPER",
    "UPPER/case:1",
    "a:b:c",
    "ide:",
    "/ide",
    "ide/",
    "https://r.example/ide",
    "ide@sha256:1",
    "$(x)",
)


def test_a_good_template_is_left_as_it_is() -> None:
    for template in (
        Template("default"),
        Template("a-1", "Text", "registry.example/image:tag", {"LANG": "C", "_X": "ü\n"}, 0.5, 1 << 30, 1 << 30, 64),
        *(Template("image", image_ref=name) for name in GOOD_IMAGES),
    ):
        assert checked_template(template) == template


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "Upper"},
        {"name": "-a"},
        {"name": "x" * 41},
        {"description": "x" * 501},
        {"description": "two\nlines"},
        *({"image_ref": name} for name in BAD_IMAGES),
        {"env": {"1X": "a"}},
        {"env": {"A=B": "a"}},
        {"env": {"A": "x" * 4097}},
        {"env": {"A": "\x00"}},
        {"env": {"A": "\ud800"}},
        {"env": {f"A{n}": "" for n in range(101)}},
        {"cpu": 0},
        {"cpu": float("nan")},
        {"cpu": float("inf")},
        {"memory_bytes": -1},
        {"disk_bytes": 2**63},
        {"pids": 0},
        {"pids": 1},
        {"cpu": 0.001},
        {"memory_bytes": 1 << 20},
        {"disk_bytes": 1},
    ],
    ids=lambda wrong: str(wrong)[:40],
)
def test_a_bad_one_says_what_is_wrong(wrong: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        checked_template(Template(**({"name": "python"} | wrong)))


@pytest.mark.parametrize(
    ("template", "field"),
    [
        (Template("big", cpu=100), "cpu"),
        (Template("big", cpu=2.01), "cpu"),
        (Template("big", memory_bytes=(4 << 30) + 1), "memory_bytes"),
        (Template("fits", cpu=2, memory_bytes=4 << 30, disk_bytes=1 << 50, pids=1 << 20), None),
        (Template("open"), None),
    ],
)
def test_one_that_is_more_than_the_engine_has_is_refused(template: Template, field: str | None) -> None:
    must_fit(template, None, None)
    if field is None:
        must_fit(template, 2.0, 4 << 30)
        return
    with pytest.raises(Invalid, match=r"The engine has (2 CPUs|4096 MiB)") as refused:
        must_fit(template, 2.0, 4 << 30)
    assert refused.value.field == field


FULL = {
    "command": ["/bin/serve", "--here"],
    "node_selector": {"pool": "ides", "example.com/zone": "a"},
    "tolerations": [{"key": "ides", "operator": "Exists", "effect": "NoSchedule"}],
    "runtime_class": "gvisor",
    "priority_class": "low",
    "storage_class": "fast.ssd",
    "pull_secrets": ["registry"],
}


def test_options_for_a_cluster_are_kept_as_they_are() -> None:
    assert KubernetesOptions.from_json(FULL).to_json() == FULL
    assert KubernetesOptions.from_json({}).to_json() == {}
    assert KubernetesOptions.from_json({}) == KubernetesOptions()
    assert checked_template(Template("a", kubernetes=KubernetesOptions.from_json(FULL)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"privileged": True},
        {"command": []},
        {"command": [""]},
        {"command": "sh"},
        {"command": [1]},
        {"node_selector": {"a b": "x"}},
        {"node_selector": {"a": "x y"}},
        {"node_selector": ["a"]},
        {"runtime_class": "Upper"},
        {"runtime_class": 1},
        {"storage_class": "a" * 254},
        {"pull_secrets": "registry"},
        {"pull_secrets": ["../x"]},
        {"tolerations": [{"operator": "Exists"}]},
        {"tolerations": [{"key": "a", "operator": "Like"}]},
        {"tolerations": [{"key": "a", "value": 1}]},
        {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]},
        {"tolerations": [{"key": "a", "effect": "Everything"}]},
        {"tolerations": [{"key": "a", "tolerationSeconds": 5}]},
        {"tolerations": [{"key": "a", "hostNetwork": "yes"}]},
        {"tolerations": ["a"]},
    ],
)
def test_options_that_no_cluster_could_take_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as refused:
        KubernetesOptions.from_json(wrong)
    assert refused.value.field == "kubernetes"
