"""Whether a window is one task or several, by what user code took before."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from millrace.engine.driver.process import settings_of
from millrace.engine.jobs.sizes import (
    _FORGIVEN,
    _PATIENCE,
    _PATIENCE_GROWS,
    FEW_ROOTS,
    FIRST_PASS,
    GAIN_S,
    LONGER,
    MOST_ROOTS,
    MOST_S,
    SEVERAL_S,
    WindowSizes,
    soon_s,
)
from millrace.protocol.types import Intent, Replay, RootRange, TaskId, TaskReport
from millrace.topology.load import load
from millrace.topology.model import Tracking
from millrace.topology.parts import Guarantee

ROOT = Path(__file__).parents[3]
SOON_ROOTS = round(soon_s(2) / 1e-6)
"""So many are soon done where each takes a microsecond."""


def ran(sizes: WindowSizes, roots: int, *passes: tuple[float, ...]) -> None:
    """A window of so many roots, of whose passes each task took so long."""
    intent = Intent(1, (RootRange("lines", 1, 0, roots),))
    reports = [
        TaskReport(TaskId(number, n, n), worked_s=taken_s)
        for number, tasks in enumerate(passes)
        for n, taken_s in enumerate(tasks)
    ]
    shape = [len(tasks) for tasks in passes]
    sizes.ran(intent, shape, reports, whole=shape == [1])


def alone(sizes: WindowSizes, *taken_s: float, roots: int = 1_000) -> None:
    """Windows of one task each."""
    for one in taken_s:
        ran(sizes, roots, (one,))


def largest(sizes: WindowSizes) -> int:
    """The largest window that is one task."""
    low, high = 0, 2 * MOST_ROOTS
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if sizes.one_task(middle, 2) else (low, middle - 1)
    return low


def test_until_three_windows_have_run_their_number_decides() -> None:
    sizes = WindowSizes()
    for _ in range(3):
        assert largest(sizes) == FEW_ROOTS
        alone(sizes, 5.0)
    assert largest(sizes) == 20


def test_what_takes_little_is_one_task_up_to_a_number() -> None:
    sizes = WindowSizes()
    alone(sizes, 0.02, 0.02, 0.02)
    assert largest(sizes) == FEW_ROOTS


@pytest.mark.parametrize("odd_s", [0.0, 9.0])
def test_one_window_of_three_says_nothing(odd_s: float) -> None:
    """It may have loaded what user code needs, or have had nothing to do."""
    for other_s, most in ((0.02, FEW_ROOTS), (5.0, 20)):
        sizes = WindowSizes()
        for _ in range(3):
            alone(sizes, odd_s, other_s, other_s)
            assert largest(sizes) == most


def test_several_tasks_that_are_sooner_done_stay_several() -> None:
    sizes = WindowSizes()
    alone(sizes, 1.0, 1.0, 1.0)
    for _ in range(5):
        ran(sizes, 1_000, (0.25, 0.25), (0.25, 0.25))
        assert not sizes.one_task(1_000, 2)


def test_where_no_two_tasks_run_at_a_time_several_are_never_sooner_done() -> None:
    sizes = WindowSizes()
    alone(sizes, 5.0, 5.0, 5.0)
    assert not sizes.one_task(FEW_ROOTS, 2)
    assert sizes.one_task(FEW_ROOTS, 1)
    assert not sizes.one_task(FEW_ROOTS + 1, 1)


def test_what_takes_as_long_in_each_of_several_tasks_is_one_again() -> None:
    """Such as a request for each call, however many rows it is of."""
    sizes = WindowSizes()
    alone(sizes, 1.0, 1.0, 1.0)
    for _ in range(3):
        assert not sizes.one_task(1_000, 2)
        ran(sizes, 1_000, (0.95, 1.0))
    assert sizes.one_task(1_000, 2)
    alone(sizes, 1.0, 1.0, 1.0, 1.0)
    assert sizes.one_task(1_000, 2)


def test_what_takes_less_in_all_tasks_than_in_one_before_is_one_again() -> None:
    sizes = WindowSizes()
    alone(sizes, 1.0, 1.0, 1.0)
    for _ in range(2):
        ran(sizes, 1_000, (0.01, 0.01))
    assert sizes.one_task(1_000, 2)


def test_of_a_few_roots_that_are_soon_done_nothing_is_learned() -> None:
    sizes = WindowSizes()
    alone(sizes, *[GAIN_S] * 5, roots=10)
    alone(sizes, *[0.5] * 5, roots=0)
    assert largest(sizes) == FEW_ROOTS
    alone(sizes, *[2 * GAIN_S] * 3, roots=10)
    assert largest(sizes) == 5
    for _ in range(2):
        ran(sizes, 10, (0.001, 0.001))
    assert sizes.one_task(10, 2)


def test_one_root_is_one_task_and_replays_tell_nothing_of_others() -> None:
    sizes = WindowSizes()
    replays = Intent(1, (), (Replay("lines", 1, 0, 1, 0.0),))
    for _ in range(3):
        sizes.ran(replays, (1,), [TaskReport(TaskId(0, 0, 0), worked_s=9.0)], whole=True)
    assert largest(sizes) == FEW_ROOTS
    alone(sizes, 9.0, 9.0, 9.0, roots=1)
    assert largest(sizes) == 1


def test_of_another_program_nothing_is_known() -> None:
    sizes = WindowSizes()
    alone(sizes, 3.0, 3.0, 3.0)
    sizes.forget(lanes=0)
    assert largest(sizes) == FEW_ROOTS


def large(
    sizes: WindowSizes, *each_s: float, roots: int = 10_000, tasks: int = 2, whole: bool = False
) -> None:
    """Windows of more than a few roots, of which each took so long, in all tasks of two passes."""
    intent = Intent(1, (RootRange("lines", 1, 0, roots),))
    tasks = 1 if whole else tasks
    for one_s in each_s:
        share_s = one_s * roots / (2 * tasks)
        reports = [
            TaskReport(TaskId(number, n, n), took_s=share_s)
            for number in range(2)
            for n in range(tasks)
        ]
        sizes.ran(intent, [1] if whole else [tasks, tasks], reports, whole=whole)


def test_a_larger_window_is_one_task_once_three_have_shown_that_it_is_soon_done() -> None:
    sizes = WindowSizes()
    alone(sizes, 0.0, 0.0, 0.0)
    for _ in range(3):
        assert largest(sizes) == FEW_ROOTS
        large(sizes, 1e-6)
    assert largest(sizes) == SOON_ROOTS
    sizes.forget(lanes=0)
    assert largest(sizes) == FEW_ROOTS


def test_larger_windows_of_one_task_stay_so_until_they_take_a_quarter_longer() -> None:
    """Or the state that one task or several keep would be fetched again and again."""
    sizes = WindowSizes()
    large(sizes, 1e-6, 1e-6, 1e-6)
    large(sizes, 1e-6, 9e-6, 1e-6, whole=True)
    assert largest(sizes) == pytest.approx(LONGER * SOON_ROOTS, abs=1)
    large(sizes, 1e-6, roots=MOST_ROOTS + 1)
    assert largest(sizes) == pytest.approx(LONGER * SOON_ROOTS, abs=1)
    large(sizes, 9e-6, 9e-6, whole=True)
    assert largest(sizes) == pytest.approx(LONGER * SOON_ROOTS / 9, abs=1)


@pytest.mark.parametrize(("parallelism", "soon"), [(1, 0.15), (2, 0.15), (4, 0.1), (76, 0.076)])
def test_the_more_run_at_a_time_the_sooner_several_are_done(parallelism: int, soon: float) -> None:
    sizes = WindowSizes()
    large(sizes, 1e-6, 1e-6, 1e-6, tasks=parallelism)
    most = round(soon / 1e-6)
    assert sizes.one_task(most - 1, parallelism)
    assert not sizes.one_task(most + 1, parallelism)
    large(sizes, 1e-6, 1e-6, 1e-6, whole=True)
    assert sizes.one_task(round(LONGER * most) - 1, parallelism)
    assert not sizes.one_task(round(LONGER * most) + 1, parallelism)


def test_one_task_that_takes_longer_than_several_is_tried_ever_more_seldom() -> None:
    """Such as one in which not all state finds room."""
    sizes, tries = WindowSizes(), []
    for number in range(3_000):
        one = sizes.one_task(10_000, 2)
        if one:
            tries.append(number)
        large(sizes, 60e-6 if one else 1e-6, whole=one)
    pauses = [b - a for a, b in pairwise(tries) if b > a + 1]
    assert len(tries) == 3 * (len(pauses) + 1)
    assert pauses == sorted(pauses)
    assert 30 <= pauses[0] <= 40
    assert pauses[-1] > 10 * pauses[0]


@pytest.mark.parametrize("tasks", [1, 2])
def test_behind_a_larger_window_of_one_task_that_died_all_are_several_for_a_while(
    tasks: int,
) -> None:
    """Ever longer, where one that is tried dies again, unless many were one task meanwhile."""
    sizes = WindowSizes()
    sizes.died(FEW_ROOTS)
    large(sizes, 0.0, 0.0, 0.0, tasks=tasks)
    assert largest(sizes) == MOST_ROOTS
    for pause in (30, 120, 480):
        late(sizes, pause, tasks)
    large(sizes, *[0.0] * (_FORGIVEN - 1), whole=True)
    large(sizes, 0.0, tasks=tasks)
    late(sizes, 4 * 480, tasks)
    large(sizes, *[0.0] * _FORGIVEN, whole=True)
    late(sizes, 30, tasks)
    sizes.died(10_000)
    sizes.forget(lanes=0)
    large(sizes, 0.0, 0.0, 0.0, tasks=tasks)
    assert largest(sizes) == MOST_ROOTS


def late(sizes: WindowSizes, pause: int, tasks: int) -> None:
    """One dies; so many that look as if they were soon done are several, and no more."""
    sizes.died(10_000)
    assert largest(sizes) == FEW_ROOTS
    large(sizes, *[9.0] * 100, tasks=tasks)  # of which the first is one odd window
    large(sizes, *[0.0] * (pause - 1), tasks=tasks)  # and so is the first of these
    assert largest(sizes) == FEW_ROOTS
    large(sizes, 0.0, tasks=tasks)
    assert largest(sizes) == MOST_ROOTS


def test_however_soon_they_are_done_windows_above_a_number_are_several() -> None:
    sizes = WindowSizes()
    large(sizes, 0.0, 0.0, 0.0)
    assert largest(sizes) == MOST_ROOTS


def test_a_larger_window_whose_user_code_takes_long_is_several() -> None:
    sizes = WindowSizes()
    large(sizes, 1e-6, 1e-6, 1e-6)
    alone(sizes, 0.02, 0.02, 0.02)
    assert largest(sizes) == pytest.approx(GAIN_S / 20e-6, abs=1)


@pytest.mark.parametrize("most", [0, 50])
def test_never_above_the_number_that_was_asked_for(most: int) -> None:
    sizes = WindowSizes(most)
    assert largest(sizes) == most
    alone(sizes, 0.0, 0.0, 0.0)
    assert largest(sizes) == most


def test_where_first_passes_run_beside_larger_windows_are_one_task_until_the_program_changes():
    sizes = WindowSizes(lanes=1)
    each_s = (soon_s(2) + soon_s(2, lanes=1)) / 2 / 10_000
    large(sizes, *[each_s] * 3)
    assert sizes.one_task(10_000, 2)
    large(sizes, *[LONGER * soon_s(2, lanes=1) / 10_000 * 0.99] * 3, whole=True)
    assert sizes.one_task(10_000, 2)
    sizes.forget(lanes=0)
    large(sizes, *[each_s] * 3)
    assert not sizes.one_task(10_000, 2)


def test_the_first_pass_is_no_matter_of_how_many_tasks_a_window_is():
    """One task whose first pass had two lanes tells as much as one without."""
    reports = [
        TaskReport(TaskId(number, n, n), worked_s=0.5, took_s=0.05)
        for number, n in ((0, 0), (0, 1), (1, 0))
    ]
    with_lanes, plain = WindowSizes(lanes=2), WindowSizes(lanes=2)
    for _ in range(3):
        intent = Intent(1, (RootRange("lines", 1, 0, 10_000),))
        with_lanes.ran(intent, (2, 1), reports, whole=True)
        ran(plain, 10_000, (1.5,))
    assert largest(with_lanes) == largest(plain) == pytest.approx(GAIN_S / 150e-6, abs=1)
    fast = WindowSizes(lanes=2)
    for _ in range(3):
        fast.ran(intent, (2, 1), [replace(one, worked_s=0.0) for one in reports], whole=True)
    share = FIRST_PASS / 2 + 1 - FIRST_PASS
    assert largest(fast) == pytest.approx(LONGER * soon_s(2, lanes=2) * share / 10e-6, abs=1)


@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_the_more_lanes_the_longer_one_task_is_as_soon_done_up_to_a_bound(lanes):
    for parallelism in (2, 4, 16, 10**6):
        assert soon_s(parallelism, lanes - 1) <= soon_s(parallelism, lanes) <= MOST_S


def test_the_text_says_what_a_small_window_is() -> None:
    text = " ".join((ROOT / "docs" / "guarantees.md").read_text().split())
    assert f"More than {FEW_ROOTS:,} roots are one Spark job" in text
    assert f"Up to {FEW_ROOTS:,} are one task, unless several would be done" in text
    assert "a tenth of a second sooner" in text
    assert f"is at most {soon_s(2) * 1000:.0f} ms with `spec.parallelism: 2`" in text
    assert f"{soon_s(4) * 1000:.0f} ms with 4" in text
    two, four, many = (round(soon_s(slots, lanes=1) * 1000) for slots in (2, 4, 10**6))
    assert f"may run beside it as said above, {two} ms, {four} ms and {many} ms where" in text
    two, four, many = (round(soon_s(slots, lanes=2) * 1000) for slots in (2, 4, 10**6))
    assert (
        f"executors have one core, {two:,} ms, {four} ms and {many} ms where they have two" in text
    )
    assert f"and never more than {MOST_S * 1000:,.0f} ms" in text
    assert f"ever closer to {SEVERAL_S * 1000:.0f} ms with more" in text
    assert LONGER == 1.25
    assert "until it takes a quarter longer than that" in text
    assert f"the next {_PATIENCE} that would be one are several" in text
    assert f"{_PATIENCE * _PATIENCE_GROWS} behind the second such time" in text
    assert f"until {_FORGIVEN} in a row were one" in text
    assert f"More than {MOST_ROOTS:,} roots, or {FEW_ROOTS:,} replays, are always several" in text
    assert GAIN_S == 0.1
    scaling = " ".join((ROOT / "docs" / "operations.md").read_text().split())
    assert f"one task](guarantees.md#a-window): one of up to {FEW_ROOTS:,} records" in scaling


def test_the_text_names_the_least_window_that_begins_before() -> None:
    text = " ".join((ROOT / "docs" / "guarantees.md").read_text().split())
    loaded = load(ROOT / "examples" / "wordcount" / "topology.yaml", ())
    least = settings_of(loaded.topology, "uid").prepares_from
    assert least == 1
    assert f"there are more than {FEW_ROOTS:,} records" in text
    assert f"of a window of up to {FEW_ROOTS:,} records, or whose first pass does more" in text
    assert "With `AtMostOnce` nothing is" in text
    for changes, others in (
        ({"tracking": Tracking.OFF}, FEW_ROOTS + 1),
        ({"guarantee": Guarantee.AT_MOST_ONCE}, None),
    ):
        spec = loaded.topology.spec.model_copy(update=changes)
        changed = loaded.topology.model_copy(update={"spec": spec})
        assert settings_of(changed, "uid").prepares_from == others
