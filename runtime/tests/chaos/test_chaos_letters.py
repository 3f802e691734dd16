"""Dead letters of a run that was killed are those of its twin, or the campaign has failed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from millrace.chaos.campaign import Course
from millrace.chaos.ledger import judge
from millrace.chaos.letters import LettersVerdict, compare
from millrace.chaos.report import Report
from millrace.chaos.target import Look
from millrace.local.inspect.letters import Letter
from millrace.topology.parts import Guarantee


def letter(payload: bytes | None, number: int = 0, source: str = "lines") -> Letter:
    return Letter("1.1.1.1/dead", number, number, source, 0, number, 3, "parse", "why", payload)


BAD = [letter(b"bad one"), letter(b"bad two"), letter(b"bad two", 1)]


def sizes(verdict: LettersVerdict) -> tuple[int, int, int, int]:
    return verdict.expected, verdict.found, verdict.lost, verdict.wrong


def test_letters_are_the_same_wherever_windows_ended() -> None:
    found = [
        replace(one, window=9, index=n, error="at another moment") for n, one in enumerate(BAD)
    ]
    assert compare(BAD, found[::-1]).exact
    assert compare([], []).exact


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (BAD[:2], (3, 2, 1, 0)),
        ([*BAD, letter(b"bad one", 7)], (3, 4, 0, 1)),
        # As many, and not the same.
        ([*BAD[:2], letter(b"good")], (3, 3, 1, 1)),
        ([*BAD[:2], letter(b"bad two", 1, "others")], (3, 3, 1, 1)),
    ],
)
def test_a_letter_that_only_one_of_both_has_is_seen(
    found: list[Letter], told: tuple[int, int, int, int]
) -> None:
    verdict = compare(BAD, found)
    assert sizes(verdict) == told
    assert not verdict.exact


def test_where_a_payload_is_not_known_letters_are_counted() -> None:
    assert compare(BAD, [*BAD[:2], letter(None)]).exact
    assert sizes(compare(BAD, [letter(None)])) == (3, 1, 2, 0)


def test_those_of_other_sources_are_compared_all_the_same() -> None:
    due, found = [*BAD, letter(b"x", source="more")], [*BAD, letter(b"y", source="more")]
    assert sizes(compare([*due, letter(None)], [*found, letter(None)])) == (5, 5, 1, 1)
    other = [*BAD[1:], letter(b"x", source="more"), letter(None, source="more")]
    assert sizes(compare([*due, letter(None)], other)) == (5, 4, 2, 1)


@pytest.mark.parametrize(
    ("guarantee", "lost", "wrong"),
    [
        (Guarantee.EXACTLY_ONCE, True, True),
        (Guarantee.AT_LEAST_ONCE, True, True),
        # What is dropped with its window is no dead letter.
        (Guarantee.AT_MOST_ONCE, False, True),
    ],
)
def test_a_report_fails_where_dead_letters_differ(
    guarantee: Guarantee, lost: bool, wrong: bool
) -> None:
    def report(letters: LettersVerdict | None) -> Report:
        course = Course((), (), (), Look(1, 1, working=False, idle=True, dead_letters=2))
        right = {"out": judge([{"n": 1}], [{"n": 1}])}
        return Report("t", guarantee, 1, (), course, right, (), letters=letters)

    assert report(None).failure is None
    assert report(compare(BAD, BAD)).failure is None
    assert bool(report(compare(BAD, BAD[:2])).failure) == lost
    assert bool(report(compare(BAD[:2], BAD)).failure) == wrong
    differing = report(compare(BAD, [letter(b"good")]))
    assert differing.failure is not None
    assert differing.failure.startswith(
        "dead letters are not those of the twin: 3 expected, 1 found"
    )
    assert "dead letters: 3 expected, 3 lost, 1 that the twin does not have" in differing.lines()
    assert "  wrong: lines: good" in differing.lines()
    document = json.loads(json.dumps(differing.document()))
    assert (document["letters"]["lost"], document["letters"]["wrong"]) == (3, 1)
    assert report(None).document()["letters"] is None
