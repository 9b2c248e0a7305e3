"""Writes files in a home, inside its container, one at a time, and says of each write that it is done.

`python acknowledged_writer.py DIRECTORY`: first prints what it finds as one line of JSON, {file: version}, with
null for a file whose content is of no version; then, for each line `FILE VERSION` of its input, writes that version and
prints the line back. Three ways of writing, by the first letter of the file's name: `a` appends a line, `i` writes one
page in place, `r` writes a new file and renames it over the old one.
"""

import json
import os
import sys
from pathlib import Path

PAGE = 4096
LINE = 64
"""Divides a page, so that a line that is appended is there whole or not at all, whatever is killed."""


def line(version: int) -> bytes:
    return f"{version}".encode().ljust(LINE - 1, b".") + b"\n"


def content(name: str, version: int) -> bytes:
    """What the file holds at that version: a page, or some hundred of them."""
    text = f"{name} {version} ".encode()
    size = PAGE if name.startswith("i") else PAGE * (1 + version * 37 % 200) + version % 101
    return (text * (size // len(text) + 1))[:size]


def write(directory: Path, name: str, version: int) -> None:
    path = directory / name
    if name.startswith("a"):
        _put(path, line(version), os.O_APPEND)
    elif name.startswith("i"):
        _put(path, content(name, version), 0)
    else:
        fresh = path.with_suffix(".new")
        _put(fresh, content(name, version), os.O_TRUNC)
        fresh.rename(path)


def _put(path: Path, data: bytes, flags: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o644)
    try:
        written = os.write(descriptor, data)
        if written != len(data):
            raise OSError(f"{path}: {written} of {len(data)} bytes were written")
    finally:
        os.close(descriptor)


def found(directory: Path) -> dict[str, int | None]:
    return {path.name: version_of(path) for path in sorted(directory.iterdir()) if path.suffix != ".new"}


def version_of(path: Path) -> int | None:
    data, name = path.read_bytes(), path.name
    if not data:
        return 0  # made, and its first version not written
    if name.startswith("a"):
        count = len(data) // LINE
        return count if data == b"".join(line(number + 1) for number in range(count)) else None
    try:
        version = int(data.split(b" ", 2)[1])
    except (IndexError, ValueError):
        return None
    return version if data == content(name, version) else None


def main() -> None:
    directory = Path(sys.argv[1])
    directory.mkdir(exist_ok=True)
    print(json.dumps(found(directory)), flush=True)
    for order in sys.stdin:
        name, version = order.split()
        write(directory, name, int(version))
        print(order, end="", flush=True)


if __name__ == "__main__":
    main()
