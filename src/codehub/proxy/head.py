"""What the heads of requests and of answers share: strict reading of lines, names and framing.

A head comes in as the raw bytes before its empty line. Lines that only pass through are kept as they are; a line that
means something to a proxy is taken by its reader, so that what is sent on is put together by us alone. Refused is
anything that two parsers could understand differently.
"""

from collections.abc import Callable
from typing import Any, Final

CHUNKED: Final = -1
UNTIL_CLOSE: Final = -2

Reader = Callable[[Any, bytes], None]
"""Takes the line of one header into the fields."""

_NOT_CONTROL: Final = bytes(n for n in range(256) if (n >= 0x20 and n != 0x7F) or n == 0x09)
_TOKEN: Final = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LENGTH_DIGITS: Final = 18
_RESERVED: Final = (b"x-forwarded-", b"x-codehub-", b"proxy-")
_MOST_NAMES: Final = 4096
_LONGEST_NAME: Final = 64


class Refused(Exception):
    """A head that is not answered but refused, and its connection closed."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


class Fields:
    """The header lines of one head, taken apart."""

    lines: list[bytes]
    """Those that mean nothing to a proxy, in their order."""
    keep_alive = True
    length: int | None = None
    chunked = False
    upgrading = False
    named: tuple[bytes, ...] = ()
    """Headers that Connection names: for this hop alone."""

    def __init__(self) -> None:
        self.lines = []

    def read(self, lines: list[bytes], readers: dict[bytes, "Reader | None"]) -> None:
        keep = self.lines.append
        try:
            for line in lines:
                name, _ = line.split(b":", 1)
                try:
                    read = readers[name]
                except KeyError:
                    read = learn(readers, name)
                if read is None:
                    keep(line)
                else:
                    read(self, line)
        except ValueError:
            raise Refused(400, "A header line is not `Name: value`.") from None
        if self.named:
            self.lines = [line for line in self.lines if line.partition(b":")[0].lower() not in self.named]

    def body(self) -> int | None:
        """A count, CHUNKED, or None when nothing is said."""
        if not self.chunked:
            return self.length
        if self.length is not None:
            raise Refused(400, "Content-Length and Transfer-Encoding together.")
        return CHUNKED


def split_lines(raw: bytes, most: int) -> list[bytes]:
    lines = raw.split(b"\r\n")
    # All that is left without the ordinary bytes are control bytes: they may only be our line ends.
    if raw.translate(None, _NOT_CONTROL) != b"\r\n" * (len(lines) - 1):
        raise Refused(400, "A control byte or a bare line end in the head.")
    if len(lines) > most:
        raise Refused(431, "Too many headers.")
    return lines


def is_token(name: bytes) -> bool:
    return bool(name) and not name.translate(None, _TOKEN)


def learn(readers: dict[bytes, Reader | None], name: bytes) -> Reader | None:
    """The reader for an unseen spelling of a name, which is checked once and then known. None passes the line on."""
    if not is_token(name):
        raise ValueError(name)
    dashed = name.lower().replace(b"_", b"-")
    reader = readers.get(dashed) or (ignore if dashed.startswith(_RESERVED) else None)
    if reader is not None and b"_" in name:
        reader = ignore  # a gateway that reads `X_Forwarded_For` as `X-Forwarded-For` shall not be fooled
    if len(readers) < _MOST_NAMES and len(name) <= _LONGEST_NAME:
        readers[name] = reader
    return reader


def value_of(line: bytes) -> bytes:
    return line.partition(b":")[2].strip(b" \t")


# ── readers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def ignore(_fields: object, _line: bytes) -> None:
    """Not for the other side."""


def read_connection(fields: Fields, line: bytes) -> None:
    for part in value_of(line).split(b","):
        token = part.strip(b" \t").lower()
        if token == b"close":
            fields.keep_alive = False
        elif token == b"upgrade":
            fields.upgrading = True
        elif token not in (b"", b"keep-alive"):
            if not is_token(token):
                raise Refused(400, "The Connection header does not name headers.")
            fields.named += (token,)


def read_content_length(fields: Fields, line: bytes) -> None:
    value = value_of(line)
    if fields.length is not None:
        raise Refused(400, "Two Content-Length headers.")
    if not value.isdigit() or len(value) > _LENGTH_DIGITS:
        raise Refused(400, "Content-Length is not a number.")
    fields.length = int(value)


def read_transfer_encoding(fields: Fields, line: bytes) -> None:
    if fields.chunked:
        raise Refused(400, "Two Transfer-Encoding headers.")
    if value_of(line).lower() != b"chunked":
        raise Refused(400, "The only transfer coding served is chunked.")
    fields.chunked = True


HOP_BY_HOP: Final[dict[bytes, Reader | None]] = {
    b"connection": read_connection,
    b"content-length": read_content_length,
    b"transfer-encoding": read_transfer_encoding,
    b"upgrade": ignore,
    b"keep-alive": ignore,
    b"te": ignore,
    b"trailer": ignore,
    b"proxy": ignore,
    b"http2-settings": ignore,
}
