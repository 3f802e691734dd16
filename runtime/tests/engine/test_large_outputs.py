"""What steps put out is more than one column can hold: nothing of it is lost, and the window is
narrowed. The bound is lowered here; what lies beyond the real one, Arrow would cut into pieces."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from engine_support import write_lines

from millrace.engine.program.program import Route
from millrace.engine.task import batch
from millrace.engine.task.batch import Batch
from millrace.engine.task.books import Books, NetPool
from millrace.engine.task.steps import output
from millrace.engine.task.steps.base import Outlet
from millrace.engine.task.steps.output import RowBuffer
from millrace.errors import EngineError, UserCodeError

WORDS = [f"{n:060}" for n in range(60)]

FUNCTION = """
sources:
  - {name: lines, files: {path: texts}}
processors:
  - {name: step, inputs: [{from: lines}], function: "largesteps:alone"}
sinks:
  - {name: out, inputs: [{from: step}], files: {path: out, format: jsonLines}}
"""

SQL = """
sources:
  - {name: rows, files: {path: texts, format: jsonLines, schema: "k string, n string"}}
processors:
  - name: step
    inputs: [{from: rows}]
    sql: {engine: duckdb, select: ["k AS word", "CAST(n AS INTEGER) AS n"]}
sinks:
  - {name: out, inputs: [{from: step}], files: {path: out, format: jsonLines}}
"""


@pytest.mark.parametrize(
    ("spec", "lines", "failed"),
    [
        (FUNCTION, WORDS, set()),
        # A cast fails in the midst, so that rows are taken in halves.
        (SQL, [json.dumps({"k": w, "n": "x" if w == WORDS[7] else "1"}) for w in WORDS], {7}),
    ],
    ids=["a vectorised function", "duckdb"],
)
def test_parts_that_are_too_much_together_narrow_the_window(
    windows, tmp_path, monkeypatch, spec, lines, failed
):
    monkeypatch.setattr(batch, "MOST_TEXT", 1500)
    write_lines(tmp_path, lines)
    run = windows(spec)
    run.assert_too_large("word")
    found = []
    for _ in range(6):
        outcome = run.attempt(run.plan(10))
        found += outcome.rows["out"]
        lost = {f.sequence for report in outcome.reports.values() for f in report.failed}
        assert len(outcome.rows["out"]) + len(lost) == 10
        if not lost:
            run.seal(outcome)
            continue
        again = run.attempt(outcome.intent, lost)
        found[-len(outcome.rows["out"]) :] = again.rows["out"]
        run.seal(again)
    assert [row["word"] for row in found] == [w for n, w in enumerate(WORDS) if n not in failed]


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_rows_that_are_not_those_of_their_parents_are_never_emitted(rows):
    """Their ids would come to zero, as if they had been processed."""
    books = Books(3, 16, True, NetPool())
    taken = []
    edge = SimpleNamespace(name="a>b", id=7, ordered=False, route=Route.FORWARD)
    component = SimpleNamespace(many=True)
    outlet = Outlet(SimpleNamespace(books=books), component, [(edge, taken.append)])
    parent = Batch.of(
        pa.record_batch({"v": [1, 2, 3]}),
        np.arange(3, dtype=np.uint32),
        np.array([5, 6, 7], np.uint64),
    )
    data = pa.record_batch({"v": list(range(rows))})
    for parents in (None, np.arange(3)):
        with pytest.raises(EngineError, match=f"{rows} rows are to be emitted for 3 parents"):
            outlet.emit(data, parent, parents)
    assert taken == []


@pytest.mark.parametrize("one_by_one", [False, True])
def test_rows_that_are_more_than_a_column_holds_narrow_the_window(monkeypatch, one_by_one):
    def in_pieces(values, kind):
        return pa.chunked_array([pa.array([value], kind, from_pandas=False) for value in values])

    def overflows(_arrays):
        raise pa.ArrowInvalid("offset overflow while concatenating arrays")

    buffer = RowBuffer(pa.schema([("word", pa.string())]), "step")
    for word in ("a", 1, "b") if one_by_one else ("a", "b"):
        buffer.add_all({"word": word}, 0 if word == "a" else 1 if word == 1 else 2)
    if one_by_one:
        monkeypatch.setattr(output.pa, "concat_arrays", overflows)
    else:
        monkeypatch.setattr(buffer, "_arrays", lambda columns, _: arrays(columns, in_pieces))
        arrays = RowBuffer._arrays.__get__(buffer)
    with pytest.raises(UserCodeError, match=r"column 'word' is more than the 2 GiB.*put out less"):
        buffer.build()
