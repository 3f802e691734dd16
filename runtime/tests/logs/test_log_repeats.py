"""Lines that repeat themselves come with growing pauses, others at once."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable

from millrace.logs.repeats import LONGEST_PAUSE_S, RepeatFilter


class Moment:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def now_s(self) -> float:
        raise AssertionError("the wall clock may jump")

    def monotonic_s(self) -> float:
        return self.at_s


def heard(
    moments: Iterable[float], text: str = "no answer", level: int = logging.WARNING
) -> dict[float, str]:
    """When a line said at these moments comes through, and how."""
    clock = Moment()
    repeats = RepeatFilter(clock)
    lines = {}
    for clock.at_s in moments:
        record = logging.LogRecord("millrace", level, __file__, 1, "%s", (text,), None)
        if repeats.filter(record):
            lines[clock.at_s] = record.getMessage()
    return lines


def test_pauses_grow_while_a_line_repeats_itself() -> None:
    assert list(heard(range(100))) == [0, 2, 6, 14, 30, 62]


def test_a_line_says_how_often_it_was_left_out() -> None:
    assert heard(range(7)) == {
        0: "no answer",
        2: "no answer (and 1 more)",
        6: "no answer (and 3 more)",
    }


def test_pauses_end_growing() -> None:
    times = list(heard(range(10_000)))
    assert max(b - a for a, b in itertools.pairwise(times)) == LONGEST_PAUSE_S


def test_a_line_that_was_silent_for_long_is_new() -> None:
    assert heard([0, 1, 2, 3, 100, 101]) == {
        0: "no answer",
        2: "no answer (and 1 more)",
        100: "no answer",
    }


def test_progress_is_never_left_out() -> None:
    assert len(heard(range(10), level=logging.INFO)) == 10


def test_other_lines_are_not_held_up() -> None:
    repeats = RepeatFilter(Moment())
    for number in range(1000):
        record = logging.LogRecord("m", logging.ERROR, __file__, 1, "line %d", (number,), None)
        assert repeats.filter(record)


def test_the_same_words_with_another_error_are_another_line() -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise TypeError("it cannot tell")

    errors = [
        ValueError("a"),
        ValueError("a"),
        ValueError("b"),
        KeyError("b"),
        MuteError(),
        MuteError(),
    ]
    repeats, through = RepeatFilter(Moment()), []
    for error in errors:
        info = (type(error), error, None)
        record = logging.LogRecord("millrace", logging.ERROR, __file__, 1, "planning", (), info)
        through.append(repeats.filter(record))
    assert through == [True, False, True, True, True, False]


def test_a_line_that_cannot_be_made_is_the_handlers_business() -> None:
    """Whoever logs it, a library's thread say, hears nothing of it."""
    record = logging.LogRecord("lib", logging.WARNING, __file__, 1, "%d of %d", ("one",), None)
    assert RepeatFilter(Moment()).filter(record)
