"""Whether an answer was asked for, from what the machine of windows does and has begun."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

from millrace.ids import Execution, WindowAttempt, WindowNumber
from millrace.protocol import events as e
from millrace.protocol import record as records
from millrace.protocol.types import AttemptId, Record
from millrace.protocol.windows.doing import (
    SURPRISES,
    Answer,
    Doing,
    Judging,
    Running,
    Splitting,
    Surprise,
    WritingLetters,
)


@dataclass(frozen=True, slots=True)
class Awaited:
    """``numbers`` holds the last attempt that was begun of each window of ``execution``."""

    doing: Doing
    record: Record | None
    execution: Execution
    numbers: Mapping[WindowNumber, WindowAttempt]

    def surprise(self, event: Answer) -> Surprise | None:
        match event:
            case e.VerdictGiven(verdict):
                return self._of_attempt(event, verdict.id)
            case e.RunDone(id) | e.RunDied(id) | e.RunFailed(id) | e.VerdictLost(id):
                return self._of_attempt(event, id)
            case e.DeadWritten(name):
                return self._of_state(event) or self._of_letters(name)
            case e.SplitDone():
                return self._of_state(event) or self._of_cut(event)
            case e.RecordAck():
                return self._of_state(event)
            case _:
                assert_never(event)

    def _of_state(self, event: Answer) -> Surprise | None:
        return SURPRISES[type(event)].get(type(self.doing))

    def _of_attempt(self, event: Answer, attempt: AttemptId) -> Surprise | None:
        if isinstance(self.doing, Running | Judging) and attempt == self.doing.attempt:
            return self._of_state(event)
        return Surprise.LATE if self._was_begun(attempt) else Surprise.BUG

    def _of_letters(self, name: str) -> Surprise | None:
        """Letters of another ending of the window, or of one under another view."""
        assert isinstance(self.doing, WritingLetters)
        return None if name == self.doing.name else Surprise.LATE

    def _of_cut(self, event: e.SplitDone) -> Surprise | None:
        """The window may have been split since, and its first half kept the number."""
        assert isinstance(self.doing, Splitting)
        assert self.record is not None
        whole, at = self.record.intents[0], self.doing.decision.at
        fits = whole.window == event.window
        cut = fits and records.is_cut(whole, at, event.first, event.second)
        return None if cut else Surprise.LATE

    def _was_begun(self, attempt: AttemptId) -> bool:
        if attempt.execution != self.execution or self.record is None:
            return attempt.execution < self.execution
        known = self.numbers.get(attempt.window, 0)
        return attempt.window <= self.record.sealed or attempt.attempt <= known
