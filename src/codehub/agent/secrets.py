"""What a workspace's command is given at its start through memory alone: variables, git credentials and SSH keys.

`encode` makes one sequence of bytes of it, which reaches the agent over a sealed connection. The command then runs
behind a small shell script (`behind_setup`) whose standard input holds the credentials: it puts them into git's own
credential cache and OpenSSH's own agent, which keep them in their memory and answer on sockets in a directory of this
start. A command in a sandbox is given its variables there too, so that no program outside of the sandbox has them. No
file holds any of them.
"""

from collections.abc import Iterable, Mapping, Sequence

SECRETS_VARIABLE = "CODEHUB_AGENT_SECRETS"
"""In the agent's environment: it waits for the secrets of this start before it runs the command."""
AGENT_DIRECTORY = "/run/codehub"
"""Where the sockets of this start are in a container: in memory."""
SHELL = "/bin/sh"
_LENGTH_BYTES = 4
_BACKSLASH = ord("\\")

SETUP = r"""
_codehub_directory=$1
_codehub_helper=$2
shift 2
say() { printf 'codehub: %s\n' "$*" >&2; }
has() { command -v "$1" >/dev/null 2>&1; }
configure() { git config --file "$_codehub_directory/gitconfig" "$@"; }

set_variable() {
    case $_codehub_name in
    '' | [0-9]* | *[!A-Za-z0-9_]* | UID | EUID | PPID | SHELLOPTS | BASHOPTS | BASH_VERSINFO)
        say "a shell cannot set the variable $_codehub_name"
        return
        ;;
    esac
    case $_codehub_text in
    *\\*)
        _codehub_text=$(printf '%b.' "$_codehub_text")
        _codehub_text=${_codehub_text%.}
        ;;
    esac
    export "$_codehub_name=$_codehub_text"
}

set_git_up() {
    configure include.path /etc/gitconfig &&
        configure core.sshCommand 'ssh -o StrictHostKeyChecking=accept-new' &&
        configure credential.helper "cache --timeout 315360000 --socket $_codehub_helper" || return
    [ -z "${CODEHUB_GIT_NAME:-}" ] || configure user.name "$CODEHUB_GIT_NAME"
    [ -z "${CODEHUB_GIT_EMAIL:-}" ] || configure user.email "$CODEHUB_GIT_EMAIL"
    export GIT_CONFIG_SYSTEM="$_codehub_directory/gitconfig"
}

prepare() {
    [ -z "${_codehub_is_ready:-}" ] || return
    _codehub_is_ready=yes
    mkdir -p "$_codehub_directory" || return
    if has git; then set_git_up || say 'git could not be set up'; fi
}

add_git_credential() {
    if has git; then
        # The daemon that it starts would keep our output open.
        printf '%s\n' "$_codehub_text" |
            git credential-cache --timeout 315360000 --socket "$_codehub_directory/g" store 2>/dev/null ||
            say 'git did not take a credential'
    else
        say 'git is not installed here, so that its credentials are of no use'
    fi
}

add_ssh_key() {
    if ! has ssh-agent; then
        say 'ssh-agent is not installed here, so that SSH keys are of no use'
        return
    fi
    if [ -z "${_codehub_agent:-}" ]; then
        if ! ssh-agent -a "$_codehub_directory/k" >/dev/null; then
            say 'ssh-agent could not be started'
            return
        fi
        _codehub_agent=started
        export SSH_AUTH_SOCK="$_codehub_directory/k"
    fi
    printf '%s' "$_codehub_text" | ssh-add -q - || say 'ssh-agent did not take an SSH key'
}

_codehub_mask=$(umask)
umask 077
while IFS= read -r _codehub_kind; do
    if [ "$_codehub_kind" = env ]; then
        IFS= read -r _codehub_name
        IFS= read -r _codehub_text
        set_variable
        continue
    fi
    prepare
    _codehub_text=
    while IFS= read -r _codehub_line && [ -n "$_codehub_line" ]; do
        _codehub_text="$_codehub_text$_codehub_line
"
    done
    case $_codehub_kind in
    git) add_git_credential ;;
    ssh) add_ssh_key ;;
    esac
done
prepare
# What was read is in nobody's descriptor any more.
{ true >/proc/self/fd/0; } 2>/dev/null
umask "$_codehub_mask"
if ! has "$1"; then
    say "the command $1 cannot be run: there is no such program"
    exit 127
fi
unset _codehub_directory _codehub_helper _codehub_kind _codehub_name _codehub_text _codehub_line _codehub_mask
unset _codehub_agent _codehub_is_ready
exec "$@" </dev/null
"""
"""Reads records from its standard input. A variable: the line `env`, its name, its value as `variables` writes it. A
credential: the line `git` or `ssh`, then what the cache or the agent takes, then an empty line. Variables come
first."""


def behind_setup(command: Sequence[str], directory: str) -> list[str]:
    """The command line that sets variables, git and SSH up and then becomes `command`. `directory`: of this start
    alone, for the sockets, whose names have one letter: a path to a socket must be short."""
    quoted = "'" + f"{directory}/g".replace("'", "'\\''") + "'"  # git runs its helper in a shell
    return [SHELL, "-c", SETUP, "codehub-setup", directory, quoted, *command]


def variables(env: Mapping[str, str]) -> bytes:
    """The records of environment variables, for a command that must not have them before it is in its sandbox. All but
    printable ASCII is written in octal digits: not every shell reads every byte."""
    return b"".join(f"env\n{name}\n{_in_octal(value)}\n".encode() for name, value in env.items() if "\n" not in name)


def _in_octal(value: str) -> str:
    return "".join(
        chr(byte) if 0x20 <= byte < 0x7F and byte != _BACKSLASH else f"\\0{byte:03o}"
        for byte in value.encode(errors="surrogateescape")
    )


def records(git_credentials: Iterable[tuple[str, str, str]], ssh_keys: Iterable[str]) -> bytes:
    """The records of credentials. A git credential is a host, a user name and a token."""
    written = []
    for credential in git_credentials:
        if any(character in part for part in credential for character in "\n\r\0"):
            raise ValueError("a git credential is one line")
        host, username, token = credential
        written.append(f"git\nprotocol=https\nhost={host}\nusername={username}\npassword={token}\n\n")
    for key in ssh_keys:
        lines = [line for line in key.splitlines() if line]
        written.append("\n".join(["ssh", *lines, "", ""]))
    return "".join(written).encode()


def encode(env: Mapping[str, str], written: bytes) -> bytes:
    parts = [written, *(f"{name}={value}".encode() for name, value in env.items())]
    return b"".join(len(part).to_bytes(_LENGTH_BYTES, "big") + part for part in parts)


def decode(data: bytes) -> tuple[dict[str, str], bytes]:
    """The variables and the records."""
    parts, place = [], 0
    while place < len(data):
        begin = place + _LENGTH_BYTES
        place = begin + int.from_bytes(data[place:begin], "big")
        parts.append(data[begin:place])
    written, *variables = parts
    pairs = (variable.decode().partition("=") for variable in variables)
    return {name: value for name, _, value in pairs}, written
