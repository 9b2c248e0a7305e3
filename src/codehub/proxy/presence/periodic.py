"""Tells what a page does by itself from what a person does, where the protocol is not known: by its timing.

A page that is left open repeats the same requests and messages at a steady period. A person repeats nothing at a steady
period for long. So traffic is sorted into kinds (same method, path and size; same words), and a kind is periodic once
its times fall on one period: every time is a whole number of periods after an earlier one. Up to three tabs may have
the same period, and of a tab's requests other workers may get a share, so whole numbers above one are right too.
Everything else counts as a person: the first of a kind, the first few of a period, whatever comes between the beats.
Only an isolated one in a long periodic series is forgiven, because networks are late at times.
"""

import re
from array import array
from functools import lru_cache
from math import inf
from typing import Final

AT_ONCE_SECONDS: Final = 0.05
"""Within how many seconds a time belongs to the same act of the page or the person as the one before, and has its
verdict.
"""
SEARCHES_PER_SECOND: Final = 2
"""How often in a second a period is searched for, which is what costs time."""
MOST_PERIODS: Final = 30
"""After how many periods of silence a series begins anew."""
MOST_TABS: Final = 3
_NEEDED_PER_TAB: Final = 5
_EARLIER: Final = 6
"""How many earlier times are tried: the distance of each to the newest may be the period."""

_FULL: Final = 16
_PERIODIC: Final = 8
_MISSED: Final = 4
"""By how much a series' score falls for each time that does not fit; it rises by one for each that does."""

_WORD_WITH_DIGIT: Final = re.compile(rb"(?<![A-Za-z_-])[A-Za-z_-]*[0-9][0-9A-Za-z_-]*")
_TOKEN: Final = re.compile(rb"=[^&=]*[0-9A-Z][^&=]*")

_LONGEST: Final = 1024
"""How much of a request's target is looked at."""


class PeriodicTraffic:
    """Remembers the `most` newest kinds of one socket's messages, or of all requests to one workspace."""

    __slots__ = ("_most", "_searches", "_second", "_series")

    def __init__(self, most: int) -> None:
        self._most = most
        self._series: dict[int, _Series] = {}
        """The series of each kind, the one that was seen last at the end."""
        self._second = -inf
        self._searches = 0

    def is_periodic(self, kind: int, now: float) -> bool:
        series = self._series.pop(kind, None)
        if series is None:
            series = _Series()
            if len(self._series) >= self._most:
                del self._series[next(iter(self._series))]
        self._series[kind] = series
        if now - series.last < AT_ONCE_SECONDS:
            return series.verdict
        series.add(now)
        if series.wants_period and self._may_search(now):
            series.search(now)
        return series.verdict

    def _may_search(self, now: float) -> bool:
        if now - self._second >= 1.0:
            self._second, self._searches = now, 0
        self._searches += 1
        return self._searches <= SEARCHES_PER_SECOND


class _Series:
    """The times of one kind. Without a period, those in which one is searched for; with one, the newest of each tab."""

    __slots__ = ("_added", "_period", "_score", "_times", "last", "verdict")

    def __init__(self) -> None:
        self.last = -inf
        self.verdict = False
        self._times = array("d")
        self._period = 0.0
        self._score = 0
        self._added = 0

    @property
    def wants_period(self) -> bool:
        return not self._period and len(self._times) >= _NEEDED_PER_TAB

    def add(self, now: float) -> None:
        self.last = now
        if self._period:
            self.verdict = self._follow(now)
        else:
            self.verdict = False
            self._added += 1
            self._times.append(now)
            del self._times[: -_NEEDED_PER_TAB * MOST_TABS]

    def search(self, now: float) -> None:
        """Search for a period. It is searched for in several tabs only now and then: that takes longer, and there are
        seldom several."""
        times = self._times
        most = min(len(times) // _NEEDED_PER_TAB, MOST_TABS) if self._added % _NEEDED_PER_TAB == 0 else 1
        for tabs in range(1, most + 1):
            recent = times[-_NEEDED_PER_TAB * tabs :]
            for earlier in recent[-2 : -2 - _EARLIER : -1]:
                for periods in range(1, 5 - tabs):
                    period = (now - earlier) / periods
                    newest = _newest_of_tabs(recent, period, tabs)
                    if newest:
                        self._times, self._period, self._score = newest, period, _PERIODIC
                        self.verdict = True
                        return

    def _follow(self, now: float) -> bool:
        found = _tab_of(self._times, self._period, now)
        if found is not None:
            gap = now - self._times[found]
            count = round(gap / self._period)
            self._period += (gap / count - self._period) / 8
            self._times[found] = now
            self._score = min(self._score + 1, _FULL)
            return self._score >= _PERIODIC
        self._score -= _MISSED
        if self._score <= 0 or now - max(self._times) > MOST_PERIODS * self._period:
            self._times, self._period, self._score = array("d", (now,)), 0.0, 0
            return False
        if len(self._times) >= MOST_TABS:
            self._times.remove(min(self._times))
        self._times.append(now)
        return self._score >= _PERIODIC


def _newest_of_tabs(times: "array[float]", period: float, most: int) -> "array[float]":
    """The newest time of each of up to `most` tabs that explain all of these times; none if they cannot."""
    newest = array("d")
    for time in times:
        found = _tab_of(newest, period, time)
        if found is not None:
            newest[found] = time
        elif len(newest) < most:
            newest.append(time)
        else:
            return array("d")
    return newest


def _tab_of(newest: "array[float]", period: float, now: float) -> int | None:
    slack = min(max(period * 0.08, 0.1), period * (0.12 if len(newest) < MOST_TABS else 0.08))
    for number, time in enumerate(newest):
        gap = now - time
        off = (gap + slack) % period
        if off <= 2 * slack and slack < gap + slack - off <= MOST_PERIODS * period:
            return number
    return None


@lru_cache(1024)
def kind_of_request(port: int | None, method: bytes, target: bytes, length: int) -> int:
    """The kind of a request: numbers and values that look made up (an identity, the time of day) do not count."""
    path, question, query = target[:_LONGEST].partition(b"?")
    if question:
        path += b"?" + _TOKEN.sub(b"=", query)
    return hash((port, method, _WORD_WITH_DIGIT.sub(b"0", path), length))


def kind_of_message(beginning: bytes) -> int:
    return hash(_WORD_WITH_DIGIT.sub(b"0", beginning))
