"""One's own things from the terminal: set with one's password, listed, removed, and never printed."""

from pathlib import Path

import pytest

from codehub.cli.output import FAILED, USAGE
from codehub.domain.identity import Role
from tests.api.memory_api import PASSWORD
from tests.api.test_account import SSH_KEY
from tests.cli.api_server import ApiServer
from tests.cli.terminal import Said, Terminal

PLANTED = "planted-7f3a"


def set_secret(ann: Terminal, name: str, value: str = PLANTED) -> Said:
    return ann("secrets", "set", name, "--password-stdin", stdin=f"{PASSWORD}\n{value}\n")


def kept(server: ApiServer) -> dict[str, str]:
    """The values, as a start would get them."""
    rows = server.api.backends.database.state.accounts.secrets
    return {name.name: server.api.backends.keyring.open(row.secret) for name, row in rows.items()}


def test_a_secret_s_life(ann: Terminal, server: ApiServer) -> None:
    assert ann.done("secrets", "ls") == "No secrets. Set one with `codehub secrets set NAME`.\n"
    said = set_secret(ann, "NPM_TOKEN", "two\nlines")
    assert (said.out, said.err) == ("NPM_TOKEN is set. Workspaces have it from their next start on.\n", "")
    assert kept(server) == {"NPM_TOKEN": "two\nlines"}
    assert "NPM_TOKEN" in ann.done("secrets", "ls")
    [shown] = ann("secrets", "ls", "--json").json()
    assert (shown["name"], shown["is_readable"]) == ("NPM_TOKEN", True)
    assert ann.done("secrets", "rm", "NPM_TOKEN") == "NPM_TOKEN is deleted.\n"
    assert ann("secrets", "rm", "NPM_TOKEN").code == FAILED
    assert server.api.backends.database.state.accounts.sessions == {}, "what was opened for it is closed again"


def test_a_file_is_taken_as_it_is(ann: Terminal, server: ApiServer) -> None:
    (ann.home / "key").write_text("line\n\nline\n")
    words = ("secrets", "set", "KEY", "--from-file", "key", "--password-stdin")
    assert ann(*words, "--json", stdin=f"{PASSWORD}\n").json()["name"] == "KEY"
    assert kept(server) == {"KEY": "line\n\nline\n"}
    (ann.home / "key").write_bytes(b"\xff")
    for file, part in (("key", "base64"), ("none", "No such file")):
        said = ann("secrets", "set", "KEY", "--from-file", file, "--password-stdin", stdin=f"{PASSWORD}\n")
        assert (said.code, part in said.err) == (USAGE, True)


def test_a_value_is_no_argument(ann: Terminal, server: ApiServer) -> None:
    said = ann("secrets", "set", "A", PLANTED, "--password-stdin", stdin=f"{PASSWORD}\n")
    assert said.code == USAGE
    assert kept(server) == {}


def test_without_the_password_nothing_is_set(ann: Terminal, server: ApiServer) -> None:
    for said in (
        ann("secrets", "set", "A", stdin=PLANTED),
        ann("secrets", "set", "A", "--password-stdin", stdin=f"a guess\n{PLANTED}\n"),
        ann("account", "ssh-key", "a.b", stdin=""),
        ann("account", "dotfiles", "https://a.b/c", stdin=""),
    ):
        assert said.code != 0
        assert said.out == ""
        assert PLANTED not in said.err
    assert kept(server) == {}


@pytest.mark.parametrize(("name", "part"), [("PATH", "needs"), ("1A", "digit"), ("", "name"), ("A/B", "name")])
def test_a_hostile_name_is_one_clear_complaint(name: str, part: str, ann: Terminal, server: ApiServer) -> None:
    said = set_secret(ann, name)
    assert said.code != 0
    assert PLANTED not in said.err
    assert kept(server) == {}
    assert said.lines()


def test_an_ssh_key_s_life(ann: Terminal) -> None:
    words = ("account", "ssh-keys")
    assert "No SSH keys" in ann.done(*words, "list")
    (ann.home / "id.pub").write_text(f"{SSH_KEY} ann@laptop\n")
    said = ann(*words, "add", "id.pub", "--name", "laptop", "--password-stdin", stdin=f"{PASSWORD}\n")
    [shown] = ann(*words, "list", "--json").json()
    assert said.out == f"laptop is added: {shown['fingerprint']}\n"
    assert "never" in ann.done(*words, "list")
    assert ann(*words, "remove", "other").code == FAILED
    assert ann.done(*words, "remove", "laptop") == "laptop is removed.\n"
    assert ann(*words, "list", "--json").json() == []


