"""Why roots failed, counted: what events, a stop and the list of dead letters say first."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from millrace.protocol.types import FailedRoot, Replay

SHOWN = 3
"""Most causes that one sentence names."""

TEXT_LENGTH = 200

_CLASS = re.compile(r"[A-Za-z_][\w.]*(?=: |$)")
_QUOTED = re.compile(r"(?<!\w)(?:'[^']*'|\"[^\"]*\")")
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Cause:
    """``count`` roots failed alike in ``processor``; ``error`` is what most of them say."""

    processor: str
    error: str
    count: int


def causes(failed: Iterable[FailedRoot | Replay], most: int = SHOWN) -> tuple[Cause, ...]:
    """The most frequent causes, those of equal counts by name.

    Roots are alike that failed in one processor with one class of error, or, where the text
    begins with none, with texts whose first clauses differ in numbers and quoted values only:
    behind a semicolon stands what the record holds.
    """
    groups: dict[tuple[str, str], Counter[str]] = {}
    for root in failed:
        groups.setdefault((root.processor, _kind(root.error)), Counter())[root.error] += 1
    ordered = sorted(groups.items(), key=lambda one: (-one[1].total(), one[0]))
    return tuple(
        Cause(processor, min(texts, key=lambda t: (-texts[t], t)), texts.total())
        for (processor, _), texts in ordered[:most]
    )


def told(found: Iterable[Cause]) -> str:
    """Causes as part of a sentence."""
    return "; ".join(f"{one.count} in {one.processor!r} ({_short(one.error)})" for one in found)


def counted(count: int, word: str) -> str:
    """``1 root``, ``2 roots``."""
    return f"{count} {word if count == 1 else word + 's'}"


def _kind(error: str) -> str:
    named = _CLASS.match(error)
    clause = _QUOTED.sub("'…'", error).partition("; ")[0]
    return named[0] if named else _NUMBER.sub("#", clause)


def _short(error: str) -> str:
    text = " ".join(error.split())
    return text if len(text) <= TEXT_LENGTH else f"{text[:TEXT_LENGTH]}…"
