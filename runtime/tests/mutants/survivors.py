"""Reads docs/mutants.md: the mutants that survive, and why each may."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

REPORT = Path(__file__).parents[3] / "docs" / "mutants.md"

KINDS = ("Equivalent: ", "Accepted: ")
"""What a reason begins with."""


def explained(text: str | None = None) -> dict[str, str]:
    """Reason of each mutant that is named. Raises ``ValueError`` for one without a reason, or
    named twice."""
    reason = ""
    found: dict[str, str] = {}
    names: Counter[str] = Counter()
    for line in (REPORT.read_text() if text is None else text).splitlines():
        if line.startswith("### "):
            reason = line.removeprefix("### ")
        elif line.startswith("#"):
            reason = ""
        elif line.startswith("- ") and " → " in line:
            name = line.removeprefix("- ")
            names[name] += 1
            found[name] = reason
    twice = [name for name, count in names.items() if count > 1]
    bare = [name for name, why in found.items() if not why.startswith(KINDS)]
    if twice or bare:
        raise ValueError(f"named twice: {twice}; without a reason: {bare}")
    return found
