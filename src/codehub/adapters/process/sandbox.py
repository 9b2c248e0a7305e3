"""What bubblewrap puts around a workspace, where the machine has it and lets it work.

The workspace sees the system's programs and the few files of `/etc` that programs need, all read-only, a private
`/tmp`, its own processes, its home and its socket. What is not named here is not there, so a forgotten path is a safe
one. When we are root it also gets a user id of its own; where slirp4netns works, a network namespace of its own.
"""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

from codehub.adapters.process import network

HOME_INSIDE = Path("/home/coder")
"""The same in every incarnation of the home, so that absolute paths in it survive a restore."""

CA_BUNDLE_INSIDE = Path("/etc/codehub-ca-bundle.pem")

SANDBOX, OWN_USER, OWN_NETWORK = "sandbox", "own-user", "own-network"

FIRST_UID, UIDS = 0x70000000, 0x08000000
"""Numbers that neither distributions nor systemd give to people, services or containers."""

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt")
_ETC = (
    *("alternatives", "bash.bashrc", "bash_completion.d", "ca-certificates", "ca-certificates.conf", "crypto-policies"),
    *("debian_version", "default/locale", "fonts", "gai.conf", "gitconfig", "gnutls", "host.conf", "hosts", "inputrc"),
    *("java-*", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias", "locale.conf", "localtime", "lsb-release"),
    *("magic", "maven", "mime.types", "nanorc", "networks", "npmrc", "nsswitch.conf", "os-release", "perl", "pip.conf"),
    *("pki/ca-trust/extracted", "pki/tls/cert.pem", "pki/tls/certs", "pki/tls/openssl.cnf", "profile", "profile.d"),
    *("protocols", "python3*", "redhat-release", "services", "shells", "skel", "ssl/cert.pem", "ssl/certs"),
    *("ssl/openssl.cnf", "terminfo", "timezone", "vim", "wgetrc", "xdg", "zsh"),
)
"""What programs need of the system's configuration and what holds no secret; shown only if anybody may read it."""
_RESOLVED = Path("/run/systemd/resolve")
_NAMESPACES = ("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent", "--cap-drop", "ALL")
"""All capabilities are dropped by name, for started by root, bubblewrap would leave all of root's powers inside."""
_UNTIL_THE_USER_CHANGES = tuple(
    word for name in ("SETUID", "SETGID", "SETPCAP", "DAC_READ_SEARCH") for word in ("--cap-add", f"CAP_{name}")
)
"""The capabilities that root keeps until setpriv changes the user; the last is for entering the home, which is the
workspace's user's alone."""
_PRIVATE = (
    *("--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys"),  # uid 0 may write there without any capability
    *("--dev", "/dev", "--perms", "1777", "--tmpfs", "/dev/shm"),  # noqa: S108 - names inside
    *("--perms", "1777", "--tmpfs", "/tmp", "--perms", "1777", "--tmpfs", "/var/tmp"),  # noqa: S108 - as above
)
_EVERYBODY_READS, _EVERYBODY_ENTERS = stat.S_IROTH, stat.S_IROTH | stat.S_IXOTH
_PROBE_SECONDS = 10
CLEAN = ("/bin/sh", "-c", 'exec env -i CODEHUB_INSTANCE="${CODEHUB_INSTANCE:-}" "$@"', "codehub")
"""Inside, nothing is left of the variables that the programs around the workspace run with, but by what its processes
are found. The workspace's own are set by the command itself: outside they could make a program of ours load code."""


@dataclass(frozen=True, slots=True)
class SandboxTools:
    """The programs that this machine lets us isolate a workspace with. `setpriv` gives it a user id of its own, which
    only root can do and always does; `slirp4netns` connects a network namespace of its own."""

    bubblewrap: str
    setpriv: str | None = None
    slirp4netns: str | None = None

    @property
    def guards_ports(self) -> bool:
        """A workspace can take no port that the front door or another person's program holds: its sockets are in
        another network, or the kernel lets no other user's share a port."""
        return self.setpriv is not None or self.slirp4netns is not None

    @property
    def words(self) -> list[str]:
        user, connected = self.setpriv is not None, self.slirp4netns is not None
        return [SANDBOX, *([OWN_USER] if user else []), *([OWN_NETWORK] if connected else [])]

    def uid(self, workspace_id: UUID) -> int:
        """The user id of a workspace for its whole life, which no other workspace has, but for rare chance."""
        return os.getuid() if self.setpriv is None else FIRST_UID + workspace_id.int % UIDS


@dataclass(frozen=True, slots=True)
class SandboxPaths:
    """What one workspace's sandbox is made of. `etc`: files written for it. `ways_in`: where sockets of its own network
    are handed out. `hidden`: directories of which only what is readable by name is seen, wherever they lie.
    `ca_bundle`: the file that is CA_BUNDLE_INSIDE. `session_program`: the directory of the program that runs further
    commands."""

    uid: int
    home: Path
    sockets: Path
    etc: Path
    ways_in: Path
    root: Path
    readable: Sequence[Path] = ()
    hidden: Sequence[Path] = ()
    ca_bundle: Path | None = None
    session_program: Path | None = None


def find_sandbox_tools(*, own_network: bool = True) -> SandboxTools | None:
    """Tries which programs work. Blocks. A program's being there proves nothing: many machines forbid what it needs."""
    bubblewrap = shutil.which("bwrap")
    setpriv = shutil.which("setpriv") if os.geteuid() == 0 else None
    if bubblewrap is None or (os.geteuid() == 0 and setpriv is None):
        return None
    found, slirp4netns = SandboxTools(bubblewrap, setpriv), shutil.which("slirp4netns") if own_network else None
    if slirp4netns is not None and _works(connected := SandboxTools(bubblewrap, setpriv, slirp4netns)):
        return connected
    return found if _works(found) else None


def _works(sandbox_tools: SandboxTools) -> bool:
    with tempfile.TemporaryDirectory() as place:
        trial = _entered(sandbox_tools, FIRST_UID if sandbox_tools.setpriv else os.getuid(), Path(place, "n"))
        trial += ["--ro-bind", "/", "/", *_PRIVATE, "--", *_as_user(sandbox_tools, FIRST_UID), "true"]
        try:
            tried = subprocess.run(trial, capture_output=True, timeout=_PROBE_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return False
    return tried.returncode == 0


def sandboxed(sandbox_tools: SandboxTools, argv: Sequence[str], inside: SandboxPaths) -> list[str]:
    hidden = [path for path in inside.hidden if not any(other in path.parents for other in inside.hidden)]
    around, within = _parted(inside.readable, hidden)
    return [
        *_entered(sandbox_tools, inside.uid, inside.ways_in),
        *_system(),
        *_PRIVATE,
        *_etc(inside.etc),
        *(("--ro-bind", str(inside.ca_bundle), str(CA_BUNDLE_INSIDE)) if inside.ca_bundle else ()),
        *_bound(around),
        *(word for path in hidden for word in ("--tmpfs", str(path))),
        *_bound(within),
        # After what is readable: should that include our own directory, the other homes in it stay hidden.
        *("--tmpfs", str(inside.root)),
        *(_bound([inside.session_program]) if inside.session_program else ()),
        *_way_to(inside.sockets),
        *("--bind", str(inside.sockets), str(inside.sockets)),
        *_way_to(HOME_INSIDE),
        *("--bind", str(inside.home), str(HOME_INSIDE)),
        *("--remount-ro", "/", "--chdir", str(HOME_INSIDE)),
        "--",
        *_as_user(sandbox_tools, inside.uid),
        *CLEAN,
        *argv,
    ]


def write_etc(directory: Path, sandbox_tools: SandboxTools, uid: int) -> None:
    """Writes the files of `/etc` that differ from this machine's: who lives inside, and which name server there is."""
    directory.mkdir(mode=0o755, exist_ok=True)
    gid = uid if sandbox_tools.setpriv else os.getgid()
    shell = shutil.which("bash") or "/bin/sh"
    # The first of two with one number is the one that is found: it may be nobody's.
    users = {"coder": (uid, gid, str(HOME_INSIDE)), "root": (0, 0, "/root"), "nobody": (65534, 65534, "/nonexistent")}
    written = {
        "passwd": "".join(f"{name}:x:{u}:{g}:{name}:{home}:{shell}\n" for name, (u, g, home) in users.items()),
        "group": "".join(f"{name}:x:{g}:\n" for name, (_, g, _) in users.items()),
    }
    if sandbox_tools.slirp4netns is not None:
        written["resolv.conf"] = f"nameserver {network.NAME_SERVER}\n"
    else:
        (directory / "resolv.conf").unlink(missing_ok=True)
    for name, text in written.items():
        fresh = directory / f".{name}.{uuid4().hex}"  # another coordinator may be writing it too
        fresh.write_text(text)
        fresh.chmod(0o644)
        fresh.rename(directory / name)


def unreadable(paths: Iterable[Path]) -> Path | None:
    """The first directory that a workspace with a user id of its own could not enter."""
    return next((path for path in paths if path.stat().st_mode & _EVERYBODY_ENTERS != _EVERYBODY_ENTERS), None)


def _entered(sandbox_tools: SandboxTools, uid: int, ways_in: Path) -> list[str]:
    words = [sandbox_tools.bubblewrap, *_NAMESPACES]
    if sandbox_tools.setpriv is not None:
        words += _UNTIL_THE_USER_CHANGES
    if sandbox_tools.slirp4netns is None:
        return words
    if sandbox_tools.setpriv is None:  # there it would be root, of its own user namespace
        words += ["--unshare-user", "--uid", str(uid), "--gid", str(os.getgid())]
    return [sys.executable, "-I", "-S", network.__file__, sandbox_tools.slirp4netns, str(ways_in), *words]


def _as_user(sandbox_tools: SandboxTools, uid: int) -> list[str]:
    """The words that change the user, from inside: bubblewrap itself must be root to show directories that nobody else
    may enter."""
    if sandbox_tools.setpriv is None:
        return []
    ids = [f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
    return [sandbox_tools.setpriv, *ids, "--"]


def _etc(written: Path) -> Iterator[str]:
    etc = Path("/etc")
    yield from _bound(filter(_everybody_reads, sorted(path for pattern in _ETC for path in etc.glob(pattern))))
    for name in ("passwd", "group"):
        yield from ("--ro-bind", str(written / name), str(etc / name))
    yield from _name_servers(written / "resolv.conf", etc / "resolv.conf")


def _everybody_reads(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & _EVERYBODY_READS)
    except OSError:  # a link to nowhere
        return False


def _name_servers(written: Path, ours: Path) -> Iterator[str]:
    if written.exists():
        yield from ("--ro-bind", str(written), str(ours))
    elif ours.is_symlink() and ours.resolve().is_relative_to(_RESOLVED):
        yield from ("--ro-bind", str(_RESOLVED), str(_RESOLVED))  # whole, because the file in it is replaced
        yield from ("--symlink", str(ours.resolve()), str(ours))
    elif _everybody_reads(ours):
        yield from ("--ro-bind", str(ours), str(ours))


def _parted(readable: Iterable[Path], hidden: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """The readable paths that lie around the hidden directories, and those that lie within."""
    paths = list(readable)
    within = [path for path in paths if any(place in path.parents for place in hidden)]
    return [path for path in paths if path not in within], within


def _way_to(path: Path) -> tuple[str, ...]:
    """Makes the parent of `path` passable: by itself bubblewrap lets only its own user pass the directories that it
    makes."""
    return () if path.parent == Path("/") else ("--perms", "0755", "--dir", str(path.parent))


def _bound(paths: Iterable[Path]) -> Iterator[str]:
    made: set[Path] = set()
    for path in paths:
        if path.parent not in made:
            yield from _way_to(path)
        made.add(path.parent)
        yield from ("--ro-bind", str(path), str(path))


def _system() -> Iterator[str]:
    for path in map(Path, _SYSTEM):
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
