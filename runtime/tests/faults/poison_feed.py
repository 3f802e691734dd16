"""Histories with poison in them: what is fed, what must come out, and what may be run for it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from millrace_e2e.ledger import Shown

KEYS = 97


@dataclass
class Stream:
    """Lines ``<id> <kind> <key>``; ``poison`` gives a kind to some numbers."""

    first: int
    count: int
    poison: Mapping[int, str] = field(default_factory=dict)

    def lines(self) -> list[str]:
        return [self.line(n) for n in range(self.first, self.first + self.count)]

    def line(self, number: int) -> str:
        kind = self.poison.get(number, "good")
        key = "bad" if kind == "combine" else f"k{number * 7919 % KEYS}"
        return f"p{number:07d} {kind} {key}"

    def text(self) -> bytes:
        return "".join(f"{line}\n" for line in self.lines()).encode()


def without(lines: Iterable[str], kinds: Iterable[str]) -> list[str]:
    """The lines of all other kinds."""
    bad = set(kinds)
    return [line for line in lines if line.split()[1] not in bad]


def of(lines: Iterable[str], kinds: Iterable[str]) -> list[str]:
    """The lines of these kinds."""
    good = set(kinds)
    return [line for line in lines if line.split()[1] in good]


def problems(lines: Iterable[str], rows: list[Shown], totals: list[Shown]) -> list[str]:
    """What is wrong with the sinks, if exactly these lines were to come out."""
    good = [line.split() for line in lines]
    found = []
    due = Counter(name for name, _, _ in good)
    shown = Counter(one.row["id"] for one in rows)
    if due != shown:
        found.append(f"rows: missing {due - shown}, too many {shown - due}")
    numbers: dict[str, list[int]] = {}
    for one in rows:
        numbers.setdefault(one.row["bucket"], []).append(one.row["n"])
    for bucket, given in sorted(numbers.items()):
        if sorted(given) != list(range(1, len(given) + 1)):
            found.append(f"numbers of {bucket} have gaps: {sorted(given)[:9]}…")
    last = {one.row["key"]: one.row["n"] for one in totals}
    keys = Counter(key for _, _, key in good)
    if keys != Counter(last):
        found.append(f"totals: {keys - Counter(last)} missing, {Counter(last) - keys} too many")
    return found


def attempts(trace: Path, stream: Stream, window: int) -> tuple[dict[int, int], int]:
    """How many window attempts were run for each window of ``stream`` as it was planned, and in all.

    Told from what the user code wrote down: the attempt that each task belonged to, and the line
    that it came to first.
    """
    first: dict[tuple[int, ...], int] = {}
    for line in (trace / "attempts").read_text().splitlines():
        *attempt, name = line.split()
        number, key = int(name[1:]) - stream.first, tuple(map(int, attempt))
        if 0 <= number < stream.count:
            first[key] = min(first.get(key, number), number)
    counts = Counter(number // window for number in first.values())
    return dict(counts), len(first)


def bound(roots: int, killers: int) -> int:
    """Most runs of a window that holds so many killers (design, section 4)."""
    return 3 * (1 + 2 * killers * math.ceil(math.log2(roots)))
