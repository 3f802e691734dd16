"""The dead letters of a run beside those of its twin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from millrace.local.inspect.letters import Letter

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class LettersVerdict:
    """How many dead letters the twin has (``expected``) and the run (``found``), and how many are
    in one of both alone; ``examples`` are lines for people, a few of each."""

    expected: int
    found: int
    lost: int
    wrong: int
    examples: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether both have the same."""
        return not (self.lost or self.wrong)


def compare(expected: Sequence[Letter], found: Sequence[Letter]) -> LettersVerdict:
    """Compare letters as a bag: by source and payload, or those of a source of which some payload
    is not known, as that of a letter whose object is damaged, by their number alone."""
    unknown = {one.source for one in (*expected, *found) if one.payload is None}
    due = Counter(_text(one, unknown) for one in expected)
    there = Counter(_text(one, unknown) for one in found)
    lost, wrong = due - there, there - due
    return LettersVerdict(
        due.total(),
        there.total(),
        lost.total(),
        wrong.total(),
        (*_examples("lost", lost), *_examples("wrong", wrong)),
    )


def _text(letter: Letter, unknown: Collection[str]) -> str:
    if letter.payload is None or letter.source in unknown:
        return f"{letter.source}: a letter, whose payload is not compared"
    return f"{letter.source}: {letter.payload.decode(errors='backslashreplace')}"


def _examples(what: str, letters: Counter[str]) -> list[str]:
    return [
        f"{what}{f' ({count} times)' if count > 1 else ''}: {text[:200]}"
        for text, count in sorted(letters.items())[:_SHOWN]
    ]
