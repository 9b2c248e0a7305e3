"""What a workspace's command is given at its start through memory alone: variables, git credentials and SSH keys.

`encode` makes one sequence of bytes of it, which reaches the agent over a sealed connection and a shim through its
pipe. The command then runs behind a small shell script (`behind_setup`) whose standard input holds the credentials: it
puts them into git's own credential cache and OpenSSH's own agent, which keep them in their memory and answer on sockets
in a directory of this start. No file holds any of them.
"""

from collections.abc import Iterable, Mapping, Sequence

SECRETS_VARIABLE = "CODEHUB_AGENT_SECRETS"
"""In the agent's environment: it waits for the secrets of this start before it runs the command."""
AGENT_DIRECTORY = "/run/codehub"
"""Where the sockets of this start are in a container: in memory."""
SHELL = "/bin/sh"
_LENGTH_BYTES = 4

SETUP = r"""
directory=$1
shift
say() { printf 'codehub: %s\n' "$*" >&2; }
has() { command -v "$1" >/dev/null 2>&1; }
configure() { git config --file "$directory/gitconfig" "$@"; }

set_git_up() {
    configure include.path /etc/gitconfig &&
        configure core.sshCommand 'ssh -o StrictHostKeyChecking=accept-new' &&
        configure credential.helper "cache --timeout 315360000 --socket $directory/git" || return
    [ -z "${CODEHUB_GIT_NAME:-}" ] || configure user.name "$CODEHUB_GIT_NAME"
    [ -z "${CODEHUB_GIT_EMAIL:-}" ] || configure user.email "$CODEHUB_GIT_EMAIL"
    export GIT_CONFIG_SYSTEM="$directory/gitconfig"
}

add_git_credential() {
    if has git; then
        # The daemon that it starts would keep our output open.
        printf '%s\n' "$1" | git credential-cache --timeout 315360000 --socket "$directory/git" store 2>/dev/null ||
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
    if [ -z "${agent:-}" ]; then
        ssh-agent -a "$directory/ssh" >/dev/null && agent=started
        export SSH_AUTH_SOCK="$directory/ssh"
    fi
    printf '%s' "$1" | ssh-add -q - || say 'ssh-agent did not take an SSH key'
}

mask=$(umask)
umask 077
if mkdir -p "$directory"; then
    if has git; then set_git_up || say 'git could not be set up'; fi
    while IFS= read -r kind; do
        text=
        while IFS= read -r line && [ -n "$line" ]; do
            text="$text$line
"
        done
        case $kind in
        git) add_git_credential "$text" ;;
        ssh) add_ssh_key "$text" ;;
        esac
    done
fi
umask "$mask"
if ! has "$1"; then
    say "the command $1 cannot be run: there is no such program"
    exit 127
fi
unset directory kind text line mask agent
exec "$@" </dev/null
"""
"""Reads records from its standard input: a line `git` or `ssh`, then what the cache or the agent takes, then an empty
line."""


def behind_setup(command: Sequence[str], directory: str) -> list[str]:
    """The command line that sets git and SSH up and then becomes `command`. `directory`: of this start alone, for the
    sockets."""
    return [SHELL, "-c", SETUP, "codehub-setup", directory, *command]


def records(git_credentials: Iterable[tuple[str, str, str]], ssh_keys: Iterable[str]) -> bytes:
    """What the script reads. A git credential is a host, a user name and a token."""
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
