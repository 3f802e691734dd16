"""Deliberate bugs of what is around the driver: ackers, tasks, sinks, dead letters, a standby."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from millrace import ids
from millrace.protocol import acker as a
from millrace.protocol import events as e
from millrace.protocol.acklog import Open, SliceOwners
from millrace.protocol.types import (
    AttemptId,
    CloseMarker,
    Member,
    Replay,
    Sealed,
    View,
)
from millrace.simulate.parts.driver import DriverProcess
from millrace.simulate.parts.engine import Attempt, Task
from millrace.simulate.parts.flow import Ids
from millrace.simulate.parts.plainfold import PlainFold, PlainMessage, read_enclosed
from millrace.simulate.parts.sinks import FilesSink

# --- tracking


class LosersApplied(a.AckerMachine[PlainMessage]):
    """Judges by whatever messages there are."""

    def drained(self, attempt: AttemptId, partition: int) -> list[a.AckerAction]:
        held, part = self._waiting(attempt, partition, a.Reading.DRAINING)
        if held is None or part is None:
            return []
        return self._judge(held, partition, part)


class RefusedMessageCounts(a.AckerMachine[PlainMessage]):
    """Judges a slice although a winner's message to it makes no sense."""

    def drained(self, attempt: AttemptId, partition: int) -> list[a.AckerAction]:
        _, part = self._waiting(attempt, partition, a.Reading.DRAINING)
        if part is not None:
            part.refused.clear()
        return super().drained(attempt, partition)


class EnclosedBesideRead(a.AckerMachine[PlainMessage]):
    """Judges what a close marker encloses together with what was read of the slice so far."""

    def _anew(self, held: a._Attempt[PlainMessage], partition: int) -> a._Slice[PlainMessage]:
        return held.slices[partition]


class EnclosedOnce(a.AckerMachine[PlainMessage]):
    """Has what a close marker encloses no more when a slice comes from another acker."""

    def _slice_owners(self, entry: SliceOwners) -> list[a.AckerAction]:
        for held in self._attempts.values():
            if held.marker is not None:
                held.marker = replace(held.marker, acks=())
        return super()._slice_owners(entry)


class FlatFold(PlainFold):
    def __init__(self, opened: Open, partition: int) -> None:
        super().__init__(opened, partition)
        self._turn = dict.fromkeys(opened.edges, 0)


class FlatIds(Ids):
    def child(self, parent: int, ordinal: int, edge: str) -> int:
        return ids.tuple_id(parent, ordinal, 0)


class UnseededFold(PlainFold):
    def seed(self, marker: CloseMarker) -> None:
        self._excluded = marker.excluded


class UnseededAttempt(Attempt):
    def messages(self, task: Task) -> list[PlainMessage]:
        for edge in [edge for edge in task.work.nets if edge.startswith(">")]:
            del task.work.nets[edge]
        return super().messages(task)


class SameTreeFold(PlainFold):
    def seed(self, marker: CloseMarker) -> None:
        again = tuple(replace(replay, number=0) for replay in marker.intent.replays)
        intent = replace(marker.intent, replays=again)
        super().seed(replace(marker, intent=intent))


class SameTreeIds(Ids):
    def root(self, root_id: int, replay: int) -> int:
        return super().root(root_id, 0)


def acker(fold: Callable[[Open, int], PlainFold]) -> Callable[[str], a.AckerMachine[PlainMessage]]:
    return lambda name: a.AckerMachine(name, fold, read_enclosed)


# --- workers


class AnswersUnasked(Attempt):
    """Answers for an attempt that nobody has begun, too."""

    def _say(self, event: e.Event) -> None:
        super()._say(event)
        if isinstance(event, e.RunDone):
            later = replace(event.id, attempt=ids.WindowAttempt(event.id.attempt + 1000))
            super()._say(replace(event, id=later))


class SealBeforeObjects(Attempt):
    """Reports state objects without waiting for their owners."""

    def _put(self, task: Task) -> None:
        super()._put(task)
        if task.waiting:
            self._next(self._acknowledge, task)

    def _put_done(self, task: Task) -> None:
        task.waiting -= 1


class ShortReadIsHole(Attempt):
    """Takes what a source did not give, without a word, for offsets without a record."""

    def holes(self, task: Task) -> list[int]:
        return sorted({*super().holes(task), *task.skipped})


# --- sinks


class PrunesMarks(FilesSink):
    """Forgets what it has shown as soon as it shows the next window (rule 21)."""

    def confirm(self, sealed: Sealed, execution: int) -> None:
        super().confirm(sealed, execution)
        for key in [key for key in self._final if key[0] < sealed.window]:
            del self._final[key]
        for window in [window for window in self._manifests if window < sealed.window]:
            del self._manifests[window]


# --- dead letters


class CarriesNothing(DriverProcess):
    """Says of dead letters that it has carried them over, and stores the new ones alone."""

    def letters_in(self, name: str) -> tuple[Replay, ...]:
        return ()


# --- drivers that stand by


class ClaimsWhileWaiting(DriverProcess):
    """Claims the execution ahead, to be quick when the other driver is gone."""

    def stand_by(self) -> None:
        super().stand_by()
        self.start()


class NeverTakesOver(DriverProcess):
    """Stands by for ever, and says that it has started."""

    def take_over(self) -> None:
        self.started = self.alive


# --- the operator


def whoever(_view: View | None, _staying: tuple[Member, ...], _copies: int) -> bool:
    """Lets those go that are to leave, though one that stays is not there to take its part."""
    return True


def at_once(_view: View | None, _name: str) -> bool:
    """Ends a server as soon as it is to leave, whatever the view still has of it."""
    return True
