"""Grouped functions: what one call is given, how large it may be, and what it may give back."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from engine_support import CODE, compiled, write_lines

from millrace.engine.program.schema import OutputError
from millrace.engine.program.usercode import use_path
from millrace.engine.task import batch, kernels, worker
from millrace.engine.task.faults import TaskError
from millrace.engine.task.steps import grouped
from millrace.errors import TopologyError

use_path(str(CODE))
import groupsteps  # noqa: E402

SPEC = """
keyGroups: 16
sources:
  - name: rows
    files: {path: texts, format: jsonLines, schema: "k string, day int, v long"}
processors:
  - {name: step, function: "groupsteps:FUNCTION", inputs: [{from: rows, key: [KEY]}]}
sinks:
  - {name: out, inputs: [{from: step}], files: {path: out, format: jsonLines}}
"""


def spec(function: str = "totals", key: str = "k, day") -> str:
    return SPEC.replace("FUNCTION", function).replace("KEY", key)


@pytest.fixture(autouse=True)
def forget_calls():
    groupsteps.GIVEN.clear()


def write(folder, rows, name="a.jsonl"):
    """Rows as (k, v) or (k, day, v)."""
    full = [row if len(row) == 3 else (row[0], 1, row[1]) for row in rows]
    write_lines(folder, [json.dumps({"k": k, "day": d, "v": v}) for k, d, v in full], name)


def out(outcome):
    return {(r["k"], r["day"]): (r["n"], r["v"]) for r in outcome.rows["out"]}


@pytest.mark.parametrize("whole", [False, True])
def test_the_rows_of_a_key_lie_together_in_root_order_beside_its_state(windows, tmp_path, whole):
    rows = [("a", 1, 1), ("b", 1, 2), (None, 1, 3), ("a", 2, 4), ("a", 1, 5), (None, 1, 6)]
    write(tmp_path, rows)
    run = windows(spec(), whole)
    first = run.go()
    assert first.verdict.complete
    assert out(first) == {("a", 1): (2, 5), ("b", 1): (1, 2), (None, 1): (2, 6), ("a", 2): (1, 4)}
    assert len(groupsteps.GIVEN) <= (1 if whole else 2)
    write(tmp_path, [("a", 1, 7), ("c", 1, 8), ("b", 1, -1)], "b.jsonl")
    second = run.go()
    assert out(second) == {("a", 1): (3, 7), ("c", 1): (1, 8), ("b", 1): (2, -1)}
    write(tmp_path, [("b", 1, 9), ("a", 1, 10)], "c.jsonl")
    assert out(run.go()) == {("b", 1): (1, 9), ("a", 1): (4, 10)}
    seen: Counter = Counter()
    for number, (given, keys, offsets, state) in enumerate(groupsteps.GIVEN):
        names = [(key["k"], key["day"]) for key in keys]
        assert len(names) == len(set(names)) == len(state) == len(offsets) - 1
        for name, held, begin, end in zip(names, state, offsets[:-1], offsets[1:], strict=True):
            mine = given[begin:end]
            assert mine
            assert {(row["k"], row["day"]) for row in mine} == {name}
            assert [row["v"] for row in mine] == sorted(row["v"] for row in mine)
            assert held["n"] == (seen[name] or None), (number, name)
            seen[name] += len(mine)
            if mine[-1]["v"] == -1:
                del seen[name]
    whole_window = groupsteps.GIVEN[0]
    if whole:
        assert [key["k"] for key in whole_window[1]] == ["a", "b", None, "a"]  # as they first come


def test_one_key_among_several_columns_has_one_state_in_every_cut(windows, tmp_path):
    """One task that plays all partitions, several tasks, in turn."""
    write(tmp_path, [(f"k{i % 7}", i) for i in range(100)])
    split, alone = windows(spec()), windows(spec(), True)
    split.go()
    worker._PROCESS.clear()
    alone.chains, alone.offsets, alone.window = split.chains, split.offsets, split.window
    alone.attempts = split.attempts
    write(tmp_path, [(f"k{i % 9}", i) for i in range(90)], "b.jsonl")
    found = out(alone.go())
    want = Counter(f"k{i % 7}" for i in range(100)) + Counter(f"k{i % 9}" for i in range(90))
    assert {k: n for (k, _), (n, _) in found.items()} == want


def test_a_key_with_too_many_rows_comes_in_several_calls_and_its_state_goes_along(
    windows, tmp_path, monkeypatch
):
    monkeypatch.setattr(grouped, "MOST_ROWS", 10)
    keys = ["hot"] * 35 + [f"k{i % 6}" for i in range(24)]
    np.random.default_rng(3).shuffle(keys)
    write(tmp_path, [(key, at) for at, key in enumerate(keys)])
    run = windows(spec(), True)
    outcome = run.go()
    assert outcome.verdict.complete
    rows = [(r["k"], r["n"], r["v"]) for r in outcome.rows["out"]]
    places = [at for at, key in enumerate(keys) if key == "hot"]
    hot = [(n, v) for k, n, v in rows if k == "hot"]
    assert hot == [(n, places[n - 1]) for n in (10, 20, 30, 35)]
    assert sorted((k, n) for k, n, _ in rows if k != "hot") == [(f"k{i}", 4) for i in range(6)]
    sizes = [len(given) for given, *_ in groupsteps.GIVEN]
    assert sum(sizes) == len(keys)
    assert max(sizes) == 10
    assert {len(names) for _, names, *_ in groupsteps.GIVEN} == {1, 2}


def test_what_is_too_much_for_one_column_goes_through_in_smaller_windows(
    windows, tmp_path, monkeypatch
):
    """So the window is split in two, as where a worker has no memory left."""
    monkeypatch.setattr(batch, "MOST_TEXT", 1500)
    names = [f"{n:060}" for n in range(100)]
    write(tmp_path, [(name, n) for n, name in enumerate(names)])
    run = windows(spec())
    run.assert_too_large("k")
    found = {}
    for _ in range(10):
        outcome = run.attempt(run.plan(10))
        assert outcome.verdict.complete
        run.seal(outcome)
        found |= out(outcome)
    assert found == {(name, 1): (1, n) for n, name in enumerate(names)}


def test_calls_are_no_larger_than_their_bytes_allow(windows, tmp_path, monkeypatch):
    monkeypatch.setattr(grouped, "MOST_BYTES", 10_000)
    write(tmp_path, [("x" * 2000, at) for at in range(12)])
    outcome = windows(spec(), True).go()
    assert [r["n"] for r in outcome.rows["out"]] == [4, 8, 12]


@pytest.mark.parametrize("most", [1, 3, 10, 1000])
def test_spans_hold_every_row_once_and_part_no_key_that_fits(most):
    random = np.random.default_rng(most)
    for _ in range(50):
        counts = random.integers(1, 12, random.integers(1, 20))
        starts = np.concatenate([[0], np.cumsum(counts)])
        found = list(grouped.spans(starts, most))
        assert [one.first_row for one in found] == [0, *(one.end_row for one in found[:-1])]
        assert found[-1].end_row == starts[-1]
        for one in found:
            assert 0 < one.end_row - one.first_row <= most
            if counts[one.first_key] <= most:
                assert one.first_row == starts[one.first_key]
                assert one.end_row == starts[one.end_key]
            else:
                assert one.end_key == one.first_key + 1


def test_rows_are_sorted_by_key_as_they_first_come():
    codes = np.array([4, 2, 4, 0, 2, 4], np.int64)
    found, starts, order = kernels.rows_by_key(codes, 6)
    assert found.tolist() == [4, 2, 0]
    assert starts.tolist() == [0, 3, 5, 6]
    assert order.tolist() == [0, 2, 5, 1, 4, 3]


def test_only_the_roots_that_the_function_raises_on_fail_also_within_one_key(windows, tmp_path):
    rows = [("hot", at) for at in range(40)] + [("cold", 1), ("other", 2)]
    bad = {7: 1007, 21: 1021, 40: 1040}
    rows = [(key, bad.get(at, v)) for at, (key, v) in enumerate(rows)]
    write(tmp_path, rows)
    run = windows(spec(), True)
    intent = run.plan()
    first = run.attempt(intent)
    assert first.failed == {at: ("step", f"ValueError: cannot take {v}") for at, v in bad.items()}
    assert first.verdict.incomplete <= set(bad)
    # The parts of the hot key handed its state on, past what they could not bear.
    hot = [r for r in first.rows["out"] if r["k"] == "hot"]
    assert hot[-1] == {"k": "hot", "day": 1, "n": 38, "v": 39}
    assert [r["n"] for r in hot] == sorted(r["n"] for r in hot)
    second = run.attempt(intent, excluded=set(bad))
    assert second.failed == {}
    assert second.verdict.complete
    assert out(second) == {("hot", 1): (38, 39), ("other", 1): (1, 2)}
    run.seal(second)
    write(tmp_path, [("hot", 1), ("cold", 2)], "b.jsonl")
    assert out(run.go()) == {("hot", 1): (39, 1), ("cold", 1): (1, 2)}


def test_a_function_may_put_out_nothing_and_leave_its_state(windows, tmp_path):
    write(tmp_path, [("a", 1), ("a", 2), ("b", 3)])
    run = windows(spec("silent", "k"))
    outcome = run.go()
    assert outcome.rows["out"] == []
    assert outcome.verdict.complete
    after = windows(spec("told", "k"))
    after.chains, after.offsets, after.window = run.chains, run.offsets, run.window
    after.attempts = run.attempts
    write(tmp_path, [("b", 1), ("a", 2), ("c", 3)], "b.jsonl")
    outcome = after.go()
    assert sorted((r["k"], r["n"] or 0) for r in outcome.rows["out"]) == [
        ("a", 2), ("b", 1), ("c", 0)
    ]  # fmt: skip
    # Nothing has changed, and nothing is written.
    assert [s for r in outcome.reports.values() for s in r.segments] == []


RETURN = r"return \(state, columns, parents\)"


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("nothing", f"returned NoneType; {RETURN}"),
        ("pair", f"returned a tuple of dict, ndarray; {RETURN}"),
        ("short_state", "returned 2 rows of state for 3 keys; return one for each key"),
        ("no_state_column", r"did not put out its column 'n' \(long\) \(in the state"),
        ("other_state_column", "put out the column 'm', which it does not declare.*in the state"),
        ("text_state", "column 'n': expected long, got string.*in the state"),
        ("few_parents", "returned 2 parents for 3 output rows; return one for each"),
        ("far_parents", r"for a batch of 4 rows; they must lie in 0\.\.3"),
        ("no_parents", "returned parents of type object with 0 dimensions; return one integer"),
        ("ragged_parents", "returned parents that are no array"),
        ("wrong_output", "column 'k': expected string, got long"),
    ],
)
def test_what_must_not_be_given_back_is_one_error_and_no_roots_fault(
    windows, tmp_path, function, told
):
    write(tmp_path, [("a", 1), ("b", 2), ("a", 3), ("c", 4)])
    run = windows(spec(function, "k"), True)
    with pytest.raises(TaskError) as caught:
        run.attempt(run.plan())
    error = run.error_in(caught.value)
    assert type(error) is OutputError
    assert not error.retryable
    assert str(error).startswith("processor 'step'")
    with pytest.raises(OutputError, match=told):
        raise error
    # What is mended goes on from the same place.
    mended = windows(spec("silent", "k"), True)
    mended.offsets, mended.attempts = {}, run.attempts
    assert mended.go().verdict.complete


def test_what_is_given_cannot_be_changed(windows, tmp_path):
    run = windows(spec("scribbles", "k"), True)
    for name in ("a", "b"):
        write(tmp_path, [("a", 1), ("b", 2)], name)
        assert run.go().verdict.complete


def test_a_grouped_function_needs_a_key(tmp_path, uid):
    with pytest.raises(TopologyError, match="'step' keeps state and needs a key on each"):
        compiled(spec().replace(", key: [k, day]", ""), tmp_path, uid)


def test_state_of_a_stateful_function_goes_on_in_a_grouped_one_and_back(windows, tmp_path):
    words = """
