"""Which addresses a workspace may be filled from."""

import pytest

from codehub.domain.errors import Invalid
from codehub.domain.template import checked_git_url


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
        "https://git.example.com/" + "a" * 1000,
    ],
)
def test_what_could_be_something_else_is_not(url: str) -> None:
    with pytest.raises(Invalid) as refused:
        checked_git_url(url)
    assert refused.value.field == "git_url"
    assert "secret" not in str(refused.value)
