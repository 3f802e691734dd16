"""A record with real state and dead letters, and the objects that it names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from millrace.engine.driver.letters import encode_letters
from millrace.ids import NO_WINDOW
from millrace.protocol.record import digest_of
from millrace.protocol.types import (
    Components,
    DeadSegment,
    Intent,
    Record,
    Replay,
    RootRange,
    Sealed,
    Segment,
    Staged,
    Tag,
    Totals,
)
from millrace.snapshots.writing import Subject
from millrace.state.keyed.aggregates import Aggregate
from millrace.state.keyed.aggregatestate import AggregateState

K = 16
UID = "0123456789abcdef0123456789abcdef"
COMPONENTS = Components(0, {"lines": 0}, {"count": 0}, {"out": 0})
DOCUMENT: dict[str, Any] = {"metadata": {"name": "first"}, "spec": {"keyGroups": K}}
WORDS = pa.schema([("word", pa.string())])


def counted(words: list[str]) -> tuple[bytes, str]:
    state = AggregateState(WORDS, ["word"], (Aggregate("n", "count"),), K)
    state.begin()
    state.update(pa.RecordBatch.from_arrays([pa.array(words)], schema=WORDS))
    blob = state.base()
    return blob.data, blob.digest


def content() -> tuple[Record, dict[str, bytes]]:
    """A committed record behind window 7, and its objects."""
    base, base_digest = counted(["a", "b", "a"])
    delta, delta_digest = counted(["c"])
    letters = encode_letters((), {})
    names = ("1.6.1.1.0.0/state/count", "1.7.1.1.0.0/state/count", "1.5.1.1/dead")
    every = (1 << K) - 1
    chain = (
        Segment(names[0], 6, every, True, 2, len(base), base_digest),
        Segment(names[1], 7, every, False, 1, len(delta), delta_digest),
    )
    record = Record(
        UID,
        Tag(1, 3, 2, 9),
        7,
        {"lines": {"files": [["a.txt", 120]]}},
        (Intent(8, (RootRange("lines", 5, 100, 20),)),),
        {"count": chain},
        (Replay("lines", 5, 40, 1, 0.5),),
        (DeadSegment(names[2], 5, 1),),
        (),
        7,
        Totals(99, 7),
        components=COMPONENTS,
    )
    return record, dict(zip(names, (base, delta, letters), strict=True))


def unpublished(record: Record) -> Record:
    """The same before its last window was confirmed by the sinks."""
    staged = (Staged("out", "1.7.1.0.0.0/staged/out", "d", 3, 30),)
    last = Sealed(record.sealed, digest_of(staged), staged)
    return replace(record, unpublished=(last,), published=record.sealed - 1)


def empty(uid: str = UID) -> Record:
    """What a topology begins with."""
    return Record(uid, Tag(1, 1, 1, 1), NO_WINDOW, {}, (), {}, (), (), (), NO_WINDOW)


def subject(record: Record, asked: str = "", created: float = 1000.0) -> Subject:
    return Subject("first", DOCUMENT, K, record, created, asked)


class Objects:
    """What state servers hold; told of each read."""

    def __init__(self, held: Mapping[str, bytes]) -> None:
        self.held = dict(held)
        self.read: list[tuple[str, int]] = []

    def __call__(self, name: str, groups: int, digest: str) -> bytes:
        self.read.append((name, groups))
        return self.held[name]


def shown() -> None:
    """All windows are shown."""
