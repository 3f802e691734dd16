"""What an acker decides: which messages count, when a slice of the log can be judged, and how.

Pure: entries of the log go in, actions come out, arrays are behind ``Fold``. The acker process
and the simulator drive this very code. One *slice* is (window attempt, tracking partition):

    FOLLOWING --close--> DRAINING --drained, losers folded--> UNDOING --reread--> judge
                             \\------drained, only winners------------------------> judge
    FOLLOWING --close that encloses the message of every winner-------------------> judge
    judge: a winner's message is missing, or every root is complete --> ANSWERED
    judge: some roots are not complete --> LOCATING --reread--> ANSWERED

Crash rule: nothing here outlives the process. An acker that starts, or has lost its connection,
reads the control stream and the open attempts' slices from the beginning and comes to the same
answers, since an answer is a function of the log alone: of the messages that winners had appended
before the close marker, or that it encloses, the first of each task, in whatever order. Where it
encloses those of all winners to a slice, nothing else of that slice is looked at.

A message that should be there and is not (``Fold.accepts`` refused it, or the log lost it) blames
no root: the answer is "nothing complete, nothing blamed, window not complete", on which the
driver runs a new attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cache
from typing import Generic

from millrace.errors import ProtocolError
from millrace.ids import Execution
from millrace.protocol.acklog import (
    ControlEntry,
    Fold,
    ForgetAttempt,
    M,
    MakeFold,
    Open,
    SliceOwners,
    Trace,
    consumer_of,
    partition_of,
    roots_of,
    source_edge,
)
from millrace.protocol.types import AttemptId, CloseMarker, FailedRoot, TaskId, Verdict

# --- actions


@dataclass(frozen=True, slots=True)
class Follow:
    """Read this slice from its beginning and hand in every message, now and as they come."""

    id: AttemptId
    partition: int


@dataclass(frozen=True, slots=True)
class Unfollow:
    """Stop reading this slice."""

    id: AttemptId
    partition: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Hand in all that is in this slice by now, then call ``drained``."""

    id: AttemptId
    partition: int


@dataclass(frozen=True, slots=True)
class Reread:
    """Read these log entries again, in any order, and call ``reread``."""

    id: AttemptId
    partition: int
    entries: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """Append the verdict on one slice for the driver."""

    verdict: Verdict


AckerAction = Follow | Unfollow | Drain | Reread | Answer

# --- the machine


class Reading(Enum):
    FOLLOWING = auto()
    DRAINING = auto()
    UNDOING = auto()
    LOCATING = auto()


_TAKING = (Reading.FOLLOWING, Reading.DRAINING)


@dataclass(slots=True)
class _Slice(Generic[M]):
    fold: Fold[M]
    reading: Reading = Reading.FOLLOWING
    folded: dict[TaskId, str] = field(default_factory=dict)
    enclosed: dict[TaskId, M] = field(default_factory=dict)
    refused: set[TaskId] = field(default_factory=set)
    checks: dict[str, int] = field(default_factory=dict)
    trace: Trace[M] | None = None

    def apply(self, message: M) -> None:
        self.fold.apply(message)
        for edge, value in message.window_checks.items():
            self.checks[edge] = self.checks.get(edge, 0) ^ value


@dataclass(slots=True)
class _Attempt(Generic[M]):
    opened: Open
    read: frozenset[int]
    marker: CloseMarker | None = None
    winners: Mapping[TaskId, frozenset[int]] = field(default_factory=dict)
    slices: dict[int, _Slice[M]] = field(default_factory=dict)

    def expected(self, partition: int) -> set[TaskId]:
        """The winners that say that they have a message for a slice."""
        return {task for task, parts in self.winners.items() if partition in parts}


ReadEnclosed = Callable[[str], M | None]
"""Reads a message that a close marker encloses; ``None`` for one that makes no sense."""


