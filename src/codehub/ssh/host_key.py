"""The gateway's host key: made once, kept in a file, and the same after every restart, or clients would warn of it."""

import os
from pathlib import Path

import asyncssh

HOST_KEY_FILE = "ssh_host_ed25519_key"


def host_key(path: Path) -> asyncssh.SSHKey:
    """The key in the file, which is made if it is not there; of two that make it at once, both get the same. Raises
    OSError, or asyncssh.KeyImportError if the file holds no key."""
    if not path.exists():
        _make(path)
    return asyncssh.read_private_key(path)


def described(key: asyncssh.SSHKey) -> str:
    """The public half as `known_hosts` has it, and its fingerprint."""
    line = key.export_public_key().decode().strip()
    return f"{line}\n{key.get_fingerprint()}"


def _make(path: Path) -> None:
    made = asyncssh.generate_private_key("ssh-ed25519", comment="codehub")
    whole = path.with_name(f".{path.name}.{os.getpid()}")
    whole.unlink(missing_ok=True)
    whole.touch(mode=0o600, exist_ok=False)
    try:
        whole.write_bytes(made.export_private_key())
        os.link(whole, path)
    except FileExistsError:
        pass  # another process was faster, and its key counts
    finally:
        whole.unlink()
