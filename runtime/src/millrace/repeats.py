"""Log lines that say the same again and again are written with growing pauses.

A server that is away is noticed once a second by everything that needs it; its log should name
the moment, and now and then that it lasts, and stay small.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass

from millrace.clock import Clock, SystemClock

FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 600.0
_TEXTS_KEPT = 256


@dataclass(slots=True)
class _Repeated:
    seen_s: float
    due_s: float
    pause_s: float
    left_out: int = 0


class RepeatFilter(logging.Filter):
    """Lets a line through at once, and again after 2 s, 4 s, 8 s, … up to 10 minutes.

    A line that comes through says how often it was left out. One that was silent for longer than
    its pause is new. Only lines of level WARNING and above are looked at. Add it to a handler, so
    that it sees every logger; ``logging`` holds the handler's lock around it.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__()
        self._clock = clock or SystemClock()
        self._known: OrderedDict[tuple[str, str], _Repeated] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        now_s = self._clock.monotonic_s()
        key = (record.name, record.getMessage())
        known = self._known.pop(key, None)
        if known is None or now_s - known.seen_s > known.pause_s + FIRST_PAUSE_S:
            known = _Repeated(now_s, now_s, FIRST_PAUSE_S / 2)
        self._known[key] = known
        if len(self._known) > _TEXTS_KEPT:
            self._known.popitem(last=False)
        known.seen_s = now_s
        if now_s < known.due_s:
            known.left_out += 1
            return False
        if known.left_out:
            record.msg, record.args = f"{key[1]} (and {known.left_out} more)", None
        known.pause_s = min(2 * known.pause_s, LONGEST_PAUSE_S)
        known.due_s, known.left_out = now_s + known.pause_s, 0
        return True


def quiet_repeats() -> None:
    """Filter what the root logger's handlers write; call it after ``logging.basicConfig``."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(RepeatFilter())
