"""A tap that writes down what passes, as a tape keeps it."""

import re
import socket
import time
from pathlib import Path

from codehub.proxy.access.verdicts import Verdict
from codehub.proxy.http.parser import RequestHead
from tests.proxy.harness import ProxyHarness
from tests.proxy.recording.tape import Entry, Frame, Mark, Pieces, Request, frames

KEPT = 300
"""How much is kept of each message: its names, and the paths of a home that lies where workspaces have theirs."""
KEPT_OF_SERVER = 100
"""How much is kept of each message of a server that is no IDE."""
PLACES = (str(Path.home()), str(Path(__file__).parents[3]), socket.gethostname())
PRIVATE = re.compile("|".join(rf"{re.escape(place)}[\w./+-]*" for place in PLACES if place != "localhost"))
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
PORT = re.compile(r'"port":\d+')
SECRET_QUERY = re.compile(r"(reconnectionToken|vscodeWebWorkerExtHostId|parentOrigin|salt|path)=[^&]*")

INSTALLED = re.compile(r"(?<=/@fs)/.*?/node_modules/")
"""The path at which Vite found a package on the machine on which it was recorded."""


class Recorder:
    """Records all sockets and requests of one tab."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._began = time.monotonic()
        self._sockets = 0

    def now(self) -> float:
        return round(time.monotonic() - self._began, 3)

    def mark(self, doing: str) -> None:
        self.entries.append(Mark(self.now(), doing))

    def tap(self) -> "Recording":
        self._sockets += 1
        return Recording(self, self._sockets)

    def plain_tap(self) -> "PlainRecording":
        self._sockets += 1
        return PlainRecording(self, self._sockets)

    def note_requests(self, proxy: ProxyHarness) -> None:
        decide = proxy.server._decide

        def noted(head: RequestHead) -> Verdict:
            target = SECRET_QUERY.sub(r"\1=", INSTALLED.sub("/node_modules/", head.target.decode("latin-1")))
            self.entries.append(Request(self.now(), head.method.decode(), target, head.fields.body_length))
            return decide(head)

        proxy.server._decide = noted


def neutral(text: str) -> str:
    """The text, of the same length, without what is only this machine's or this session's."""
    text = PRIVATE.sub(lambda found: "/" + "x" * (len(found[0]) - 1), text)
    text = UUID.sub("00000000-0000-0000-0000-000000000000", text)
    return PORT.sub(lambda found: '"port":' + "1" * (len(found[0]) - 7), text)


class Recording:
    at_boundary = False

    def __init__(self, recorder: Recorder, number: int) -> None:
        self._recorder, self._number = recorder, number
        self._buffers = {True: bytearray(), False: bytearray()}
        self._shorten = {True: Shortening(), False: Shortening()}

    def from_client(self, data: bytes) -> None:
        self._feed(data, client=True)

    def from_upstream(self, data: bytes) -> None:
        self._feed(data, client=False)

    def close(self) -> None:
        """Stop: what has been recorded stays."""

    def _feed(self, data: bytes, *, client: bool) -> None:
        buffer = self._buffers[client]
        buffer += data
        for first, payload in frames(buffer):
            control = first & 8
            pieces = [(payload.decode("latin-1"), 0)] if control else self._pieces(payload, client=client)
            self._recorder.entries.append(Frame(self._recorder.now(), self._number, client, first, pieces))

    def _pieces(self, payload: bytes, *, client: bool) -> Pieces:
        return self._shorten[client].pieces(payload)


class PlainRecording(Recording):
    """Records a socket whose messages follow no protocol that is known here: the beginning of each frame is kept."""

    def _pieces(self, payload: bytes, *, client: bool) -> Pieces:
        kept = payload[: KEPT if client else KEPT_OF_SERVER]
        return [(neutral(kept.decode("latin-1")), len(payload) - len(kept))]


class Shortening:
    """Records one direction's stream of outer frames: the beginning of each is kept."""

    def __init__(self) -> None:
        self._head = b""
        self._left = 0
        self._keep = 0

    def pieces(self, payload: bytes) -> Pieces:
        found: Pieces = []
        while payload:
            if self._left:
                here, payload = payload[: self._left], payload[self._left :]
                kept = here[: self._keep]
                found.append((neutral(kept.decode("latin-1")), len(here) - len(kept)))
                self._left -= len(here)
                self._keep -= len(kept)
                continue
            needed = 13 - len(self._head)
            here, payload = payload[:needed], payload[needed:]
            self._head += here
            found.append((here.decode("latin-1"), 0))
            if len(self._head) == 13:
                self._left, self._keep = int.from_bytes(self._head[9:], "big"), KEPT
                self._head = b""
        return found
