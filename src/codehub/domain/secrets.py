"""What people keep for their workspaces: secrets as environment variables, git credentials, their git identity and
their dotfiles; and what admins keep for a template. Pure.

A value becomes an environment variable of a process, where the kernel takes at most 128 KiB for one and, with the usual
stack of 8 MiB, 2 MiB for all of them with the arguments: so a value has a bound, and all values of an owner together.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from codehub.domain.errors import Invalid, LimitReached
from codehub.domain.template import checked_git_url

VALUE_BYTES = 64 << 10
OWNER_BYTES = 512 << 10
"""What all secrets of one owner may take together. A start gets those of two owners: of a user and of a template."""
SECRETS_PER_OWNER = 1000
SSH_KEYS_PER_OWNER = 5
"""An ssh agent offers all of its keys to each server, and a server ends the connection after six (MaxAuthTries)."""

_NAME_LENGTH = 100
_VARIABLE = re.compile(rf"[A-Za-z_][A-Za-z0-9_]{{0,{_NAME_LENGTH - 1}}}")
_RESERVED_PREFIXES = ("CODEHUB_", "LD_", "MALLOC_", "GIT_CONFIG", "VSCODE_", "CODE_SERVER_")
_RESERVED = frozenset(
    (
        *(
            "_",
            "PATH",
            "HOME",
            "USER",
            "LOGNAME",
            "SHELL",
            "PWD",
            "OLDPWD",
            "SHLVL",
            "IFS",
            "ENV",
            "BASH_ENV",
            "TMPDIR",
        ),
        *("SSH_AUTH_SOCK", "SSH_AGENT_PID", "SSH_ASKPASS", "GIT_ASKPASS", "GIT_SSH", "GIT_SSH_COMMAND"),
        *("GIT_DIR", "GIT_WORK_TREE", "GIT_EXEC_PATH", "XDG_RUNTIME_DIR", "NODE_OPTIONS", "PYTHONHOME", "PYTHONPATH"),
        # glibc ignores these in setuid programs, because they choose which files it loads and whom it asks.
        *(
            "GCONV_PATH",
            "GETCONF_DIR",
            "GLIBC_TUNABLES",
            "HOSTALIASES",
            "LOCALDOMAIN",
            "LOCPATH",
            "NIS_PATH",
            "NLSPATH",
        ),
        *("RESOLV_HOST_CONF", "RES_OPTIONS", "RESOLV_ADD_TRIM_DOMAINS", "TZDIR"),
        "PORT",  # code-server would listen there
    )
)
_HOST_LENGTH = 253
_TOKEN = re.compile(r"[\x21-\x7e]{1,4096}")
_USERNAME = re.compile(r"[\x21-\x39\x3b-\x7e]{1,100}")
_EMAIL = re.compile(r"[^\s@<>]{1,64}@[^\s@<>]{1,189}")
_COMMAND_LENGTH = 1000


class SecretKind(StrEnum):
    VARIABLE = "variable"
    GIT_TOKEN = "git_token"  # noqa: S105 - a kind's name
    SSH_KEY = "ssh_key"


class OwnerKind(StrEnum):
    USER = "user"
    TEMPLATE = "template"


@dataclass(frozen=True, slots=True)
class SecretOwner:
    """Whose secrets they are. `id`: a user's id, or a template's name."""

    kind: OwnerKind
    id: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.id}"


@dataclass(frozen=True, slots=True)
class SecretName:
    """Which secret it is. `name`: of a variable its name; of a git token or an SSH key the host."""

    owner: SecretOwner
    kind: SecretKind
    name: str

    def __str__(self) -> str:
        return f"{self.owner} {self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class GitIdentity:
    """Who made a commit."""

    name: str
    email: str


@dataclass(frozen=True, slots=True)
class Dotfiles:
    """A repository of somebody's configuration, and the command that installs it. Empty: what the repository brings."""

    url: str
    command: str = ""


def user_owner(user_id: UUID) -> SecretOwner:
    return SecretOwner(OwnerKind.USER, str(user_id))


def template_owner(name: str) -> SecretOwner:
    return SecretOwner(OwnerKind.TEMPLATE, name)


