"""How many ackers a load asks for, on traces of loads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.protocol.ackerload import (
    AIM,
    BUSY,
    GROW_AFTER_S,
    IDLE,
    SHRINK_AFTER_S,
    AckerBounds,
    Trend,
    ackers_for,
)

ONE_TO_SIX = AckerBounds(1, 6, automatic=True)


def follow(
    loads: Iterable[float] | Callable[[float, int], float],
    ackers: int = 1,
    bounds: AckerBounds = ONE_TO_SIX,
    seconds: int = 600,
) -> list[int]:
    """The number of ackers at each second of a trace; a load is never more than they have cores."""
    trend = Trend()
    trace = loads if callable(loads) else None
    given_ = iter(() if callable(loads) else loads)
    found = []
    for now in range(seconds):
        load = trace(float(now), ackers) if trace is not None else next(given_, None)
        if load is None:
            break
        trend, ackers = ackers_for(trend, float(now), min(load, ackers), ackers, bounds)
        found.append(ackers)
    return found


def changes(found: list[int]) -> int:
    return sum(a != b for a, b in pairwise(found))


def test_a_load_that_rises_brings_ackers_and_one_that_falls_lets_them_go_one_by_one() -> None:
    loads = [0.1] * 20 + [2.4] * 60 + [0.1] * 600
    found = follow(loads, seconds=len(loads))
    assert found[19] == 1
    assert found[20 + int(GROW_AFTER_S)] == 2
    top = max(found)
    # 2.4 cores over so many is below BUSY, and one fewer would not be.
    assert BUSY * (top - 1) <= 2.4 < BUSY * top or top == 2.4 / AIM
    assert found[-1] == 1
    fall = [n for n, before in zip(found[81:], found[80:], strict=False) if n != before]
    assert fall == list(range(top - 1, 0, -1))


def test_a_peak_that_is_over_soon_changes_nothing() -> None:
    loads = ([0.1] * 10 + [1.0] * int(GROW_AFTER_S)) * 10
    assert set(follow(loads)) == {1}


def test_a_pause_that_is_over_soon_changes_nothing() -> None:
    loads = ([0.0] * int(SHRINK_AFTER_S) + [1.5]) * 5
    assert set(follow(loads, ackers=3)) == {3}


@settings(deadline=None)  # a trace has 900 steps
@given(st.floats(0.0, 8.0), st.integers(1, 6))
def test_a_steady_load_is_settled_once_and_for_all(load: float, ackers: int) -> None:
    found = follow(lambda *_: load, ackers, seconds=900)
    steps = [b - a for a, b in zip([ackers, *found], found, strict=False) if a != b]
    # Never a step back: what grew does not shrink, what shrank does not grow.
    assert all(step > 0 for step in steps) or all(step < 0 for step in steps)
    assert changes(found[-200:]) == 0


@given(st.lists(st.floats(0.0, 6.0), max_size=200), st.integers(1, 4), st.integers(0, 3))
def test_the_bounds_are_kept(loads: list[float], least: int, more: int) -> None:
    bounds = AckerBounds(least, least + more, automatic=True)
    found = follow(loads, ackers=9, bounds=bounds)
    assert all(least <= n <= least + more for n in found)


@pytest.mark.parametrize("load", [0.0, 9.0])
def test_without_the_word_nothing_changes_by_itself(load: float) -> None:
    assert set(follow(lambda *_: load, ackers=3, bounds=AckerBounds(1, 6))) == {3}


def test_what_goes_and_what_comes_lie_apart() -> None:
    """With one fewer the rest is far from busy; with one more, one fewer is far from idle."""
    assert IDLE < AIM < BUSY


def test_a_load_is_busy_or_idle_from_the_very_share_on() -> None:
    """Five seconds of the one, a minute of the other."""
    busy, most = 2 * BUSY, AckerBounds(1, 4, automatic=True)
    trend, ackers = ackers_for(Trend(), 0.0, busy, 2, most)
    assert (trend, ackers) == (Trend(busy_since_s=0.0), 2)
    assert ackers_for(trend, 4.9, busy, 2, most) == (trend, 2)
    assert ackers_for(trend, 5.0, busy, 2, most) == (Trend(), 3)
    trend, ackers = ackers_for(Trend(), 0.0, IDLE, 2, most)
    assert (trend, ackers) == (Trend(idle_since_s=0.0), 2)
    assert ackers_for(trend, 59.9, IDLE, 2, most) == (trend, 2)
    assert ackers_for(trend, 60.0, IDLE, 2, most) == (Trend(), 1)


def test_as_many_come_at_once_as_then_work_for_half_of_their_time() -> None:
    bounds = AckerBounds(1, 16, automatic=True)
    found = follow(lambda *_: 4.0, ackers=4, bounds=bounds, seconds=20)
    assert sorted(set(found)) == [4, 8]


def test_time_at_the_upper_bound_does_not_count_once_it_is_raised() -> None:
    trend, ackers = Trend(), 3
    for now in range(60):
        trend, ackers = ackers_for(trend, float(now), 3.0, ackers, AckerBounds(1, 3, True))
        assert (trend, ackers) == (Trend(), 3)
    assert ackers_for(trend, 60.0, 3.0, 3, ONE_TO_SIX) == (Trend(busy_since_s=60.0), 3)


def test_where_there_is_no_acker_none_comes_by_itself() -> None:
    """There is nobody whose load could ask for one."""
    assert set(follow(lambda *_: 0.0, ackers=0, bounds=AckerBounds(0, 3, automatic=True))) == {0}
