"""Signing in and out: what is kept is a token that ends when it is no longer needed."""

import json

import httpx
import pytest

from codehub.cli.output import FAILED, USAGE
from codehub.domain.identity import Role
from tests.api.memory_api import PASSWORD
from tests.cli.api_server import ApiServer
from tests.cli.terminal import Terminal

ME = ("-u", "ann", "--password-stdin")


def works(server: ApiServer, token: str) -> bool:
    answer = httpx.get(f"{server.url}/api/v1/session", headers={"Authorization": f"Bearer {token}"}, trust_env=False)
    return answer.status_code == 200


def kept(terminal: Terminal, context: str = "default") -> str:
    token: str = json.loads(terminal.config.read_text())["contexts"][context]["token"]
    return token


def test_a_password_becomes_a_token(server: ApiServer, terminal: Terminal) -> None:
    server.token("ann", Role.ADMIN)
    said = terminal.done("login", server.url, *ME, stdin=f"{PASSWORD}\n")
    assert said == f"Signed in to {server.url} as ann. Try `codehub ws ls`.\n"
    assert works(server, kept(terminal))
    assert terminal("whoami", "--json").json()["scopes"] == ["admin", "read", "write"]
    people = server.api.backends.database.state.accounts
    assert people.sessions == {}  # the session that made the token has ended


def test_signing_out_takes_the_token_back(server: ApiServer, terminal: Terminal) -> None:
    server.token("ann")
    terminal.done("login", server.url, *ME, stdin=PASSWORD)
    token = kept(terminal)
    assert terminal.done("logout") == f"Signed out of {server.url}.\n"
    assert not works(server, token)
    assert token not in terminal.config.read_text()


def test_signing_in_again_takes_the_old_token_back(server: ApiServer, terminal: Terminal) -> None:
    server.token("ann")
    terminal.done("login", server.url, *ME, stdin=PASSWORD)
    first = kept(terminal)
    terminal.done("login", server.url, *ME, stdin=PASSWORD)
    assert not works(server, first)
    assert works(server, kept(terminal))


def test_signing_out_of_a_hub_that_is_gone(server: ApiServer, terminal: Terminal) -> None:
    server.token("ann")
    terminal.done("login", server.url, *ME, stdin=PASSWORD)
    text = terminal.config.read_text().replace(server.url, "http://127.0.0.1:1")
    terminal.config.write_text(text)
    said = terminal("logout")
    assert (said.code, said.out) == (0, "Signed out of http://127.0.0.1:1.\n")
    assert "The old token could not be taken back" in said.err
    assert json.loads(terminal.config.read_text())["contexts"] == {}


def test_a_wrong_password(server: ApiServer, terminal: Terminal) -> None:
    server.token("ann")
    said = terminal("login", server.url, *ME, stdin="guess\n")
    assert said.code == USAGE
    [line] = said.lines()
    assert "codehub login" not in line  # that is what was typed
    assert not terminal.config.exists()


def test_too_many_tries_say_when(server: ApiServer, terminal: Terminal) -> None:
    server.token("ann")
    tries = (terminal("login", server.url, *ME, stdin="guess\n") for _ in range(30))
    said = next(one for one in tries if one.code != USAGE)
    assert said.code == FAILED
    assert "Try again in " in said.lines()[-1]


def test_a_token_that_was_brought_along_is_not_ended(server: ApiServer, terminal: Terminal) -> None:
    token = server.token("ann")
    assert "as ann" in terminal.done("login", server.url, "--token-stdin", stdin=f"{token}\n")
    terminal.done("logout")
    assert works(server, token)


def test_a_token_that_is_none(server: ApiServer, terminal: Terminal) -> None:
    for text, part in (("", "There was no token to read."), ("chub_nonsense", "token")):
        said = terminal("login", server.url, "--token-stdin", stdin=text)
        assert said.code == USAGE
        assert part in said.err
    assert not terminal.config.exists()


@pytest.mark.parametrize(("address", "warned"), [("http://192.0.2.1:1", True), ("127.0.0.1:1", False)])
def test_it_says_so_before_anything_goes_unencrypted(terminal: Terminal, address: str, warned: bool) -> None:
    said = terminal("login", address, "-u", "ann")  # there is no terminal to ask for the password
    assert said.code == USAGE
    assert ("is not encrypted" in said.err) is warned


def test_nobody_to_ask(server: ApiServer, terminal: Terminal) -> None:
    said = terminal("login", server.url, "-u", "ann")
    assert said.lines() == ["There is no terminal to ask for the password: use --password-stdin."]
    said = terminal("login", server.url)
    assert said.lines() == ["There is no terminal to ask for the username: use --username."]


def test_a_token_that_has_ended(server: ApiServer, terminal: Terminal) -> None:
    server.token("ann")
    terminal.done("login", server.url, *ME, stdin=PASSWORD)
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


def test_a_token_takes_the_password(server: ApiServer, ann: Terminal) -> None:
    before = ann("token", "ls", "--json").json()
    assert ann("token", "create", "ci", "--password-stdin", stdin="guess").code == USAGE
    said = ann("token", "create", "ci")
    assert said.lines() == ["There is no terminal to ask for the password: use --password-stdin."]
    assert [token["id"] for token in ann("token", "ls", "--json").json()] == [token["id"] for token in before]
    ann.done("token", "create", "ci", "--password-stdin", stdin=PASSWORD)
    assert server.api.backends.database.state.accounts.sessions == {}  # the session that made it has ended


@pytest.mark.parametrize("revoke", [False, True])
def test_a_password_is_changed_and_this_machine_stays_signed_in(
    server: ApiServer, terminal: Terminal, revoke: bool
) -> None:
    other = server.token("ann")
    terminal.done("login", server.url, "-u", "ann", "--password-stdin", stdin=PASSWORD)
    words = ("password", "--password-stdin", *(["--revoke-tokens"] if revoke else []))
    wrong = terminal(*words, stdin="a guess\nanother good one\n")
    assert wrong.code != 0
    terminal.done(*words, stdin=f"{PASSWORD}\nanother good one\n")
    assert "ann (user)" in terminal.done("whoami")
    terminal.set(CODEHUB_URL=server.url, CODEHUB_TOKEN=other)
    assert (terminal("whoami").code == 0) is not revoke
