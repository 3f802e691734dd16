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
from millrace.chaos.ledger import (
    RunningTotals,
    Seen,
    SinkVerdict,
    UnreadableError,
    judge,
    read_rows,
)
from millrace.topology.model import StreamTopology

ROWS = st.lists(st.integers(0, 11), max_size=12).map(
    lambda numbers: [{"word": "abc"[n % 3], "n": n // 3} for n in numbers]
)

OF_W = RunningTotals(("w",), ("n",))


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
    verdict = judge(expected, seen, RunningTotals(("word",), ("n",)))
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
    verdict = judge([{"w": "a", "n": "7", "sum": 2.5}], [{"w": "a", **row}], OF_W)
    assert (verdict.lost, verdict.duplicated, verdict.wrong) == found


@pytest.mark.parametrize("differs", [-1, 1])
@pytest.mark.parametrize("due", [7, 2.5, 2**63])
def test_what_another_total_that_differs_stands_for_nobody_can_tell(
    due: float, differs: int
) -> None:
    """A loss makes a least value greater, and a sum of what is below nought."""
    verdict = judge([{"w": "a", "least": due}], [{"w": "a", "least": due + differs}], OF_W)
    assert (verdict.lost, verdict.duplicated, verdict.wrong) == (0, 0, 1)


def test_two_counts_of_a_row_that_say_different_things_are_wrong() -> None:
    verdict = judge(
        [{"w": "a", "n": 7, "m": 7}],
        [{"w": "a", "n": 6, "m": 8}],
        RunningTotals(("w",), ("n", "m")),
    )
    assert (verdict.lost, verdict.duplicated, verdict.wrong) == (0, 0, 1)


def test_large_counts_differ_by_one() -> None:
    verdict = judge([{"w": "a", "n": f"{2**53}"}], [{"w": "a", "n": f"{2**53 + 1}"}], OF_W)
    assert (verdict.lost, verdict.duplicated, verdict.wrong) == (0, 1, 0)


CHANGES = RunningTotals(("w",), ("n",), once=True, rising=True)
"""What an aggregate by ``w`` shows."""


def changes(*shown: tuple[int, int | str]) -> SinkVerdict:
    """The verdict on (window, count) of one key of which 2 are due."""
    rows = [{"w": "a", "n": n} for _, n in shown]
    return judge([{"w": "a", "n": 2}], rows, CHANGES, [window for window, _ in shown])


@pytest.mark.parametrize(
    ("shown", "found"),
    [
        ([(1, 1), (4, 2)], (0, 0, 0)),
        ([(1, 2)], (0, 0, 0)),
        # A window that is shown under two numbers, and another one, too.
        ([(1, 1), (2, 1), (3, 2)], (0, 1, 0)),
        ([(1, 1), (2, 1), (3, 2), (4, 2)], (0, 2, 0)),
        ([(1, 1), (2, 2), (3, 1), (4, 2)], (0, 2, 0)),
        # Both parts of a window, or one of them twice.
        ([(1, 1), (1, 2)], (0, 1, 0)),
        ([(1, 2), (1, 2)], (0, 1, 0)),
        # What was counted too often, and is taken back.
        ([(1, 7), (2, 1), (3, 2)], (0, 0, 1)),
        ([(1, 7), (2, 2)], (0, 0, 1)),
        # The last row is not the one that is due, and counts once.
        ([(1, 3), (2, 1)], (1, 0, 0)),
        ([(1, 3), (2, 3)], (0, 1, 0)),
        ([(1, 3), (2, 3), (3, 3)], (0, 2, 0)),
        # No number at all is for the last row to tell.
        ([(1, "many"), (2, 2)], (0, 0, 0)),
    ],
)
def test_totals_rise_from_window_to_window(
    shown: list[tuple[int, int | str]], found: tuple[int, int, int]
) -> None:
    verdict = changes(*shown)
    assert (verdict.lost, verdict.duplicated, verdict.wrong) == found


def test_what_was_shown_before_the_last_total_is_named() -> None:
    assert changes((1, 1), (2, 1), (3, 2)).examples == (
        'doubled: {"n": 1, "w": "a"} in window 2, shown again',
    )
    assert changes((1, 7), (2, 2)).examples == ('wrong: {"n": 2, "w": "a"} in window 2, behind 7',)


@pytest.mark.parametrize(
    ("totals", "doubled"),
    [
        # What has expired is counted anew.
        (RunningTotals(("w",), ("n",), once=True), 0),
        # Nothing is known of what puts these out.
        (RunningTotals(("w",)), 0),
        (CHANGES, 1),
    ],
)
def test_only_counts_that_are_known_to_rise_have_to(totals: RunningTotals, doubled: int) -> None:
    rows = [{"w": "a", "n": n} for n in (1, 2, 1)]
    verdict = judge([{"w": "a", "n": 1}], rows, totals, [1, 2, 3])
    assert (verdict.duplicated, verdict.wrong) == (doubled, 0)


def test_a_key_is_shown_once_in_a_window_also_where_it_counts_nothing() -> None:
    rows = [{"w": w, "least": least} for w, least in [("a", 5), ("b", 5), ("a", 5), ("a", 3)]]
    expected = [{"w": "a", "least": 3}, {"w": "b", "least": 5}]
    assert judge(expected, rows, RunningTotals(("w",), once=True), [1, 1, 1, 2]).duplicated == 1
    assert judge(expected, rows, RunningTotals(("w",), once=True), [1, 1, 2, 3]).exact
    assert judge(expected, rows, RunningTotals(("w",)), [1, 1, 1, 2]).exact


def test_without_windows_only_the_last_total_is_judged() -> None:
    rows = [{"w": "a", "n": n} for n in (2, 2)]
    assert judge([{"w": "a", "n": 2}], rows, CHANGES).exact


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=6))
def test_running_counts_of_any_input_are_right(windows: list[list[int]]) -> None:
    """Whatever windows a topology reads, in however many parts each of them is shown."""
    counts: Counter[int] = Counter()
    rows, numbers = [], []
    for number, read in enumerate(windows, start=1):
        counts.update(read)
        touched = [{"w": word, "n": str(counts[word])} for word in sorted(set(read))]
        rows += touched
        numbers += [number] * len(touched)
    due = [{"w": word, "n": str(count)} for word, count in counts.items()]
    assert judge(due, rows, CHANGES, numbers).exact


