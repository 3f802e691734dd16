"""Waiting for conditions with a deadline, the only way in which tests here pass time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LOOK_S = 0.04
"""Each look reads what processes write, on the cores that they compute on."""


class TooLateError(AssertionError):
    """A condition that was not met before its deadline."""


def until(
    look: Callable[[], T],
    what: str,
    deadline_s: float,
    every_s: float = LOOK_S,
    moved: Callable[[], object] = lambda: None,
) -> T:
    """The first true answer of ``look``. Raises ``TooLateError`` after ``deadline_s`` seconds in
    which what ``moved`` answers stayed the same: how fast something goes is the machine's affair.
    """
    seen, end_s = moved(), time.monotonic() + deadline_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() >= end_s:
            before, seen = seen, moved()
            if seen == before:
                raise TooLateError(f"not within {deadline_s:g} s: {what}")
            end_s = time.monotonic() + deadline_s
        time.sleep(every_s)
