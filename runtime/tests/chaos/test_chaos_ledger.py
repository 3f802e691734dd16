from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.chaos.expected import Compared, compared
from millrace.chaos.ledger import UnreadableError, judge, read_rows
from millrace.topology.model import StreamTopology

ROWS = st.lists(st.integers(0, 11), max_size=12).map(
    lambda numbers: [{"word": "abc"[n % 3], "n": n // 3} for n in numbers]
)


@given(ROWS, ROWS)
def test_rows_are_compared_as_a_bag(expected: list[Any], seen: list[Any]) -> None:
    verdict = judge(expected, seen)
    wanted, found = (Counter((r["word"], r["n"]) for r in rows) for rows in (expected, seen))
    assert verdict.lost == (wanted - found).total()
    assert verdict.duplicated + verdict.wrong == (found - wanted).total()
    assert verdict.wrong == sum(n for row, n in found.items() if row not in wanted)
    assert verdict.exact == (wanted == found)
    assert (verdict.expected, verdict.seen) == (len(expected), len(seen))


@given(ROWS, ROWS)
def test_of_totals_the_last_row_of_each_key_counts(expected: list[Any], seen: list[Any]) -> None:
    verdict = judge(expected, seen, ("word",), ("n",))
    wanted, found = ({r["word"]: r["n"] for r in rows} for rows in (expected, seen))
    assert verdict.exact == (wanted == found)
    both = [(wanted[word], n) for word, n in found.items() if word in wanted]
    assert verdict.lost == len(wanted.keys() - found.keys()) + sum(n < due for due, n in both)
    assert verdict.duplicated == sum(n > due for due, n in both)
    assert verdict.wrong == len(found.keys() - wanted.keys())
    assert verdict.totals


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ({"n": "7", "sum": 2.5}, (0, 0, 0)),
        ({"n": "5", "sum": 2.5}, (1, 0, 0)),
        ({"n": "10", "sum": 2.75}, (0, 1, 0)),
        # What is lost or doubled may be below nought.
        ({"n": "5", "sum": 2.75}, (1, 0, 0)),
        ({"n": "10", "sum": 2.25}, (0, 1, 0)),
        ({"n": "7", "sum": 2.25}, (0, 0, 1)),
        ({"n": "7", "sum": 2.75}, (0, 0, 1)),
        ({"n": "many", "sum": 2.5}, (0, 0, 1)),
        ({"n": None, "sum": 2.5}, (0, 0, 1)),
        ({"n": "7"}, (0, 0, 1)),
    ],
)
def test_a_count_that_is_too_small_is_lost_and_one_that_is_too_large_counted_twice(
    row: dict[str, Any], found: tuple[int, int, int]
) -> None:
    verdict = judge([{"w": "a", "n": "7", "sum": 2.5}], [{"w": "a", **row}], ["w"], ["n"])
    assert (verdict.lost, verdict.duplicated, verdict.wrong) == found


@pytest.mark.parametrize("differs", [-1, 1])
@pytest.mark.parametrize("due", [7, 2.5, 2**63])
def test_what_another_total_that_differs_stands_for_nobody_can_tell(
    due: float, differs: int
) -> None:
    """A loss makes a least value greater, and a sum of what is below nought."""
    verdict = judge([{"w": "a", "least": due}], [{"w": "a", "least": due + differs}], ["w"], ["n"])
    assert (verdict.lost, verdict.duplicated, verdict.wrong) == (0, 0, 1)


def test_two_counts_of_a_row_that_say_different_things_are_wrong() -> None:
    verdict = judge([{"w": "a", "n": 7, "m": 7}], [{"w": "a", "n": 6, "m": 8}], ["w"], ["n", "m"])
    assert (verdict.lost, verdict.duplicated, verdict.wrong) == (0, 0, 1)


def test_large_counts_differ_by_one() -> None:
    verdict = judge([{"w": "a", "n": f"{2**53}"}], [{"w": "a", "n": f"{2**53 + 1}"}], ["w"], ["n"])
    assert (verdict.lost, verdict.duplicated, verdict.wrong) == (0, 1, 0)


@pytest.mark.parametrize(
    ("last", "counts"),
    [({}, ("n",)), ({"out": ("w",)}, ("n",)), ({"out": ("w", "least")}, ())],
)
def test_what_an_aggregate_counts_is_known_to_be_a_count(
    last: dict[str, tuple[str, ...]], counts: tuple[str, ...]
) -> None:
    columns = [{"name": "n", "function": "count"}, {"name": "least", "function": "min", "of": "x"}]
    document: dict[str, Any] = {
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "StreamTopology",
        "metadata": {"name": "totals"},
        "spec": {
            "sources": [{"name": "lines", "files": {"path": "in", "schema": "w string, x long"}}],
            "processors": [
                {
                    "name": "total",
                    "inputs": [{"from": "lines", "key": ["w"]}],
                    "aggregate": {"columns": columns},
                }
            ],
            "sinks": [{"name": "out", "inputs": [{"from": "total"}], "files": {"path": "out"}}],
        },
    }
    topology = StreamTopology.model_validate(document)
    told = compared(topology, topology.spec.sinks[0], last)
    assert told == Compared(last.get("out", ("w",)), counts)


def test_examples_name_the_rows() -> None:
    verdict = judge([{"id": 1}, {"id": 2}], [{"id": 2}, {"id": 2}, {"id": 3}])
    assert verdict.examples == ('lost: {"id": 1}', 'twice: {"id": 2}', 'wrong: {"id": 3}')
    totals = judge([{"w": "a", "n": 2}], [{"w": "a", "n": 3}], ["w"], ["n"])
    assert totals.examples == ('doubled: {"n": 3, "w": "a"}, expected {"n": 2, "w": "a"}',)


def test_files_are_read_by_their_ending_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "part-2.jsonl").write_text(json.dumps({"n": 2}) + "\n" + json.dumps({"n": 3}))
    (tmp_path / "part-1.jsonl").write_text(json.dumps({"n": 1}))
    (tmp_path / "part-3.csv").write_text("n\n4\n")
    pq.write_table(pa.table({"n": [5]}), tmp_path / "part-4.parquet")
    hidden = tmp_path / "_millrace"
    hidden.mkdir()
    (hidden / "part-5.jsonl").write_text(json.dumps({"n": 6}))
    assert [row["n"] for row in read_rows(tmp_path)] == [1, 2, 3, "4", 5]


def test_rows_that_cannot_be_read_are_no_rows_that_are_missing(tmp_path: Path) -> None:
    (tmp_path / "part-1.jsonl").write_text('{"n": ')
    with pytest.raises(UnreadableError, match="cannot be read as rows"):
        read_rows(tmp_path)
    with pytest.raises(UnreadableError, match="has no column 'word'"):
        judge([{"n": 1}], [], ["word"])


def test_a_field_of_csv_may_be_long_and_what_is_no_csv_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "part-1.csv"
    file.write_text("n\n" + "x" * 200_000 + "\n")
    [row] = read_rows(tmp_path)
    assert len(row["n"]) == 200_000

    def broken(_: object) -> object:
        raise csv.Error("line contains NUL")

    monkeypatch.setattr(csv, "DictReader", broken)
    with pytest.raises(UnreadableError, match=r"cannot be read as rows \(line contains NUL"):
        read_rows(tmp_path)
