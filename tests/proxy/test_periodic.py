"""A page's own requests told from a person's by their timing, for every period, however late and however divided."""

import math
import random
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codehub.proxy.presence.periodic import MOST_PERIODS, PeriodicTraffic, kind_of_message, kind_of_request

HOUR = 3600.0
TTL = 600.0


def counted(times: list[float], kind: int = 1) -> list[float]:
    traffic = PeriodicTraffic(8)
    return [at for at in times if not traffic.is_periodic(kind, at)]


# ── pages ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(
    period=st.floats(0.3, 120.0),
    late=st.lists(st.floats(0.0, 1.0), min_size=40, max_size=40),
    begin=st.floats(0.0, 1e6),
)
def test_a_steady_period_counts_four_times(period: float, late: list[float], begin: float) -> None:
    """Times at a period, each up to a twenty-fifth of it late."""
    times = [begin + number * period + share * period * 0.04 for number, share in enumerate(late)]
    assert counted(times) == times[:4]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("tabs", "share"), [(1, 1.0), (2, 1.0), (3, 1.0), (1, 0.5), (2, 0.5), (1, 0.34)])
def test_tabs_left_alone_let_a_workspace_stop_within_the_hour(seed: int, tabs: int, share: float) -> None:
    """The times of several tabs. `share`: what of their requests this process of the proxy gets."""
    chance = random.Random(seed)
    begins = [chance.uniform(0.0, 10.0) for _ in range(tabs)]
    times = sorted(begin + number * 10.0 + abs(chance.gauss(0, 0.1)) for begin in begins for number in range(360))
    seen = [0.0, *counted([at for at in times if chance.random() < share]), HOUR]
    assert max(later - earlier for earlier, later in pairwise(seen)) > TTL


def test_one_that_is_late_is_forgiven_and_several_are_not() -> None:
    traffic = PeriodicTraffic(8)
    assert [traffic.is_periodic(1, number * 10.0) for number in range(20)] == [False] * 4 + [True] * 16
    assert traffic.is_periodic(1, 204.0)
    assert all(traffic.is_periodic(1, number * 10.0) for number in range(21, 30))
    assert [traffic.is_periodic(1, at) for at in (292.2, 296.5, 298.4)] == [True, True, False]


def test_after_a_long_silence_it_begins_anew() -> None:
    traffic = PeriodicTraffic(8)
    for number in range(20):
        traffic.is_periodic(1, number * 10.0)
    assert not traffic.is_periodic(1, 190.0 + MOST_PERIODS * 10.0 + 15.0)


def test_another_period_counts_until_it_is_known() -> None:
    times = [number * 10.0 for number in range(20)]
    times += [191.0 + number * 3.3 for number in range(1, 40)]
    seen = [at for at in counted(times) if at > 190.0]
    assert 1 <= len(seen) <= 12
    assert seen[-1] < 250.0


# ── people ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def types(chance: random.Random) -> Iterator[float]:
    for _ in range(chance.randrange(3, 30)):
        yield max(0.03, chance.lognormvariate(math.log(0.14), 0.4))
    yield 0.3 + chance.expovariate(0.5)


def moves_a_mouse(chance: random.Random) -> Iterator[float]:
    for _ in range(chance.randrange(10, 120)):
        yield 1 / 60 + chance.gauss(0, 0.001)
    yield 0.1 + chance.expovariate(1 / 1.5)


def clicks_as_fast_as_a_clock(chance: random.Random) -> Iterator[float]:
    yield max(0.1, chance.gauss(1.0, 0.15))


def clicks(chance: random.Random) -> Iterator[float]:
    yield 0.1 + chance.expovariate(1 / 3.0)


def looks_now_and_then(chance: random.Random) -> Iterator[float]:
    yield min(0.1 + chance.expovariate(1 / 15.0), 60.0)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("acts", [types, moves_a_mouse, clicks_as_fast_as_a_clock, clicks, looks_now_and_then])
def test_somebody_who_does_one_and_the_same_thing_is_seen_all_the_time(
    acts: Callable[[random.Random], Iterator[float]], seed: int
) -> None:
    """The longest that they are not seen is far below the shortest idle time that stops a workspace, 91 seconds."""
    chance = random.Random(seed)
    times, at = [], 0.0
    while at < HOUR:
        for pause in acts(chance):
            at += pause
            times.append(at)
    seen = counted(times)
    longest = 90.0 if acts is looks_now_and_then else 45.0
    assert max(later - earlier for earlier, later in pairwise([*seen, times[-1]])) < longest


def test_the_first_of_a_kind_counts() -> None:
    traffic = PeriodicTraffic(8)
    assert not any(traffic.is_periodic(kind, float(kind)) for kind in range(100))


# ── kinds ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("/api/kernels?1794808669245", "/api/kernels?1794808679299", True),
        ("/api/contents?content=1&hash=0&1794808669590", "/api/contents?content=1&hash=0&1794808671742", True),
        ("/socket.io/?EIO=4&transport=polling&t=OqX12ab", "/socket.io/?EIO=4&transport=polling&t=OqXuZab", True),
        ("/rows/17/", "/rows/18/", True),
        ("/rpc?do=poll", "/rpc?do=save", False),
        ("/api/kernels", "/api/sessions", False),
        ("/api/kernels", "/api/kernels?content=1", False),
    ],
)
def test_kinds_of_requests(one: str, other: str, same: bool) -> None:
    found = {kind_of_request(3000, b"GET", target.encode(), 0) for target in (one, other)}
    assert (len(found) == 1) == same


def test_method_port_and_size_are_part_of_a_kind() -> None:
    kinds = {
        kind_of_request(port, method, b"/", length)
        for port in (None, 3000, 3001)
        for method in (b"GET", b"POST")
        for length in (0, 17)
    }
    assert len(kinds) == 12


def test_kinds_of_messages() -> None:
    assert kind_of_message(b'42["ping",17]') == kind_of_message(b'42["ping",18]')
    assert kind_of_message(b'42["input","a"]') != kind_of_message(b'42["input","b"]')


# ── bounds ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_it_stays_small() -> None:
    tracemalloc.start()
    traffic = PeriodicTraffic(64)
    chance = random.Random(1)
    for number in range(20_000):
        traffic.is_periodic(chance.randrange(200), number * 0.7)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used < 64 * 700
