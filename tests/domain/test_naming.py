"""Names derive from the immutable id."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codehub.domain import naming
from tests.rows import OP_ID, OTHER_OP_ID, WORKSPACE_ID

IDS = st.uuids(version=4)


def test_the_names_of_the_design() -> None:
    assert naming.container_name(WORKSPACE_ID) == f"ws-{WORKSPACE_ID}"
    assert naming.job_name(WORKSPACE_ID) == f"ws-{WORKSPACE_ID}-job"
    key = naming.archive_key("team/", WORKSPACE_ID, OP_ID)
    assert key == f"team/{WORKSPACE_ID}/{OP_ID}/home.tar.zst"
    assert naming.meta_key(key) == f"{key}.meta"


def test_incarnations_never_share_a_name() -> None:
    names = [naming.volume_name(WORKSPACE_ID, n) for n in range(1, 50)]
    assert names[:3] == [f"ws-{WORKSPACE_ID}-home", f"ws-{WORKSPACE_ID}-home-2", f"ws-{WORKSPACE_ID}-home-3"]
    assert len(set(names)) == 49


@given(IDS, IDS, st.integers(1, 10_000))
def test_an_incarnation_is_read_back(a: UUID, b: UUID, number: int) -> None:
    name = naming.volume_name(a, number)
    assert naming.incarnation_of(a, name) == number
    assert naming.incarnation_of(b, name) == (number if a == b else None)


@pytest.mark.parametrize("tail", ["-", "-0", "-1", "-01", "-2x", "-٣", "2", "-2-3"])
def test_what_is_no_incarnation(tail: str) -> None:
    assert naming.incarnation_of(WORKSPACE_ID, f"ws-{WORKSPACE_ID}-home{tail}") is None


@given(IDS, IDS, IDS, IDS, st.sampled_from(["", "team/", "a/b/"]))
def test_an_archive_is_told_by_both_ids(a: UUID, b: UUID, op: UUID, other: UUID, prefix: str) -> None:
    key = naming.archive_key(prefix, a, op)
    assert naming.is_archive_of(key, a, op)
    assert naming.is_archive_of(key, b, op) is (a == b)
    assert naming.is_archive_of(key, a, other) is (op == other)
    assert not naming.is_archive_of(key, a, None)
    assert not naming.is_archive_of(None, a, op)
    assert not naming.is_archive_of(naming.meta_key(key), a, op)


@given(st.text(max_size=80), IDS)
def test_every_name_gives_a_slug(name: str, workspace_id: UUID) -> None:
    slug = naming.slug_from(name, workspace_id)
    assert naming.is_slug(slug)
    assert len(slug) <= naming.SLUG_LENGTH


@given(st.text(max_size=80))
def test_two_people_may_use_the_same_name(name: str) -> None:
    assert naming.slug_from(name, OP_ID) != naming.slug_from(name, OTHER_OP_ID)


def test_a_slug_keeps_what_can_be_read() -> None:
    assert naming.slug_from("My Demo (v2)!", WORKSPACE_ID) == "my-demo-v2-111111"
    assert naming.slug_from("데모", WORKSPACE_ID) == "ws-111111"


@pytest.mark.parametrize("bad", ["", "-a", "a-", "a--b", "3000--demo", "A", "a.b", "a_b", "ü", "a\n", "a" * 41, " a"])
def test_what_is_no_slug(bad: str) -> None:
    assert not naming.is_slug(bad)


@pytest.mark.parametrize("good", ["a", "7", "a-b", "demo-111111", "a" * 40])
def test_what_is_a_slug(good: str) -> None:
    assert naming.is_slug(good)
