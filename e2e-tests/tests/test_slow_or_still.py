"""A deadline is for what stands still, not for what is slow."""

from __future__ import annotations

import itertools

import pytest

from millrace_e2e.waiting import TooLateError, until

SHORT_S = 0.02


def test_what_does_not_come_is_waited_for_until_the_deadline() -> None:
    with pytest.raises(TooLateError, match=r"^not within 0\.02 s: a miracle$"):
        until(lambda: False, "a miracle", SHORT_S, SHORT_S / 10, moved=lambda: "as ever")


def test_what_gets_on_is_waited_for_and_no_longer_than_that() -> None:
    steps = itertools.chain(range(5), itertools.repeat(5))
    made: list[int] = []

    def moved() -> int:
        made.append(next(steps))
        return made[-1]

    assert until(lambda: 4 in made, "the fourth step", SHORT_S, SHORT_S / 10, moved=moved)
    with pytest.raises(TooLateError):
        until(lambda: False, "a miracle", SHORT_S, SHORT_S / 10, moved=moved)
    assert made[-2:] == [5, 5]
