"""Whether a window is one task or several.

One task costs no Spark job and exchanges nothing, which is most of what a small window would cost.
Several have more cores, which pays where user code takes long, however few records there are, and
where there are so many that all else takes long.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from millrace.engine.task.stay.lanes import lanes_for
from millrace.protocol.types import Intent, TaskReport

FEW_ROOTS = 4_096
"""A window of more roots is several tasks until it is known how long its like take."""

MOST_ROOTS = 1_048_576
"""A window of more roots is several tasks, however soon one would be done."""

SEVERAL_S = 0.075
"""To start several tasks, and to exchange between them, takes about so long, and several times the
CPU of one."""

LONGER = 1.25
"""Where a window is one task it stays one until that takes so many times as long: what keeps state
in one place would have to be fetched in another."""

FIRST_PASS = 0.75
"""So much of what one task does is its first pass, by a count of words (``make profile``)."""

MOST_S = 3.0
"""A window that takes longer is several tasks: one worker should not hold all of it."""

GAIN_S = 0.1
"""By so much at least are several tasks to be sooner done with user code than one."""

_WINDOWS = 3
_PATIENCE, _PATIENCE_GROWS = 30, 4
"""So many larger windows are several that looked as if they were soon done as one, and were not or
died, until one is tried again; and how many times as many the next time."""
_FORGIVEN = 300
"""So many larger windows of one task, one behind the other, and that is as at the beginning."""
_TELLING_ROOTS = 100
"""What user code takes for fewer, if it is soon done, is what a call costs, and not a root."""


def soon_s(parallelism: int, lanes: int = 0) -> float:
    """A window of more than a few roots is one task where all that its tasks do takes at most so
    long, in seconds: ``parallelism`` of them at a time would not be sooner done.

    ``lanes``: its first pass runs beside another window, on so many threads. Then what holds the
    next window up is that pass or all the rest, whichever takes longer.
    """
    at_a_time = max(2, parallelism)
    held = max(FIRST_PASS / lanes, 1.0 - FIRST_PASS) if lanes else 1.0
    gain = held * at_a_time - 1
    return min(MOST_S, SEVERAL_S * at_a_time / gain) if gain > 0 else MOST_S


class WindowSizes:
    """Knows what tasks and their user code took in the last windows of a program.

    One thread tells it of windows, any may ask. ``most_roots``: no larger window is one task.
    ``lanes``: threads of first passes of windows of one task, beside others; 0: they run in turn.
    """

    def __init__(self, most_roots: int = MOST_ROOTS, lanes: int = 0) -> None:
        self._limit = most_roots
        self.forget(lanes)

    def forget(self, lanes: int) -> None:
        """The program is another one."""
        self._lanes = lanes
        self._code_alone_s: tuple[float, ...] = ()
        """User code's share of a root in windows of one task."""
        self._code_shared_s: tuple[float, ...] = ()
        """The same where several had it at a time."""
        self._most_roots = self._limit
        self._as_one_s: tuple[float, ...] = ()
        """What larger windows of one task took for a root, with all that is not user code."""
        self._as_several_s: tuple[float, ...] = ()
        """The same of all tasks together, of larger windows of several."""
        self._waited, self._patience, self._held = 0, _PATIENCE, 0

    def ran(
        self, intent: Intent, shape: Sequence[int], reports: Sequence[TaskReport], *, whole: bool
    ) -> None:
        """An attempt has run; ``shape[k]`` counts the tasks of pass k, ``whole`` says that one task
        ran all passes, but for lanes of the first. Roots that are replayed may be unlike others."""
        roots, tasks = intent.roots, 1 if whole else max(shape)
        if not intent.ranges or not roots:
            return
        passes: dict[int, list[float]] = defaultdict(list)
        took: dict[int, list[float]] = defaultdict(list)
        for report in reports:
            passes[report.task.pass_no].append(report.worked_s)
            took[report.task.pass_no].append(report.took_s)
        if roots > FEW_ROOTS:
            # Lanes of one task run at a time.
            took_s = sum(map(max if whole else sum, took.values()))
            self._large(roots, took_s / roots, tasks, whole)
        code_s = sum(map(sum, passes.values()))
        if roots < _TELLING_ROOTS and code_s <= GAIN_S and self.one_task(roots, tasks):
            return
        if tasks == 1:
            self._code_alone_s = _last(self._code_alone_s, code_s / roots)
            return
        self._code_shared_s = _last(self._code_shared_s, sum(map(max, passes.values())) / roots)
        if self._code_alone_s and code_s / roots < median(self._code_alone_s):
            # One task would not take longer than all of them together.
            self._code_alone_s = _last(self._code_alone_s, code_s / roots)

    def died(self, roots: int) -> None:
        """A window of one task has ended in what may be for want of room, as where all state is in
        one process: larger ones are several for a while."""
        if roots > FEW_ROOTS:
            self._most_roots = min(self._limit, FEW_ROOTS)
            self._waited = self._held = 0

    def one_task(self, roots: int, parallelism: int) -> bool:
        """Whether a window of so many roots is one task: several, of so many at a time, would
        hardly be sooner done. A window that is slower or quicker than those before and behind it
        says nothing."""
        alone_s, shared_s = self._code_alone_s, self._code_shared_s
        if roots > self._most_roots:
            return False
        if roots > FEW_ROOTS and not self._soon_done(roots, parallelism):
            return False
        if roots == 1 or parallelism == 1 or len(alone_s) < _WINDOWS:
            return True
        tried = len(shared_s) == _WINDOWS
        gain_s = median(alone_s) - (median(shared_s) if tried else 0.0)
        return roots * gain_s <= GAIN_S

    def _large(self, roots: int, took_s: float, parallelism: int, whole: bool) -> None:
        """A larger window has run; ``took_s`` for each of its roots."""
        if whole:
            self._as_one_s = _last(self._as_one_s, took_s)
            self._held += 1
            if self._held >= _FORGIVEN:
                self._patience = _PATIENCE
            return
        self._held = 0
        self._as_several_s = _last(self._as_several_s, took_s)
        limit_s = soon_s(parallelism, self._lanes_of(roots))
        is_next = roots <= self._most_roots and self._soon_done(roots, parallelism)
        if is_next or roots > self._limit or not _within(limit_s, roots, self._as_several_s):
            return
        self._waited += 1
        if self._waited >= self._patience:
            self._as_one_s, self._most_roots = (), self._limit
            self._waited, self._patience = 0, self._patience * _PATIENCE_GROWS

    def _lanes_of(self, roots: int) -> int:
        return min(self._lanes, lanes_for(roots, self._lanes))

    def _soon_done(self, roots: int, parallelism: int) -> bool:
        """Whether one task would do all of a larger window in a time that is worth no job: by those
        that were one task, or, where these are too few, by those that were several."""
        lanes = self._lanes_of(roots)
        as_one_s, limit_s = self._as_one_s, soon_s(parallelism, lanes)
        if len(as_one_s) == _WINDOWS:
            # What they took is the time of the lanes, which share the first pass.
            share = FIRST_PASS / max(1, lanes) + 1.0 - FIRST_PASS
            return _within(LONGER * limit_s * share, roots, as_one_s)
        return _within(limit_s, roots, self._as_several_s)


def _within(limit_s: float, roots: int, each_s: tuple[float, ...]) -> bool:
    return len(each_s) == _WINDOWS and roots * median(each_s) <= limit_s


def _last(before: tuple[float, ...], one: float) -> tuple[float, ...]:
    return (*before, one)[-_WINDOWS:]
