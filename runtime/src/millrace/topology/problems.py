"""What is wrong with a topology, said so that it can be mended without looking anything up."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from millrace.addresses import hidden
from millrace.errors import TopologyError

FieldPath = tuple[str | int, ...]
"""Where something stands in a topology: ``("spec", "sources", 0, "name")``."""

_SHOWN_CHARS = 60
_TEXT_CHARS = 900
_LONGEST_GUESSED = 100
_MOST_COMPARED = 100
_MOST_LISTED = 50


class _Nothing:
    def __repr__(self) -> str:
        return "NOTHING"


NOTHING: Final = _Nothing()
"""The value of a problem about something that is not there."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to mend.

    ``path`` is written as in ``spec.processors[2].inputs[0].from``; ``value`` is what stands
    there, or ``NOTHING``; ``line`` counts from 1 where the file is known.
    """

    path: str
    value: Any
    message: str
    remedy: str
    line: int | None = None

    def __str__(self) -> str:
        path, message, remedy = (_cut(t) for t in (self.path, self.message, self.remedy))
        where = f"{path} (line {self.line})" if self.line else path
        shown = "" if self.value is NOTHING else f"{shorten(self.value, self.path)} "
        return f"{where}: {shown}{message}; {remedy}"


class InvalidTopologyError(TopologyError):
    """A topology with problems; ``problems`` holds all that were found."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


def format_path(path: Iterable[str | int]) -> str:
    """``("spec", "sources", 0, "name")`` as ``spec.sources[0].name``.

    Keys that hold a dot or a bracket are written in brackets.
    """
    text = ""
    for step in path:
        if isinstance(step, int) or any(c in ".[]" for c in step):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text


def shorten(value: Any, path: str = "") -> str:
    """A value that stands at ``path`` on one line, cut where it is long, without passwords."""
    value = hidden(value, path)
    text = f'"{value}"' if isinstance(value, str) else _yaml_like(value)
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_CHARS else f"{text[:_TEXT_CHARS]}…"


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that ``name`` was probably meant to be."""
    if len(name) > _LONGEST_GUESSED:
        return None
    # Comparing takes a while for each name, so among many only the likeliest are looked at.
    names = list(known)
    if len(names) > _MOST_COMPARED:
        names = [n for n in names if n[:1].lower() == name[:1].lower()][:_MOST_COMPARED]
    folded = {k.replace("_", "").lower(): k for k in names if len(k) <= _LONGEST_GUESSED}
    found = difflib.get_close_matches(name.replace("_", "").lower(), folded, n=1, cutoff=0.6)
    return folded[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A remedy for a name that is not known: the closest one, or all of them."""
    names = list(known)
    guess = closest(name, names)
    if guess is not None:
        return f"did you mean {guess!r}?"
    if len(names) > _MOST_LISTED:
        return f"use one of {', '.join(names[:_MOST_LISTED])} and {len(names) - _MOST_LISTED} more"
    return f"use one of {', '.join(names)}" if names else "there is none to name"


def _yaml_like(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value)
