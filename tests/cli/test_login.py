"""Signing in and out: what is kept is a token that ends when it is no longer needed."""

import json

import httpx
import pytest

from codehub.cli.errors import FAILED, USAGE
from codehub.domain.identity import Role
from tests.api.site import PASSWORD
from tests.cli.hub import Hub
from tests.cli.terminal import Terminal

ME = ("-u", "ann", "--password-stdin")


def works(hub: Hub, token: str) -> bool:
    answer = httpx.get(f"{hub.url}/api/v1/session", headers={"Authorization": f"Bearer {token}"}, trust_env=False)
    return answer.status_code == 200


def kept(terminal: Terminal, context: str = "default") -> str:
    token: str = json.loads(terminal.config.read_text())["contexts"][context]["token"]
    return token


def test_a_password_becomes_a_token(hub: Hub, terminal: Terminal) -> None:
    hub.token("ann", Role.ADMIN)
    said = terminal.done("login", hub.url, *ME, stdin=f"{PASSWORD}\n")
    assert said == f"Signed in to {hub.url} as ann. Try `codehub ws ls`.\n"
    assert works(hub, kept(terminal))
    assert terminal("whoami", "--json").json()["scopes"] == ["admin", "read", "write"]
    people = hub.site.worlds.database.world.people
    assert people.sessions == {}  # the session that made the token has ended


def test_signing_out_takes_the_token_back(hub: Hub, terminal: Terminal) -> None:
    hub.token("ann")
    terminal.done("login", hub.url, *ME, stdin=PASSWORD)
    token = kept(terminal)
    assert terminal.done("logout") == f"Signed out of {hub.url}.\n"
    assert not works(hub, token)
    assert token not in terminal.config.read_text()


def test_signing_in_again_takes_the_old_token_back(hub: Hub, terminal: Terminal) -> None:
    hub.token("ann")
    terminal.done("login", hub.url, *ME, stdin=PASSWORD)
    first = kept(terminal)
    terminal.done("login", hub.url, *ME, stdin=PASSWORD)
    assert not works(hub, first)
    assert works(hub, kept(terminal))


def test_signing_out_of_a_hub_that_is_gone(hub: Hub, terminal: Terminal) -> None:
    hub.token("ann")
    terminal.done("login", hub.url, *ME, stdin=PASSWORD)
    text = terminal.config.read_text().replace(hub.url, "http://127.0.0.1:1")
    terminal.config.write_text(text)
    said = terminal("logout")
    assert (said.code, said.out) == (0, "Signed out of http://127.0.0.1:1.\n")
    assert "The old token could not be taken back" in said.err
    assert json.loads(terminal.config.read_text())["contexts"] == {}


def test_a_wrong_password(hub: Hub, terminal: Terminal) -> None:
    hub.token("ann")
    said = terminal("login", hub.url, *ME, stdin="guess\n")
    assert said.code == USAGE
    [line] = said.lines()
    assert "codehub login" not in line  # that is what was typed
    assert not terminal.config.exists()


def test_too_many_tries_say_when(hub: Hub, terminal: Terminal) -> None:
    hub.token("ann")
    tries = (terminal("login", hub.url, *ME, stdin="guess\n") for _ in range(30))
    said = next(one for one in tries if one.code != USAGE)
    assert said.code == FAILED
    assert "Try again in " in said.lines()[-1]


def test_a_token_that_was_brought_along_is_not_ended(hub: Hub, terminal: Terminal) -> None:
    token = hub.token("ann")
    assert "as ann" in terminal.done("login", hub.url, "--token-stdin", stdin=f"{token}\n")
    terminal.done("logout")
    assert works(hub, token)


def test_a_token_that_is_none(hub: Hub, terminal: Terminal) -> None:
    for text, part in (("", "There was no token to read."), ("chub_nonsense", "token")):
        said = terminal("login", hub.url, "--token-stdin", stdin=text)
        assert said.code == USAGE
        assert part in said.err
    assert not terminal.config.exists()


@pytest.mark.parametrize(("address", "warned"), [("http://192.0.2.1:1", True), ("127.0.0.1:1", False)])
def test_it_says_so_before_anything_goes_unencrypted(terminal: Terminal, address: str, warned: bool) -> None:
    said = terminal("login", address, "-u", "ann")  # there is no terminal to ask for the password
    assert said.code == USAGE
    assert ("is not encrypted" in said.err) is warned


def test_nobody_to_ask(hub: Hub, terminal: Terminal) -> None:
    said = terminal("login", hub.url, "-u", "ann")
    assert said.lines() == ["There is no terminal to ask for the password: use --password-stdin."]
    said = terminal("login", hub.url)
    assert said.lines() == ["There is no terminal to ask for the username: use --username."]


def test_a_token_that_has_ended(hub: Hub, terminal: Terminal) -> None:
    hub.token("ann")
    terminal.done("login", hub.url, *ME, stdin=PASSWORD)
    terminal.done("token", "revoke", json.loads(terminal.config.read_text())["contexts"]["default"]["token_id"])
    said = terminal("ws", "ls")
    assert said.code == USAGE
    assert said.lines()[-1] == "  Sign in with `codehub login`."
    assert terminal("logout").err == ""


def test_tokens(ann: Terminal) -> None:
    create = ("token", "create", "--password-stdin")
    made = ann(*create, "ci", "--scope", "read", "--scope", "write", "--days", "7", stdin=PASSWORD)
    assert made.out.startswith("chub_")
    assert "shown once" in made.err
    assert "chub_" not in made.err
    listed = {token["name"]: token for token in ann("token", "ls", "--json").json()}
    assert listed["ci"]["scopes"] == ["read", "write"]
    assert made.out.strip() not in ann.done("token", "ls")
    assert ann.done("token", "revoke", listed["ci"]["id"][:8]) == "ci is taken back.\n"
    assert ann("token", "revoke", "ci").lines() == ["There is no token 'ci'. `codehub token ls` lists what there is."]
    assert ann(*create, "ci", "--scope", "everything", stdin=PASSWORD).code != 0
    assert ann(*create, "x", "--json", stdin=PASSWORD).json()["token"].startswith("chub_")


def test_a_token_takes_the_password(hub: Hub, ann: Terminal) -> None:
    before = ann("token", "ls", "--json").json()
    assert ann("token", "create", "ci", "--password-stdin", stdin="guess").code == USAGE
    said = ann("token", "create", "ci")
    assert said.lines() == ["There is no terminal to ask for the password: use --password-stdin."]
    assert [token["id"] for token in ann("token", "ls", "--json").json()] == [token["id"] for token in before]
    ann.done("token", "create", "ci", "--password-stdin", stdin=PASSWORD)
    assert hub.site.worlds.database.world.people.sessions == {}  # the session that made it has ended


@pytest.mark.parametrize("revoke", [False, True])
def test_a_password_is_changed_and_this_machine_stays_signed_in(hub: Hub, terminal: Terminal, revoke: bool) -> None:
    other = hub.token("ann")
    terminal.done("login", hub.url, "-u", "ann", "--password-stdin", stdin=PASSWORD)
    words = ("password", "--password-stdin", *(["--revoke-tokens"] if revoke else []))
    wrong = terminal(*words, stdin="a guess\nanother good one\n")
    assert wrong.code != 0
    terminal.done(*words, stdin=f"{PASSWORD}\nanother good one\n")
    assert "ann (user)" in terminal.done("whoami")
    terminal.set(CODEHUB_URL=hub.url, CODEHUB_TOKEN=other)
    assert (terminal("whoami").code == 0) is not revoke