sources: [{name: lines, files: {path: texts}}]
processors:
  - {name: split, function: "wordsteps:split", inputs: [{from: lines}]}
  - {name: count, function: "wordsteps:FUNCTION", inputs: [{from: split, key: [word]}]}
sinks:
  - {name: out, inputs: [{from: count}], files: {path: out, format: jsonLines}}
"""
    before = None
    totals: Counter = Counter()
    for at, function in enumerate(["running_count", "grouped_count"] * 2):
        run = windows(words.replace("FUNCTION", function))
        if before is not None:
            run.chains, run.offsets, run.window = before.chains, before.offsets, before.window
            run.attempts = before.attempts
        write_lines(tmp_path, [f"a b{at} a", "b1"], f"{at}.txt")
        outcome = run.go()
        assert outcome.verdict.complete
        totals.update(["a", "a", f"b{at}", "b1"])
        last = {r["word"]: r["n"] for r in outcome.rows["out"]}
        assert last == {word: totals[word] for word in last}
        worker._PROCESS.clear()
        before = run


def test_the_documents_example_adds_up_what_users_fetch(windows, tmp_path):
    text = (Path(__file__).parents[3] / "docs" / "code.md").read_text()
    (example,) = [
        code for code in re.findall(r"```python\n(.*?)```", text, re.S) if "@grouped" in code
    ]
    (tmp_path / "usage.py").write_text(example)
    spec = """
