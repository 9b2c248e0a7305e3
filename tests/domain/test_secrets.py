"""The rules of what people keep for their workspaces."""

import pytest

from codehub.domain.errors import Invalid, LimitReached
from codehub.domain.secrets import (
    OWNER_BYTES,
    SECRETS_PER_OWNER,
    SSH_KEYS_PER_OWNER,
    VALUE_BYTES,
    Dotfiles,
    GitIdentity,
    SecretKind,
    SecretName,
    SecretsHeld,
    checked_dotfiles,
    checked_git_host,
    checked_git_identity,
    checked_git_token,
    checked_git_username,
    checked_value,
    checked_variable,
    refuse_too_many,
    template_owner,
)

NAME = SecretName(template_owner("default"), SecretKind.VARIABLE, "A")


@pytest.mark.parametrize(
    "name", ["A", "_a", "npm_token", "A1", "A" * 100, "MY_PATH", "GITHUB_TOKEN", "LDAP_PASSWORD", "TZ"]
)
def test_a_name_that_a_shell_takes(name: str) -> None:
    assert checked_variable(name) == name


HOSTILE = [
    "",
    "1A",
    "A-B",
    "A B",
    "A=B",
    "A\n",
    "A\x00",
    "Ä",
    "A" * 101,
    "BASH_FUNC_x%%",
    "../A",
    "A;B",
    "$A",
    "\udc80",
]
RESERVED = [
    *("PATH", "HOME", "LD_PRELOAD", "LD_LIBRARY_PATH", "CODEHUB_GIT_URL", "CODEHUB_", "GIT_CONFIG_COUNT", "GIT_CONFIG"),
    *(
        "SSH_AUTH_SOCK",
        "BASH_ENV",
        "ENV",
        "IFS",
        "SHELL",
        "GIT_SSH_COMMAND",
        "GIT_ASKPASS",
        "NODE_OPTIONS",
        "PORT",
        "_",
    ),
    *("VSCODE_IPC_HOOK_CLI", "CODE_SERVER_PARENT_PID", "PYTHONPATH"),
    *(
        "GCONV_PATH",
        "GETCONF_DIR",
        "GLIBC_TUNABLES",
        "HOSTALIASES",
        "LOCALDOMAIN",
        "LOCPATH",
        "MALLOC_TRACE",
        "MALLOC_",
    ),
    *("NIS_PATH", "NLSPATH", "RESOLV_HOST_CONF", "RES_OPTIONS", "RESOLV_ADD_TRIM_DOMAINS", "TZDIR"),
]


@pytest.mark.parametrize("name", HOSTILE + RESERVED)
def test_a_name_that_would_break_a_workspace_is_refused(name: str) -> None:
    with pytest.raises(Invalid) as wrong:
        checked_variable(name)
    assert wrong.value.field == "name"


@pytest.mark.parametrize("value", ["x", " ", "a\nb\r\n", "비밀", "x" * VALUE_BYTES, "=", "\x1b[0m"])
def test_a_value_is_any_text(value: str) -> None:
    assert checked_value(value) == value


@pytest.mark.parametrize("value", ["", "planted\x00value", "planted\udc80", "planted" * VALUE_BYTES, "비" * 22000])
def test_a_value_that_no_process_could_have_is_refused_unseen(value: str) -> None:
    with pytest.raises(Invalid) as wrong:
        checked_value(value)
    assert "planted" not in str(wrong.value)


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("git.example.com", "git.example.com"),
        (" GIT.example.com:8443 ", "git.example.com:8443"),
        ("10.0.0.7", "10.0.0.7"),
    ],
)
def test_a_host(text: str, host: str) -> None:
    assert checked_git_host(text) == host


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a/b",
        "https://a.b",
        "ann@a.b",
        "a b",
        "a.b:",
        "a.b:0",
        "a.b:65536",
        "a.b:\u0664\u0664\u0663",  # digits, but not of ASCII
        "a.b:\uff14\uff14\uff13",
        "-a",
        "[::1]",
        "a\nb",
        "a" * 254,
        "a.b?c",
    ],
)
def test_what_is_no_host(text: str) -> None:
    with pytest.raises(Invalid) as wrong:
        checked_git_host(text)
    assert wrong.value.field == "host"


@pytest.mark.parametrize("token", ["", "two\nlines", "a b", "a\x00", "ü", "x" * 4097])
def test_what_is_no_token(token: str) -> None:
    with pytest.raises(Invalid):
        checked_git_token(token)


@pytest.mark.parametrize("username", ["", "a:b", "a b", "a\nb", "x" * 101])
def test_what_is_no_git_username(username: str) -> None:
    with pytest.raises(Invalid):
        checked_git_username(username)
    assert checked_git_username("ann@example.com") == "ann@example.com"


def test_a_git_identity() -> None:
    assert checked_git_identity(" 김안나 ", "ann@example.com ") == GitIdentity("김안나", "ann@example.com")


@pytest.mark.parametrize(
    ("name", "email", "field"),
    [
        ("", "a@b", "name"),
        ("a\nb", "a@b", "name"),
        ("a <b>", "a@b", "name"),
        ("x" * 101, "a@b", "name"),
        ("a", "a", "email"),
        ("a", "a@b\nc", "email"),
        ("a", "<a@b>", "email"),
        ("a", "a@b c", "email"),
    ],
)
def test_what_is_no_git_identity(name: str, email: str, field: str) -> None:
    with pytest.raises(Invalid) as wrong:
        checked_git_identity(name, email)
    assert wrong.value.field == field


def test_dotfiles() -> None:
    assert checked_dotfiles("git@a.b:ann/dotfiles", " ./install.sh ") == Dotfiles(
        "git@a.b:ann/dotfiles", "./install.sh"
    )
    for url, command, field in (
        ("file:///etc", "", "url"),
        ("https://u:p@a.b/c", "", "url"),
        ("https://a.b/c", "a\nb", "command"),
    ):
        with pytest.raises(Invalid) as wrong:
            checked_dotfiles(url, command)
        assert wrong.value.field == field


def test_the_bounds_of_an_owner() -> None:
    refuse_too_many(NAME, 1, SecretsHeld(SECRETS_PER_OWNER - 1, 0, OWNER_BYTES - 1))
    for size, others in (
        (1, SecretsHeld(SECRETS_PER_OWNER, 0, 0)),
        (2, SecretsHeld(1, 0, OWNER_BYTES - 1)),
    ):
        with pytest.raises(LimitReached) as reached:
            refuse_too_many(NAME, size, others)
        assert reached.value.code == "secret_limit"
    key = SecretName(NAME.owner, SecretKind.SSH_KEY, "a.b")
    refuse_too_many(key, 1, SecretsHeld(9, SSH_KEYS_PER_OWNER - 1, 9))
    with pytest.raises(LimitReached, match="SSH"):
        refuse_too_many(key, 1, SecretsHeld(9, SSH_KEYS_PER_OWNER, 9))
