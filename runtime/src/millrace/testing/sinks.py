"""``check_sink``: a sink through crashes, replays, zombies, foreign uids and damage.

Every experiment has a target of its own, made by ``make(place)`` with a new folder. What it must
show is known from what was sealed alone; what it shows is told by ``read_back(place)``, which
should share no code with the sink. Windows overwrite rows of earlier ones (``row(number, window)``
with the same number), so that one that is shown late shows in a sink that upserts, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path

from millrace.ddl import parse_schema
from millrace.ids import WindowNumber
from millrace.protocol.types import Sealed, Staged
from millrace.sinks.base import Sink
from millrace.sources.arrow_types import arrow_schema
from millrace.testing.findings import BrokenError, Check, ConformanceError, findings_of
from millrace.testing.processes import Workshop, scratch
from millrace.testing.rules import SINK_RULES
from millrace.testing.sinkfaults import SinkFaults
from millrace.testing.targets import (
    FIRST,
    SECOND,
    THIRD,
    Question,
    Row,
    Target,
    Targets,
    must,
    new_life,
    refused,
)


def default_row(number: int, window: int) -> Row:
    """Row ``number`` as ``window`` shows it: ``word string, n long``."""
    return {"word": f"w{number}", "n": 100 * window + number}


def check_sink(
    make: Callable[[Path], Sink],
    read_back: Callable[[Path], Iterable[Row]],
    *,
    row: Callable[[int, int], Row] = default_row,
    schema: str | None = None,
    upserts: bool = False,
    occupy: Callable[[Path], None] | None = None,
    damage: Callable[[Path, Staged], None] | None = None,
    only: Collection[str] | None = None,
) -> None:
    """Try a sink against every rule in ``SINK_RULES``.

    ``make(place)`` makes the sink on an empty target of its own for each folder ``place``;
    ``read_back(place)`` gives all rows that this target shows, as dicts, in any order.
    ``row(number, window)`` is a row that the sink can take: other numbers are other keys, other
    windows other values. ``schema`` are its columns as a topology writes them
    (``"word string, at timestamp"``), in whose types a run gives them; without it they have those
    that Arrow finds for the values. With ``upserts`` a row replaces the one of the same number.

    ``occupy(place)`` puts a row there that Millrace did not write, and ``damage(place, staged)``
    spoils a staged output of a sink that does not use the staging area; without them those rules
    are left out. ``only`` names rules: the others are tried no further than these need.

    Takes from seconds to a minute: the sink dies, fails and sleeps at each line of its code.
    Raises ``ConformanceError`` with all findings, and ``UnusableError`` where the sink's class
    cannot be loaded by other processes.
    """
    columns = None if schema is None else arrow_schema(parse_schema(schema))
    with scratch() as folder:
        (folder / "first").mkdir()
        kind = type(make(folder / "first"))
        workshop = Workshop(kind, folder, seed=1)
        try:
            targets = Targets(Question(make, read_back, row, upserts, columns), workshop, folder)
            checks = _Contract(targets, occupy, damage).checks() + SinkFaults(targets).checks()
            found = findings_of(checks, SINK_RULES, only)
        finally:
            workshop.close()
    if found:
        raise ConformanceError(f"sink {kind.__module__}:{kind.__qualname__}", found)


class _Contract:
    """The checks in which nothing dies; each is a method that raises ``BrokenError``."""

    def __init__(
        self,
        targets: Targets,
        occupy: Callable[[Path], None] | None,
        damage: Callable[[Path, Staged], None] | None,
    ) -> None:
        self._target = targets.target
        self._occupy = occupy
        self._damage = damage

    def checks(self) -> list[Check]:
        """All of them; the others build on the first two."""
        found = [
            Check(self.staging, ("staged", "invisible"), basic=True),
            Check(self.publishing, ("shown",), basic=True),
            Check(self.again, ("again",)),
            Check(self.other_digest, ("other-digest",)),
            Check(self.last_shown, ("last-shown",)),
            Check(self.not_sealed, ("not-sealed",)),
            Check(self.damaged, ("damaged",)),
            Check(self.fenced, ("fenced",)),
            Check(self.foreign, ("foreign",)),
            Check(self.fresh, ("fresh",)),
            Check(self.looking, ("check",)),
            Check(self.overwritten, ("overwrite", "foreign")),
        ]
        return [*found, Check(self.occupied, ("occupied",))] if self._occupy else found

    def staging(self) -> None:
        with self._target() as target:
            driver = target.driver(1)
            none = must(driver.ask("stage", **target.staging("a", 1, ())), "staged", "stage()")
            if target.staged_of(none) is not None:
                raise BrokenError("staged", "stage() of no rows gave a Staged, not None")
            name = target.name
            args = target.staging("kit/b", 1, (0, 1, 2))
            done = must(driver.ask("stage", **args), "staged", "stage() of 3 rows")
            staged = target.staged_of(done)
            if staged is None or (staged.sink, staged.name, staged.rows) != (name, "kit/b", 3):
                raise BrokenError(
                    "staged", f"stage() of 3 rows as 'kit/b' of the sink {name!r} gave {staged}"
                )
            args = target.staging("kit/c", 2, (0, 1, 2))
            other = target.staged_of(must(driver.ask("stage", **args), "staged", "stage()"))
            if other is None or other.digest == staged.digest:
                raise BrokenError("staged", f"stage() of other rows gave the digest of {staged}")
            must(driver.ask("verify", staged=target.packed(staged)), "staged", "verify()")
            target.look("invisible", "after rows were staged and nothing was published")

    def publishing(self) -> None:
        with self._target() as target:
            driver = target.driver(1)
            target.show(driver, 1, *FIRST)
            target.show(driver, 2, *SECOND)
            target.show(driver, 3)
            # Window 4 has been split; and workers stage, not drivers.
            sealed = target.stage(target.copy(), 5, *THIRD)
            must(target.publish(driver, sealed, 1), "shown", "publish() of what a worker staged")
            target.counts(5, *THIRD)
            target.look("shown", "after window 5 behind window 3 was published")

    def again(self) -> None:
        with self._target() as target:
            driver = target.driver(1)
            windows = [target.show(driver, 1, *FIRST), target.show(driver, 2, *SECOND)]
            for execution in (1, 2):
                for sealed in (windows[1], windows[0], windows[1]):
                    which = f"publish() of window {sealed.window}, which is shown,"
                    must(target.publish(driver, sealed, execution), "again", which)
                    target.look("again", f"after window {sealed.window} was published again")
                driver = target.driver(2)
            target.show(driver, 3, *THIRD, execution=2)

    def other_digest(self) -> None:
        # A window without rows has a digest, too.
        for tasks in (SECOND, ()):
            with self._target() as target:
                driver = target.driver(1)
                target.show(driver, 1, *FIRST)
                target.show(driver, 2, *tasks)
                other = target.stage(driver, 2, (7, 8), attempt=2)
                what = "publish() of window 2 with another digest than it is shown with"
                for execution in (1, 2):
                    driver = target.driver(2) if execution == 2 else driver
                    done = target.publish(driver, other, execution)
                    refused(done, "other-digest", what, "sink")
                    target.look("other-digest", "after window 2 came with another digest")
                # All that is known of a window far behind may be that it was shown.
                target.publish(driver, target.stage(driver, 1, (9,), attempt=2), 2)
                target.look("other-digest", "after window 1, behind window 2, came with another")

    def last_shown(self) -> None:
        with self._target() as target:
            driver = target.driver(1)
            shown: Sealed | None = None
            for window, tasks in ((1, FIRST), (4, SECOND)):
                self._told(target, shown)
                shown = target.show(driver, window, *tasks)
                self._told(target, shown)
            target.publish(driver, target.stage(driver, 3, (9,)), 1)
            self._told(target, shown)

    def _told(self, target: Target, shown: Sealed | None) -> None:
        """What a driver is told at its start, between ``prepare`` and ``fence``."""
        copy = target.copy()
        must(target.prepare(copy), "last-shown", "prepare()")
        told = must(copy.ask("last_shown"), "last-shown", "last_shown()").value
        right = [None] if shown is None else [[shown.window, shown.digest], [shown.window, ""]]
        if told["kept"] and told["shown"] not in right:
            raise BrokenError(
                "last-shown", f"last_shown() gave {told['shown']}, but {right[0]} was shown last"
            )
        target.look("last-shown", "after last_shown()")

    def not_sealed(self) -> None:
        with self._target() as target:
            driver = target.driver(1)
            lost = target.stage(driver, 1, (0, 1), (6,), attempt=1)
            target.stage(driver, 1, (2,), (7,), attempt=2)
            sealed = target.stage(driver, 1, *FIRST, attempt=3)
            for _ in range(2):
                names = [staged.name for staged in lost.staged]
                must(driver.ask("discard", names=names), "not-sealed", "discard()")
            target.look("not-sealed", "after staged rows were discarded")
            must(target.publish(driver, sealed, 1), "not-sealed", "publish() behind discard()")
            target.counts(1, *FIRST)
            target.look("not-sealed", "after one of three attempts of a window was published")

    def damaged(self) -> None:
        for how in ("gone", "cut", "changed"):
            with self._target() as target:
                driver = target.driver(1)
                target.show(driver, 1, *FIRST)
                sealed = target.stage(driver, 2, *SECOND)
                if not target.damage(sealed.staged[-1], how):
                    if self._damage is None:
                        return
                    self._damage(target.place, sealed.staged[-1])
                what = f"publish() of a window with a staged output that is {how}"
                refused(target.publish(driver, sealed, 1), "damaged", what, "sink")
                target.look("damaged", f"after a staged output was {how}")

    def fenced(self) -> None:
        with self._target() as target:
            old = target.driver(1)
            first = target.show(old, 1, *FIRST)
            second = target.stage(old, 2, *SECOND)
            new = target.driver(2)
            other = target.stage(new, 2, (8,), attempt=3)
            late = target.copy()
            must(target.prepare(late), "fenced", "prepare() of a late execution")
            for copy, name in ((old, "an execution behind a newer one"), (late, "a late one")):
                refused(copy.ask("fence", execution=1), "fenced", f"fence() of {name}", "fenced")
                for sealed in (second, other):
                    what = f"publish() by {name}"
                    refused(target.publish(copy, sealed, 1), "fenced", what, "fenced")
                    target.look("fenced", f"after {name} published a window")
                target.publish(copy, first, 1)
                target.look("fenced", f"after {name} published a window that was shown")
            must(target.publish(new, second, 2), "fenced", "publish() by the newest execution")
            target.counts(2, *SECOND)
            target.show(target.driver(2), 3, *THIRD, execution=2)

    def foreign(self) -> None:
        with self._target() as target:
            driver = target.driver(7)
            first = target.show(driver, 1, *FIRST, execution=7)
            other = target.copy()
            what = "prepare() of another uid"
            refused(target.prepare(other, "life-2"), "foreign", what, "sink")
            target.look("foreign", f"after {what}")
            target.publish(other, replace(first, window=WindowNumber(2)), 9)
            target.look("foreign", "after another uid published, whose prepare() was refused")
            must(target.prepare(target.copy()), "foreign", "prepare() of the owner")
            target.show(driver, 2, *SECOND, execution=7)

    def fresh(self) -> None:
        with self._target() as target:
            driver = target.driver(7)
            target.show(driver, 1, *FIRST, execution=7)
            for copy in (target.copy(), driver):
                done = copy.ask("check_fresh", overwrite=False)
                refused(done, "fresh", "check_fresh(False) of a target with rows", "sink")
                must(copy.ask("check_fresh", overwrite=True), "fresh", "check_fresh(True)")
                target.look("fresh", "after check_fresh()")
            what = "prepare() of another uid with fresh, without overwrite"
            refused(target.prepare(target.copy(), "life-2", fresh=True), "fresh", what, "sink")
            target.look("fresh", f"after {what}")
            target.show(driver, 2, *SECOND, execution=7)

    def looking(self) -> None:
        with self._target() as target:
            # Asked in a process of its own, before anything is started, and again later.
            must(target.copy().ask("check"), "check", "check() of a new target")
            must(target.prepare(target.copy()), "check", "prepare() behind check()")
            target.show(target.driver(1), 1, *FIRST)
            must(target.copy().ask("check"), "check", "check() of a target with rows")
            target.look("check", "after check()")
            target.show(target.driver(2), 2, *SECOND, execution=2)

    def overwritten(self) -> None:
        with self._target() as target:
            old = target.driver(7)
            target.show(old, 1, *FIRST, execution=7)
            sealed = target.stage(old, 2, *SECOND)
            new = new_life(target)
            target.show(new, 1, *SECOND)
            done = target.publish(old, sealed, 7)
            refused(done, "foreign", "publish() by the life before", "sink", "fenced")
            target.look("foreign", "after the life before published")
            done = target.prepare(target.copy(), "life-1")
            refused(done, "foreign", "prepare() by the life before", "sink")
            target.look("foreign", "after the life before prepared its target")
            done = target.prepare(target.copy(), fresh=True, overwrite=True)
            must(done, "overwrite", "prepare() with overwrite of the uid's own target")
            target.look("overwrite", "after a restart of the life that began with overwrite")
            target.show(target.driver(2), 2, *THIRD, execution=2)

    def occupied(self) -> None:
        if self._occupy is None:
            return
        for flag in (False, True):
            with self._target() as target:
                self._occupy(target.place)
                target.extra = tuple(target.question.read_back(target.place))
                if not target.extra:
                    raise BrokenError("occupied", "read_back() gives nothing behind occupy()")
                what = "prepare() of a target that holds what Millrace did not write"
                done = target.prepare(target.copy(), fresh=flag, overwrite=flag)
                refused(done, "occupied", what, "sink")
                target.look("occupied", f"after {what}")
