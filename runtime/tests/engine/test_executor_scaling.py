"""What a driver does with the number of executors that the lag asks for, where asking may fail."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from moved_clock import Hands

from millrace.engine.driver.home.executorload import (
    GROW_AFTER_S,
    JUDGE_S,
    SHRINK_AFTER_S,
    ExecutorBounds,
)
from millrace.engine.driver.home.scaling import PAUSES_S, TIDY_S, ExecutorScaling
from millrace.protocol import events as e
from millrace.topology.model import Executors


class Driver:
    """A driver of two executors, whose cluster manager refuses the next ``refuses`` questions;
    while ``runs_long`` an attempt runs, and what is to be done between two of them waits."""

    def __init__(self, refuses: int = 0, instances: int = 2) -> None:
        self.clock = Hands()
        self.refuses = refuses
        self.runs_long = False
        self.asked: list[tuple[float, int]] = []
        self.counted: list[int] = []
        self.events: list[e.Notify] = []
        self.left: list[Callable[[], None]] = []
        asked = Executors.model_validate({"instances": instances, "cores": 2})
        self.scaling = ExecutorScaling(
            asked,
            ExecutorBounds(1, 8),
            self.clock,
            self._have,
            self.counted.append,
            self.events.append,
        )

    def _have(self, count: int) -> None:
        self.asked.append((self.clock.at_s, count))
        if self.refuses:
            self.refuses -= 1
            raise ConnectionError("the cluster manager is away")

    def runs(self, waiting: float, seconds: float) -> None:
        for _ in range(int(seconds * 5)):
            self.clock.at_s += 0.2
            self.scaling.look(waiting, waiting > 0, 99, self.left.append)
            if not self.runs_long:
                for act in self.left:
                    act()
                self.left.clear()


def test_what_the_cluster_manager_takes_is_told_once() -> None:
    driver = Driver()
    driver.runs(5.0, GROW_AFTER_S + 2 * JUDGE_S)
    assert [count for _, count in driver.asked] == [3]
    assert driver.counted == [3]
    assert [one.text for one in driver.events] == ["3 executors instead of 2, as the lag asks for"]


def test_what_failed_once_is_not_told_and_asked_again() -> None:
    driver = Driver(refuses=1)
    driver.runs(5.0, GROW_AFTER_S + 1.2 * JUDGE_S)
    assert [count for _, count in driver.asked] == [3]
    assert driver.counted == []
    assert driver.events == []
    driver.runs(5.0, PAUSES_S[0] + JUDGE_S)
    assert [count for _, count in driver.asked] == [3, 3]
    assert driver.counted == [3]
    assert len(driver.events) == 1


def test_pauses_grow_and_begin_anew_behind_a_success() -> None:
    driver = Driver(refuses=6)
    driver.runs(5.0, GROW_AFTER_S + sum(PAUSES_S) + 2 * PAUSES_S[-1] + 10 * JUDGE_S)
    times = [at_s for at_s, _ in driver.asked[:7]]
    paused = [later - before for before, later in pairwise(times)]
    for pause_s, least_s in zip(paused, (*PAUSES_S, PAUSES_S[-1], PAUSES_S[-1]), strict=True):
        assert least_s <= pause_s <= least_s + JUDGE_S + 0.5
    assert driver.counted[0] == 3
    driver.runs(0.0, 1.0)
    driver.refuses, seen = 1, len(driver.asked)
    driver.runs(5.0, 2 * GROW_AFTER_S + PAUSES_S[0] + 3 * JUDGE_S)
    (first_s, _), (second_s, _) = driver.asked[seen : seen + 2]
    assert second_s - first_s <= PAUSES_S[0] + JUDGE_S + 0.5


def test_what_the_lag_wants_no_more_is_not_asked_again() -> None:
    driver = Driver(refuses=1)
    driver.runs(5.0, GROW_AFTER_S + 1.2 * JUDGE_S)
    driver.runs(1.5, 10 * PAUSES_S[0])
    assert [count for _, count in driver.asked] == [3]
    assert driver.counted == []


def test_nothing_is_asked_twice_while_an_attempt_runs_and_the_first_answer_counts() -> None:
    driver = Driver()
    driver.runs_long = True
    driver.runs(5.0, 5 * GROW_AFTER_S)
    assert len(driver.left) == 1
    assert driver.counted == []
    driver.runs_long = False
    driver.runs(5.0, 2 * JUDGE_S)
    assert driver.counted == [3], "what was seen with two says nothing of three"


def test_one_that_could_not_go_goes_later() -> None:
    driver = Driver(refuses=1)
    driver.runs(0.0, SHRINK_AFTER_S + 2 * JUDGE_S + PAUSES_S[0] + JUDGE_S)
    assert [count for _, count in driver.asked] == [1, 1]
    assert driver.counted == [1]


def test_the_number_is_said_again_since_one_may_have_come_late() -> None:
    """It was on its way while the number fell, and nobody has ended it."""
    driver = Driver()
    driver.runs(0.0, SHRINK_AFTER_S + 2 * JUDGE_S)
    assert [count for _, count in driver.asked] == [1]
    driver.runs(1.5, 3.1 * TIDY_S)
    assert [count for _, count in driver.asked] == [1, 1, 1, 1]
    assert driver.counted == [1]
    assert len(driver.events) == 1
    driver.runs_long = True
    driver.runs(1.5, 3 * TIDY_S)
    assert len(driver.left) == 1, "not while an attempt runs"


def test_nothing_is_said_again_that_was_never_changed() -> None:
    driver = Driver()
    driver.runs(1.5, 10 * TIDY_S)
    assert driver.asked == []
