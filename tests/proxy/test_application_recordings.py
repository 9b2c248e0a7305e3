"""Recorded tabs of applications at a port, played through the rule: left alone they soon count no more, and somebody
at work in them goes on counting. One application is also played as an IDE.
"""

import random
from dataclasses import replace
from itertools import cycle, pairwise

import pytest

from codehub.proxy.presence.periodic import PeriodicTraffic, kind_of_request
from codehub.proxy.presence.tap import AppPresence
from tests.proxy.recording.applications import APPLICATION_TAPES, APPLICATIONS
from tests.proxy.recording.tape import Frame, Mark, Request, Tape, read

SOON = 200.0
"""After how long a tab left alone counts no more: a ping every thirty seconds takes five of them to be recognised, and
a person's own work may stand between.
"""
RARELY = 45.0
"""How often a person at work is seen at least. The shortest idle time that stops a workspace is twice that."""
LARGEST = 100_000


@pytest.fixture(scope="module", params=sorted(APPLICATIONS))
def tape(request: pytest.FixtureRequest) -> Tape:
    return read(APPLICATION_TAPES / f"{request.param}.jsonl.zst")


class Player:
    """One process of the proxy, or several between which a browser's connections are divided at random."""

    def __init__(self, processes: int = 1, *, output: bool = False) -> None:
        self._requests = [PeriodicTraffic(64) for _ in range(processes)]
        self._chance = random.Random(processes)
        self._output = output
        self._taps: dict[tuple[int, int], AppPresence] = {}
        self._now = 0.0
        self.seen_at: list[float] = []

    def play(self, entry: Frame | Request, tab: int = 0) -> None:
        self._now = entry.at
        if isinstance(entry, Frame):
            self._frame(entry, tab)
        elif entry.method != "HEAD":
            kind = kind_of_request(3000, entry.method.encode(), entry.target.encode(), entry.length)
            if not self._chance.choice(self._requests).is_periodic(kind, entry.at):
                self._seen()

    def _frame(self, frame: Frame, tab: int) -> None:
        if (tab, frame.socket) not in self._taps:
            made = AppPresence(self._seen, output=self._output, clock=lambda: self._now)
            self._taps[tab, frame.socket] = made
        tap = self._taps[tab, frame.socket]
        (tap.from_client if frame.client else tap.from_upstream)(frame.wire())

    def _seen(self) -> None:
        self.seen_at.append(self._now)


def played(tape: Tape, processes: int = 1, *, output: bool = False) -> list[float]:
    player = Player(processes, output=output)
    for entry in tape.entries:
        if not isinstance(entry, Mark):
            player.play(entry)
    return player.seen_at


def quiet(tape: Tape) -> list[tuple[float, float]]:
    return [span for doing, span in tape.marks().items() if doing.startswith("quiet")]


def test_a_tab_left_alone_soon_counts_no_more(tape: Tape) -> None:
    found = played(tape)
    assert [at for begin, end in quiet(tape) for at in found if begin + SOON <= at < end] == []


def test_somebody_at_work_goes_on_counting(tape: Tape) -> None:
    begin, end = tape.marks()["work"]
    seen = [begin, *(at for at in played(tape) if begin <= at < end), end]
    assert max(later - earlier for earlier, later in pairwise(seen)) < RARELY


def test_opening_a_tab_counts(tape: Tape) -> None:
    begin, end = tape.marks()["load"]
    assert any(begin <= at < end for at in played(tape))


@pytest.mark.parametrize("name", ["jupyterlab", "vite", "wetty"])
def test_these_tabs_are_never_silent(name: str) -> None:
    """Recordings without requests would prove nothing."""
    tape = read(APPLICATION_TAPES / f"{name}.jsonl.zst")
    for begin, end in quiet(tape):
        said = [one for one in tape.entries if isinstance(one, Request) or (isinstance(one, Frame) and one.client)]
        assert len([one for one in said if begin + SOON <= one.at < end]) >= 1
        assert len([one for one in said if begin <= one.at < end]) >= 7


def test_jupyterlab_as_the_ide_left_alone_soon_counts_no_more() -> None:
    """What an IDE's server sends counts, and this one sends nothing by itself."""
    tape = read(APPLICATION_TAPES / "jupyterlab.jsonl.zst")
    found = played(tape, output=True)
    assert [at for begin, end in quiet(tape) for at in found if begin + SOON <= at < end] == []
    begin, end = tape.marks()["work"]
    assert any(begin <= at < end for at in found)


HOUR = 3600.0


def left_alone_longer(tape: Tape) -> tuple[float, list[Request]]:
    """When the tab is left alone, and its requests from the first. For an hour each kind goes on with its recorded
    gaps."""
    [(begin, end), _] = quiet(tape)
    requests = [one for one in tape.entries if isinstance(one, Request) and one.at < end]
    kinds: dict[tuple[str, str], list[Request]] = {}
    for one in requests:
        if one.at >= begin:
            kinds.setdefault((one.method, one.target.partition("?")[0]), []).append(one)
    for each in kinds.values():
        gaps = cycle([later.at - earlier.at for earlier, later in pairwise(each)])
        last = each[-1]
        while last.at < begin + HOUR:
            last = replace(last, at=last.at + next(gaps))
            requests.append(last)
    return begin, sorted(requests, key=lambda one: one.at)


@pytest.mark.parametrize("processes", [2, 3])
def test_a_tab_left_alone_behind_several_processes_counts_no_more(processes: int) -> None:
    """Each of several processes gets a share of the requests, and so sees a period with gaps."""
    begin, requests = left_alone_longer(read(APPLICATION_TAPES / "jupyterlab.jsonl.zst"))
    player = Player(processes)
    for request in requests:
        player.play(request)
    assert [at for at in player.seen_at if begin + 2000.0 <= at] == []


def test_two_tabs_left_alone_count_no_more() -> None:
    """Several tabs ask the same, at the same period but not at the same moments."""
    begin, requests = left_alone_longer(read(APPLICATION_TAPES / "jupyterlab.jsonl.zst"))
    later = [replace(one, at=one.at + 3.7) for one in requests]
    player = Player()
    for request in sorted((*requests, *later), key=lambda one: one.at):
        player.play(request)
    assert [at for at in player.seen_at if begin + 400.0 <= at] == []


def test_the_tapes_are_small_and_all_there() -> None:
    paths = sorted(APPLICATION_TAPES.iterdir())
    assert [path.name for path in paths] == sorted(f"{name}.jsonl.zst" for name in APPLICATIONS)
    assert sum(path.stat().st_size for path in paths) < LARGEST


def test_the_tapes_are_of_the_versions_that_are_named(tape: Tape) -> None:
    application = APPLICATIONS[tape.about["application"]]
    named = " ".join((*application.python, *application.node))
    assert tape.about["versions"] == named, "record them anew: python -m tests.proxy.recording.record_applications"
