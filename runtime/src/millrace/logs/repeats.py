"""Log lines that say the same again and again are written with growing pauses.

A server that is away is noticed once a second by everything that needs it; its log should name
the moment, and now and then that it lasts, and stay small.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from millrace.clock import Clock, SystemClock
from millrace.errors import error_text

FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 600.0
TEXTS_KEPT = 256


@dataclass(slots=True)
class _Repeated:
    seen_s: float
    due_s: float
    pause_s: float
    left_out: int = 0


K = TypeVar("K", bound=Hashable)


class Repeats(Generic[K]):
    """Which of the things that are said is to be passed on now; for one thread at a time.

    What is said again is left out for ``first_s`` and then for twice as long each time, up to ten
    minutes. ``is_new`` says whether it counts as never said, by how long it was silent and its
    pause, in seconds. Only the last 256 things are known.
    """

    def __init__(self, first_s: float, is_new: Callable[[float, float], bool]) -> None:
        self._first_s = first_s
        self._is_new = is_new
        self._known: OrderedDict[K, _Repeated] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def due(self, key: K, now_s: float) -> int | None:
        """How often it was left out since it was passed on last; None where it is left out."""
        known = self._known.pop(key, None)
        if known is None or self._is_new(now_s - known.seen_s, known.pause_s):
            known = _Repeated(now_s, now_s, self._first_s / 2)
        self._known[key] = known
        if len(self._known) > TEXTS_KEPT:
            self._known.popitem(last=False)
        known.seen_s = now_s
        if now_s < known.due_s:
            known.left_out += 1
            return None
        known.pause_s = min(2 * known.pause_s, LONGEST_PAUSE_S)
        known.due_s, left_out, known.left_out = now_s + known.pause_s, known.left_out, 0
        return left_out

    def forget(self, over: Callable[[K], bool]) -> None:
        """These are new when they are said again."""
        for key in [known for known in self._known if over(known)]:
            del self._known[key]


class RepeatFilter(logging.Filter):
    """Lets a line through at once, and again after 2 s, 4 s, 8 s, … up to 10 minutes.

    A line that comes through says how often it was left out. One that was silent for longer than
    its pause is new. Only lines of level WARNING and above are looked at. Add it to a handler, so
    that it sees every logger; ``logging`` holds the handler's lock around it.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__()
        self._clock = clock or SystemClock()
        self._repeats = Repeats[tuple[str, str, str]](
            FIRST_PAUSE_S, lambda silent_s, pause_s: silent_s > pause_s + FIRST_PAUSE_S
        )

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 the boundary to whoever logs; the handler says what is wrong
            return True
        # The same words above another traceback are another line.
        error = record.exc_info[1] if record.exc_info else None
        raised = error_text(error) if error is not None else ""
        left_out = self._repeats.due((record.name, text, raised), self._clock.monotonic_s())
        if left_out:
            record.msg, record.args = f"{text} (and {left_out} more)", None
        return left_out is not None


def quiet_repeats() -> None:
    """Filter what the root logger's handlers write; call it after ``logging.basicConfig``."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(RepeatFilter())
