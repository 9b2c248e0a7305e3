"""What may go wrong on the way to a CodeHub, and what the person is told: one clear complaint and its exit code."""

import socket

import pytest

from codehub.cli import client
from codehub.cli.output import FAILED, UNREACHABLE
from codehub.domain.admission import RunningLimits
from tests.cli.api_server import ApiServer, serving
from tests.cli.misbehaving_servers import answering, http
from tests.cli.terminal import Terminal

PROBLEM = '{"detail": "No.", "code": "strange", "errors": "none", "holders": 5}'

NOT_A_CODEHUB = {
    "a web page": (http("200 OK", "<html>hello</html>"), "does not answer like a CodeHub"),
    "a list": (http("200 OK", "[1, 2]"), "does not answer like a CodeHub"),
    "somebody else's JSON": (http("200 OK", '{"hello": 1}'), "The answer has no 'items'"),
    "somebody else's page of items": (http("200 OK", '{"items": [{}], "next_cursor": null}'), "The answer has no"),
    "not found": (http("404 Not Found", "nothing here"), "answered 404, not like a CodeHub"),
    "another framework's error": (http("404 Not Found", '{"detail": "Not Found"}'), "answered 404"),
    "a gateway": (http("502 Bad Gateway", "<html>nginx</html>"), "answered 502, not like a CodeHub"),
    "a redirect": (http("301 Moved", "", "Location: https://elsewhere.example/"), "sends us to https://elsewhere"),
    "no HTTP": (b"SSH-2.0-OpenSSH_9\r\n", "cannot be reached"),
    "nothing said": (b"", "cannot be reached"),
}


@pytest.mark.parametrize(("answer", "part"), NOT_A_CODEHUB.values(), ids=NOT_A_CODEHUB.keys())
def test_what_is_no_codehub(answer: bytes, part: str, terminal: Terminal) -> None:
    with answering(answer) as url:
        terminal.set(CODEHUB_URL=url, CODEHUB_TOKEN="chub_secret-word")
        said = terminal("ws", "ls")
    assert said.code == UNREACHABLE
    [line] = said.lines()
    assert part in line
    assert "secret-word" not in line


@pytest.mark.parametrize("answer", [http("201 Created", "{}"), http("200 OK", "<html>")])
def test_signing_in_there_keeps_nothing(answer: bytes, terminal: Terminal) -> None:
    with answering(answer) as url:
        said = terminal("login", url, "-u", "ann", "--password-stdin", stdin="secret-word")
    assert said.code == UNREACHABLE
    assert "secret-word" not in said.err
    assert not terminal.config.exists()


def test_a_problem_that_is_odd_is_still_told(terminal: Terminal) -> None:
    with answering(http("409 Conflict", PROBLEM.replace("5", "[5]"))) as url:
        terminal.set(CODEHUB_URL=url, CODEHUB_TOKEN="chub_x")
        assert terminal("ws", "ls").lines()[0] == "No."


def test_nothing_there(terminal: Terminal) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    terminal.set(CODEHUB_URL=address, CODEHUB_TOKEN="chub_x")
    said = terminal("ws", "ls")
    assert said.code == UNREACHABLE
    [line] = said.lines()
    assert line.startswith(f"{address} cannot be reached (")
    assert "`codehub up`" in line


def test_no_such_name(terminal: Terminal) -> None:
    terminal.set(CODEHUB_URL="http://nowhere.invalid", CODEHUB_TOKEN="chub_x")
    assert terminal("ws", "ls").code == UNREACHABLE


def test_one_that_never_answers(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ANSWER_SECONDS", 0.2)
    with answering(None) as url:
        terminal.set(CODEHUB_URL=url, CODEHUB_TOKEN="chub_x")
        said = terminal("ws", "ls")
    assert (said.code, said.lines()) == (UNREACHABLE, [f"{url} does not answer in time."])


def test_a_proxy_is_not_asked_the_way_to_this_machine(ann: Terminal) -> None:
    ann.set(HTTP_PROXY="http://127.0.0.1:1", ALL_PROXY="http://127.0.0.1:1")
    assert ann("ws", "ls").code == 0


def test_a_name_below_localhost_is_this_machine(ann: Terminal, server: ApiServer) -> None:
    ann.set(CODEHUB_URL=server.url.replace("127.0.0.1", "server.localhost"))
    assert ann("ws", "ls").code == 0


def test_fields_that_are_wrong_are_named(ann: Terminal, server: ApiServer) -> None:
    said = ann("ws", "create", "x" * 200, "--state", "flying")
    assert said.code == FAILED
    first, *rest = said.lines()
    assert first == "That cannot be taken:"
    assert [line.split(":")[0].strip() for line in rest] == ["name", "desired_state"]
    assert server.rows() == {}


def test_one_field_is_said_once(ann: Terminal) -> None:
    said = ann("ws", "create", "demo", "--git", "file:///etc/passwd")
    assert said.code == FAILED
    assert len(said.lines()) == 2
    assert said.lines()[1].startswith("  git_url: ")


def test_a_limit_says_who_holds_the_slots(terminal: Terminal) -> None:
    with serving(RunningLimits(2, 10)) as server:
        terminal.set(CODEHUB_URL=server.url, CODEHUB_TOKEN=server.token())
        for name in ("one", "two"):
            terminal.done("ws", "create", name)
        terminal.done("ws", "create", "three", "--state", "STANDBY")
        said = terminal("ws", "start", "three")
    assert said.code == FAILED
    [why, hint] = said.lines()
    assert "these hold the slots: one, two." in why
    assert hint == "  `codehub ws stop NAME` stops one."


def test_a_failure_of_theirs_names_the_request(ann: Terminal, server: ApiServer) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("secret-word")

    object.__setattr__(server.api.parts.views, "page", broken)
    said = ann("ws", "ls")
    assert said.code == FAILED
    assert "request id" in said.err
    assert "secret-word" not in said.err
