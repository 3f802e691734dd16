"""How many executors a lag asks for: the rule, and what a driver that looks on makes of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from millrace.engine.driver.home.executorload import (
    BEHIND,
    CALM,
    GROW_AFTER_S,
    SHRINK_AFTER_S,
    ExecutorBounds,
    ExecutorWatch,
    Load,
    Pressure,
    executors_for,
)
from millrace.engine.driver.process import DriverProcess
from millrace.engine.jobs.sizes import FEW_ROOTS

ROOT = Path(__file__).parents[3]
BOUNDS = ExecutorBounds(1, 8)


class Watched:
    """A watch that is looked at five times a second."""

    def __init__(self, executors: int, bounds: ExecutorBounds = BOUNDS) -> None:
        self.now_s = 50.0
        self.watch = ExecutorWatch(bounds, executors, self.now_s)

    def goes_on(self, waiting: float, busy: float, seconds: float, useful: int = 99) -> list[int]:
        """With an attempt in each second for so much of it; the numbers that it comes to."""
        found = []
        for _ in range(int(seconds)):
            for part in range(5):
                self.now_s += 0.2
                wanted = self.watch.look(self.now_s, waiting, part < round(busy * 5), useful)
                if wanted is not None:
                    found.append(wanted)
                    self.watch.has(wanted)
        return found


def test_a_lag_that_stays_brings_more_up_to_the_most() -> None:
    watched = Watched(2)
    assert watched.goes_on(5.0, 1.0, GROW_AFTER_S) == []
    assert watched.goes_on(5.0, 1.0, 10 * GROW_AFTER_S) == [3, 4, 6, 8]


def test_no_more_come_than_there_are_tasks_for() -> None:
    assert Watched(2).goes_on(5.0, 1.0, 10 * GROW_AFTER_S, useful=3) == [3]
    assert Watched(2, ExecutorBounds(2, 8)).goes_on(5.0, 1.0, 10 * GROW_AFTER_S, useful=1) == []


@pytest.mark.parametrize("records", [FEW_ROOTS, FEW_ROOTS + 1])
def test_a_driver_asks_how_many_tasks_a_full_window_has(records: int) -> None:
    looked: list[tuple[float, bool, int]] = []
    settings = SimpleNamespace(max_records=records)
    driver = SimpleNamespace(
        _scaling=SimpleNamespace(look=lambda *seen: looked.append(seen[:3])),
        _performing=SimpleNamespace(between=None),
        _planner=SimpleNamespace(lag_records=10 * records),
        _runner=SimpleNamespace(most_tasks=lambda roots, tasks: 1 if roots <= FEW_ROOTS else tasks),
        _machine=SimpleNamespace(windows=SimpleNamespace(settings=settings, attempt=None)),
        _tuner=SimpleNamespace(newest=SimpleNamespace(parallelism=8)),
    )
    DriverProcess._scale(driver)  # type: ignore[arg-type]
    assert looked == [(10.0, False, 1 if records == FEW_ROOTS else 8)]


def test_a_driver_that_has_run_nothing_asks_for_nobody() -> None:
    driver = SimpleNamespace(_scaling=1, _performing=1, _planner=1, _runner=None)
    DriverProcess._scale(driver)  # type: ignore[arg-type]


def test_a_burst_brings_nobody() -> None:
    watched = Watched(2)
    for _ in range(20):
        assert watched.goes_on(9.0, 1.0, GROW_AFTER_S - 6) == []
        assert watched.goes_on(0.0, 0.8, 6) == []


def test_idle_ones_go_one_by_one_down_to_the_least() -> None:
    watched = Watched(4, ExecutorBounds(2, 8))
    assert watched.goes_on(0.0, 0.0, SHRINK_AFTER_S) == []
    assert watched.goes_on(0.0, 0.0, 4 * SHRINK_AFTER_S) == [3, 2]


def test_those_that_have_no_task_go_however_busy_the_others_are() -> None:
    watched = Watched(4, ExecutorBounds(1, 8))
    assert watched.goes_on(0.0, 1.0, 4 * SHRINK_AFTER_S, useful=2) == [3, 2]


def test_those_that_keep_up_because_they_work_stay() -> None:
    """No lag says nothing: the rest would have too much to do."""
    assert Watched(4).goes_on(0.0, 0.8, 5 * SHRINK_AFTER_S) == []


@pytest.mark.parametrize("executors", range(1, 9))
@pytest.mark.parametrize("waiting", [0.0, 0.9, 1.5, 2.0, 50.0])
@pytest.mark.parametrize("busy", [0.0, 0.2, 0.5, 1.0])
def test_never_below_the_least_nor_above_the_most(
    executors: int, waiting: float, busy: float
) -> None:
    bounds = ExecutorBounds(min(executors, 2), max(executors, 5))
    pressure = Pressure()
    for step in range(400):
        pressure, found = executors_for(pressure, step, Load(waiting, busy), executors, bounds)
        assert bounds.least <= found <= bounds.most
        executors = found


@pytest.mark.parametrize("busy", [0.0, 1.0])
def test_between_the_two_bounds_nothing_changes(busy: float) -> None:
    """So a change does not bring about the opposite one."""
    assert Watched(4).goes_on((CALM + BEHIND) / 2, busy, 5 * SHRINK_AFTER_S) == []
