"""How much a topology document may hold, found out before anything is built of it.

Aliases count as what they stand for, since that is what the checks walk through. A few lines can
otherwise stand for billions.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

import yaml

from millrace.topology.problems import NOTHING, Problem, format_path

MOST_CHARS = 1 << 20
MOST_VALUES = 20_000
MOST_DEPTH = 64
MOST_PARTS = 1_000
MOST_INPUTS = 4_000
MOST_PROBLEMS = 100
MOST_OVERRIDES = 200
LONGEST_NUMBER = 100

_NUMBER = re.compile(r"[-+0-9.:_xoXOa-fA-F]+")
_LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


def too_much(text: str, what: str = "file") -> Problem | None:
    """What a YAML text has too much of; ``None`` where it fits or is malformed anyway."""
    if len(text) > MOST_CHARS:
        return Problem(
            what,
            NOTHING,
            f"has more than {MOST_CHARS:,} characters",
            "keep data out of it and split what is left into several topologies",
        )
    sizes: dict[str, int] = {}
    open_: list[tuple[str | None, int]] = []
    size = 0
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            if isinstance(event, yaml.CollectionStartEvent):
                open_.append((event.anchor, size))
                size += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                anchor, before = open_.pop()
                if anchor is not None:
                    sizes[anchor] = size - before
            elif isinstance(event, yaml.AliasEvent):
                size += sizes.get(event.anchor or "", 1)
            elif isinstance(event, yaml.ScalarEvent):
                size += 1
                if event.anchor is not None:
                    sizes[event.anchor] = 1
            line = event.start_mark.line + 1 if event.start_mark is not None else 1
            problem = _excess(event, size, len(open_))
            if problem is not None:
                message, remedy = problem
                return Problem(what, NOTHING, message, remedy, line if what == "file" else None)
    except (yaml.YAMLError, ValueError):
        return None
    return None


def _excess(event: yaml.Event, size: int, depth: int) -> tuple[str, str] | None:
    if depth > MOST_DEPTH:
        return f"is nested more than {MOST_DEPTH} deep here", "write it flatter"
    if size > MOST_VALUES:
        return (
            f"holds more than {MOST_VALUES:,} values up to here, aliases counted in full",
            "split it into several topologies, or use fewer aliases",
        )
    if isinstance(event, yaml.ScalarEvent) and event.implicit[0]:
        length = len(event.value)
        if length > LONGEST_NUMBER and _NUMBER.fullmatch(event.value):
            return f"holds a number of {length:,} characters here", "put text in quotes"
    return None


def too_many_parts(data: Any) -> Problem | None:
    """More sources, processors and sinks, or edges between them, than a topology may have."""
    found_spec = data.get("spec") if isinstance(data, dict) else None
    spec = found_spec if isinstance(found_spec, dict) else {}
    lists = [spec.get(name) for name in ("sources", "processors", "sinks")]
    parts = [part for one in lists if isinstance(one, list) for part in one]
    inputs = [part.get("inputs") for part in parts if isinstance(part, dict)]
    count = sum(len(one) for one in inputs if isinstance(one, list))
    for found, most, word in ((len(parts), MOST_PARTS, "parts"), (count, MOST_INPUTS, "inputs")):
        if found > most:
            message = f"has {found:,} {word}; a topology has at most {most:,}"
            return Problem("spec", NOTHING, message, "split it into several topologies")
    return None


def unprintable(value: Any, path: tuple[str | int, ...]) -> Problem | None:
    """A control character in a text that is not an option of the user's own code."""
    if not isinstance(value, str):
        return None
    own = "options" in path
    for character in value:
        kind = unicodedata.category(character)
        bad = kind == "Cs" or character == "\0"
        if bad or (kind in ("Cc", "Cf") and not own and _steers(character)):
            shown = f"U+{ord(character):04X}"
            return Problem(
                format_path(path) or "file",
                NOTHING,
                f"holds the character {shown}, which no text here may hold",
                "remove it",
            )
    return None


def _steers(character: str) -> bool:
    """Whether a character steers a terminal or the direction of what it shows."""
    if unicodedata.category(character) == "Cc":
        return character not in "\t\n\r"
    return "\u202a" <= character <= "\u202e" or "\u2066" <= character <= "\u2069"