KNOWN = RunningTotals(("w",), ("n",), once=True, rising=True)


@pytest.mark.parametrize(
    ("last", "ttl", "totals"),
    [
        ({}, None, KNOWN),
        ({"out": ("w",)}, None, KNOWN),
        ({"out": ("w", "least")}, None, RunningTotals(("w", "least"), once=True)),
        ({"out": ("least",)}, None, RunningTotals(("least",))),
        ({}, "24h", RunningTotals(("w",), ("n",), once=True)),
    ],
)
def test_what_an_aggregate_counts_is_known_to_be_a_count(
    last: dict[str, tuple[str, ...]], ttl: str | None, totals: RunningTotals
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
                    **({} if ttl is None else {"ttl": ttl}),
                }
            ],
            "sinks": [{"name": "out", "inputs": [{"from": "total"}], "files": {"path": "out"}}],
        },
    }
    topology = StreamTopology.model_validate(document)
    assert compared(topology, topology.spec.sinks[0], last) == Compared(totals)


def test_examples_name_the_rows() -> None:
    verdict = judge([{"id": 1}, {"id": 2}], [{"id": 2}, {"id": 2}, {"id": 3}])
    assert verdict.examples == ('lost: {"id": 1}', 'twice: {"id": 2}', 'wrong: {"id": 3}')
    totals = judge([{"w": "a", "n": 2}], [{"w": "a", "n": 3}], OF_W)
    assert totals.examples == ('doubled: {"n": 3, "w": "a"}, expected {"n": 2, "w": "a"}',)


def test_files_are_read_by_their_ending_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "part-2.jsonl").write_text(json.dumps({"n": 2}) + "\n" + json.dumps({"n": 3}))
    (tmp_path / "part-1.jsonl").write_text(json.dumps({"n": 1}))
    (tmp_path / "part-3.csv").write_text("n\n4\n")
    pq.write_table(pa.table({"n": [5]}), tmp_path / "part-4.parquet")
    hidden = tmp_path / "_millrace"
    hidden.mkdir()
    (hidden / "part-5.jsonl").write_text(json.dumps({"n": 6}))
    assert [row["n"] for row in read_rows(tmp_path).rows] == [1, 2, 3, "4", 5]


def test_the_name_of_a_file_tells_its_window(tmp_path: Path) -> None:
    for name in ("000000000002-00000", "000000000002-00001", "000000000010-00000"):
        (tmp_path / f"part-{name}.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
    assert read_rows(tmp_path).windows == [2, 2, 2, 2, 10, 10]
    (tmp_path / "mine.jsonl").write_text('{"n": 3}\n')
    assert read_rows(tmp_path).windows is None


def test_a_file_that_is_shown_a_second_time_is_seen(tmp_path: Path) -> None:
    """By the judge of a sink that shows the changes of an aggregate."""
    for window, n in ((1, 1), (2, 2)):
        file = tmp_path / f"part-{window:012}-00000.csv"
        file.write_text(f"w,n\na,{n}\n")
    compares, expected = Compared(CHANGES), [{"w": "a", "n": "2"}]
    assert compares.judge(expected, read_rows(tmp_path)).exact
    (tmp_path / "part-000000000003-00000.csv").write_text("w,n\na,2\n")
    verdict = compares.judge(expected, read_rows(tmp_path))
    assert (verdict.lost, verdict.duplicated, verdict.wrong) == (0, 1, 0)
    hashes = Seen([{"w": "a", "n": "2"}])
    assert compares.judge(expected, hashes).exact


def test_rows_that_cannot_be_read_are_no_rows_that_are_missing(tmp_path: Path) -> None:
    (tmp_path / "part-1.jsonl").write_text('{"n": ')
    with pytest.raises(UnreadableError, match="cannot be read as rows"):
        read_rows(tmp_path)
    with pytest.raises(UnreadableError, match="has no column 'word'"):
        judge([{"n": 1}], [], RunningTotals(("word",)))


def test_a_field_of_csv_may_be_long_and_what_is_no_csv_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "part-1.csv"
    file.write_text("n\n" + "x" * 200_000 + "\n")
    [row] = read_rows(tmp_path).rows
    assert len(row["n"]) == 200_000

    def broken(_: object) -> object:
        raise csv.Error("line contains NUL")

    monkeypatch.setattr(csv, "DictReader", broken)
    with pytest.raises(UnreadableError, match=r"cannot be read as rows \(line contains NUL"):
        read_rows(tmp_path)


def test_an_empty_key_of_a_csv_file_may_stand_for_two(tmp_path: Path) -> None:
    """Null and an empty text are two keys, which such a file does not tell apart."""
    for window, rows in enumerate(('w,n\n,1\n"",5\na,2\n', 'w,n\n,2\n"",6\na,2\n'), 1):
        (tmp_path / f"part-{window:012}-00000.csv").write_text(rows)
    seen = read_rows(tmp_path)
    verdict = judge(seen.rows, seen.rows, KNOWN, seen.windows)
    assert (verdict.duplicated, verdict.wrong) == (1, 0), verdict.examples
    assert "a" in verdict.examples[0]
