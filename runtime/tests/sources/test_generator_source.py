"""The generator makes the same records for the same seed, at its rate, in any cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from millrace.clock import Clock
from millrace.errors import SourceError
from millrace.protocol.types import Json, RootRange
from millrace.sources.base import cut
from millrace.sources.generator import GeneratorSource


class HandClock(Clock):
    def __init__(self) -> None:
        self.at_s = 1000.0

    def now_s(self) -> float:
        raise AssertionError("the wall clock may jump")

    def monotonic_s(self) -> float:
        return self.at_s


def make(clock: HandClock | None = None, **options: Any) -> GeneratorSource:
    return GeneratorSource("gen", options, Path(), clock)


def rows(source: GeneratorSource, piece: RootRange) -> list[dict[str, Any]]:
    return [row for batch in source.read(piece) for row in batch.data.to_pylist()]


def drain(source: GeneratorSource, limit: int) -> tuple[list[dict[str, Any]], list[RootRange]]:
    offsets: Json = None
    ranges: list[RootRange] = []
    while True:
        plan = source.plan(offsets, limit)
        ranges += plan.ranges
        offsets = json.loads(json.dumps(plan.offsets))
        if plan.drained:
            return [row for piece in ranges for row in rows(source, piece)], ranges


@pytest.mark.parametrize(("partitions", "limit"), [(1, 1000), (1, 7), (3, 100), (7, 11)])
def test_every_cut_gives_the_same_records(partitions: int, limit: int) -> None:
    one, _ = drain(make(seed=5, count=1000), 1000)
    made, ranges = drain(make(seed=5, count=1000, partitions=partitions), limit)
    assert sorted(made, key=lambda row: row["id"]) == one
    assert [row["id"] for row in one] == list(range(1000))
    source = make(seed=5, count=1000, partitions=partitions)
    piece = ranges[0]
    assert [r for part in cut(source, piece, 3) for r in rows(source, part)] == rows(source, piece)
    assert rows(source, RootRange("gen", piece.partition, piece.start, 1, source.locate(piece, 0)))
    assert len({(p.partition, p.start + i) for p in ranges for i in range(p.count)}) == 1000


def test_seeds_differ_and_values_spread() -> None:
    first, _ = drain(make(seed=1, count=20_000), 20_000)
    second, _ = drain(make(seed=2, count=20_000), 20_000)
    assert [r["value"] for r in first] != [r["value"] for r in second]
    assert len({r["key"] for r in first}) == 1000
    assert sum(r["value"] for r in first) / len(first) == pytest.approx(0.5, abs=0.02)
    assert all(0 <= r["value"] < 1 for r in first)


def test_the_rate_follows_the_clock() -> None:
    clock = HandClock()
    source = make(clock, rate=100)
    plan = source.plan(None, 1000)
    assert plan.records == 0
    clock.at_s += 0.5
    plan = source.plan(plan.offsets, 1000)
    assert plan.records == 50
    clock.at_s += 10
    plan = source.plan(plan.offsets, 300)
    assert (plan.records, plan.lag_records, plan.drained) == (300, 700, False)


def test_while_nothing_runs_nothing_is_made() -> None:
    """Offsets say how many records there were; those of before said since when, too."""
    clock = HandClock()
    for offsets in ({"n": [120], "since": 5e9}, {"n": [120], "since": 3.0}, {"n": [120]}):
        source = make(clock, rate=100)
        clock.at_s += 3600
        assert source.plan(offsets, 1000).records == 0
        clock.at_s += 0.5
        assert source.plan(offsets, 1000).records == 50


def test_without_count_it_never_ends() -> None:
    plan = make().plan(None, 100)
    assert (plan.records, plan.drained, plan.lag_records) == (100, False, None)


def test_another_number_of_partitions_is_refused() -> None:
    offsets = make(partitions=2).plan(None, 10).offsets
    with pytest.raises(SourceError, match=r"generator\.partitions is 3.*from 2 partitions"):
        make(partitions=3).plan(offsets, 10)


def test_wrong_options_are_explained() -> None:
    with pytest.raises(SourceError, match=r"generator\.rate is 0; give a whole number"):
        make(rate=0)
