"""What a home keeps of a file besides its bytes: owner, mode, extended attributes, ACLs, time.

POSIX ACLs are the `system.posix_acl_*` attributes. Labels of the host (SELinux, IMA) stay with the host. Files and
directories are reached by descriptor; symlinks and fifos, which have none, by a name inside an open directory.
"""

import errno
import os

from codehub.job.tar_format import Member, Xattrs

ACL_DEFAULT = "system.posix_acl_default"
_ACLS = ("system.posix_acl_access", ACL_DEFAULT)
_CAPABILITY = "security.capability"
_CANNOT_KEEP = {errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.E2BIG}

Target = int | str


def inside(directory: int, name: bytes) -> str:
    """A path to a name in an open directory, for calls that take no directory descriptor."""
    return f"/proc/self/fd/{directory}/{os.fsdecode(name)}"


def belongs_to_home(xattr: str) -> bool:
    return xattr.startswith(("user.", "trusted.")) or xattr in _ACLS or xattr == _CAPABILITY


def read_xattrs(target: Target) -> Xattrs:
    follow = isinstance(target, int)
    try:
        names = os.listxattr(target, follow_symlinks=follow)
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.ENOSYS):
            return ()
        raise
    if not names:
        return ()
    kept = sorted(name for name in names if belongs_to_home(name))
    return tuple((name, os.getxattr(target, name, follow_symlinks=follow)) for name in kept)


def apply_to_descriptor(target: int, member: Member, *, own: bool) -> int:
    """Apply a file's or directory's attributes; returns how many extended ones this user or filesystem cannot hold.

    The order matters: a new owner drops setuid and capabilities, a read-only mode forbids its owner `user.*`
    attributes, a mode after an ACL would rewrite the ACL's mask, and everything but the last moves the time.
    """
    if own:
        os.fchown(target, member.uid, member.gid)
    lost = 0
    if member.xattrs:
        late = [pair for pair in member.xattrs if pair[0] in _ACLS or pair[0] == _CAPABILITY]
        lost += set_xattrs(target, [pair for pair in member.xattrs if pair not in late])
        os.fchmod(target, member.mode)
        lost += set_xattrs(target, late)
    else:
        os.fchmod(target, member.mode)
    os.utime(target, ns=(member.mtime_ns, member.mtime_ns))
    return lost


def apply_to_name(directory: int, member: Member, name: bytes, *, own: bool, has_mode: bool) -> int:
    """Apply a symlink's (it has no mode) or fifo's attributes, just made in a directory nobody else can reach.
    Returns how many extended attributes cannot be held."""
    if own:
        os.chown(name, member.uid, member.gid, dir_fd=directory, follow_symlinks=False)
    if has_mode:
        os.chmod(name, member.mode, dir_fd=directory)
    lost = set_xattrs(inside(directory, name), list(member.xattrs)) if member.xattrs else 0
    os.utime(name, ns=(member.mtime_ns, member.mtime_ns), dir_fd=directory, follow_symlinks=False)
    return lost


def set_xattrs(target: Target, pairs: list[tuple[str, bytes]]) -> int:
    lost = 0
    for name, value in pairs:
        try:
            os.setxattr(target, name, value, follow_symlinks=isinstance(target, int))
        except OSError as error:
            if error.errno not in _CANNOT_KEEP and not _is_too_large(error, target):
                raise
            lost += 1
    return lost


def _is_too_large(error: OSError, target: Target) -> bool:
    """Whether ENOSPC means this file's attribute block, of which ext4 has one, and not the disk."""
    if error.errno != errno.ENOSPC:
        return False
    # A name is looked at by its directory: a symlink could lead to another disk.
    disk = os.fstatvfs(target) if isinstance(target, int) else os.statvfs(target.rpartition("/")[0])
    return disk.f_bavail > 0


def clear_xattrs(target: int) -> None:
    """Remove the attributes a home has: a default ACL would be inherited by all that is unpacked below."""
    for name in os.listxattr(target):
        if belongs_to_home(name):
            os.removexattr(target, name)
