"""Where the client talks to, and as whom: a private file, or the environment."""

import json

import pytest

from codehub.cli.contexts import checked_url
from codehub.cli.output import USAGE, ClientFailed
from tests.api.memory_api import PASSWORD
from tests.cli.api_server import ApiServer
from tests.cli.terminal import Terminal


@pytest.fixture
def signed_in(server: ApiServer, terminal: Terminal) -> Terminal:
    server.token("ann")
    for name in ("work", "home"):
        terminal.done("login", server.url, "-u", "ann", "--password-stdin", "--context", name, stdin=PASSWORD)
    return terminal


def test_the_file_is_its_owner_s_alone(signed_in: Terminal) -> None:
    assert signed_in.config.stat().st_mode & 0o777 == 0o600
    assert signed_in.config.parent.stat().st_mode & 0o077 == 0
    assert [path.name for path in signed_in.config.parent.iterdir()] == ["contexts.json"]


def test_list_and_choose(signed_in: Terminal, server: ApiServer) -> None:
    listed = signed_in("context", "ls", "--json").json()
    assert [(one["name"], one["url"], one["username"], one["current"]) for one in listed] == [
        ("work", server.url, "ann", False),
        ("home", server.url, "ann", True),
    ]
    assert "token" not in signed_in.config.name
    assert not any("token" in one for one in listed)
    assert signed_in.done("context", "use", "work") == f"Commands now talk to {server.url}.\n"
    assert "*  work" in signed_in.done("context", "ls")


def test_no_contexts_yet(terminal: Terminal) -> None:
    assert terminal.done("context", "ls") == "No contexts yet. Sign in with `codehub login`.\n"
    assert terminal.done("logout") == "You are not signed in.\n"


@pytest.mark.parametrize("words", [("context", "use", "wrok"), ("logout", "--context", "wrok")])
def test_an_unknown_context(words: tuple[str, ...], signed_in: Terminal) -> None:
    before = signed_in.config.read_text()
    said = signed_in(*words)
    assert (said.code, said.lines()) == (USAGE, ["There is no context 'wrok' (known: home, work)."])
    assert signed_in.config.read_text() == before


def test_one_command_in_another_context(signed_in: Terminal) -> None:
    signed_in.set(CODEHUB_CONTEXT="work")
    assert "ann (user)" in signed_in.done("whoami")
    signed_in.set(CODEHUB_CONTEXT="play")
    assert signed_in("whoami").lines() == ["There is no context 'play' (known: home, work)."]


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", '"text"', "{}", '{"current": ""}', "\ud800"),
        '{"current": "a", "contexts": {"a": {"uri": "x"}}}',
        '{"current": ["a"], "contexts": {}}',
        '{"current": "a", "contexts": {"a": {"url": 5}}}',
    ],
)
def test_a_damaged_file_is_named_and_kept(text: str, terminal: Terminal) -> None:
    terminal.config.parent.mkdir(parents=True)
    terminal.config.write_bytes(text.encode("utf-8", "surrogatepass"))
    for words in (("whoami",), ("context", "ls"), ("logout",), ("login", "localhost:1", "--token-stdin")):
        said = terminal(*words, stdin="chub_x")
        assert said.code == USAGE
        assert str(terminal.config) in said.err
        assert "remove it and sign in again" in said.err
    assert terminal.config.read_bytes() == text.encode("utf-8", "surrogatepass")


def test_a_place_that_cannot_be_written(server: ApiServer, terminal: Terminal) -> None:
    (terminal.home / "file").touch()
    terminal.set(CODEHUB_CONFIG=str(terminal.home / "file" / "contexts.json"))
    said = terminal("login", server.url, "--token-stdin", stdin=server.token())
    assert said.code != 0
    assert "file/contexts.json cannot be" in said.err


def test_the_environment_wins(signed_in: Terminal, server: ApiServer) -> None:
    signed_in.set(CODEHUB_URL=server.url, CODEHUB_TOKEN=server.token("bob"))
    assert signed_in.done("whoami").startswith(f"bob (user) at {server.url}; may: ")


def test_a_token_alone_is_for_the_address_in_use(signed_in: Terminal, server: ApiServer) -> None:
    signed_in.set(CODEHUB_TOKEN=server.token("bob"))
    assert signed_in.done("whoami").startswith(f"bob (user) at {server.url}; may: ")


def test_an_address_alone_brings_no_other_address_s_token(signed_in: Terminal, server: ApiServer) -> None:
    signed_in.set(CODEHUB_URL=server.url + "/")
    assert signed_in.done("whoami").startswith("ann")
    signed_in.set(CODEHUB_URL=server.url.replace("127.0.0.1", "localhost"))
    said = signed_in("whoami")
    assert said.code == USAGE
    assert "Sign in with `codehub login`." in said.err


def test_a_script_needs_no_file(server: ApiServer, terminal: Terminal) -> None:
    terminal.config.parent.mkdir(parents=True)
    terminal.config.write_text("damaged")
    terminal.set(CODEHUB_URL=server.url, CODEHUB_TOKEN=server.token())
    assert terminal("ws", "ls", "--json").json() == []


@pytest.mark.parametrize("token", ["two words", "chub_\x1b[31m", "chub_é", "a\nb"])
def test_what_is_no_token_is_not_sent_and_not_shown(token: str, server: ApiServer, terminal: Terminal) -> None:
    terminal.set(CODEHUB_URL=server.url, CODEHUB_TOKEN=token)
    said = terminal("ws", "ls")
    assert (said.code, said.lines()) == (
        USAGE,
        ["This is no token: one has neither spaces nor special characters."],
    )


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("https://hub.example.com/", "https://hub.example.com"),
        ("https://example.com/hub/", "https://example.com/hub"),
        ("[::1]:8000", "http://[::1]:8000"),
        ("demo.localhost:8000/", "http://demo.localhost:8000"),
        ("hub.example.com", "https://hub.example.com"),
        ("hub.example.com:8443", "https://hub.example.com:8443"),
        ("192.168.1.5:8000", "https://192.168.1.5:8000"),
        ("http://hub.example.com", "http://hub.example.com"),
    ],
)
def test_addresses(text: str, meant: str) -> None:
    assert checked_url(text) == meant


@pytest.mark.parametrize(
    "text", ["ftp://x", "http://", "http://u:p@x", "http://x?a=b", "http://x:99999", "http://x:y", "http://x#y"]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ClientFailed, match="is no address of a CodeHub"):
        checked_url(text)


def test_nothing_but_names_and_tokens_is_kept(signed_in: Terminal) -> None:
    kept = json.loads(signed_in.config.read_text())["contexts"]["home"]
    assert sorted(kept) == ["token", "token_id", "url", "username"]
    assert PASSWORD not in signed_in.config.read_text()
