"""A sink whose processes die, fail and sleep at each line of its code.

Lines between which nothing happened that others could notice are tried once for a death, and those
between which the sink did not look at the world either, once for a sleep (``testing.effects``).

Each check is one long life of a topology, in which every window or start meets the next line. Only
where a target is made for the first time has every line a target of its own.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millrace.protocol.types import Sealed
from millrace.testing.findings import BrokenError, Check
from millrace.testing.lines import chosen
from millrace.testing.processes import Copy, Outcome
from millrace.testing.targets import (
    FIRST,
    SECOND,
    THIRD,
    Numbers,
    Target,
    Targets,
    must,
    new_life,
    refused,
)

TASKS = (FIRST, SECOND, THIRD)

Lines = list[tuple[int, str]]
"""Where a call can be stopped: the numbers of its lines, each with its place in words."""


@dataclass(slots=True)
class _Life:
    """A topology's life on one target: its executions and its windows, in rising order."""

    target: Target
    execution: int = 0
    window: int = 0

    def driver(self) -> Copy:
        """The next execution, which has prepared and fenced the target."""
        self.execution += 1
        return self.target.driver(self.execution)

    def tasks(self) -> Sequence[Numbers]:
        """Rows of the current window; others than those of the one before."""
        return TASKS[self.window % len(TASKS)]

    def staged(self, copy: Copy) -> Sealed:
        """The next window, staged and sealed."""
        self.window += 1
        return self.target.stage(copy, self.window, *self.tasks())

    def shows(self, copy: Copy, sealed: Sealed, what: str) -> None:
        """The current window is published, and all that must be is shown."""
        must(self.target.publish(copy, sealed, self.execution), "shown", what)
        self.is_shown()

    def is_shown(self) -> None:
        """The current window was published."""
        self.target.counts(self.window, *self.tasks())
        self.target.look("shown", f"after window {self.window} was published")

    def goes_on(self, copy: Copy) -> None:
        """One more window."""
        self.shows(copy, self.staged(copy), "publish()")


