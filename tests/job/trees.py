"""Trees that hurt, and what must be the same about two of them.

`snapshot` walks by descriptor, so that depth and odd names are no trouble, and takes down all that an archive has to
keep: content, type, mode, owner, time to the nanosecond, extended attributes (ACLs among them), link targets, which
names are one file, and how much disk is really used.
"""

import hashlib
import os
import re
import socket
import stat
import struct
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

from codehub.job.attributes import inside, read_xattrs

ROOT = os.geteuid() == 0
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
OURS = re.compile(rb"\.codehub-restor(e|ed|ing)-[0-9a-f-]{36}")
MTIME = 1_700_000_000_123_456_789


@dataclass(frozen=True)
class Entry:
    kind: int
    mode: int
    owner: tuple[int, int]
    mtime_ns: int
    xattrs: tuple[tuple[str, bytes], ...]
    content: str
    same_file_as: tuple[bytes, ...]
    blocks: int


Snapshot = dict[bytes, Entry]


def snapshot(root: Path, *, reserved: bool = False) -> Snapshot:
    """Everything below `root` and itself, without sockets; reserved names only when asked for."""
    found: Snapshot = {}
    names_of: dict[tuple[int, int], list[bytes]] = defaultdict(list)
    stack: list[tuple[int, bytes]] = [(os.open(root, DIRECTORY), b"")]
    found[b""] = _entry(os.fstat(stack[0][0]), read_xattrs(stack[0][0]), "")
    while stack:
        directory, path = stack.pop()
        for name in map(os.fsencode, os.listdir(directory)):
            if not path and OURS.fullmatch(name) and not reserved:
                continue
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if stat.S_ISSOCK(status.st_mode):
                continue
            child = path + b"/" + name if path else name
            if stat.S_ISDIR(status.st_mode):
                stack.append((os.open(name, DIRECTORY, dir_fd=directory), child))
            else:
                names_of[status.st_dev, status.st_ino].append(child)
            found[child] = _entry(status, read_xattrs(inside(directory, name)), _content(directory, name, status))
        os.close(directory)
    for names in names_of.values():
        for name in names if len(names) > 1 else ():
            found[name] = replace(found[name], same_file_as=tuple(sorted(names)))
    return found


def assert_same(before: Snapshot, after: Snapshot, *, owners: bool = ROOT) -> None:
    assert sorted(before) == sorted(after)
    for path, old in before.items():
        new = after[path]
        if not owners:
            old, new = replace(old, owner=(0, 0)), replace(new, owner=(0, 0))  # noqa: PLW2901
        assert replace(old, blocks=0) == replace(new, blocks=0), path
        assert new.blocks <= old.blocks + 64, f"{path!r} grew from {old.blocks} to {new.blocks} blocks"


def _entry(status: os.stat_result, xattrs: tuple[tuple[str, bytes], ...], content: str) -> Entry:
    kind, mode = stat.S_IFMT(status.st_mode), stat.S_IMODE(status.st_mode)
    blocks = status.st_blocks if stat.S_ISREG(status.st_mode) else 0
    return Entry(kind, mode, (status.st_uid, status.st_gid), status.st_mtime_ns, xattrs, content, (), blocks)


def _content(directory: int, name: bytes, status: os.stat_result) -> str:
    if stat.S_ISLNK(status.st_mode):
        return os.fsdecode(os.readlink(name, dir_fd=directory))
    if not stat.S_ISREG(status.st_mode):
        return ""
    sha256 = hashlib.sha256(b"%d" % status.st_size)
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=directory)
    try:
        for offset, length in _pieces(descriptor, status.st_size):
            data = os.pread(descriptor, length, offset)
            if data.strip(b"\x00"):
                sha256.update(b"%d:%d:" % (offset, length) + data)
    finally:
        os.close(descriptor)
    return sha256.hexdigest()


def _pieces(descriptor: int, size: int) -> list[tuple[int, int]]:
    """Aligned 64 KiB steps with data in them: a hole and zeros are the same content, and 1 GiB of hole is not read."""
    step, pieces, position = 1 << 16, [], 0
    while position < size:
        try:
            position = os.lseek(descriptor, position, os.SEEK_DATA) // step * step
        except OSError:
            break
        pieces.append((position, min(step, size - position)))
        position += step
    return pieces


