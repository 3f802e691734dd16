"""One target of a sink under test: what was staged and published there, and what it must show."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from millrace.ids import WindowNumber
from millrace.protocol.types import Guarantee, Sealed, Staged
from millrace.sinks.base import Sink
from millrace.testing import wire
from millrace.testing.acts import FolderArea
from millrace.testing.findings import BrokenError
from millrace.testing.processes import Copy, Outcome, Workshop

Row = Mapping[str, Any]
Numbers = Sequence[int]

SHOWN_ROWS = 5

FIRST: tuple[Numbers, ...] = ((0, 1), (2,))
SECOND: tuple[Numbers, ...] = ((1, 3), (4,))
THIRD: tuple[Numbers, ...] = ((0, 4), (5,))
"""Row numbers of three windows, for each task; the later ones have numbers of earlier ones."""


@dataclass(frozen=True, slots=True)
class Question:
    """What ``check_sink`` was given."""

    make: Callable[[Path], Sink]
    read_back: Callable[[Path], Iterable[Row]]
    row: Callable[[int, int], Row]
    upserts: bool
    columns: pa.Schema | None = None


@dataclass(slots=True)
class Target:
    """An empty place with a sink on it; ``life`` is the uid that the sink belongs to.

    ``shown`` are the rows (number, window) that publications were right to show, in order.
    """

    question: Question
    workshop: Workshop
    place: Path
    area: Path
    life: str = "life-1"
    shown: list[tuple[int, int]] = field(default_factory=list)
    extra: tuple[Row, ...] = ()
    sleeper: Copy | None = None

    @property
    def name(self) -> str:
        """The sink's name."""
        return self.question.make(self.place).name

    def copy(self) -> Copy:
        """A process with a sink object of its own; it may have to wait for the sleeper."""
        copy = self.workshop.copy("sink", self.question.make(self.place), self.area)
        copy.beside = self.sleeper
        return copy

    def driver(self, execution: int) -> Copy:
        """A driver that has just started."""
        copy = self.copy()
        must(self.prepare(copy), "shown", "prepare() of its own target")
        must(copy.ask("fence", execution=execution), "fenced", f"fence({execution})")
        return copy

    def prepare(self, copy: Copy, uid: str | None = None, **how: Any) -> Outcome:
        """Ask for ``prepare``; ``how`` is fresh, overwrite, step and at."""
        flags = {"fresh": False, "overwrite": False, **how}
        return copy.ask("prepare", uid=uid or self.life, **flags)

    def staging(self, name: str, window: int, numbers: Numbers) -> dict[str, Any]:
        """Arguments of ``stage`` for some rows of a window."""
        rows = [dict(self.question.row(number, window)) for number in numbers]
        # A row more gives the columns of a batch without any.
        some = [*rows, dict(self.question.row(0, window))]
        whole = pa.RecordBatch.from_pylist(some, schema=self.question.columns)
        batches = [whole.slice(at, 1) for at in range(len(rows))] or [whole.slice(0, 0)]
        return {"name": name, "batches": wire.pack_batches(batches, whole.schema)}

    def stage(self, copy: Copy, window: int, *tasks: Numbers, attempt: int = 1) -> Sealed:
        """Stage a window, one output for each task, and seal it."""
        staged = []
        for task, numbers in enumerate(tasks):
            name = f"kit/{self.life}/w{window}/a{attempt}/p0/{task}/sink"
            args = self.staging(name, window, numbers)
            one = self.staged_of(must(copy.ask("stage", **args), "staged", "stage()"))
            if one is not None:
                staged.append(one)
        return sealed_of(window, staged)

    @staticmethod
    def packed(*staged: Staged) -> list[str]:
        """Staged outputs as arguments."""
        return [wire.pack(one) for one in staged]

    @staticmethod
    def staged_of(outcome: Outcome) -> Staged | None:
        """What ``stage`` returned."""
        text = outcome.value["staged"]
        return None if text is None else wire.unpack(Staged, text)

    def publish(self, copy: Copy, sealed: Sealed, execution: int, **step: Any) -> Outcome:
        """Ask for ``publish`` and look at nothing."""
        return copy.ask("publish", **publication(sealed, execution), **step)

    def counts(self, window: int, *tasks: Numbers) -> None:
        """From now on these rows must be shown."""
        self.shown += [(number, window) for numbers in tasks for number in numbers]

    def show(self, copy: Copy, window: int, *tasks: Numbers, execution: int = 1) -> Sealed:
        """Stage and publish a window, which must succeed, and look at what is shown."""
        sealed = self.stage(copy, window, *tasks)
        done = self.publish(copy, sealed, execution)
        must(done, "shown", f"publish() of window {window}")
        self.counts(window, *tasks)
        self.look("shown", f"after window {window} was published")
        return sealed

    def rows(self) -> Counter[str]:
        """The rows that must be shown."""
        pairs: Iterable[tuple[int, int]] = self.shown
        if self.question.upserts:
            pairs = dict(self.shown).items()
        rows = [self.question.row(number, window) for number, window in pairs]
        return Counter(map(_text, [*rows, *self.extra]))

    def look(self, rule: str, when: str) -> None:
        """Compare what is shown with what must be. Raises ``BrokenError``."""
        wanted = self.rows()
        found = Counter(map(_text, self.question.read_back(self.place)))
        exact = Guarantee.EXACTLY_ONCE in self.question.make(self.place).guarantees
        missing = wanted - found
        surplus = found - wanted if exact else Counter(found.keys() - wanted.keys())
        if missing or surplus:
            said = [_said(name, rows) for name, rows in (("without", missing), ("with", surplus))]
            raise BrokenError(rule, f"{when}, {' and '.join(filter(None, said))}")

    def damage(self, staged: Staged, how: str) -> bool:
        """Spoil a staged output in the staging area; false where it is not there."""
        path = FolderArea(self.area).path(staged.name)
        if not path.exists():
            return False
        data = path.read_bytes()
        middle = len(data) // 2
        if how == "gone":
            path.unlink()
        elif how == "cut":
            path.write_bytes(data[:middle])
        else:
            path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
        return True


