"""What is counted between two answers; safe for several threads, and no dearer than a counter."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from millrace.metrics.catalogue import Metric

Labels = tuple[str, ...]
"""Values in the order of ``Metric.labels``."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """``counts[k]`` values were at most the k-th bound; the last one counts all of them."""

    counts: tuple[int, ...]
    total: float


@dataclass(frozen=True, slots=True)
class Sample:
    """A metric's value at one moment; a ``Distribution`` where it is a histogram."""

    metric: Metric
    value: float | Distribution
    labels: Labels = ()


class Counts:
    """A counter for each of the values that its labels may have, from 0 on."""

    def __init__(self, metric: Metric, labels: Iterable[Labels]) -> None:
        self._metric = metric
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(labels, 0)

    def add(self, *labels: str) -> None:
        """One more. Raises ``KeyError`` for labels that were not named."""
        with self._lock:
            self._counts[labels] += 1

    def samples(self) -> Iterator[Sample]:
        with self._lock:
            counts = dict(self._counts)
        for labels, count in counts.items():
            yield Sample(self._metric, count, labels)


class Histogram:
    """The distribution of what was observed, under one set of labels."""

    def __init__(self, metric: Metric, labels: Labels = ()) -> None:
        self._metric = metric
        self._labels = labels
        self._lock = threading.Lock()
        self._counts = [0] * (len(metric.bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        place = bisect_left(self._metric.bounds, value)
        with self._lock:
            self._counts[place] += 1
            self._total += value

    def samples(self) -> Iterator[Sample]:
        with self._lock:
            counts, total = tuple(accumulate(self._counts)), self._total
        yield Sample(self._metric, Distribution(counts, total), self._labels)


def states(metric: Metric, now: str | None, known: Iterable[str]) -> Iterator[Sample]:
    """1 for the state that something is in and 0 for the others; nothing where none is known."""
    if now is not None:
        for one in known:
            yield Sample(metric, float(one == now), (one,))


def known(metric: Metric, value: float | bool | None) -> Iterator[Sample]:
    """A value where there is one."""
    if value is not None:
        yield Sample(metric, float(value))
