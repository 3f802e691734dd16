"""Windows over ranges that hold offsets without a record."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from millrace.engine.jobs.runner import share
from millrace.engine.program.sql import SOURCE, column_of, keep_of
from millrace.engine.task import sqlstage, worker
from millrace.engine.task.blackbox import Box
from millrace.engine.task.faults import TaskError
from millrace.engine.task.sqlstage import FramePass, FrameReader
from millrace.engine.task.worker import Job, decode_reports, encode_pieces
from millrace.errors import SourceError
from millrace.protocol.holes import joined, numbers
from millrace.protocol.types import Intent, Replay
from millrace.protocol.winners import Inconsistent, Winners, find_winners

COUNT = 300


def is_hole(offset: int) -> bool:
    return offset % 11 == 10 or 200 <= offset < 260


RECORDS = [n for n in range(COUNT) if not is_hole(n)]
HOLES = [n for n in range(COUNT) if is_hole(n)]

SPEC = """
sources: [{name: numbers, custom: {class: "holeysource:Holey", options: {count: 300}}}]
processors:
  - {name: step, function: "holeysource:FUNCTION", inputs: [{from: numbers}]}
  - name: sums
    inputs: [{from: step, key: [n]}]
    aggregate: {columns: [{name: times, function: count}]}
sinks:
  - {name: out, inputs: [{from: sums}], files: {path: out, format: jsonLines}}
"""


def spec(function: str = "picky", source: str = "Holey") -> str:
    return SPEC.replace("FUNCTION", function).replace(":Holey", f":{source}")


@pytest.mark.parametrize("whole", [False, True])
def test_records_keep_their_numbers_and_holes_are_told(windows, whole):
    run = windows(spec(), whole)
    outcome = run.attempt(run.plan())
    found = find_winners((1,) if whole else (2, 2), outcome.reports.values(), COUNT)
    assert isinstance(found, Winners)
    assert list(numbers(found.holes())) == HOLES
    bad = [n for n in (30, 265, 297) if not is_hole(n)]
    assert list(outcome.failed) == bad
    assert sorted(row["n"] for row in outcome.rows["out"]) == sorted(set(RECORDS) - {*bad})
    # The harness seeds every offset: those without a record are all that is missing, and nothing
    # was booked under their numbers.
    assert outcome.verdict.incomplete - set(bad) == set(HOLES)


def test_roots_that_are_left_out_are_left_out_by_their_number(windows):
    run = windows(spec())
    outcome = run.attempt(run.plan(), excluded=(30, 265, 297, 211, 10))
    assert outcome.failed == {}
    assert sorted(row["n"] for row in outcome.rows["out"]) == sorted(set(RECORDS) - {30, 265, 297})


def test_halves_of_a_window_have_the_holes_of_the_whole(windows):
    run = windows(spec())
    (piece,) = run.plan().ranges
    source = run.sources["numbers"]
    found = []
    for half in source.split(piece, 215):
        outcome = run.attempt(Intent(1, (half,), ()), uncombined={})
        held = find_winners((2, 2), outcome.reports.values(), half.count)
        found += [n + half.start - piece.start for n in numbers(held.holes())]
    assert found == HOLES


def test_a_record_that_is_held_back_among_holes_is_missed(windows):
    run = windows(spec(source="HoleyAndShort"))
    outcome = run.attempt(run.plan())
    found = find_winners((2, 2), outcome.reports.values(), COUNT)
    assert isinstance(found, Inconsistent)


def test_a_replay_that_reads_as_a_hole_is_a_record_that_is_gone(windows):
    run = windows(spec(source="Vanishing"))
    (piece,) = run.plan().ranges
    locator = run.sources["numbers"].locate(piece, 30)
    replay = Replay("numbers", piece.partition, piece.start + 30, 1, 0.0, locator)
    with pytest.raises(TaskError) as caught:
        run.attempt(Intent(1, (), (replay,)))
    error = run.error_in(caught.value)
    assert isinstance(error, SourceError)
    assert "the record at offset 30 of partition" in str(error)
    assert "--drop-gone" in str(error)
    with pytest.raises(SourceError, match="the record is gone"):
        run.sources["numbers"].payload(replay)


SQL = """
parallelism: 1
sources: [{name: numbers, custom: {class: "holeysource:Holey", options: {count: 300}}}]
processors:
  - {name: same, sql: {select: ["*"]}, inputs: [{from: numbers}]}
sinks:
  - {name: out, inputs: [{from: same}], files: {path: out, format: jsonLines}}
"""


def evaluated(frame: pa.RecordBatch, program) -> pa.RecordBatch:
    """What Spark makes of a frame for a step that selects everything (``add_step``)."""
    source, step = program.components["numbers"], program.components["same"]
    keep = pc.equal(frame.column(SOURCE), source.number)
    value = frame.column(column_of(source))
    arrays = [*frame.columns, keep, pc.if_else(keep, value, pa.scalar(None, value.type))]
    names = [*frame.schema.names, keep_of(step), column_of(step)]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def test_holes_find_their_way_around_the_jvm(windows, monkeypatch):
    """Both Python ends of a window with SQL, with what stands between them done over here."""
    run = windows(SQL, whole=True, sql_schema=lambda name, step, incoming: incoming)
    monkeypatch.setattr(sqlstage, "_partition", lambda: 0)

    def tasks(plan):
        job = Job(str(run.kit), plan, run.services, True)
        worker.toolbox_of(job).bench.box = Box(None, None)
        data, shares = job.encode(), share(plan.intent, 1, run.sources)
        parts = [encode_pieces(pieces) for pieces in shares]
        frames = [evaluated(f, run.program) for f in FrameReader(data, parts)(())]
        rows = list(FramePass(data, parts)(frames))
        return [r for row in rows for v in row.column("value") for r in decode_reports(v.as_py())]

    monkeypatch.setattr(run, "run_tasks", tasks)
    outcome = run.attempt(run.plan())
    found = find_winners((1,), outcome.reports.values(), COUNT)
    assert isinstance(found, Winners)
    assert list(numbers(joined(found.holes()))) == HOLES
    assert sorted(row["n"] for row in outcome.rows["out"]) == RECORDS
    assert outcome.verdict.incomplete == set(HOLES)
