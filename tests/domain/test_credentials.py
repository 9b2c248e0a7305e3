"""The rules for names, passwords, tokens and guesses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codehub.domain.credentials import (
    LONGEST_WAIT_SECONDS,
    address_group,
    checked_password,
    numbered_username,
    one_line,
    possible_username,
    username_from,
    username_suggestion,
    wait_seconds,
)
from codehub.domain.errors import Invalid


@pytest.mark.parametrize(("text", "name"), [("ann", "ann"), (" Ann.B_c-1 ", "ann.b_c-1"), ("x" * 64, "x" * 64)])
def test_usernames_are_stored_in_lower_case(text: str, name: str) -> None:
    assert username_from(text) == possible_username(text) == name


@pytest.mark.parametrize("text", ["", " ", "a b", "x" * 65, "ann@example.com", "ann\n.", "\uff21nn", "a/b", "a\x00"])
def test_what_is_no_username(text: str) -> None:
    with pytest.raises(Invalid, match="1 to 64"):
        username_from(text)
    assert possible_username(text) == ""


@given(st.text(max_size=80), st.text(max_size=80))
def test_a_suggestion_is_always_a_username(claim: str, email: str) -> None:
    name = username_suggestion(claim, email)
    assert username_from(name) == name
    assert username_from(numbered_username(name, "2")) != name


@pytest.mark.parametrize("password", ["x" * 8, "x" * 1024, "        ", "пароль-пароль"])
def test_length_is_the_only_rule(password: str) -> None:
    assert checked_password(password, "ann") == password


@pytest.mark.parametrize("password", ["", "x" * 7, "x" * 1025, "somebody", "SomeBody", " somebody "])
def test_what_is_no_password(password: str) -> None:
    with pytest.raises(Invalid):
        checked_password(password, "somebody")


def test_waits_double_up_to_their_bound() -> None:
    assert [wait_seconds(n, 5) for n in range(4, 10)] == [0, 1, 2, 4, 8, 16]
    assert wait_seconds(10**9, 5) == LONGEST_WAIT_SECONDS
    assert [wait_seconds(n, 5, longest=1) for n in range(4, 8)] == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("", ""),
        ("unix", "unix"),
        ("x" * 100, "x" * 64),
    ],
)
def test_who_counts_as_one_guesser(address: str, group: str) -> None:
    assert address_group(address) == group


@given(st.text(max_size=500))
def test_one_line_is_one_bounded_line(text: str) -> None:
    line = one_line(text, 100)
    assert len(line) <= 100
    assert line.isprintable()