class AckerMachine(Generic[M]):
    """One acker, known by its name in the entries of slice owners."""

    def __init__(self, name: str, make_fold: MakeFold[M], read_enclosed: ReadEnclosed[M]) -> None:
        self.name = name
        self._make_fold = make_fold
        self._read_enclosed = read_enclosed
        self._attempts: dict[AttemptId, _Attempt[M]] = {}
        self._owned: dict[int, frozenset[int]] = {}
        self._execution = 0

    @property
    def attempts(self) -> tuple[AttemptId, ...]:
        """Attempts that are held, in the order they were opened."""
        return tuple(self._attempts)

    def opened(self, attempt: AttemptId) -> Open | None:
        """How an attempt was opened; ``None`` where it is not held."""
        held = self._attempts.get(attempt)
        return None if held is None else held.opened

    def owned(self, slices: int) -> frozenset[int]:
        """Tracking partitions of this acker, of attempts with so many slices."""
        return self._owned.get(slices, frozenset())

    @property
    def slices_owned(self) -> int:
        """Tracking partitions of this acker, of an attempt with many roots that opens now."""
        return len(next(iter(self._owned.values()), ()))

    def reading(self, attempt: AttemptId, partition: int) -> Reading | None:
        """State of a slice; ``None`` where it is not held, or answered."""
        held = self._attempts.get(attempt)
        part = held.slices.get(partition) if held is not None else None
        return part.reading if part is not None else None

    # -- control

    def control(self, entry: ControlEntry) -> list[AckerAction]:
        """Take the next entry of the control stream."""
        if isinstance(entry, Open):
            return self._open(entry)
        if isinstance(entry, CloseMarker):
            return self._close(entry)
        if isinstance(entry, SliceOwners):
            return self._slice_owners(entry)
        assert isinstance(entry, ForgetAttempt)
        return self._forget(entry.id)

    def _open(self, entry: Open) -> list[AckerAction]:
        if entry.id in self._attempts or entry.id.execution < self._execution:
            return []
        actions = self._begin_execution(entry.id.execution)
        held: _Attempt[M] = _Attempt(entry, frozenset(entry.partitions()))
        self._attempts[entry.id] = held
        for partition in sorted(self.owned(entry.slices)):
            actions += self._follow(held, partition)
        return actions

    def _close(self, marker: CloseMarker) -> list[AckerAction]:
        held = self._attempts.get(marker.id)
        if held is None or held.marker is not None:
            return []
        held.marker = marker
        held.winners = {task: frozenset(parts) for task, parts in marker.winners}
        actions: list[AckerAction] = []
        for partition in sorted(self.owned(held.opened.slices)):
            if partition in held.slices:
                actions += self._closed(held, partition)
            else:
                actions.append(_nothing_to_judge(marker.id, partition))
        return actions

    def _slice_owners(self, entry: SliceOwners) -> list[AckerAction]:
        if entry.execution < self._execution:
            return []
        actions = self._begin_execution(entry.execution)
        live = set(entry.live)
        for attempt in [one for one in self._attempts if one not in live]:
            actions += self._forget(attempt)
        before, self._owned = self._owned, entry.owned_by(self.name)
        for held in self._attempts.values():
            slices = held.opened.slices
            was, owned = before.get(slices, frozenset()), self.owned(slices)
            for partition in sorted(was - owned):
                if held.slices.pop(partition, None) is not None:
                    actions.append(Unfollow(held.opened.id, partition))
            for partition in sorted(owned - was):
                actions += self._follow(held, partition)
        return actions

    def _begin_execution(self, execution: Execution) -> list[AckerAction]:
        """A new driver never asks about what an older one had running."""
        self._execution = max(self._execution, execution)
        older = [one for one in self._attempts if one.execution < self._execution]
        return [action for one in older for action in self._forget(one)]

    def _forget(self, attempt: AttemptId) -> list[AckerAction]:
        held = self._attempts.pop(attempt, None)
        if held is None:
            return []
        return [Unfollow(attempt, partition) for partition in sorted(held.slices)]

    def _follow(self, held: _Attempt[M], partition: int) -> list[AckerAction]:
        attempt = held.opened.id
        closed = held.marker is not None
        if partition not in held.read:
            return [_nothing_to_judge(attempt, partition)] if closed else []
        held.slices[partition] = _Slice(self._make_fold(held.opened, partition))
        if not closed:
            return [Follow(attempt, partition)]
        return [Follow(attempt, partition), *self._closed(held, partition)]

    def _closed(self, held: _Attempt[M], partition: int) -> list[AckerAction]:
        """Judge a slice of a closed attempt, once what counts is read."""
        attempt, part = held.opened.id, held.slices[partition]
        messages = list(self._enclosed(held, partition))
        expected = held.expected(partition)
        alone = bool(expected) and expected <= {message.task for message in messages}
        if alone and (part.folded or part.refused):
            part = self._anew(held, partition)
        part.reading = Reading.DRAINING
        for message in messages:
            if message.task in part.folded or message.task in part.enclosed:
                continue
            if not part.fold.accepts(message):
                part.refused.add(message.task)
                continue
            part.refused.discard(message.task)
            part.enclosed[message.task] = message
            part.apply(message)
        return self.drained(attempt, partition) if alone else [Drain(attempt, partition)]

    def _anew(self, held: _Attempt[M], partition: int) -> _Slice[M]:
        """A slice of which nothing counts that was read so far."""
        part = held.slices[partition] = _Slice(self._make_fold(held.opened, partition))
        return part

    def _enclosed(self, held: _Attempt[M], partition: int) -> Iterator[M]:
        """Messages of winners to a slice that the close marker brings along."""
        assert held.marker is not None
        for slice_, text in held.marker.acks:
            message = self._read_enclosed(text) if slice_ == partition else None
            if message is None or (message.attempt, message.partition) != (held.opened.id, slice_):
                continue
            if message.task in held.winners:
                yield message

    # -- messages

    def message(self, partition: int, entry: str, message: M) -> None:
        """Take one message of a followed slice; ``entry`` is its id in the log.

        A task's second message and one that came after the answer change nothing.
        """
        held = self._attempts.get(message.attempt)
        part = held.slices.get(partition) if held is not None else None
        if held is None or part is None or message.partition != partition:
            return
        if part.reading not in _TAKING:
            return
        loser = held.marker is not None and message.task not in held.winners
        taken = message.task in part.folded or message.task in part.enclosed
        if loser or taken or message.task in part.refused:
            return
        if not part.fold.accepts(message):
            part.refused.add(message.task)
            return
        part.folded[message.task] = entry
        part.apply(message)

    def drained(self, attempt: AttemptId, partition: int) -> list[AckerAction]:
        """All that was in the slice when its ``Drain`` was carried out has been handed in."""
        held, part = self._waiting(attempt, partition, Reading.DRAINING)
        if held is None or part is None:
            return []
        losers = [task for task in part.folded if task not in held.winners]
        if not losers:
            return self._judge(held, partition, part)
        part.reading = Reading.UNDOING
        return [Reread(attempt, partition, tuple(part.folded.pop(task) for task in losers))]

    def reread(
        self, attempt: AttemptId, partition: int, messages: Iterable[M | None]
    ) -> list[AckerAction]:
        """Take the messages of a ``Reread``; ``None`` stands for an entry that is gone."""
        held, part = self._waiting(attempt, partition, Reading.UNDOING)
        if held is not None and part is not None:
            for message in messages:
                if message is None:
                    return self._answer_lost(held, partition, part)
                part.apply(message)
            return self._judge(held, partition, part)
        held, part = self._waiting(attempt, partition, Reading.LOCATING)
        if held is None or part is None or part.trace is None:
            return []
        for message in messages:
            if message is None:
                return self._answer_lost(held, partition, part)
            part.trace.add(message)
        why = cache(_broken)  # one text for all roots that broke there
        blamed = tuple(FailedRoot(sequence, *why(edge)) for sequence, edge in part.trace.broken())
        return self._answer(held, partition, part, blamed)

    def _waiting(
        self, attempt: AttemptId, partition: int, reading: Reading
    ) -> tuple[_Attempt[M] | None, _Slice[M] | None]:
        held = self._attempts.get(attempt)
        part = held.slices.get(partition) if held is not None else None
        return (held, part) if part is not None and part.reading is reading else (None, None)

    # -- judging

    def _judge(self, held: _Attempt[M], partition: int, part: _Slice[M]) -> list[AckerAction]:
        assert held.marker is not None
        counted = part.folded.keys() | part.enclosed.keys()
        if not held.expected(partition) <= counted or part.refused & held.winners.keys():
            return self._answer_lost(held, partition, part)
        part.fold.seed(held.marker)
        if not part.fold.incomplete():
            return self._answer(held, partition, part, ())
        part.reading = Reading.LOCATING
        part.trace = part.fold.trace(held.marker)
        for message in part.enclosed.values():
            part.trace.add(message)
        return [Reread(held.opened.id, partition, tuple(part.folded.values()))]

    def _answer(
        self,
        held: _Attempt[M],
        partition: int,
        part: _Slice[M],
        incomplete: tuple[FailedRoot, ...],
    ) -> list[AckerAction]:
        assert held.marker is not None
        judged = _judged_roots(held.opened, held.marker, partition)
        complete = judged - len(incomplete)
        window_complete = not any(part.checks.values())
        return self._finish(held, partition, complete, incomplete, window_complete)

    def _answer_lost(self, held: _Attempt[M], partition: int, part: _Slice[M]) -> list[AckerAction]:
        return self._finish(held, partition, 0, (), False)

    def _finish(
        self,
        held: _Attempt[M],
        partition: int,
        complete: int,
        incomplete: tuple[FailedRoot, ...],
        window_complete: bool,
    ) -> list[AckerAction]:
        attempt = held.opened.id
        # The answer is all that is needed from here on: let go of the arrays at once.
        del held.slices[partition]
        verdict = Verdict(attempt, (partition,), complete, incomplete, window_complete)
        return [Unfollow(attempt, partition), Answer(verdict)]


