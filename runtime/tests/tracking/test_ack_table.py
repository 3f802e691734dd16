"""The open-addressing table against a dictionary."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.errors import ProtocolError
from millrace.ids import mix64
from millrace.tracking.table import MAX_TASK, RECORD_BYTES, AckTable


class Model:
    """(check value, task or None) by root, in a dictionary."""

    def __init__(self) -> None:
        self.records: dict[int, tuple[int, int | None]] = {}

    def fold(self, root: int, value: int, task: int | None) -> list[tuple[int, int]]:
        check, owner = self.records.get(root, (0, None))
        check, owner = check ^ value, owner if task is None else task
        self.records[root] = (check, owner)
        if check or owner is None:
            return []
        del self.records[root]
        return [(root, owner)]


ROOTS = st.integers(0, 30) | st.integers(0, 30).map(mix64)
VALUES = st.sampled_from([1, 2, 3, 1 << 63])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["init", "update", "fail"]),
        st.lists(st.tuples(ROOTS, VALUES, st.integers(0, MAX_TASK)), max_size=12),
    ),
    max_size=12,
)


@given(st.integers(1, 70), STEPS)
@settings(deadline=None, max_examples=200)
def test_the_table_equals_a_dictionary(
    capacity: int, steps: list[tuple[str, list[tuple[int, int, int]]]]
) -> None:
    table, model = AckTable(capacity), Model()
    for kind, items in steps:
        roots = np.array([root for root, _, _ in items], np.uint64)
        values = np.array([value for _, value, _ in items], np.uint64)
        if kind == "fail":
            known = {root for root, _, _ in items} & model.records.keys()
            assert table.fail(roots) == len(known)
            for root in known:
                del model.records[root]
        else:
            tasks = np.array([task for _, _, task in items], np.uint32)
            done = (
                table.init(roots, values, tasks) if kind == "init" else table.update(roots, values)
            )
            expected = [
                one
                for root, value, task in items
                for one in model.fold(root, value, task if kind == "init" else None)
            ]
            assert list(zip(*(part.tolist() for part in done), strict=True)) == expected
        assert len(table) == len(model.records)
        for root in {root for _, batch in steps for root, _, _ in batch}:
            assert table.get(root) == model.records.get(root)


def test_a_life_in_bulk() -> None:
    """Init, two updates, complete: the table grows with what lives and ends empty."""
    rng = np.random.default_rng(3)
    roots = rng.permutation(np.arange(100_000, dtype=np.uint64))
    seeds, first = rng.integers(1, 1 << 63, (2, len(roots)), dtype=np.uint64)
    table = AckTable()
    early, _ = table.update(roots[:1000], first[:1000])
    done, _ = table.init(roots, seeds, np.zeros(len(roots), np.uint32))
    table.update(roots[1000:], first[1000:])
    assert (len(early), len(done), len(table)) == (0, 0, len(roots))
    assert table.size_bytes <= 1.5 * RECORD_BYTES / 0.75 * len(roots) + 1000
    order = rng.permutation(len(roots))
    complete, tasks = table.update(roots[order], (seeds ^ first)[order])
    assert (complete == roots[order]).all()
    assert not tasks.any()
    assert len(table) == 0


def test_wrong_arguments_are_refused() -> None:
    one = np.ones(1, np.uint64)
    with pytest.raises(ProtocolError, match="capacity is 0"):
        AckTable(0)
    with pytest.raises(ProtocolError, match="task id 4294967295 is above"):
        AckTable().init(one, one, np.array([0xFFFF_FFFF], np.uint32))
    with pytest.raises(ProtocolError, match="1 roots came with 2 values"):
        AckTable().update(one, np.ones(2, np.uint64))
