"""Many runs over several processes, and what they come to."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from millrace.simulate.bugs import BUGS
from millrace.simulate.machines import Machines
from millrace.simulate.simulation import Outcome, Simulation

CHUNK = 25
"""Runs that a process does between two reports."""


@dataclass(slots=True)
class Summary:
    """What a series of runs came to; ``failed`` holds those that broke an invariant."""

    runs: int = 0
    failed: list[Outcome] = field(default_factory=list)
    actions: list[int] = field(default_factory=list)
    crashes: list[int] = field(default_factory=list)
    seals: list[int] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.runs += 1
        self.actions.append(outcome.actions)
        self.crashes.append(outcome.crashes)
        self.seals.append(outcome.seals)
        if outcome.violation is not None:
            self.failed.append(outcome)

    def document(self) -> dict[str, object]:
        """The numbers that ``--help`` describes, ready for JSON."""
        return {
            "runs": self.runs,
            "violations": len(self.failed),
            "actions": _median(self.actions),
            "crashes": _median(self.crashes),
            "seals": _median(self.seals),
            "failed_seeds": [outcome.seed for outcome in self.failed],
        }


def run_one(
    seed: int, bug: str | None = None, trace: Callable[[str], None] | None = None
) -> Outcome:
    """One run; the same seed and bug give the same run, in every process."""
    machines = BUGS[bug].machines() if bug is not None else Machines()
    return Simulation(seed, machines, trace=trace).run()


def run_many(seeds: Iterable[int], bug: str | None, jobs: int) -> Iterator[Outcome]:
    """Runs in the order of their seeds, ``jobs`` at a time."""
    if jobs <= 1:
        for seed in seeds:
            yield run_one(seed, bug)
        return
    listed = list(seeds)
    chunks = [listed[at : at + CHUNK] for at in range(0, len(listed), CHUNK)]
    with ProcessPoolExecutor(jobs) as pool:
        try:
            for outcomes in pool.map(_run_chunk, chunks, itertools.repeat(bug)):
                yield from outcomes
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _run_chunk(seeds: Sequence[int], bug: str | None) -> list[Outcome]:
    return [run_one(seed, bug) for seed in seeds]


def _median(values: Sequence[int]) -> float:
    return statistics.median(values) if values else 0
