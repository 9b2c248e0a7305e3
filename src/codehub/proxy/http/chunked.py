"""The chunked transfer coding, read strictly and written anew. Extensions and trailers are skipped, never passed on."""

from codehub.proxy.http.parser import BadMessage

_HEX = b"0123456789abcdefABCDEF"
_PRINTABLE = bytes(n for n in range(0x20, 0x7F)) + b"\t" + bytes(range(0x80, 0x100))
LONGEST_SIZE_LINE = 256
MOST_TRAILERS = 8 * 1024
LAST_CHUNK = b"0\r\n\r\n"


class Chunks:
    """Decodes a chunked body as its bytes come. After `done`, `rest` is what follows the body."""

    __slots__ = ("_at_data_end", "_held", "_in_trailers", "_left", "_trailers", "done", "rest")

    def __init__(self) -> None:
        self._left = 0
        self._at_data_end = False
        self._in_trailers = False
        self._trailers = 0
        self._held = b""
        self.done = False
        self.rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The payload in these bytes. Raises BadMessage at the first byte that is not of this coding."""
        if self._held:
            data = self._held + data
            self._held = b""
        payload: list[bytes] = []
        at, size = 0, len(data)
        while at < size:
            if self._left:
                piece = data[at : at + self._left] if at or self._left < size else data
                payload.append(piece)
                at += len(piece)
                self._left -= len(piece)
                self._at_data_end = not self._left
                continue
            end = self._line_end(data, at)
            if end < 0:
                self._held = data[at:]
                return payload
            self._line(data[at:end])
            at = end + 2
            if self.done:
                self.rest = data[at:]
                return payload
        return payload

    def _line_end(self, data: bytes, at: int) -> int:
        """Where the line that begins at `at` ends, or -1. It must end in CR LF, and within its bound."""
        if self._at_data_end:
            if data[at : at + 2] not in (b"\r\n", b"\r"):
                raise BadMessage(400, "A chunk is longer than its size says.")
            return at if data[at + 1 : at + 2] else -1
        end = data.find(b"\n", at)
        length = (end if end >= 0 else len(data)) - at
        if length > (MOST_TRAILERS if self._in_trailers else LONGEST_SIZE_LINE):
            raise BadMessage(400, "A line of the chunked body is too long.")
        if end < 0:
            return -1
        if data[end - 1 : end] != b"\r" or end == at:
            raise BadMessage(400, "A bare line end in the chunked body.")
        return end - 1

    def _line(self, line: bytes) -> None:
        if self._at_data_end:
            self._at_data_end = False
        elif self._in_trailers:
            self._trailer(line)
        else:
            self._size(line)

    def _size(self, line: bytes) -> None:
        digits, extended, extension = line.partition(b";")
        if not digits or len(digits) > 15 or digits.translate(None, _HEX):
            raise BadMessage(400, "A chunk size is not a number.")
        if extended and extension.translate(None, _PRINTABLE):
            raise BadMessage(400, "A control byte in a chunk extension.")
        self._left = int(digits, 16)
        self._in_trailers = not self._left

    def _trailer(self, line: bytes) -> None:
        if not line:
            self.done = True
            return
        self._trailers += len(line) + 2
        if self._trailers > MOST_TRAILERS or line.translate(None, _PRINTABLE) or line[:1] in b" \t:":
            raise BadMessage(400, "A trailer is not `Name: value`.")


def chunk(payload: list[bytes]) -> list[bytes]:
    """One chunk that carries all of the payload, as pieces to write: none for no payload, which would be the last
    chunk."""
    size = sum(map(len, payload))
    return [b"%x\r\n" % size, *payload, b"\r\n"] if size else []


def take_body(data: bytes, left: int, chunks: Chunks | None) -> tuple[list[bytes], bytes, int]:
    """Splits `data` at the end of a body of which `left` is to come. Returns the pieces to send on, what stands behind
    the body, and how much is still to come. Raises BadMessage."""
    if chunks is None or left > 0:
        return [data[:left]], data[left:], max(left - len(data), 0)
    pieces = chunk(chunks.feed(data))
    if chunks.done:
        return [*pieces, LAST_CHUNK], chunks.rest, 0
    return pieces, chunks.rest, left