def test_a_private_key_is_not_sent_on(ann: Terminal) -> None:
    (ann.home / "id").write_text(f"-----BEGIN OPENSSH PRIVATE KEY-----\n{PLANTED}\n")
    said = ann("account", "ssh-keys", "add", "id", "--password-stdin", stdin=f"{PASSWORD}\n")
    assert said.code != 0
    assert "private key" in said.err
    assert PLANTED not in said.err


def test_git_credentials(ann: Terminal, server: ApiServer) -> None:
    words = ("account", "git-token", "Git.example.com", "--username", "ann", "--password-stdin")
    said = ann(*words, stdin=f"{PASSWORD}\n{PLANTED}\n")
    assert said.out == "Git signs in at git.example.com as ann.\n"
    made = ann("account", "ssh-key", "git.example.com", "--password-stdin", stdin=f"{PASSWORD}\n")
    assert made.err == "Give this public key to git.example.com:\n"
    assert made.out.startswith("ssh-ed25519 ")
    shown = ann.done("account", "show")
    assert made.out.strip() in shown
    assert "a token of ann" in shown
    assert PLANTED not in shown
    assert ann.done("account", "git-token", "git.example.com", "--rm").startswith("There is no token")
    assert ann.done("account", "ssh-key", "git.example.com", "--rm").startswith("There is no SSH key")
    assert kept(server) == {}
    assert ann("account", "ssh-key", "git.example.com", "--rm").code == FAILED


def test_who_one_is_to_git(ann: Terminal) -> None:
    assert ann.done("account", "git-identity") == "Git does not know who you are.\n"
    said = ann.done("account", "git-identity", "--name", "Ann Lee", "--email", "ann@example.com")
    assert said == "Ann Lee <ann@example.com>\n"
    assert ann("account", "git-identity", "--email", "lee@example.com", "--json").json() == {
        "name": "Ann Lee",
        "email": "lee@example.com",
    }
    assert ann("account", "git-identity", "--rm", "--name", "x").code == USAGE
    assert ann.done("account", "git-identity", "--rm") == "Git does not know who you are.\n"
    assert ann("account", "git-identity", "--name", "Ann").code == FAILED, "an email belongs to it"


def test_dotfiles(ann: Terminal) -> None:
    url = "https://git.example.com/ann/dotfiles.git"
    words = ("account", "dotfiles", url, "--command", "./install.sh", "--password-stdin")
    assert ann.done(*words, stdin=f"{PASSWORD}\n") == f"{url} (./install.sh)\n"
    assert ann("account", "show", "--json").json()["dotfiles"] == {"url": url, "command": "./install.sh"}
    assert ann("account", "dotfiles", "--command", "x").code == USAGE
    assert ann.done("account", "dotfiles", "--rm") == "You have no dotfiles.\n"


def test_what_cannot_be_opened_is_said(ann: Terminal, server: ApiServer) -> None:
    set_secret(ann, "A")
    server.api.backends.keyring.keys[:] = ["another"]
    assert "cannot be opened: set it again" in ann.done("secrets", "ls")
    assert "A (cannot be opened: set it again)" in ann.done("account", "show")


def test_a_template_s_secrets(terminal: Terminal, server: ApiServer, tmp_path: Path) -> None:
    terminal.set(CODEHUB_URL=server.url, CODEHUB_TOKEN=server.token("root", Role.ADMIN))
    place = ("admin", "template-secrets")
    assert terminal.done(*place, "set", "default", "LICENSE", stdin=PLANTED) == "LICENSE is set for default.\n"
    assert kept(server) == {"LICENSE": PLANTED}
    assert "LICENSE" in terminal.done(*place, "ls", "default")
    assert terminal(*place, "set", "none", "A", stdin="x").code == FAILED
    assert terminal.done(*place, "rm", "default", "LICENSE") == "LICENSE is deleted from default.\n"
    terminal.set(CODEHUB_TOKEN=server.token("ann"))
    assert "Only an admin" in terminal(*place, "set", "default", "A", stdin="x").err


def test_a_new_key_is_one(terminal: Terminal) -> None:
    first, second = (terminal.done("admin", "secrets", "new-key") for _ in range(2))
    assert first != second
    assert len(first.strip()) == 44
