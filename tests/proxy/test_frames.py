"""WebSocket frames as the network cuts them: whatever the cuts, the same is read, and garbage is only ever reported."""

import tracemalloc
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from codehub.proxy.websocket.frames import FrameReader, close_frame, unmasked
from tests.proxy.recording.tape import frames, header, masked

LENGTHS = st.one_of(st.integers(0, 40), st.sampled_from((124, 125, 126, 127, 65535, 65536, 70000)))
MASKS = st.one_of(st.none(), st.binary(min_size=4, max_size=4))


@dataclass(frozen=True)
class Sent:
    first: int
    payload: bytes
    mask: bytes | None

    @property
    def is_data(self) -> bool:
        return not self.first & 8

    def wire(self) -> bytes:
        if self.mask is None:
            return header(self.first, len(self.payload), 0) + self.payload
        return header(self.first, len(self.payload), 0x80) + self.mask + masked(self.payload, self.mask)


@st.composite
def sent(draw: st.DrawFn) -> Sent:
    first = draw(st.sampled_from((0x00, 0x01, 0x02, 0x80, 0x81, 0x82, 0x89, 0x8A)))
    length = draw(st.integers(0, 125) if first & 8 else LENGTHS)
    pattern = draw(st.binary(min_size=1, max_size=5))
    return Sent(first, (pattern * (length // len(pattern) + 1))[:length], draw(MASKS))


def cuts(draw: st.DrawFn, data: bytes, most: int = 12) -> list[bytes]:
    """The same bytes in pieces, some of them single."""
    if draw(st.booleans()) and len(data) < 400:
        return [data[at : at + 1] for at in range(len(data))]
    places = sorted({0, len(data), *draw(st.lists(st.integers(0, len(data)), max_size=most))})
    return [data[start:end] for start, end in pairwise(places)]


class Reading:
    """Takes all, or wants nothing of `unwanted` bytes after each piece."""

    def __init__(self, unwanted: int = 0) -> None:
        self.taken = bytearray()
        self.longest = 0
        self.begun = 0
        self.complaints = 0
        self.unwanted = unwanted
        self.reader = FrameReader(self._complain)
        self.reader.began = self._began
        self.reader.take = self._take

    def _complain(self) -> None:
        self.complaints += 1

    def _began(self) -> None:
        self.begun += 1

    def _take(self, piece: bytes) -> int:
        assert piece
        self.taken += piece
        self.longest = max(self.longest, len(piece))
        return self.unwanted


@given(st.data(), st.lists(sent(), min_size=1, max_size=6))
def test_any_cuts_give_the_same_frames(data: st.DataObject, stream: list[Sent]) -> None:
    wire = b"".join(each.wire() for each in stream)
    ends = {0}
    for each in stream:
        ends.add(max(ends) + len(each.wire()))
    reading, at = Reading(), 0
    for piece in data.draw(st.composite(cuts)(wire)):
        reading.reader.read(piece)
        at += len(piece)
        assert reading.reader.at_boundary == (at in ends)
    assert bytes(reading.taken) == b"".join(each.payload for each in stream if each.is_data)
    assert reading.begun == sum(each.is_data for each in stream)
    assert reading.complaints == 0


@given(st.data(), st.lists(sent(), min_size=1, max_size=4), st.integers(1, 1000), st.integers(1, 50))
def test_what_is_not_wanted_is_passed_over(data: st.DataObject, stream: list[Sent], skip: int, want: int) -> None:
    """A taker that wants `want` bytes, then not the next `skip`, and so on, gets what a slice of the whole would be."""
    payload = b"".join(each.payload for each in stream if each.is_data)
    got = bytearray()
    held = 0

    def take(piece: bytes) -> int:
        nonlocal held
        while piece:
            wanted = piece[: want - held]
            got.extend(wanted)
            held, piece = held + len(wanted), piece[len(wanted) :]
            if held == want:
                held = 0
                passed = len(piece)
                piece = piece[skip:]
                if not piece:
                    return skip - passed
        return 0

    reader = FrameReader(lambda: None)
    reader.take = take
    for piece in data.draw(st.composite(cuts)(b"".join(each.wire() for each in stream))):
        reader.read(piece)
    assert bytes(got) == b"".join(payload[at : at + want] for at in range(0, len(payload), want + skip))


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=20))
@example([b"\x82\xff" + b"\xff" * 8, b"x"])
def test_garbage_is_reported_and_never_raises(pieces: list[bytes]) -> None:
    reading = Reading()
    for piece in pieces:
        before, was_broken = reading.complaints, reading.reader.broken
        reading.reader.read(piece)
        assert (reading.complaints > before) == reading.reader.broken
        assert reading.reader.broken or not was_broken


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(b"\xc2\x00", id="compressed"),
        pytest.param(b"\x83\x00", id="opcode-of-the-future"),
        pytest.param(b"\x8b\x00", id="control-of-the-future"),
        pytest.param(b"\x09\x00", id="a-ping-in-pieces"),
        pytest.param(b"\x89\x7e\x00\x80", id="a-long-ping"),
        pytest.param(b"\x82\x7f" + b"\x80" + bytes(7), id="longer-than-anything"),
    ],
)
def test_what_is_no_frame_is_reported_from_then_on(start: bytes) -> None:
    reading = Reading()
    reading.reader.read(Sent(0x82, b"fine", None).wire() + start)
    reading.reader.read(b"\x82\x00")
    assert (bytes(reading.taken), reading.complaints, reading.reader.at_boundary) == (b"fine", 2, False)


def test_nothing_is_put_in_after_the_last_frame() -> None:
    reading = Reading()
    reading.reader.read(close_frame(1001))
    assert not reading.reader.at_boundary


def test_a_frame_is_never_held_whole() -> None:
    reader = FrameReader(lambda: None)
    reader.take = lambda piece: 1 << 30
    piece = bytes(65536)
    reader.read(header(0x82, 1 << 30, 0x80) + b"mask")
    tracemalloc.start()
    for _ in range(200):
        reader.read(piece)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20_000


@given(st.binary(max_size=600), st.binary(min_size=4, max_size=4))
def test_masking_is_the_same_both_ways(payload: bytes, key: bytes) -> None:
    assert unmasked(payload, key) == masked(payload, key)
    assert unmasked(unmasked(payload, key), key) == payload


@given(st.sampled_from((1000, 1001, 1012)), st.text(max_size=200))
def test_a_close_frame_says_why_as_far_as_there_is_room(code: int, reason: str) -> None:
    wire = close_frame(code, reason)
    ((first, payload),) = frames(bytearray(wire))
    assert (first, int.from_bytes(payload[:2], "big")) == (0x88, code)
    assert len(payload) <= 125
    assert reason.startswith(payload[2:].decode())
    assert len(payload) > 118 or payload[2:].decode() == reason