def _nothing_to_judge(attempt: AttemptId, partition: int) -> Answer:
    return Answer(Verdict(attempt, (partition,), 0, (), True))


def _judged_roots(opened: Open, marker: CloseMarker, partition: int) -> int:
    window, slices = opened.id.window, opened.slices
    excluded = sum(partition_of(window, s, slices) == partition for s in marker.excluded)
    return roots_of(window, partition, opened.roots, slices) - excluded


def _broken(edge: str) -> tuple[str, str]:
    """The processor at an edge on which roots broke, and how it is told."""
    processor = consumer_of(edge)
    if edge == source_edge(processor):
        return processor, f"not read once from source {processor!r}"
    return processor, f"its tuples on edge {edge!r} were not each processed once"


def merge_verdicts(parts: Iterable[Verdict], slices: int) -> Verdict | None:
    """One verdict from the answers on ``slices`` slices, ``None`` until each has answered.

    Of several answers on one slice, which are equal, the first counts. Raises ``ProtocolError``
    for answers on different attempts.
    """
    chosen: dict[int, Verdict] = {}
    attempts: set[AttemptId] = set()
    for part in parts:
        attempts.add(part.id)
        if chosen.keys().isdisjoint(part.partitions):
            chosen.update(dict.fromkeys(part.partitions, part))
    if len(attempts) > 1:
        raise ProtocolError(f"verdicts of different window attempts cannot be merged: {attempts}")
    if len(chosen) < slices:
        return None
    distinct = list({id(part): part for part in chosen.values()}.values())
    incomplete = [root for part in distinct for root in part.incomplete]
    return Verdict(
        distinct[0].id,
        tuple(range(slices)),
        sum(part.complete for part in distinct),
        tuple(sorted(incomplete, key=lambda root: root.sequence)),
        all(part.window_complete for part in distinct),
    )