def checked_variable(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        raise Invalid(
            f"A variable's name has letters, digits and underscores, does not begin with a digit, and is at most "
            f"{_NAME_LENGTH} characters long.",
            "name",
        )
    if name in _RESERVED or name.startswith(_RESERVED_PREFIXES):
        raise Invalid(f"{name} is what the workspace itself needs. Choose another name.", "name")
    return name


def checked_value(value: str, field: str = "value") -> str:
    """The value itself; raises Invalid, without showing it, if it cannot be an environment variable."""
    if not value:
        raise Invalid("There is nothing to keep. To remove a secret, delete it.", field)
    if "\x00" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise Invalid("A secret is text without NUL. Encode other data first, for example with base64.", field)
    if len(value.encode()) > VALUE_BYTES:
        raise Invalid(f"A secret has at most {VALUE_BYTES >> 10} KiB. Keep a larger one in a file.", field)
    return value


def checked_git_host(text: str) -> str:
    """The host in lower case, with its port if it has one. By the same rule as the host of a git address."""
    host = text.strip().lower()
    _, _, port = host.partition(":")
    try:
        checked_git_url(f"https://{host}/x")
    except Invalid:
        host = ""
    if not host or "/" in host or len(host) > _HOST_LENGTH or (port and not 0 < int(port) < 65536):
        raise Invalid("A host is a name such as git.example.com, with a port if it is not the usual one.", "host")
    return host


def checked_git_token(token: str) -> str:
    if not _TOKEN.fullmatch(token):
        raise Invalid("A token is one line of at most 4096 printable characters without blanks.", "token")
    return token


def checked_git_username(username: str) -> str:
    if not _USERNAME.fullmatch(username):
        raise Invalid("A username is at most 100 printable characters without blanks and colons.", "username")
    return username


def checked_git_identity(name: str, email: str) -> GitIdentity:
    name, email = name.strip(), email.strip()
    if not 0 < len(name) <= _NAME_LENGTH or not name.isprintable() or set(name) & set("<>"):
        raise Invalid(f"A name has 1 to {_NAME_LENGTH} printable characters, without < and >.", "name")
    if not _EMAIL.fullmatch(email) or not email.isprintable():
        raise Invalid("An email address looks like ann@example.com.", "email")
    return GitIdentity(name, email)


def checked_dotfiles(url: str, command: str) -> Dotfiles:
    try:
        checked_git_url(url)
    except Invalid as wrong:
        raise Invalid(str(wrong), "url") from None
    command = command.strip()
    if len(command) > _COMMAND_LENGTH or not command.isprintable():
        raise Invalid(f"A command is one line of at most {_COMMAND_LENGTH} printable characters.", "command")
    return Dotfiles(url, command)


def precedence(owner: SecretOwner) -> int:
    """Of two secrets of one name at a start, that of the owner with the higher precedence is set: a person's own
    replaces the template's."""
    return 1 if owner.kind is OwnerKind.USER else 0


@dataclass(frozen=True, slots=True)
class SecretsHeld:
    """How many secrets an owner has, apart from the one that is being put, and how many bytes they are."""

    secrets: int
    ssh_keys: int
    bytes: int


def refuse_too_many(name: SecretName, size: int, others: SecretsHeld) -> None:
    """Raise LimitReached if another secret of `size` bytes would be one too many, or too much."""
    if others.secrets >= SECRETS_PER_OWNER:
        raise LimitReached(f"There are {SECRETS_PER_OWNER} secrets already. Delete one first.", code="secret_limit")
    if name.kind is SecretKind.SSH_KEY and others.ssh_keys >= SSH_KEYS_PER_OWNER:
        raise LimitReached(
            f"There are SSH keys for {SSH_KEYS_PER_OWNER} hosts already, and a git server refuses who offers more. "
            "Delete one first.",
            code="secret_limit",
        )
    if others.bytes + size > OWNER_BYTES:
        raise LimitReached(
            f"All secrets together may have {OWNER_BYTES >> 10} KiB, and would have "
            f"{-(-(others.bytes + size) >> 10)} KiB: no process could start with more. Delete some, or keep large "
            "ones in files.",
            code="secret_limit",
        )
