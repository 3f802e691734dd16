"""What functions of whole batches give back: it is copied, and checked before anything is kept."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from engine_support import write_lines

from millrace.engine.program.schema import own
from millrace.engine.task.steps import grouped

SPEC = """
keyGroups: 16
sources:
  - name: rows
    files: {path: texts, format: jsonLines, schema: "k string, v long"}
processors:
  - {name: step, function: "rewriting:FUNCTION", inputs: [{from: rows KEY}]}
sinks:
  - {name: out, inputs: [{from: step}], files: {path: out, format: jsonLines}}
"""


def spec(function: str, keyed: bool = True) -> str:
    return SPEC.replace("FUNCTION", function).replace(" KEY", ", key: [k]" if keyed else "")


def write(folder, rows, name="a.jsonl"):
    write_lines(folder, [json.dumps({"k": k, "v": v}) for k, v in rows], name)


@pytest.mark.parametrize("arrays", ["numpy", "arrow"])
def test_a_vectorized_function_may_fill_the_same_arrays_again(windows, tmp_path, arrays):
    values = [1, 2, 3, 1004, 5, 6, 7, 8]  # 1004 cuts the batch into several calls
    write(tmp_path, [("a", v) for v in values])
    run = windows(spec(f"tens_of_{arrays}", keyed=False), True)
    outcome = run.attempt(run.plan())
    assert set(outcome.failed) == {3}
    assert sorted(r["n"] for r in outcome.rows["out"]) == [10, 20, 30, 50, 60, 70, 80]


@pytest.mark.parametrize("arrays", ["numpy", "arrow"])
def test_a_grouped_function_may_fill_the_same_arrays_again(windows, tmp_path, monkeypatch, arrays):
    monkeypatch.setattr(grouped, "MOST_ROWS", 4)
    write(tmp_path, [("a", 1)] * 4 + [("b", 1)] * 3 + [("c", 1)] * 2)
    run = windows(spec(f"counts_of_{arrays}"), True)
    for times in (1, 2):
        found = {r["k"]: r["n"] for r in run.go().rows["out"]}
        assert found == {"a": 4 * times, "b": 3 * times, "c": 2 * times}
        write(tmp_path, [("a", 1)] * 4 + [("b", 1)] * 3 + [("c", 1)] * 2, "b.jsonl")


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("cuts", "ArrowInvalid: column 'k': Invalid UTF8 sequence"),
        ("puts_out_cuts", "ArrowInvalid: column 'k': Invalid UTF8 sequence"),
        ("keeps_cuts", "ArrowInvalid: state column 't': Invalid UTF8 sequence"),
        ("keeps_far_times", "ValueError: state column 't': "),
        ("keeps_far_days", "ValueError: state column 't': "),
    ],
)
@pytest.mark.parametrize("whole", [False, True])
def test_a_value_that_its_type_has_not_fails_its_roots_alone(
    windows, tmp_path, function, told, whole
):
    """With ``whole`` one task has the state of several partitions."""
    write(tmp_path, [(k, 1) for k in ["a", "b", "xé", "c", "d", "e"]])
    run = windows(spec(function, keyed=function != "cuts"), whole)
    intent = run.plan()
    first = run.attempt(intent)
    assert set(first.failed) == {2}
    step, reason = first.failed[2]
    assert (step, reason[: len(told)]) == ("step", told)
    second = run.attempt(intent, excluded={2})
    assert second.failed == {}
    assert second.verdict.complete
    assert sorted(r["k"] for r in second.rows["out"]) == ["a", "b", "c", "d", "e"]
    # Its state goes on as it was left.
    run.seal(second)
    write(tmp_path, [("a", 1)], "b.jsonl")
    assert [r["k"] for r in run.go().rows["out"]] == ["a"]


ROWS = {
    "numbers": pa.array([1, None, 3]),
    "flags": pa.array([True, None, False]),
    "times": pa.array([1, None, 3], pa.timestamp("us", "UTC")),
    "texts": pa.array(["a", None, "ccc"]),
    "bytes": pa.array([b"a", None, b"\xff"]),
    "lists": pa.array([[1.5], None, [2.5, None]]),
    "nested": pa.array([[["a"], []], None, [None]]),
    "none": pa.nulls(3, pa.string()),
}


def addresses(array: pa.Array) -> set[int]:
    return {one.address for one in array.buffers() if one is not None and one.size}


@pytest.mark.parametrize("begin", [0, 1])
def test_no_memory_is_shared_with_what_was_given_back(begin):
    given = pa.record_batch(ROWS).slice(begin)
    mine = own(given)
    assert mine.equals(given)
    assert mine.schema == given.schema
    for before, after in zip(given.columns, mine.columns, strict=True):
        assert not addresses(before) & addresses(after), before.type
    assert own(given.slice(0, 0)).num_rows == 0


def test_what_cannot_be_written_to_may_be_a_view_of_what_can():
    room = np.arange(3)
    view = room.view()
    view.flags.writeable = False
    mine = own(pa.record_batch({"n": pa.array(view)}))
    room[:] = 0
    assert mine.column("n").to_pylist() == [0, 1, 2]
