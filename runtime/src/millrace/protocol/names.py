"""Names of immutable objects: one way to write each and one to read it.

A name says who made the object, so that no two are ever made under one name and what an ended
attempt left behind is told by its name alone. ``AttemptId``, ``TaskId`` and ``Tag`` know their own
texts (``protocol.types``).
"""

from __future__ import annotations

from dataclasses import dataclass

from millrace.ids import Epoch, Execution, WindowAttempt, WindowNumber
from millrace.protocol.types import AttemptId, TaskId

_DEAD = "/dead"

DEATH = "death"
"""Kind of the object that tells how a task attempt's worker ended; its component is the pid."""


@dataclass(frozen=True, slots=True)
class TaskObject:
    """What a task attempt wrote of a component: ``1.5.1.0.3.0/state/counts.2``.

    What tells of the end of its worker is no component's: ``1.5.1.0.3.0/death/4711``.
    """

    attempt: AttemptId
    task: TaskId
    kind: str
    component: str

    def __str__(self) -> str:
        return f"{self.attempt}.{self.task}/{self.kind}/{self.component}"


@dataclass(frozen=True, slots=True)
class LettersObject:
    """Dead letters of a window, written after this attempt under a view: ``1.5.2.3/dead``."""

    attempt: AttemptId
    epoch: Epoch

    def __str__(self) -> str:
        return f"{self.attempt}.{self.epoch}{_DEAD}"


ObjectName = TaskObject | LettersObject


def read_attempt(text: str) -> AttemptId | None:
    """The attempt that is written so; None for any other text."""
    try:
        numbers = [int(part) for part in text.split(".")]
    except ValueError:
        return None
    attempt = _attempt(*numbers) if len(numbers) == 3 else None
    return attempt if str(attempt) == text else None


def read_name(text: str) -> ObjectName | None:
    """Whose object a name stands for; None for a name that nothing here writes."""
    made_by, _, rest = text.partition("/")
    kind, _, component = rest.partition("/")
    try:
        numbers = [int(part) for part in made_by.split(".")]
    except ValueError:
        return None
    name: ObjectName
    match numbers:
        case [execution, window, attempt, epoch]:
            name = LettersObject(_attempt(execution, window, attempt), Epoch(epoch))
        case [execution, window, attempt, *task] if len(task) == 3:
            name = TaskObject(_attempt(execution, window, attempt), TaskId(*task), kind, component)
        case _:
            return None
    return name if str(name) == text else None


def tells_death(text: str, attempt: AttemptId) -> bool:
    """Whether this is the name of an object that tells of a worker's end in the attempt."""
    if not text.startswith(f"{attempt}."):
        return False  # most names of a long list, without reading them
    name = read_name(text)
    return isinstance(name, TaskObject) and (name.attempt, name.kind) == (attempt, DEATH)


def spoken(letters: str) -> str:
    """What a user calls the object with dead letters of this name: ``1.5.2.3``."""
    return letters.removesuffix(_DEAD)


def _attempt(execution: int, window: int, attempt: int) -> AttemptId:
    return AttemptId(Execution(execution), WindowNumber(window), WindowAttempt(attempt))
