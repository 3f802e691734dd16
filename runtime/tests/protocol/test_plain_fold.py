"""The fold over dictionaries takes what belongs to its slice and nothing else."""

from __future__ import annotations

import pytest

from millrace.ids import TRACKING_PARTITIONS
from millrace.protocol.acklog import Open, partition_of
from millrace.protocol.types import AttemptId, TaskId
from millrace.simulate.parts.plainfold import PlainFold, PlainMessage

ATTEMPT = AttemptId(1, 1, 1)
HERE = partition_of(1, 0, TRACKING_PARTITIONS)


def accepts(nets: dict[str, dict[int, int]], roots: int = 3) -> bool:
    fold = PlainFold(Open(ATTEMPT, roots, (">s", "s>p")), HERE)
    return fold.accepts(PlainMessage(ATTEMPT, TaskId(0, 0, 0), HERE, nets))


def test_roots_of_the_slice_on_known_edges_are_taken() -> None:
    assert accepts({})
    assert accepts({">s": {0: 1, 2: 5}, "s>p": {1: 4}})


@pytest.mark.parametrize(
    "nets",
    [
        {"s>q": {0: 1}},
        {">s": {0: 1}, "s>q": {0: 1}},
        {">s": {3: 1}},
        {">s": {0: 1, 3: 1}},
        {">s": {-1: 1}},
        {">s": {0: 1, -1: 1}},
    ],
)
def test_what_is_not_of_the_slice_is_refused(nets: dict[str, dict[int, int]]) -> None:
    assert not accepts(nets)


def test_roots_of_another_slice_are_refused() -> None:
    far = next(s for s in range(100_000) if partition_of(1, s, TRACKING_PARTITIONS) != HERE)
    assert not accepts({">s": {far: 1}}, far + 1)
    assert not accepts({">s": {0: 1, far: 1}}, far + 1)