@dataclass(slots=True)
class Targets:
    """Makes targets, each in a folder of its own."""

    question: Question
    workshop: Workshop
    folder: Path
    made: int = 0

    @contextmanager
    def target(self) -> Iterator[Target]:
        """A new target; its processes end with it."""
        self.made += 1
        place = self.folder / f"target-{self.made}"
        area = self.folder / f"staging-{self.made}"
        place.mkdir()
        area.mkdir()
        try:
            yield Target(self.question, self.workshop, place, area)
        finally:
            self.workshop.forget()


def new_life(target: Target, life: str = "life-2") -> Copy:
    """A driver of a fresh start with overwrite, whose executions begin anew."""
    target.life = life
    target.shown.clear()
    copy = target.copy()
    done = target.prepare(copy, fresh=True, overwrite=True)
    must(done, "overwrite", "prepare() with fresh and overwrite")
    target.look("overwrite", "after a fresh start with overwrite")
    must(copy.ask("fence", execution=1), "overwrite", "fence(1) of a fresh start")
    return copy


def sealed_of(window: int, staged: Sequence[Staged]) -> Sealed:
    """A sealed window, with a digest over what was staged for it."""
    digest = xxhash.xxh3_128_hexdigest("".join(f"{s.name}{s.digest}" for s in staged).encode())
    return Sealed(WindowNumber(window), digest, tuple(staged))


def publication(sealed: Sealed, execution: int) -> dict[str, Any]:
    """Arguments of ``publish``."""
    return {"sealed": wire.pack(sealed), "execution": execution}


def must(outcome: Outcome, rule: str, what: str) -> Outcome:
    """An outcome that is no failure. Raises ``BrokenError``."""
    if not outcome.done:
        raise BrokenError(rule, f"{what} {outcome}")
    return outcome


def refused(outcome: Outcome, rule: str, what: str, *kinds: str) -> None:
    """The outcome is an exception of one of the kinds, for good. Raises ``BrokenError``."""
    names = {"sink": "SinkError", "fenced": "FencedError"}
    wanted = " or ".join(names[kind] for kind in kinds)
    if outcome.fault is None or outcome.fault.kind not in kinds:
        raise BrokenError(rule, f"{what} {outcome}, but must raise {wanted}")
    if outcome.fault.retryable:
        raise BrokenError(
            rule, f"{what} {outcome}, which is retryable, so that it would be tried for ever"
        )


def _text(row: Row) -> str:
    return json.dumps(dict(row), sort_keys=True, default=str, ensure_ascii=False)


def _said(name: str, rows: Counter[str]) -> str:
    if not rows:
        return ""
    listed = [f"{text} ({count} times)" if count > 1 else text for text, count in rows.items()]
    more = f" and {len(listed) - SHOWN_ROWS} more" if len(listed) > SHOWN_ROWS else ""
    kind = "these rows that must be there" if name == "without" else "these that must not"
    return f"{name} {kind}: {', '.join(listed[:SHOWN_ROWS])}{more}"
