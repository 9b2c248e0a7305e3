"""Templates: what a workspace could be made from."""

from typing import Any

import pytest

from codehub.domain.errors import Invalid
from codehub.domain.template import Template, checked_template


def test_a_good_template_is_left_as_it_is() -> None:
    for template in (
        Template("default"),
        Template("a-1", "Text", "registry.example/image:tag", {"LANG": "C", "_X": "ü\n"}, 0.5, 1, 2, 3),
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
        {"image_ref": "two words"},
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
    ],
    ids=lambda wrong: str(wrong)[:40],
)
def test_a_bad_one_says_what_is_wrong(wrong: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        checked_template(Template(**({"name": "python"} | wrong)))
