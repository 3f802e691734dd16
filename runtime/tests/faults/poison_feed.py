"""Histories with poison in them: what is fed, what must come out, and what may be run for it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from command_calls import called

from millrace_e2e import feed, harness, ledger
from millrace_e2e.harness import Place
from millrace_e2e.ledger import Shown

KEYS = 97
RUN_S = 1500.0


@dataclass(frozen=True)
class Stream:
    """Lines ``<id> <kind> <key>``; ``poison`` gives a kind to some numbers."""

    count: int
    poison: Mapping[int, str] = field(default_factory=dict)

    def lines(self) -> list[str]:
        return [self.line(number) for number in range(self.count)]

    def line(self, number: int) -> str:
        kind = self.poison.get(number, "good")
        key = "bad" if kind in ("combine", "cast") else number * 7919 % KEYS
        return f"p{number:07d} {kind} {key}"

    def text(self) -> bytes:
        return "".join(f"{line}\n" for line in self.lines()).encode()

    def of(self, kinds: Iterable[str]) -> list[str]:
        """The lines of some kinds."""
        return [line for line in self.lines() if kind_of(line) in set(kinds)]

    def without(self, kinds: Iterable[str]) -> list[str]:
        """The lines of all other kinds."""
        return [line for line in self.lines() if kind_of(line) not in set(kinds)]


def kind_of(line: str) -> str:
    return line.split()[1]


@dataclass(frozen=True)
class Snapshot:
    """What a reader of the folders and a user of the command line saw after a run."""

    rows: list[Shown]
    totals: list[Shown]
    letters: list[dict[str, Any]]


@dataclass
class Story:
    """A history of a few runs, with what the user code wrote down meanwhile."""

    place: Place
    stream: Stream
    window: int
    after: list[Snapshot] = field(default_factory=list)

    @property
    def trace(self) -> Path:
        return self.place.flaky

    def begin(self, document: Mapping[str, Any]) -> None:
        """Run what is fed to its end."""
        self.place.write(document)
        feed.add_file(self.place.texts / "a.txt", self.stream.text())
        self.run()

    def run(self, *arguments: str) -> None:
        environment = {"FAULTS_TRACE": str(self.trace)}
        harness.run_to_end(self.place, *arguments, environment=environment, deadline_s=RUN_S)
        rows, totals = (ledger.read_rows(self.place.sink(name)) for name in ("rows", "totals"))
        self.after.append(Snapshot(rows, totals, self.letters()))

    def mend(self, kinds: Iterable[str]) -> None:
        """The user changes the code, so that these kinds are poison no more."""
        for kind in kinds:
            (self.trace / f"mended-{kind}").touch()

    def letters(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.command("list", "--json").splitlines()]

    def command(self, *arguments: str) -> str:
        """``millrace dead-letters``."""
        done = called("dead-letters", *arguments, "--workdir", str(self.place.work))
        assert done.returncode == 0, done.stderr
        return done.stdout

    # -- what the user code wrote down

    def attempts(self) -> dict[int, int]:
        """How many window attempts there were for each window as it was planned.

        Told by the attempt that each task belonged to and the line that it came to first.
        """
        first: dict[tuple[int, ...], int] = {}
        for line in (self.trace / "attempts").read_text().splitlines():
            *attempt, name = line.split()
            number, key = int(name[1:]), tuple(map(int, attempt))
            first[key] = min(first.get(key, number), number)
        return Counter(number // self.window for number in first.values())

    def unlucky(self) -> set[str]:
        """Lines whose two calls in one task both raised at random."""
        calls = Counter((self.trace / "random").read_text().splitlines())
        return {call.split()[0] for call, number in calls.items() if number > 1}


def problems(lines: Sequence[str], snapshot: Snapshot) -> list[str]:
    """What is wrong with the sinks, if exactly these lines were to come out."""
    good = [line.split() for line in lines]
    found = []
    due = Counter(name for name, _, _ in good)
    shown = Counter(one.row["id"] for one in snapshot.rows)
    if due != shown:
        found.append(f"rows: missing {due - shown}, too many {shown - due}")
    numbers: dict[str, list[int]] = {}
    for one in snapshot.rows:
        numbers.setdefault(one.row["bucket"], []).append(one.row["n"])
    for bucket, given in sorted(numbers.items()):
        if sorted(given) != list(range(1, len(given) + 1)):
            found.append(f"numbers of {bucket} have gaps: {sorted(given)[:9]}…")
    last = {one.row["key"]: one.row["n"] for one in snapshot.totals}
    keys = Counter(key for _, _, key in good)
    if keys != Counter(last):
        found.append(f"totals: missing {keys - Counter(last)}, too many {Counter(last) - keys}")
    return found


def bound(roots: int, killers: int) -> int:
    """Most runs of a window that holds so many killers."""
    return 3 * (1 + 2 * killers * math.ceil(math.log2(roots)))