class SinkFaults:
    """The checks; each is a method that raises ``BrokenError``."""

    def __init__(self, targets: Targets) -> None:
        self._target = targets.target

    def checks(self) -> list[Check]:
        """All of them."""
        return [
            Check(self.death_in_prepare, ("crash-prepare", "returns")),
            Check(self.death_in_prepare_with_overwrite, ("crash-prepare", "returns")),
            Check(self.death_in_fence, ("crash-fence", "returns")),
            Check(self.death_in_stage, ("crash-stage", "returns")),
            Check(self.death_in_discard, ("crash-stage", "returns")),
            Check(self.death_in_publish, ("crash-publish", "returns")),
            Check(self.failure_in_publish, ("retry",)),
            Check(self.sleep_in_publish, ("zombie",)),
            Check(self.sleep_in_fence, ("zombie",)),
            Check(self.sleep_in_prepare, ("zombie",)),
        ]

    # -- death

    def death_in_prepare(self) -> None:
        for at, where in self._lines_of_prepare("count for kill"):
            with self._target() as target, _blamed("crash-prepare", f"died in prepare() {where}"):
                target.prepare(target.copy(), step="kill", at_line=at)
                life = _Life(target)
                life.goes_on(life.driver())

    def death_in_prepare_with_overwrite(self) -> None:
        with self._target() as target:
            target.show(target.driver(3), 1, *FIRST, execution=3)
            lines = _lines(_overwrite(target, "life-a", step="count for kill"))
            new_life(target, "life-a")
            for number, (at, where) in enumerate(lines):
                target.show(target.driver(3), 1, *TASKS[number % 3], execution=3)
                with _blamed("crash-prepare", f"died in prepare() with overwrite {where}"):
                    _overwrite(target, f"life-{number + 2}", step="kill", at_line=at)
                    new_life(target, f"life-{number + 2}")

    def death_in_fence(self) -> None:
        with self._target() as target:
            life = _Life(target)
            lines = _lines(self._fence(life, step="count for kill"))
            for at, where in lines:
                with _blamed("crash-fence", f"died in fence() {where}"):
                    self._fence(life, step="kill", at_line=at)
                    life.goes_on(life.driver())

    def death_in_stage(self) -> None:
        with self._target() as target:
            life = _Life(target)
            driver = life.driver()
            lines = _lines(
                target.copy().ask(
                    "stage", **target.staging("kit/0", 1, (0, 1)), step="count for kill"
                )
            )
            for at, where in lines:
                with _blamed("crash-stage", f"died in stage() {where}"):
                    args = target.staging(f"kit/dead/{at}", life.window, (0, 1))
                    target.copy().ask("stage", **args, step="kill", at_line=at)
                    must(driver.ask("discard", names=[args["name"]]), "crash-stage", "discard()")
                    life.goes_on(driver)

    def death_in_discard(self) -> None:
        with self._target() as target:
            life = _Life(target)
            lost = target.stage(life.driver(), 1, (6,), (7,), attempt=2)
            names = [staged.name for staged in lost.staged]
            lines = _lines(life.driver().ask("discard", names=names, step="count for kill"))
            for at, where in lines:
                with _blamed("crash-stage", f"died in discard() {where}"):
                    driver = life.driver()
                    sealed = life.staged(driver)
                    lost = target.stage(driver, life.window, (6,), (7,), attempt=2)
                    names = [staged.name for staged in lost.staged]
                    driver.ask("discard", names=names, step="kill", at_line=at)
                    life.shows(life.driver(), sealed, "publish() by the next execution")

    def death_in_publish(self) -> None:
        with self._target() as target:
            life, driver, lines = self._lines_of_publish(target, "count for kill")
            for at, where in lines:
                sealed = life.staged(driver)
                with _blamed("crash-publish", f"died in publish() {where}"):
                    target.publish(driver, sealed, life.execution, step="kill", at_line=at)
                    driver = life.driver()
                    life.shows(driver, sealed, "publish() by the next execution")

    # -- failure

    def failure_in_publish(self) -> None:
        with self._target() as target:
            life, driver, lines = self._lines_of_publish(target, "count")
            for at, where in lines:
                sealed = life.staged(driver)
                with _blamed("retry", f"failed in publish() {where}"):
                    target.publish(driver, sealed, life.execution, step="fail", at_line=at)
                    life.shows(driver, sealed, "publish() by the same object")
            with _blamed("retry", "was restarted after failures"):
                life.goes_on(life.driver())

    # -- sleep

    def sleep_in_publish(self) -> None:
        with self._target() as target:
            life, old, lines = self._lines_of_publish(target, "count for sleep")
            for at, where in lines:
                sealed = life.staged(old)
                with _blamed("zombie", f"slept in publish() {where} while a newer one went on"):
                    stamp = life.execution
                    outcome = target.publish(old, sealed, stamp, step="sleep", at_line=at)
                    if outcome.asleep is None:
                        must(outcome, "shown", "publish()")
                        life.is_shown()
                        continue
                    target.sleeper = old
                    new = life.driver()
                    life.shows(new, sealed, "publish() by the newer execution")
                    life.goes_on(new)
                    self._wake(life, old, new, stamp)
                    old = new

    def sleep_in_fence(self) -> None:
        with self._target() as target:
            life = _Life(target)
            lines = _lines(self._fence(life, step="count for sleep"))
            for at, where in lines:
                with _blamed("zombie", f"slept in fence() {where} while a newer one went on"):
                    outcome = self._fence(life, step="sleep", at_line=at)
                    if outcome.asleep is not None:
                        self._overtake(life)

    def sleep_in_prepare(self) -> None:
        for at, where in self._lines_of_prepare("count for sleep"):
            when = f"slept in prepare() {where} while a newer one went on"
            with self._target() as target, _blamed("zombie", when):
                life = _Life(target, execution=1)
                target.sleeper = target.copy()
                if target.prepare(target.sleeper, step="sleep", at_line=at).asleep is not None:
                    self._overtake(life)

    def _overtake(self, life: _Life) -> None:
        """A newer execution goes on beside the sleeper, whose execution is the current one."""
        old, stamp = life.target.sleeper, life.execution
        new = life.driver()
        life.goes_on(new)
        if old is not None:
            self._wake(life, old, new, stamp)

    def _wake(self, life: _Life, old: Copy, new: Copy, stamp: int) -> None:
        """The sleeper goes on where it was and publishes a window of its own."""
        target = life.target
        old.wake()
        old.end()
        target.look("zombie", "after it woke up")
        sealed = life.staged(new)
        refused(target.publish(old, sealed, stamp), "zombie", "its publish()", "fenced", "sink")
        target.look("zombie", "after it published another window")
        life.shows(new, sealed, "publish() of that window by the newer execution")
        old.close()
        target.sleeper = None

    # -- what they share

    def _fence(self, life: _Life, **step: Any) -> Outcome:
        """The next execution prepares and fences the target, which is the step's place."""
        life.execution += 1
        copy = life.target.copy()
        must(life.target.prepare(copy), "shown", "prepare()")
        life.target.sleeper = copy
        return copy.ask("fence", execution=life.execution, **step)

    def _lines_of_prepare(self, count: str) -> Lines:
        with self._target() as target:
            return _lines(target.prepare(target.copy(), step=count))

    def _lines_of_publish(self, target: Target, count: str) -> tuple[_Life, Copy, Lines]:
        """A life that has shown a window, its driver, and the lines of that."""
        life = _Life(target)
        driver = life.driver()
        life.goes_on(driver)
        sealed = life.staged(driver)
        outcome = target.publish(driver, sealed, life.execution, step=count)
        must(outcome, "shown", "publish()")
        life.is_shown()
        return life, driver, _lines(outcome)


def _overwrite(target: Target, life: str, **step: Any) -> Outcome:
    """Another life takes the target, or dies while it does so."""
    args = {"fresh": True, "overwrite": True, **step}
    return target.prepare(target.copy(), life, **args)


def _lines(counted: Outcome) -> Lines:
    places = counted.places
    return [(at, _in_words(*places[at])) for at in chosen(places, counted.parts)]


def _in_words(file: str, line: int) -> str:
    return f"at {Path(file).name}:{line} `{linecache.getline(file, line).strip()}`"


@contextmanager
def _blamed(rule: str, what: str) -> Iterator[None]:
    """Whatever is broken inside is broken by what happened: that is the rule to mend."""
    who = "an older execution" if rule == "zombie" else "a process"
    try:
        yield
    except BrokenError as broken:
        blamed = "returns" if broken.rule == "returns" else rule
        raise BrokenError(blamed, f"{who} {what}: {broken}") from None
