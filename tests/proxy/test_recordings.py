"""Recorded tabs, played through the tap: nobody is seen while nothing is done, somebody at each thing that is."""

import random
import re
from collections.abc import Iterator

import pytest

from codehub.adapters.ide.install import CODE_SERVER
from codehub.proxy.presence.tap import IdePresence, may_be_activity
from tests.proxy.recording.scenarios import SCENARIOS
from tests.proxy.recording.tape import TAPES, Frame, Mark, Request, Tape, read

BEFORE_AND_AFTER = {"load", "settling", "end"}
LARGEST = 300_000
ELSEWHERE = re.compile(r"/(?:root|work|Users|home(?!/c))/\w[^'\",]*")
"""A path that is only of the machine on which it was recorded."""


@pytest.fixture(scope="module", params=sorted(SCENARIOS))
def tape(request: pytest.FixtureRequest) -> Tape:
    return read(TAPES / f"{request.param}.jsonl.zst")


class Player:
    """Play a tape with a tap for each socket, which rests for no time at all."""

    def __init__(self, pieces: random.Random | None) -> None:
        self._pieces = pieces
        self._taps: dict[int, IdePresence] = {}
        self._now = 0.0
        self.seen_at: list[float] = []

    def play(self, frame: Frame) -> None:
        self._now = frame.at
        if frame.socket not in self._taps:
            self._taps[frame.socket] = IdePresence(self._seen, rest=0.0, clock=lambda: self._now)
        tap = self._taps[frame.socket]
        for piece in cut(frame.wire(), self._pieces):
            (tap.from_client if frame.client else tap.from_upstream)(piece)

    def _seen(self) -> None:
        self.seen_at.append(self._now)


def seen_at(tape: Tape, pieces: random.Random | None = None) -> list[float]:
    player = Player(pieces)
    for entry in tape.entries:
        if isinstance(entry, Frame):
            player.play(entry)
    return player.seen_at


def cut(wire: bytes, pieces: random.Random | None) -> Iterator[bytes]:
    while pieces and len(wire) > 1:
        size = pieces.choice((1, 2, 7, 60, 5000))
        yield wire[:size]
        wire = wire[size:]
    if wire:
        yield wire


def test_nobody_is_seen_in_a_quiet_tab(tape: Tape) -> None:
    found = seen_at(tape)
    quiet = {doing: span for doing, span in tape.marks().items() if doing.startswith("quiet")}
    assert quiet
    assert [(doing, at) for doing, (begin, end) in quiet.items() for at in found if begin <= at < end] == []


def test_somebody_is_seen_at_each_thing_that_is_done(tape: Tape) -> None:
    found = seen_at(tape)
    done = {
        doing: span
        for doing, span in tape.marks().items()
        if not doing.startswith("quiet") and doing not in BEFORE_AND_AFTER
    }
    assert done
    assert [doing for doing, (begin, end) in done.items() if not any(begin <= at < end for at in found)] == []


def test_opening_a_tab_is_seen(tape: Tape) -> None:
    begin, end = tape.marks()["load"]
    assert any(begin <= at < end for at in seen_at(tape))
    requests = [entry for entry in tape.entries if isinstance(entry, Request) and entry.at < end]
    assert any(may_be_activity(entry.method.encode(), entry.target.encode()) for entry in requests)


def test_no_plain_request_of_a_quiet_tab_counts(tape: Tape) -> None:
    for doing, (begin, end) in tape.marks().items():
        if doing.startswith("quiet"):
            requests = [entry for entry in tape.entries if isinstance(entry, Request) and begin <= entry.at < end]
            assert [one for one in requests if may_be_activity(one.method.encode(), one.target.encode())] == []


@pytest.mark.parametrize("seed", [1, 2])
def test_the_network_s_cuts_change_nothing(tape: Tape, seed: int) -> None:
    assert seen_at(tape, random.Random(seed)) == seen_at(tape)


def test_a_tape_has_quiet_chatter_in_it(tape: Tape) -> None:
    """A recording in which nothing passes would prove nothing: the home is open, so something does each second or
    so."""
    for doing, (begin, end) in tape.marks().items():
        if doing.startswith("quiet"):
            frames = [entry for entry in tape.entries if isinstance(entry, Frame) and begin <= entry.at < end]
            assert len(frames) >= end - begin, doing


def test_the_sockets_were_made_anew() -> None:
    tape = read(TAPES / "reconnected.jsonl.zst")
    first = {entry.socket: entry.at for entry in reversed(tape.entries) if isinstance(entry, Frame)}
    begin, end = next(span for doing, span in tape.marks().items() if "made anew" in doing)
    assert sum(begin <= at < end for at in first.values()) == 2
    later = [entry.socket for entry in tape.entries if isinstance(entry, Frame) and entry.at >= end]
    assert set(later) == {socket for socket, at in first.items() if at >= begin}


def test_the_longest_quiet_is_long() -> None:
    spans = read(TAPES / "at-work.jsonl.zst").marks()
    assert max(end - begin for doing, (begin, end) in spans.items() if doing.startswith("quiet")) > 200


def test_the_tapes_are_of_the_ide_that_is_installed(tape: Tape) -> None:
    assert tape.about["code-server"] == CODE_SERVER.version, "record them anew: python -m tests.proxy.recording"


def test_the_tapes_are_small_and_nobody_s() -> None:
    paths = sorted(TAPES.iterdir())
    assert [path.name for path in paths] == sorted(f"{name}.jsonl.zst" for name in SCENARIOS)
    assert sum(path.stat().st_size for path in paths) < LARGEST
    for path in paths:
        whole = "\n".join(str(entry) for entry in read(path).entries)
        assert [found[0] for found in ELSEWHERE.finditer(whole)] == [], path.name


def test_every_mark_is_in_order(tape: Tape) -> None:
    assert [entry.at for entry in tape.entries] == sorted(entry.at for entry in tape.entries)
    assert next(entry.doing for entry in tape.entries if isinstance(entry, Mark)) == "load"