sources:
  - name: requests
    files: {path: texts, format: jsonLines, schema: "user string, size long"}
processors:
  - {name: usage, function: "usage:usage", inputs: [{from: requests, key: [user]}]}
sinks:
  - {name: out, inputs: [{from: usage}], files: {path: out, format: jsonLines}}
"""
    use_path(str(tmp_path))
    (tmp_path / "texts").mkdir()
    run = windows(spec)
    totals: dict[str, list[int]] = {}
    for window in range(3):
        requests = [(f"u{(window + at) % 4}", at * at) for at in range(9)]
        lines = [json.dumps({"user": user, "size": size}) for user, size in requests]
        write_lines(tmp_path, lines, f"{window}.jsonl")
        for user, size in requests:
            visits, total = totals.get(user, (0, 0))
            totals[user] = [visits + 1, total + size]
        outcome = run.go()
        assert outcome.verdict.complete
        rows = {row["user"]: [row["visits"], row["bytes"]] for row in outcome.rows["out"]}
        assert len(rows) == len(outcome.rows["out"]) == 4
        assert rows == totals


def test_the_documents_say_how_large_a_call_may_be():
    text = " ".join((Path(__file__).parents[3] / "docs" / "code.md").read_text().split())
    told = f"at most {grouped.MOST_ROWS:,} rows and about {grouped.MOST_BYTES >> 20} MiB of them"
    assert told in text