def acl(*, named_user: int, permissions: int) -> bytes:
    """A POSIX ACL as the kernel keeps it: owner, one named user, group, mask, others."""
    entries = [(1, 7, -1), (2, permissions, named_user), (4, 4, -1), (0x10, 6, -1), (0x20, 0, -1)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", tag, perm, who % 2**32) for tag, perm, who in entries)


def make_nasty_tree(root: Path) -> None:
    _odd_names(root)
    _odd_sizes(root)
    _holes(root)
    _links(root)
    _types(root)
    _modes(root)
    _attributes(root)
    if ROOT:
        _owners(root)
    _times(root)


def _odd_names(root: Path) -> None:
    base = os.fsencode(root)
    names = [
        "한글 이름.txt",
        "e\u0301 and é",
        "with\nnewline",
        "-rf",
        "*?[a]",
        "back\\slash",
        " leading",
        "x.sock",
        "…",
        "日本",
    ]
    for name in [os.fsencode(name) for name in names] + [b"\xff\xfe not utf-8 \x80", b"n" * 255, b"\x01\x7f"]:
        Path(os.fsdecode(base + b"/" + name)).write_bytes(b"content of " + name)
    deep = root
    for level in range(40):
        deep /= f"level-{level}-" + "d" * 20
        deep.mkdir()
    (deep / "at the bottom").write_text("deep")
    long_ascii = root / ("a" * 120)
    long_ascii.mkdir()
    (long_ascii / ("b" * 120)).write_text("a name of more than 100 and less than 256")


def _odd_sizes(root: Path) -> None:
    sizes = root / "sizes"
    sizes.mkdir()
    for size in (0, 1, 511, 512, 513, 4096, (1 << 18) + 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (3 << 20) + 77):
        (sizes / f"{size}").write_bytes(os.urandom(size))


def _holes(root: Path) -> None:
    holes = root / "holes"
    holes.mkdir()
    with (holes / "1 GiB of nothing").open("wb") as file:
        file.truncate(1 << 30)
    with (holes / "data in the middle and at the end").open("wb") as file:
        file.seek(10 << 20)
        file.write(os.urandom(200_000))
        file.seek(50 << 20)
        file.write(b"the end")
    with (holes / "hole at the end").open("wb") as file:
        file.write(b"start" * 5000)
        file.truncate(8 << 20)
    with (holes / "many").open("wb") as file:
        for number in range(300):
            file.seek(number * 65536)
            file.write(b"%d" % number)


def _links(root: Path) -> None:
    links = root / "links"
    (links / "inner").mkdir(parents=True)
    (links / "zz first made").write_text("one file, three names")
    (links / "aa").hardlink_to(links / "zz first made")
    (links / "inner" / "bb").hardlink_to(links / "zz first made")
    targets = {"in": "inner/bb", "out": "/etc/passwd", "up": "../../..", "nowhere": "does/not/exist", "self": "self"}
    for name, target in targets.items():
        (links / f"link {name}").symlink_to(target)
    os.symlink(b"\xff\n" + b"t" * 300, os.fsencode(links) + b"/odd target")
    os.link(links / "link in", links / "same symlink", follow_symlinks=False)


def _types(root: Path) -> None:
    types = root / "types"
    types.mkdir()
    os.mkfifo(types / "fifo", 0o640)
    os.link(types / "fifo", types / "fifo again")
    with socket.socket(socket.AF_UNIX) as listener:
        where = os.open(types, DIRECTORY)
        listener.bind(f"/proc/self/fd/{where}/socket")  # the real path may be longer than a socket's can be
        os.close(where)
    (types / "docker.sock").write_text("a file, whatever its name says")
    (types / "empty directory").mkdir()


def _modes(root: Path) -> None:
    modes = root / "modes"
    modes.mkdir()
    for mode in (0o4755, 0o2755, 0o1644, 0o444, 0o600, 0o777):
        (modes / f"{mode:o}").write_text("x")
        (modes / f"{mode:o}").chmod(mode)
    if ROOT:
        (modes / "0").write_text("closed to its owner")
        (modes / "0").chmod(0)
    read_only = root / "read-only"
    (read_only / "inner").mkdir(parents=True)
    (read_only / "inner" / "file").write_text("in a directory nobody may write")
    for directory, mode in ((read_only / "inner", 0o555), (read_only, 0o500)):
        directory.chmod(mode)
    (root / "shared").mkdir()
    (root / "shared").chmod(0o3777)


def _attributes(root: Path) -> None:
    xattrs = root / "xattrs"
    xattrs.mkdir()
    file = xattrs / "file"
    file.write_text("x")
    os.setxattr(file, "user.binary", bytes(range(256)))
    os.setxattr(file, "user.empty", b"")
    os.setxattr(file, "user.odd=name%3D", b"v")
    os.setxattr(xattrs, "user.on a directory", b"d")
    read_only = xattrs / "read-only"
    read_only.write_text("x")
    os.setxattr(read_only, "user.kept", b"1")
    read_only.chmod(0o400)
    listed = xattrs / "access list"
    listed.write_text("x")
    os.setxattr(listed, "system.posix_acl_access", acl(named_user=1234, permissions=4))
    inherited = xattrs / "default list"
    inherited.mkdir()
    (inherited / "made before the list").write_text("x")
    os.setxattr(inherited, "system.posix_acl_default", acl(named_user=4321, permissions=6))
    (inherited / "made after the list").write_text("x")
    os.setxattr(root, "user.on the home", b"h")
    os.setxattr(root, "system.posix_acl_default", acl(named_user=99, permissions=6))
    if ROOT:
        os.setxattr(file, "trusted.kept", b"t")
        os.setxattr(file, "security.capability", bytes.fromhex("0100000200040000000000000000000000000000"))


def _owners(root: Path) -> None:
    owners = root / "owners"
    owners.mkdir()
    for uid, gid in ((1000, 1000), (0, 3_000_000), (4_000_000_000, 7)):
        file = owners / f"{uid}-{gid}"
        file.write_text("x")
        os.chown(file, uid, gid)
        file.chmod(0o6755)
    (owners / "link").symlink_to("1000-1000")
    os.chown(owners / "link", 1000, 1001, follow_symlinks=False)
    os.chown(owners, 1000, 1000)
    os.chown(root, 1000, 1000)


def _times(root: Path) -> None:
    times = root / "times"
    times.mkdir()
    for number, mtime_ns in enumerate((0, 1, -1, -86_400_000_000_001, MTIME, 4_000_000_000 * 10**9 + 999)):
        (times / f"{number}").write_text("x")
        os.utime(times / f"{number}", ns=(0, mtime_ns))
    (times / "link").symlink_to("0")
    os.utime(times / "link", ns=(0, MTIME), follow_symlinks=False)
    os.utime(times, ns=(0, MTIME - 5))
    root.chmod(0o2751)
    os.utime(root, ns=(0, MTIME))
