"""What the page can change the terminal can: names, notes, templates, times to sleep, one's own account."""

import pytest

from codehub.cli.output import FAILED, USAGE
from codehub.domain.workspace import Desired
from tests.api.memory_api import PASSWORD
from tests.cli.api_server import ApiServer
from tests.cli.terminal import Terminal


@pytest.fixture
def demo(ann: Terminal) -> Terminal:
    ann.done("ws", "create", "demo", "--state", "STANDBY", "--standby-ttl", "45m", "--archive-ttl", "never")
    return ann


def test_renaming_keeps_the_address(demo: Terminal, server: ApiServer) -> None:
    before = server.rows()["demo"]
    assert demo.done("ws", "rename", "demo", "my shop") == "demo is called my shop now.\n"
    after = server.rows()["my shop"]
    assert (after.id, after.slug) == (before.id, before.slug)
    demo.done("ws", "create", "other", "--state", "STANDBY")
    assert demo("ws", "rename", "other", "my shop").code == FAILED


def test_only_what_is_named_changes(demo: Terminal, server: ApiServer) -> None:
    row = server.rows()["demo"]
    assert (row.standby_ttl_seconds, row.archive_ttl_seconds) == (45 * 60, 0)
    words = ("--description", "The shop", "--notes", "mine", "--git", "https://git.example.com/shop.git", "--ref", "v1")
    assert demo.done("ws", "set", "demo", *words) == "demo is changed.\n"
    demo.done("ws", "set", "demo", "--standby-ttl", "default", "--archive-ttl", "2d")
    row = server.rows()["demo"]
    assert (row.description, row.memo) == ("The shop", "mine")
    assert (row.git_url, row.git_ref) == ("https://git.example.com/shop.git", "v1")
    assert (row.standby_ttl_seconds, row.archive_ttl_seconds) == (None, 2 * 86400)
    shown = demo.done("ws", "show", "demo")
    for part in ("The shop", "mine", "shop.git", "branch or tag      v1", "is archived after  2 d"):
        assert part in shown
    demo.done("ws", "set", "demo", "--ref", "")
    assert server.rows()["demo"].git_ref is None
    demo.done("ws", "set", "demo", "--git", "")
    assert server.rows()["demo"].git_url is None


def test_another_template_is_one_that_there_is(demo: Terminal, server: ApiServer) -> None:
    assert demo("ws", "set", "demo", "--template", "nothing").code == FAILED
    assert "default" in demo.done("ws", "templates")
    demo.done("ws", "set", "demo", "--template", "default")


@pytest.mark.parametrize("words", [(), ("--standby-ttl", "soon"), ("--archive-ttl", "-1")])
def test_what_is_no_change(words: tuple[str, ...], demo: Terminal) -> None:
    assert demo("ws", "set", "demo", *words).code == USAGE


def test_emptying_asks_first(demo: Terminal, server: ApiServer) -> None:
    assert demo("ws", "empty", "demo", stdin="n\n").code == FAILED
    assert server.rows()["demo"].desired_state is Desired.STANDBY
    assert demo.done("ws", "empty", "demo", "--yes").startswith("Emptying demo (")
    assert server.rows()["demo"].desired_state is Desired.PENDING


def test_slots(demo: Terminal) -> None:
    demo.done("ws", "create", "busy")
    told = demo.done("ws", "limits")
    assert "1 of 2" in told
    assert "busy" in told
    assert "7 d" in told


def test_the_password(ann: Terminal, server: ApiServer) -> None:
    said = ann("password", "--password-stdin", stdin="wrong\nanother horse battery\n")
    assert said.code == USAGE
    done = ann.done("password", "--password-stdin", stdin=f"{PASSWORD}\nanother horse battery\n")
    assert done == "Your password is changed.\n"
    assert ann("password", "--password-stdin", stdin=f"{PASSWORD}\nanother horse battery\n").code == USAGE
    assert server.api.backends.database.state.accounts.sessions == {}


def test_where_one_is_signed_in(ann: Terminal, server: ApiServer) -> None:
    assert ann.done("sessions", "ls") == "You are signed in with no browser.\n"
    server.do(server.api.browser("ann"))
    [session] = ann("sessions", "ls", "--json").json()
    assert session["id"][:8] in ann.done("sessions", "ls")
    assert ann.done("sessions", "end", session["id"][:8]) == "That browser is signed out.\n"
    assert ann("sessions", "ls", "--json").json() == []
    assert ann("sessions", "end", "00000000").code == FAILED


def test_a_token_without_an_end(ann: Terminal) -> None:
    said = ann("token", "create", "ci", "--days", "0", "--password-stdin", "--json", stdin=f"{PASSWORD}\n")
    assert said.json()["expires_at"] is None
    assert "never" in ann.done("token", "ls")
