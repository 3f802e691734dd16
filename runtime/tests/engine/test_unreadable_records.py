"""Records that no source can decode, and what a failing tuple says of the user's own code."""

from __future__ import annotations

import pyarrow as pa
import pytest
from engine_support import CODE, HEAD

from millrace.clock import SystemClock
from millrace.engine.program.schema import fitting
from millrace.engine.program.traces import FRAMES, Traces
from millrace.engine.task.faults import TaskError
from millrace.errors import ExitCode, SourceError
from millrace.homes.told import read_settings
from millrace.local.launch import LaunchOptions, _write_driver_file
from millrace.local.workdir import open_folder
from millrace.protocol.types import Intent, Replay
from millrace.topology.load import load

SPEC = """
sources: [{{name: lines, files: {{path: texts, format: {format}{schema}}}}}]
processors:
  - {{name: step, function: "poisonsteps:{function}", inputs: [{{from: lines{key}}}]}}
sinks:
  - {{name: rows, inputs: [{{from: step}}], files: {{path: rows, format: jsonLines}}}}
"""

LINES = {
    "text": (b"good\n", b"\xff\xfe\n"),
    "jsonLines": (b'{"value": "good"}\n', b'{"value": \n'),
    "csv": (b"good\n", b"one,two\n"),
}


def feed(tmp_path, kind, bad):
    good, broken = LINES[kind]
    lines = [broken if n in bad else good for n in range(60)]
    (tmp_path / "texts").mkdir()
    head = b"value\n" if kind == "csv" else b""
    (tmp_path / "texts" / "a").write_bytes(head + b"".join(lines))


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("kind", LINES)
def test_nothing_of_what_cannot_be_decoded_goes_anywhere(windows, tmp_path, kind, whole):
    """Each is failed by its source, broken there alone for the ackers, and in no output."""
    bad = {0, 17, 18, 59}
    feed(tmp_path, kind, bad)
    schema = "" if kind == "text" else ', schema: "value string"'
    run = windows(SPEC.format(format=kind, schema=schema, function="in_where", key=""), whole)
    outcome = run.attempt(run.plan())
    failed = [f for report in outcome.reports.values() for f in report.failed]
    assert {f.sequence for f in failed} == bad
    assert {(f.processor, f.unreadable, f.trace) for f in failed} == {("lines", True, "")}
    assert outcome.verdict.incomplete == bad
    assert outcome.verdict.edges == {}
    assert not outcome.verdict.window
    assert outcome.rows["rows"] == [{"value": "good"}] * (60 - len(bad))


def test_a_failing_tuple_brings_the_lines_of_the_users_code_that_raised(windows, tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a").write_text("good\nbad one\nbad two\n")
    run = windows(SPEC.format(format="text", schema="", function="in_row", key=""))
    outcome = run.attempt(run.plan())
    failed = [f for report in outcome.reports.values() for f in report.failed]
    assert [(f.sequence, f.unreadable) for f in failed] == [(1, False), (2, False)]
    source = (CODE / "poisonsteps.py").read_text().splitlines()
    call = next(n for n, line in enumerate(source, 1) if "def in_row" in line) + 2
    raised = next(n for n, line in enumerate(source, 1) if "cannot take" in line)
    file = CODE / "poisonsteps.py"
    assert failed[0].trace.splitlines() == [
        f'File "{file}", line {call}, in in_row',
        '    raise_if_bad(line["value"])',
        f'File "{file}", line {raised}, in raise_if_bad',
        '    raise ValueError(f"cannot take {word}")',
    ]
    assert failed[0].trace == failed[1].trace


def test_traces_end_at_the_innermost_frames_and_leave_libraries_out():
    import json

    def deep(n):
        if n:
            deep(n - 1)
        json.loads("{")

    with pytest.raises(ValueError, match="Expecting") as caught:
        deep(20)
    text = Traces().of(caught.value)
    lines = text.splitlines()
    assert len(lines) == 2 * FRAMES
    assert lines[-1].strip() == 'json.loads("{")'
    assert "decoder.py" not in text


def test_what_does_not_fit_a_columns_type_is_said_in_the_words_of_the_topology_file():
    at, array = pa.array([1_000, 1], pa.timestamp("ns")), pa.array([[1_000], [1]])
    for given, kind, told in (
        (at, pa.timestamp("us", "UTC"), "column 'a': 1970-01-01 00:00:00.000000001 does not fit "),
        (pa.array([1, 1 << 63], pa.uint64()), pa.int64(), "column 'a': 9223372036854775808 does "),
        (
            array.cast(pa.list_(pa.timestamp("ns"))),
            pa.list_(pa.timestamp("us", "UTC")),
            "column 'a': its value does not fit into array<timestamp>",
        ),
    ):
        data = pa.record_batch({"b": ["x", "y"], "a": given})
        schema = pa.schema([("a", kind), ("b", pa.string())])
        whole, bad = fitting(data, schema, "s")
        assert whole.num_rows == 2
        assert bad.keys() == {1}
        assert bad[1].startswith(told)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("kind", ["text", "csv"])
def test_a_replay_whose_record_is_gone_stops_and_blames_nobody_until_it_is_given_up(
    windows, tmp_path, kind, whole
):
    """That a file is gone is no evidence about a root, so its source says so and nothing is
    sealed; what the user gives up fails, as a root whose replay may still be worth it."""
    feed(tmp_path, kind, set())
    schema = "" if kind == "text" else ', schema: "value string"'
    spec = SPEC.format(format=kind, schema=schema, function="in_where", key="")
    run = windows(spec, whole)
    (piece,) = run.plan().ranges
    locator = run.sources["lines"].locate(piece, 5)
    replay = Replay("lines", piece.partition, 5, 1, 0.0, locator)
    again = Intent(1, (), (replay,))
    assert run.attempt(again).rows["rows"] == [{"value": "good"}]

    file = tmp_path / "texts" / "a"
    content = file.read_bytes()
    file.unlink()
    with pytest.raises(TaskError) as caught:
        run.attempt(again)
    error = run.error_in(caught.value)
    assert isinstance(error, SourceError)
    assert error.exit_code == ExitCode.SOURCE
    assert f"file {file} is gone, but records of it are still to be read; " in str(error)
    assert "Put the file back as it was" in str(error)
    assert "--drop-gone gives up" in str(error)
    file.write_bytes(content)
    assert run.attempt(again).rows["rows"] == [{"value": "good"}]

    file.unlink()
    outcome = windows(spec, whole, drop_gone=True).attempt(again)
    (failed,) = [f for report in outcome.reports.values() for f in report.failed]
    assert (failed.sequence, failed.processor, failed.unreadable) == (0, "lines", False)
    assert "is gone" in failed.error
    assert outcome.rows["rows"] == []


def test_what_the_command_is_told_to_give_up_reaches_the_driver(tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "t.yaml").write_text(
        HEAD + "  sources: [{name: lines, files: {path: texts}}]\n"
        "  sinks: [{name: out, inputs: [{from: lines}], files: {path: out}}]\n"
    )
    loaded = load(tmp_path / "t.yaml")
    folder = open_folder(tmp_path / "work", "test", loaded.file, SystemClock())
    for wanted in (True, False):
        _write_driver_file(folder, loaded, LaunchOptions(drop_gone=wanted))
        assert read_settings(folder.driver).drop_gone is wanted
