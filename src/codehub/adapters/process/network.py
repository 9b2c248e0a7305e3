"""Runs a command in a network namespace of its own: `network.py SLIRP4NETNS SOCKET COMMAND…`.

What listens inside is not on this machine's ports. The way out is slirp4netns, which connects as any program of this
machine does, but not to its loopback addresses. The way in is SOCKET: whoever connects there is handed two fresh
sockets of the namespace, one for IPv4 and one for IPv6. A network namespace belongs to a user namespace, so without
root this program makes both. Run by path without site-packages: only the standard library.
"""

import ctypes
import os
import select
import signal
import socket
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

NAME_SERVER = "10.0.2.3"
"""Where slirp4netns answers for the name servers of this machine."""

_SET_PDEATHSIG = 1
_NEW_MOUNTS, _NEW_USER, _NEW_NETWORK = 0x00020000, 0x10000000, 0x40000000
_MOUNT_PRIVATE, _MOUNT_RECURSIVE = 1 << 18, 1 << 14
_CANNOT_RUN = 127
_BACKLOG = 128
_OPTIONS = ("--configure", "--mtu=65520", "--disable-host-loopback", "--enable-sandbox", "--enable-seccomp")

_libc = ctypes.CDLL(None, use_errno=True)


def main(slirp4netns: str, place: str, *command: str) -> int:
    go, ready = os.pipe(), os.pipe()
    router = _fork()
    if router == 0:
        _become_router(slirp4netns, os.getppid(), go, ready)
    os.close(ready[1])
    _unshare()
    os.write(go[1], b"1")
    os.close(go[0])
    os.close(go[1])
    if not os.read(ready[0], 1):
        sys.stderr.write("slirp4netns did not connect the workspace's network\n")
        return _CANNOT_RUN
    with _listening(Path(place)) as listening:
        child = _fork()
        if child == 0:
            _execute(list(command))
        return _serve(listening, child, router)


def _fork() -> int:
    """Forks a child that dies with us."""
    owner = os.getpid()
    child = os.fork()
    if child == 0:
        _libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != owner:
            os._exit(_CANNOT_RUN)
    return child


def _become_router(slirp4netns: str, owner: int, go: tuple[int, int], ready: tuple[int, int]) -> None:
    """Becomes slirp4netns. It stays in this machine's network, so it is forked before we leave that, and waits until we
    have."""
    os.close(go[1])
    if not os.read(go[0], 1):
        os._exit(_CANNOT_RUN)
    if os.geteuid() == 0:
        _keep_mounts()
    os.set_inheritable(ready[1], True)
    nothing = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):  # it tells of its descriptors and of broken packets, which would fill the workspace's log
        os.dup2(nothing, descriptor)
    _execute([slirp4netns, *_OPTIONS, f"--ready-fd={ready[1]}", str(owner), "tap0"])


def _keep_mounts() -> None:
    """Enters a mount namespace whose changes stay in it. slirp4netns takes its file system apart, but lets go of the
    root alone before: of a mount that is shared, such as Docker's directory, it would unmount all that is below it for
    the whole machine. Without root the kernel sees to that itself."""
    nowhere = ctypes.c_char_p(None)
    if _libc.unshare(_NEW_MOUNTS) != 0 or _libc.mount(
        nowhere, b"/", nowhere, ctypes.c_ulong(_MOUNT_PRIVATE | _MOUNT_RECURSIVE), nowhere
    ):
        os._exit(_CANNOT_RUN)


def _unshare() -> None:
    """Enters new namespaces. slirp4netns wants to be root of the user namespace that the network belongs to."""
    user, group = os.geteuid(), os.getegid()
    kinds = _NEW_NETWORK if user == 0 else _NEW_NETWORK | _NEW_USER
    if _libc.unshare(kinds) != 0:
        sys.exit(f"no network namespace can be made: {os.strerror(ctypes.get_errno())}")
    if user != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")


def _execute(command: list[str]) -> None:
    try:
        for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(ignored_by_python, signal.SIG_DFL)
        os.execvp(command[0], command)  # noqa: S606 - that is the whole purpose
    except OSError as error:
        os.write(2, f"cannot run {command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(_CANNOT_RUN)


def _listening(place: Path) -> socket.socket:
    # Through a descriptor of its directory: the path of a unix socket has at most 107 bytes.
    place.unlink(missing_ok=True)
    directory = os.open(place.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(f"/proc/self/fd/{directory}/{place.name}")
        listening.listen(_BACKLOG)
    finally:
        os.close(directory)
    return listening


def _serve(listening: socket.socket, child: int, router: int) -> int:
    """Hands out sockets until the command ends, and returns its exit code. It does not go on without its way out."""
    poll = select.poll()
    ended, cut_off = os.pidfd_open(child), os.pidfd_open(router)
    for descriptor in (listening.fileno(), ended, cut_off):
        poll.register(descriptor, select.POLLIN)
    while True:
        seen = {descriptor for descriptor, _ in poll.poll()}
        if ended in seen:
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            return code if code >= 0 else 128 - code
        if cut_off in seen:
            sys.stderr.write("slirp4netns ended, and with it the workspace's network\n")
            return _CANNOT_RUN
        _hand_out(listening)


def _hand_out(listening: socket.socket) -> None:
    with suppress(OSError):  # who asked is gone, or we have no descriptor left
        asker, _ = listening.accept()
        with asker, ExitStack() as stack:
            fresh = []
            for family in (socket.AF_INET, socket.AF_INET6):
                with suppress(OSError):  # a kernel without it
                    fresh.append(stack.enter_context(socket.socket(family, socket.SOCK_STREAM)).fileno())
            socket.send_fds(asker, [b"1"], fresh)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
