"""Chromium that does not notice when the machine's network changes: `python steady_chromium.py CHROMIUM ARGUMENT…`.

Containers come and go beside these tests, and their interfaces with them. Each time Chromium drops every connection it
has, to loopback too (ERR_NETWORK_CHANGED). It is told by netlink, so it gets no such socket; then it stays online.
"""

import ctypes
import errno
import os
import platform
import struct
import sys

SOCKET_CALL = {"x86_64": 41, "aarch64": 198}
NO_NEW_PRIVILEGES, SECCOMP, FILTER = 38, 22, 2
LOAD, EQUALS, RETURN = 0x20, 0x15, 0x06
NUMBER, FIRST_ARGUMENT = 0, 16
"""Where they stand in what the filter reads."""
ALLOW, REFUSE = 0x7FFF0000, 0x00050000
AF_NETLINK = 16


class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))


def refuse_netlink(socket_call: int) -> None:
    steps = (
        (LOAD, 0, 0, NUMBER),
        (EQUALS, 0, 3, socket_call),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        (EQUALS, 0, 1, AF_NETLINK),
        (RETURN, 0, 0, REFUSE | errno.EAFNOSUPPORT),
        (RETURN, 0, 0, ALLOW),
    )
    program = Program(len(steps), b"".join(struct.pack("HBBI", *step) for step in steps))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    prctl(SECCOMP, FILTER, ctypes.byref(program))


def main() -> None:
    if platform.machine() in SOCKET_CALL:
        refuse_netlink(SOCKET_CALL[platform.machine()])
    os.execv(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
