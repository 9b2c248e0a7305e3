"""A workspace's whole life from the terminal, with a real coordinator on memory twins doing what is wished."""

import re

from tests.cli.api_server import ApiServer
from tests.cli.terminal import Terminal


def test_from_create_to_undelete(ann: Terminal, server: ApiServer) -> None:
    server.coordinate()
    made = ann("ws", "create", "demo", "--wait")
    assert made.code == 0, made.err
    assert re.fullmatch(r"demo is RUNNING\. http://demo-\w+\.localhost:8000/\n", made.out)
    assert "demo: PENDING" in made.err  # the way there, beside the data
    assert server.user_writes("demo", 7)

    assert ann.done("ws", "stop", "demo", "--wait") == "demo is STANDBY.\n"
    assert ann.done("ws", "archive", "demo", "--wait") == "demo is ARCHIVED.\n"
    [point] = ann("ws", "archives", "demo", "--json").json()
    assert (point["is_present"], point["released_at"]) == (True, None)
    assert ann.done("ws", "download", "demo", "0", "-o", "-") == "7"

    assert ann.done("ws", "start", "demo", "--wait").startswith("demo is RUNNING.")
    assert server.user_writes("demo", 8)
    restored = ann("ws", "restore", "demo", "--archive", point["op_id"][:8], "--wait")
    assert restored.code == 0, restored.err
    assert server.rows()["demo"].restore_handled_at is not None  # it waited for the restore, not for what was before
    assert len(ann("ws", "archives", "demo", "--json").json()) == 2  # what was in the home is a restore point

    deleted = ann("ws", "delete", "demo", "--yes", "--wait", "--json")
    assert deleted.json()["phase"] == "DELETED"
    assert ann.done("ws", "ls") == "No workspaces yet. Make one: `codehub ws create demo --wait`\n"
    back = ann.done("ws", "undelete", "demo", "--wait")
    assert back == "demo is ARCHIVED.\n"
    assert ann.done("ws", "open", "demo", "--print").startswith("http://demo-")
    assert server.user_writes("demo", 9)

    told = ann.done("ws", "events", "demo", "-n", "200")
    for word in ("created", "restore_asked", "undelete_asked", "RESTORING"):
        assert word in told
    assert ann("ws", "events", "demo", "-n", "2", "--json").json()[-1]["at"] >= told.splitlines()[-1][:10]


def test_who_waits_for_it_to_run_is_told_by_the_exit_code_that_it_sleeps(ann: Terminal, server: ApiServer) -> None:
    server.coordinate()
    for name in ("one", "two"):
        ann.done("ws", "create", name, "--wait")
    said = ann("ws", "create", "three", "--wait")
    assert (said.code, said.out) == (1, "three is STANDBY.\n")
    assert "Stop one of them, then: `codehub ws start three`" in said.err


def test_recovering_waits_for_the_recovery(ann: Terminal, server: ApiServer) -> None:
    server.coordinate()
    ann.done("ws", "create", "demo", "--state", "standby", "--wait")
    state = server.api.backends.runtime.state
    state.bad_images.add("")
    failed = ann("ws", "start", "demo", "--wait", "--timeout", "60")
    assert failed.code == 1
    assert failed.out == ""
    assert "codehub: demo is in ERROR (ImagePullFailed): " in failed.err
    assert "`codehub ws recover demo`" in failed.err
    again = ann("ws", "start", "demo")
    assert again.lines() == ["demo is in ERROR; the request is kept. See `codehub ws show demo`."]
    assert "ImagePullFailed" in ann.done("ws", "show", "demo")

    still = ann("ws", "recover", "demo", "--wait", "--timeout", "60")
    assert (still.code, still.out) == (1, "")
    state.bad_images.clear()
    assert ann.done("ws", "recover", "demo").startswith("Recovering demo (")
    assert ann("ws", "start", "demo", "--wait").out.startswith("demo is RUNNING.")
