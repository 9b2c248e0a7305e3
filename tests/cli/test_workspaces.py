"""Each verb of `codehub ws` by itself, against an API where nothing coordinates: wishes, names, stories, waiting."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from codehub.adapters.memory.runtime import Container
from codehub.cli import wait
from codehub.cli.output import FAILED, INTERRUPTED, TIMED_OUT, UNREACHABLE, USAGE, ClientFailed
from codehub.domain.errors import ErrorInfo, ErrorReason
from codehub.domain.usage import DiskUsage, Usage
from codehub.domain.workspace import Desired, Operation, Phase, Progress
from tests.cli.api_server import ApiServer
from tests.cli.terminal import Terminal

ESCAPES = "\x1b]0;owned\x07\x1b[31mred\u202e\x9b2J"


def test_wishes(ann: Terminal, server: ApiServer) -> None:
    made = ann.done("ws", "create", "demo", "--description", "for trying", "--standby-ttl", "3600")
    row = server.rows()["demo"]
    assert made == f"Made demo ({str(row.id)[:8]}). Follow it with `codehub ws show demo`.\n"
    assert (row.desired_state, row.description, row.standby_ttl_seconds) == (Desired.RUNNING, "for trying", 3600)
    for verb, desired in (("stop", "STANDBY"), ("archive", "ARCHIVED"), ("start", "RUNNING")):
        assert ann("ws", verb, "demo", "--json").json()["desired_state"] == desired
        assert server.rows()["demo"].desired_state == desired
    server.controller_writes("demo", phase=Phase.RUNNING)
    assert "demo" in ann.done("ws", "ls", "--phase", "running")
    assert ann.done("ws", "ls", "nothing-like-it") == "Nothing found.\n"
    [listed] = ann("ws", "ls", "--json").json()
    assert listed["id"] == str(row.id)
    shown = ann.done("ws", "show", "demo")
    for part in (str(row.id), "RUNNING", "for trying", ".localhost:8000/"):
        assert part in shown
    assert ann("ws", "show", "demo", "--json").json()["name"] == "demo"


def test_what_a_workspace_uses_is_shown_while_it_runs(ann: Terminal, server: ApiServer) -> None:
    ann.done("ws", "create", "demo")
    assert ann("ws", "show", "demo", "--json").json()["usage"] is None
    assert "memory" not in ann.done("ws", "show", "demo")
    server.controller_writes("demo", phase=Phase.RUNNING)
    server.uses("demo", Usage(0.25, 2.0, 480_000_000, 2_000_000_000, DiskUsage(9_500_000_000, 10_000_000_000, 1, 1)))
    shown = ann.done("ws", "show", "demo")
    for part in ("0.25 of 2", "480 MB of 2.0 GB", "9.5 GB of 10.0 GB", "nearly full: remove what is not needed"):
        assert part in shown
    assert ann("ws", "show", "demo", "--json").json()["usage"]["warnings"][0]["code"] == "disk_nearly_full"
    server.uses("demo", Usage(disk=DiskUsage(5_000_000, None, 20_000_000_000, 7_000_000_000)))
    shown = ann.done("ws", "show", "demo")
    assert "5.0 MB, 7.0 GB free" in shown
    assert "processors" not in shown, "what is not known is not shown as 0"


def test_deleting_asks(ann: Terminal, server: ApiServer) -> None:
    ann.done("ws", "create", "demo")
    assert ann("ws", "delete", "demo", stdin="n\n").code == FAILED
    nobody = ann("ws", "delete", "demo")
    assert (nobody.code, nobody.out.strip()) == (INTERRUPTED, "")
    assert "nothing was changed" in nobody.err
    assert server.rows()["demo"].desired_state is Desired.RUNNING
    said = ann("ws", "delete", "demo", stdin="y\n")
    assert said.code == 0
    assert f"It can be brought back for 7 d: codehub ws undelete {server.rows()['demo'].id}" in said.err
    assert server.rows()["demo"].desired_state is Desired.DELETED


def test_when_all_slots_are_in_use_it_is_made_asleep(ann: Terminal, server: ApiServer) -> None:
    for name in ("one", "two"):
        ann.done("ws", "create", name)
    said = ann("ws", "create", "my third", "--git", "https://git.example.com/team/shop.git", "--ref", "main")
    assert said.code == 0, said.err
    assert said.err == (
        "my third is made asleep: 2 of your 2 running slots are in use, by one, two. Stop one of them, then: "
        "`codehub ws start 'my third'`\n"
    )
    made = server.rows()["my third"]
    assert (made.desired_state, made.git_ref) == (Desired.STANDBY, "main")
    assert made.git_url == "https://git.example.com/team/shop.git"
    refused = ann("ws", "start", "my third")
    assert (refused.code, "one, two" in refused.err) == (FAILED, True)


def test_what_was_deleted_is_found_by_name_while_it_can_come_back(ann: Terminal, server: ApiServer) -> None:
    assert ann.done("ws", "ls", "--deleted") == "Nothing that was deleted can be brought back.\n"
    now = datetime.now(UTC)
    for name in ("kept", "demo", "demo", "purged"):
        ann.done("ws", "create", name)
        if name != "kept":
            ann.done("ws", "delete", name, "--yes")
            server.controller_writes(name, deleted_at=now, purged_at=now if name == "purged" else None)
    listed = ann("ws", "ls", "--deleted", "--json").json()
    assert [ws["name"] for ws in listed] == ["demo", "demo"]
    assert re.search(
        rf"^demo +{listed[0]['id'][:8]} +\d+ s ago +in 6 d$", ann.done("ws", "ls", "--deleted"), re.MULTILINE
    )
    assert ann.done("ws", "ls", "--deleted", "nothing-like-it").startswith("Nothing")

    several = ann("ws", "undelete", "demo")
    assert several.code == FAILED
    assert "may be one of several" in several.err
    assert ann("ws", "undelete", listed[0]["id"][:8], "--json").json()["id"] == listed[0]["id"]


def test_the_hints_of_a_delete_lead_somewhere(ann: Terminal, server: ApiServer) -> None:
    """Before it is gone, after it is gone, and when another has its name."""
    ann.done("ws", "create", "demo", "--state", "STANDBY")
    server.keep("demo", {})
    said = ann("ws", "delete", "demo", "--yes")
    hinted = [words.split()[1:] for words in re.findall(r"codehub ws (?:show|undelete) [^`\n]+", said.out + said.err)]
    key = str(server.rows()["demo"].id)
    assert {words[1] for words in hinted} == {"show", "undelete"}
    assert ann("ws", "show", "demo", "--json").json()["id"] == key
    server.controller_writes("demo", deleted_at=datetime.now(UTC), phase=Phase.DELETED)
    assert ann("ws", "show", "demo", "--json").json()["id"] == key
    for verb in ("events", "archives", "files"):
        ann.done("ws", verb, "demo")
    gone = ann("ws", "stop", "demo")
    assert gone.lines() == [f"demo was deleted. To bring it back: `codehub ws undelete {key[:8]}`"]
    ann.done("ws", "create", "demo", "--state", "STANDBY")
    assert ann("ws", "show", "demo", "--json").json()["id"] != key
    for words in hinted:
        assert ann(*words, "--json").json()["id"] == key


def test_only_what_was_deleted_is_undeleted(ann: Terminal, server: ApiServer) -> None:
    ann.done("ws", "create", "demo")
    for wanted in ("demo", "../admin/users", "6f1c2b54", str(uuid4())):
        assert ann("ws", "undelete", wanted).code == FAILED
    assert "`codehub ws ls --deleted` lists" in ann("ws", "undelete", "nothing-like-it").err
    ann.done("ws", "delete", "demo", "--yes")  # nothing coordinates: it is only on its way
    early = ann("ws", "undelete", "demo")
    assert (early.code, server.rows()["demo"].undelete_requested_at) == (FAILED, None)
    assert "not deleted yet: start, stop or archive it, and it is kept" in early.err
    assert ann("ws", "ls", "--deleted", "--phase", "RUNNING").code == USAGE


# ── which one is meant ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def three(ann: Terminal, server: ApiServer) -> dict[str, str]:
    for name in ("alpha", "Beta shop", "beta test"):
        ann.done("ws", "create", name, "--state", "STANDBY")
    return {name: str(row.id) for name, row in server.rows().items()}


def test_names_ids_and_beginnings(ann: Terminal, three: dict[str, str]) -> None:
    key = three["alpha"]
    for wanted in ("alpha", "ALPHA", key, key.upper(), key[:8], key[:8].upper(), key.replace("-", "")):
        assert ann("ws", "show", wanted, "--json").json()["id"] == key
    assert ann("ws", "show", "beta SHOP", "--json").json()["id"] == three["Beta shop"]


@pytest.mark.parametrize(
    ("wanted", "hint"),
    [
        ("alph", "Did you mean alpha?"),
        ("shop", "Did you mean 'Beta shop'?"),
        ("gamma", "`codehub ws ls` lists what there is."),
        ("", "`codehub ws ls` lists what there is."),
        ("../../session", "`codehub ws ls` lists what there is."),
        ("00000000-0000-4000-8000-000000000000", "`codehub ws ls` lists what there is."),
    ],
)
@pytest.mark.usefixtures("three")
def test_an_unknown_one(wanted: str, hint: str, ann: Terminal) -> None:
    said = ann("ws", "show", wanted)
    assert (said.code, said.lines()) == (FAILED, [f"There is no workspace {wanted!r}. {hint}"])


def test_one_of_several(ann: Terminal, server: ApiServer) -> None:
    for name in ("one", "two"):
        ann.done("ws", "create", name, "--state", "STANDBY")
    one, two = (row for row in server.api.rows.values())
    twin = replace(two, id=UUID(one.id.hex[:12] + two.id.hex[12:]))
    del server.api.rows[two.id]
    server.api.rows[twin.id] = twin
    said = ann("ws", "stop", one.id.hex[:8])
    assert said.code == FAILED
    [line] = said.lines()
    assert line.startswith(f"{one.id.hex[:8]!r} may be one of several: ")
    assert line.endswith("Say more of the id.")
    assert "one (" in line
    assert "two (" in line


def test_somebody_else_s_is_unknown(ann: Terminal, server: ApiServer, three: dict[str, str]) -> None:
    ann.set(CODEHUB_TOKEN=server.token("bob"))
    for wanted in three.values():
        assert ann("ws", "stop", wanted).code == FAILED


# ── waiting ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_time_is_over(ann: Terminal) -> None:
    said = ann("ws", "create", "my demo", "--wait", "--timeout", "0.1")
    assert (said.code, said.out) == (TIMED_OUT, "")
    assert "codehub: my demo is PENDING after 0 s, and goes on by itself: see `codehub ws show 'my demo'`." in said.err


def test_an_error_ends_the_waiting_with_its_reason(ann: Terminal, server: ApiServer) -> None:
    ann.done("ws", "create", "demo")
    now = datetime.now(UTC)
    info = ErrorInfo(ErrorReason.IMAGE_PULL_FAILED, "no such image", "STARTING", True, 3, "STANDBY", now)
    server.controller_writes("demo", phase=Phase.ERROR, error_reason=info.reason, error_info=info)
    said = ann("ws", "start", "demo", "--wait")
    assert (said.code, said.out) == (FAILED, "")
    assert "codehub: demo is in ERROR (ImagePullFailed): no such image\n" in said.err


def test_waiting_outlasts_a_short_silence(ann: Terminal, server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    ann.done("ws", "create", "demo", "--state", "STANDBY")
    server.controller_writes("demo", phase=Phase.STANDBY)
    asked = ann("ws", "show", "demo", "--json").json()
    tries = 0

    class Unsteady:
        def get(self, path: str) -> dict[str, object]:
            nonlocal tries
            tries += 1
            if tries < 3:
                raise ClientFailed("away", UNREACHABLE)
            found: dict[str, object] = json.loads(ann.done("ws", "show", "demo", "--json"))
            return found

    assert wait.wait_until_at_rest(Unsteady(), asked, 5)["phase"] == "STANDBY"  # type: ignore[arg-type]
    monkeypatch.setattr(wait, "SILENCE_SECONDS", 0.0)
    tries = -1000
    with pytest.raises(ClientFailed, match="away"):
        wait.wait_until_at_rest(Unsteady(), asked, 5)  # type: ignore[arg-type]


def test_deleted_is_what_is_gone_not_what_is_marked(ann: Terminal, server: ApiServer) -> None:
    ann.done("ws", "create", "demo", "--state", "STANDBY")
    asked: dict[str, object] = ann("ws", "show", "demo", "--json").json()
    marked = asked | {"desired_state": "DELETED", "deleted_at": "2026-01-01T00:00:00Z", "operation": "DELETING"}
    answers = [marked, marked | {"phase": "DELETED", "operation": "NONE", "is_at_rest": True}]

    class Deleting:
        def get(self, path: str) -> dict[str, object]:
            return answers.pop(0)

    assert wait.wait_until_at_rest(Deleting(), asked, 5)["phase"] == "DELETED"  # type: ignore[arg-type]


def test_a_restore_is_not_over_before_it_began(ann: Terminal, server: ApiServer) -> None:
    ann.done("ws", "create", "demo", "--state", "STANDBY")
    server.controller_writes("demo", phase=Phase.STANDBY)
    server.keep("demo", {})
    said = ann("ws", "restore", "demo", "--wait", "--timeout", "0.2")
    assert (said.code, said.out) == (TIMED_OUT, "")


def test_a_wish_that_is_met_waits_for_a_restore_that_is_pending(ann: Terminal, server: ApiServer) -> None:
    ann.done("ws", "create", "demo", "--state", "STANDBY")
    server.controller_writes("demo", phase=Phase.STANDBY)
    server.keep("demo", {})
    ann.done("ws", "restore", "demo")
    said = ann("ws", "stop", "demo", "--wait", "--timeout", "0.2")
    assert (said.code, said.out) == (TIMED_OUT, "")


def test_an_error_does_not_end_the_waiting_for_a_delete(ann: Terminal, server: ApiServer) -> None:
    ann.done("ws", "create", "demo")
    server.controller_writes("demo", phase=Phase.ERROR)
    said = ann("ws", "delete", "demo", "--yes", "--wait", "--timeout", "0.2")
    assert (said.code, said.out) == (TIMED_OUT, "")


# ── stories ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_lifecycle(ann: Terminal, server: ApiServer) -> None:
    ann.done("ws", "create", "demo")
    server.controller_writes("demo", phase=Phase.RUNNING)
    told = ann.done("ws", "lifecycle", "demo")
    for part in ("RUNNING (wanted: RUNNING)", "created, by ann, ", "STANDBY"):
        assert part in told
    assert ann("ws", "lifecycle", "demo", "--json").json()["becomes"] == "STANDBY"
    said = ann.done("ws", "keepalive", "demo", "2h")
    assert said.startswith("Kept until ")
    assert "kept by" in ann.done("ws", "lifecycle", "demo")
    assert ann("ws", "keepalive", "demo", "9d", "--json").json()["capped"] is True
    assert ann.done("ws", "keepalive", "demo", "0") == "Let go: the ordinary idle rules hold again.\n"
    assert server.leases("demo") == {}


@pytest.mark.parametrize("duration", ["", "soon", "-5", "1.5h", "٣h", "5y", "1h 5m"])
def test_what_is_no_duration(duration: str, ann: Terminal) -> None:
    assert ann("ws", "keepalive", "demo", "--", duration).code == USAGE


def test_opening(ann: Terminal, server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def no_browser(url: str) -> bool:
        opened.append(url)
        return False

    monkeypatch.setattr("webbrowser.open", no_browser)
    ann.done("ws", "create", "demo")
    server.controller_writes("demo", phase=Phase.RUNNING)
    said = ann("ws", "open", "demo")
    assert said.out.strip() == opened[0]
    assert "No browser could be opened" in said.err
    printed = [ann.done("ws", "open", "demo", "--print"), ann.done("ws", "open", "demo", "--print", "--port", "8080")]
    assert len(opened) == 1
    slug = server.rows()["demo"].slug
    for url, host in zip([*opened, *printed], [slug, slug, f"8080--{slug}"], strict=True):
        assert url.startswith(f"http://{host}.localhost:8000/_codehub/enter?ticket=")
    tickets = server.tickets()
    assert {(ticket.port, ticket.wakes, ticket.token_id is None) for ticket in tickets} == {
        (None, True, False),
        (8080, True, False),
    }
    assert len(tickets) == 3


def test_what_a_terminal_would_obey_is_neutralised(ann: Terminal, server: ApiServer) -> None:
    ann.done("ws", "create", "demo", "--description", ESCAPES)
    now = datetime.now(UTC)
    info = ErrorInfo(ErrorReason.ACTION_FAILED, ESCAPES, "STARTING", True, 3, "STANDBY", now, {"x": ESCAPES})
    server.controller_writes(
        "demo", name=f"demo{ESCAPES}[/bold]", phase=Phase.ERROR, error_reason=info.reason, error_info=info
    )
    [row] = server.rows().values()
    server.keep(row.name, {})
    runtime = server.api.backends.runtime.state
    container_output = ["before", ESCAPES, "tab\there"]
    runtime.containers[row.id] = Container("i", "v", output=container_output)
    key = str(row.id)
    seen = ""
    for words in (
        ("ls",),
        ("ls", "--json"),
        ("show", key),
        ("events", key),
        ("logs", key),
        ("archives", key),
        ("start", key, "--wait"),
        ("start", key),
        ("show", "demo"),
        ("delete", key, "--yes"),
    ):
        said = ann("ws", *words)
        seen += said.out + said.err
    assert seen.count("red") >= 8
    assert not {c for c in seen if not c.isprintable()} - {"\n", "\t"}
    assert "tab\there" in seen


def test_a_name_that_looks_like_markup_breaks_no_display(
    ann: Terminal, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # the live line, as on a terminal
    said = ann("ws", "create", "[/x] {task}", "--wait", "--timeout", "0.1")
    assert said.code == TIMED_OUT
    assert "[/x] {task}" in said.err


def test_no_log(ann: Terminal) -> None:
    ann.done("ws", "create", "demo")
    said = ann("ws", "logs", "demo")
    assert (said.code, said.out) == (0, "")
    assert said.err == "Nothing: no container is there, or it has printed nothing.\n"


def test_progress_is_shown(ann: Terminal, server: ApiServer) -> None:
    ann.done("ws", "create", "demo")
    server.controller_writes("demo", operation=Operation.RESTORING, op_progress=Progress(1_500_000, 3, 3_000_000, "x"))
    assert "restoring 1.5 MB of 3.0 MB" in ann.done("ws", "show", "demo")


def test_recover(ann: Terminal, server: ApiServer) -> None:
    ann.done("ws", "create", "demo")
    assert ann("ws", "recover", "demo").lines() == ["There is nothing to recover from: the workspace is not in ERROR."]
    assert ann("ws", "recover", "demo", "--action", "pray").code == USAGE
    server.controller_writes("demo", phase=Phase.ERROR)
    assert ann("ws", "recover", "demo", "--action", "empty_home", "--json").json()["phase"] == "ERROR"
    assert server.rows()["demo"].recover_action == "empty_home"


def test_a_program_that_is_piped_to_head(ann: Terminal, server: ApiServer) -> None:
    for number in range(40):
        ann.done("ws", "create", f"workspace {number} " + "x" * 60, "--state", "STANDBY")
    program = Path(sys.executable).with_name("codehub")
    done = subprocess.run(
        f"{program} ws ls --json | head -n 1", shell=True, capture_output=True, text=True, check=False, env=os.environ
    )
    assert (done.stdout, done.stderr) == ("[\n", "")
