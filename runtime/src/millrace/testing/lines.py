"""Stops a call at a line that it runs: by death, by an exception, or until it is woken."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from millrace.testing.effects import Noticed, Parts

T = TypeVar("T")

Place = tuple[str, int]
"""File and line."""


class CodeLines:
    """CodeLines of the code under test: all below ``root``, but for packages installed there."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._own = Path(__file__).parent
        self._known: dict[str, bool] = {}

    def run(self, work: Callable[[], T], at: int, act: Callable[[Place], None]) -> T:
        """Call ``act`` before line number ``at`` of those that ``work`` runs (from 0).

        Runs in the calling thread only. An exception of ``act`` is raised by that line.
        """
        seen = -1

        def line(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal seen
            if event == "line":
                seen += 1
                if seen == at:
                    act((frame.f_code.co_filename, frame.f_lineno))
            return line

        return self._traced(work, line)

    def places(
        self, work: Callable[[], T], noticed: Noticed | None
    ) -> tuple[T, list[Place], list[int]]:
        """What ``work`` returns, the lines it ran, in order, and the part that each belongs to.

        With ``noticed`` the lines of a part differ in nothing that others could notice; without it
        each line is a part of its own.
        """
        found: list[Place] = []
        numbers: list[int] = []
        parts = None if noticed is None else Parts(noticed)

        def line(frame: FrameType, event: str, _: Any) -> Any:
            if event == "line":
                found.append((frame.f_code.co_filename, frame.f_lineno))
                at = len(numbers)
                numbers.append(at if parts is None else parts.at(at))
            return line

        try:
            value = self._traced(work, line)
        finally:
            if parts is not None:
                parts.end()
        return value, found, numbers

    def _traced(self, work: Callable[[], T], line: Callable[[FrameType, str, Any], Any]) -> T:
        def called(frame: FrameType, _event: str, _arg: Any) -> Any:
            return line if self._is_ours(frame.f_code.co_filename) else None

        sys.settrace(called)
        try:
            return work()
        finally:
            sys.settrace(None)

    def _is_ours(self, name: str) -> bool:
        known = self._known.get(name)
        if known is None:
            path = Path(name)
            known = self._known[name] = (
                path.is_relative_to(self._root)
                and "site-packages" not in path.relative_to(self._root).parts
                and not path.is_relative_to(self._own)
            )
        return known


def chosen(places: Sequence[Place], parts: Sequence[int]) -> list[int]:
    """Where to stop: the first and the last time that each line runs, and of these the last one of
    each part, right before what ends it.
    """
    first: dict[Place, int] = {}
    last: dict[Place, int] = {}
    for number, place in enumerate(places):
        first.setdefault(place, number)
        last[place] = number
    points = {parts[number]: number for number in sorted({*first.values(), *last.values()})}
    return list(points.values())
