"""Rows that a sink cannot take: their roots fail, with the sink's name, and nobody else's."""

from __future__ import annotations

import re

import pytest
from engine_support import Windows, compiled, write_lines

from millrace.engine.task.faults import TaskError
from millrace.errors import EngineError, SinkError, UserCodeError

LINES = ["a", "bad", "b", "bad", "c"]

SPEC = """
sources: [{name: lines, files: {path: texts}}]
processors:
  - {name: step, function: "refusals:%s", inputs: [{from: lines%s}]}
sinks:
  - {name: rows, inputs: [{from: step}], %s}
"""


class Staging(Windows):
    """Windows whose staged output is of any kind of sink."""

    def staged_rows(self, outcome):
        staged = [s for report in outcome.reports.values() for s in report.staged]
        return {"rows": [None] * sum(s.rows for s in staged)}


@pytest.fixture
def windows(tmp_path, state_server, uid):
    def make(sink, function="dates", key="", whole=False):
        spec = SPEC % (function, key, sink)
        write_lines(tmp_path, LINES)
        return Staging(compiled(spec, tmp_path, uid), state_server.address, whole)

    return make


def redis(state_server, uid, options):
    address = state_server.address
    url = f"{address.url}?password={address.password}"
    return f'redis: {{url: "{url}", {options % {"uid": uid}}}}'


def files(form):
    return f"files: {{path: rows, format: {form}}}"


KINDS = {
    "json lines": (files("jsonLines"), "dates", "cannot be written as jsonLines: .*out of range"),
    "csv": (files("csv"), "dates", "cannot be written as csv: .*out of range"),
    "redis key": (
        'mode: hash, key: "%(uid)s:{word}"',
        "words",
        r"column 'word' of redis\.key '.*' is null in a row; .*filter such rows out",
    ),
    "redis hash": ('mode: hash, key: "%(uid)s:{word}"', "dates", "cannot be written: .*range"),
    "redis stream": ('mode: stream, stream: "%(uid)s"', "dates", "cannot be written: .*range"),
    "custom": ('custom: {class: "refusals:Picky"}', "words", "null is not for me"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("whole", [False, True])
def test_the_roots_of_refused_rows_fail_alone(windows, state_server, uid, kind, whole):
    options, function, told = KINDS[kind]
    sink = redis(state_server, uid, options) if kind.startswith("redis") else options
    run = windows(sink, function, whole=whole)
    intent = run.plan()
    first = run.attempt(intent)
    assert first.failed.keys() == {1, 3}
    processor, error = first.failed[3]
    assert processor == "rows"
    assert "sink 'rows'" in error or kind == "custom"
    assert re.search(told, error)
    second = run.attempt(intent, excluded={1, 3})
    assert second.failed == {}
    assert second.verdict.complete
    assert len(second.rows["rows"]) == 3


def test_what_parquet_takes_is_not_refused(windows):
    outcome = windows(files("parquet")).go()
    assert outcome.failed == {}
    assert len(outcome.rows["rows"]) == len(LINES)


def test_refused_rows_behind_a_combine_are_told_by_their_key_groups(tmp_path, state_server, uid):
    sink = redis(state_server, uid, KINDS["redis key"][0])
    write_lines(tmp_path, LINES)
    combined = """
sources: [{name: lines, files: {path: texts}}]
processors:
  - {name: step, function: "refusals:words", inputs: [{from: lines}]}
  - name: counts
    inputs: [{from: step, key: [word]}]
    aggregate: {columns: [{name: n, function: count}]}
sinks:
  - {name: rows, inputs: [{from: counts}], %s}
"""
    run = Staging(compiled(combined % sink, tmp_path, uid), state_server.address)
    intent = run.plan()
    first = run.attempt(intent)
    assert first.failed == {}
    second = run.attempt(intent, uncombined=first.combined)
    assert second.failed.keys() == {1, 3}
    third = run.attempt(intent, excluded={1, 3}, uncombined=first.combined)
    assert third.verdict.complete


WRONG = {
    "Raising": (EngineError, r"sink 'rows': staging rows raised RuntimeError: no such table"),
    "Miscounting": (SinkError, r"sink 'rows' refuses row 99 of \d"),
}


@pytest.mark.parametrize("sink", WRONG)
def test_whatever_else_a_sink_raises_blames_no_row(windows, sink):
    run = windows(f'custom: {{class: "refusals:{sink}"}}', "words")
    with pytest.raises(TaskError) as caught:
        run.attempt(run.plan())
    kind, told = WRONG[sink]
    error = run.error_in(caught.value)
    assert type(error) is kind
    assert re.search(told, str(error))


def test_a_source_that_raises_blames_no_row(windows, tmp_path, state_server, uid):
    spec = (SPEC % ("words", "", files("jsonLines"))).replace(
        "files: {path: texts}", 'custom: {class: "refusals:Broken"}'
    )
    run = Staging(compiled(spec, tmp_path, uid), state_server.address)
    with pytest.raises(TaskError) as caught:
        run.attempt(run.plan())
    error = run.error_in(caught.value)
    assert type(error) is EngineError
    assert "source 'lines': reading raised KeyError: 'gone'" in str(error)


def test_user_code_that_fails_on_a_batch_as_a_whole_is_evidence(windows):
    run = windows(files("jsonLines"), "FailsAtTheEnd")
    with pytest.raises(TaskError) as caught:
        run.attempt(run.plan())
    error = run.error_in(caught.value)
    assert type(error) is UserCodeError
    assert "processor 'step': finish raised ValueError: no end" in str(error)
