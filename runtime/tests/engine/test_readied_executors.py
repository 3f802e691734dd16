"""When executors that small windows leave alone are made ready for one."""

from __future__ import annotations

import logging

from moved_clock import Hands

from millrace.engine.driver.home.readied import AGAIN_S, LOOK_S, ReadiedExecutors


class Driver:
    def __init__(self) -> None:
        self.clock = Hands()
        self.here: set[str] = set()
        self.rehearsed: list[int] = []
        self.error: Exception | None = None
        self.watch = ReadiedExecutors(lambda: frozenset(self.here), self._rehearse, self.clock)

    def _rehearse(self, count: int) -> None:
        self.rehearsed.append(count)
        if self.error is not None:
            raise self.error

    def runs(self, seconds: float) -> list[int]:
        """How many executors each rehearsal of that time was for."""
        self.rehearsed.clear()
        for _ in range(int(seconds / LOOK_S)):
            self.clock.at_s += LOOK_S
            self.watch.look()
        return list(self.rehearsed)


def test_one_that_comes_is_made_ready_at_once_and_all_are_kept_so() -> None:
    driver = Driver()
    assert driver.runs(60) == []
    driver.here = {"0", "1"}
    assert driver.runs(LOOK_S) == [2]
    assert driver.runs(AGAIN_S - LOOK_S) == []
    assert driver.runs(2 * AGAIN_S) == [2, 2]
    driver.here = {"1", "2"}  # one was lost, and another has taken its place
    assert driver.runs(LOOK_S) == [2]
    driver.here = {"1"}
    assert driver.runs(2 * LOOK_S) == []


def test_what_fails_waits_for_its_next_turn(caplog) -> None:
    caplog.set_level(logging.INFO)
    driver = Driver()
    driver.here, driver.error = {"0", "1"}, RuntimeError("no module named features")
    assert driver.runs(AGAIN_S) == [2]
    assert "no module named features" in caplog.text
    driver.error = None
    assert driver.runs(AGAIN_S) == [2]


def test_executors_that_cannot_be_asked_for_are_left_alone(caplog) -> None:
    caplog.set_level(logging.INFO)
    driver = Driver()

    def gone() -> frozenset[str]:
        raise ConnectionError("the JVM is gone")

    driver.watch._here = gone
    assert driver.runs(3 * LOOK_S) == []
    assert caplog.text.count("the JVM is gone") == 3
