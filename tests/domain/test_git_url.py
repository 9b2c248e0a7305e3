"""Which addresses a workspace may be filled from, and which of their branches."""

import shutil
import subprocess

import pytest

from codehub.domain.errors import Invalid
from codehub.domain.template import checked_git_ref, checked_git_url


@pytest.mark.parametrize(
    "url",
    [
        "https://git.example.com/team/shop.git",
        "https://git.example.com:8443/a/b",
        "git://git.example.com/a",
        "ssh://git@git.example.com:22/team/shop.git",
        "ssh://git.example.com/~ann/x",
        "git@git.example.com:team/shop.git",
        "https://git.example.com/a%20b",
        "https://gitlab/team/shop.git",
        "git@forge:team/shop.git",
        "ssh://git@forge/team/shop.git",
    ],
)
def test_ordinary_addresses_are_taken(url: str) -> None:
    assert checked_git_url(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "shop",
        "http://git.example.com/a",
        "https://ann:secret@git.example.com/a",
        "https://token@git.example.com/a",
        "ssh://git:secret@git.example.com/a",
        "file:///etc/passwd",
        "ext::sh -c evil",
        "--upload-pack=evil",
        "-u@git.example.com:a",
        "git@-oProxyCommand=evil:a",
        "git@git.example.com:-evil",
        "ssh://-oProxyCommand=evil/a",
        "https://git.example.com/a b",
        "https://git.example.com/a\n",
        "https://git.example.com/a;evil",
        "https://git.example.com/$(evil)",
        "https://git.example.com/`evil`",
        "https://git.example.com/a?x=1",
        "https://gít.example.com/a",
        "https://git.example.com:\u0664\u0664\u0663/a",  # digits, but not of ASCII
        "ssh://git@git.example.com:\uff12\uff12/a",
        "https://git.example.com/" + "a" * 1000,
    ],
)
def test_what_could_be_something_else_is_not(url: str) -> None:
    with pytest.raises(Invalid) as refused:
        checked_git_url(url)
    assert refused.value.field == "git_url"
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("ref", ["main", "release/1.2", "v1.0-rc.1", "feature/#12_x", "한글", "a@b", "refs/tags/v1"])
def test_branches_and_tags_are_taken_as_git_takes_them(ref: str) -> None:
    assert checked_git_ref(ref) == ref
    assert git_takes(ref)


@pytest.mark.parametrize(
    "ref",
    [
        *("-x", "--upload-pack=evil", "a b", "a..b", "a~1", "a^", "a:b", "a?", "a*", "a[", "a\\b"),
        *("@{-1}", "a@{1}", "/a", "a/", "a//b", ".a", "a/.b", "a.", "a.lock", "a.lock/b", "a\n", "a\x00", "a\x7f", ""),
    ],
)
def test_what_git_would_not_take_as_a_branch_is_refused(ref: str) -> None:
    with pytest.raises(Invalid) as refused:
        checked_git_ref(ref)
    assert refused.value.field == "git_ref"
    assert "\x00" in ref or not git_takes(ref)


@pytest.mark.parametrize("ref", ["@", "a" * 256, "한" * 86, "a\u202eb", "\ud800"])
def test_nor_what_nobody_could_read(ref: str) -> None:
    with pytest.raises(Invalid):
        checked_git_ref(ref)


def git_takes(ref: str) -> bool:
    """Asked outside every repository, in which `@{-1}` could be a branch."""
    if shutil.which("git") is None:
        pytest.skip("git is not there")
    words = ["git", "check-ref-format", "--branch", ref]
    return subprocess.run(words, check=False, capture_output=True, cwd="/").returncode == 0
