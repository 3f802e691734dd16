"""Attempts as real Spark jobs: results, retries, and what a dead attempt says of its cause."""

from __future__ import annotations

import base64
import pickle
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from engine_support import STAMP, SparkWindows, assert_idle, compiled, write_lines

from millrace.engine.jobs import runner
from millrace.engine.jobs.runner import AttemptDied
from millrace.engine.jobs.session import SessionSettings, build_session
from millrace.engine.jobs.sizes import FEW_ROOTS
from millrace.engine.program.schema import OutputError
from millrace.engine.program.sql import SqlAnalyser
from millrace.errors import TopologyError
from millrace.protocol.events import Forget
from millrace.protocol.names import tells_death
from millrace.protocol.types import Evidence
from millrace.protocol.winners import Winners, find_winners
from millrace.state.client import connect

LINES = [f"alpha beta w{i % 7} w{i % 13}" for i in range(300)]
WORDS = Counter(word for line in LINES for word in line.split())

SOURCE = "sources: [{name: lines, files: {path: texts}}]"
SINK = "sinks: [{name: rows, inputs: [{from: last}], files: {path: rows, format: jsonLines}}]"

COUNT = f"""
{SOURCE}
processors:
  - {{name: split, function: "wordsteps:split_batch", inputs: [{{from: lines}}]}}
  - {{name: running, function: "wordsteps:running_count", inputs: [{{from: split, key: [word]}}]}}
  - name: last
    inputs: [{{from: running, key: [word]}}]
    aggregate: {{columns: [{{name: n, function: max, of: n}}]}}
{SINK}
"""


def one_step(function, more="", patience="30s"):
    return f"""
tupleTimeout: {patience}
{SOURCE}
processors:
  - {{name: last, function: "{function}", inputs: [{{from: lines}}]}}
{SINK}
{more}
"""


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    settings = SessionSettings(
        "engine-tests", tmp_path_factory.mktemp("spark"), threads=2, worker_memory="3g"
    )
    session = build_session(settings)
    yield session
    session.stop()


@pytest.fixture
def windows(tmp_path, state_server, uid, spark):
    made = []

    def make(spec: str, small: int = 0, **changes) -> SparkWindows:
        program = compiled(spec, tmp_path, uid, SqlAnalyser(lambda: spark), **changes)
        made.append(SparkWindows(program, state_server.address, spark=spark, small=small))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("small", [0, 4096])
@pytest.mark.parametrize("function", ["running_count", "grouped_count"])
def test_a_window_runs_as_a_job_of_passes_or_as_one_task(windows, tmp_path, function, small):
    write_lines(tmp_path, LINES)
    run = windows(COUNT.replace("running_count", function), small)
    outcome = run.go()
    assert {r["word"]: r["n"] for r in outcome.rows["rows"]} == WORDS
    assert outcome.verdict.complete
    assert run.shape == ((1,) if small else (2, 2, 2))
    found = find_winners(run.shape, outcome.reports.values(), len(LINES))
    assert isinstance(found, Winners)
    assert len(found.reports) == len(outcome.reports)


def test_an_attempt_whose_first_pass_ran_before_ends_as_any_other(windows, tmp_path):
    """Behind it there is state, of the window before."""
    (tmp_path / "texts").mkdir()
    run = windows(COUNT)
    run.prepares = True
    for number, lines in enumerate([LINES[:120], LINES[120:]]):
        write_lines(tmp_path, lines, f"{number}.txt")
        outcome = run.go()
        assert run.prepared is not None
        assert outcome.verdict.complete
        assert run.shape == (2, 2, 2)
        found = find_winners(run.shape, outcome.reports.values(), len(lines))
        assert isinstance(found, Winners)
    totals = {r["word"]: r["n"] for r in outcome.rows["rows"]}
    assert totals == {w: n for w, n in WORDS.items() if w in totals}


def test_a_first_pass_of_another_program_is_not_gone_on_with(windows, tmp_path):
    write_lines(tmp_path, LINES)
    run = windows(COUNT)
    prepare = run.runner.prepare

    def prepare_and_edit(plan):
        first = prepare(plan)
        run.runner.use(replace(run.program, tuple_timeout_s=29.0))
        return first

    run.prepares, run.runner.prepare = True, prepare_and_edit
    with pytest.raises(AttemptDied, match="ran by settings that have changed since") as died:
        run.go()
    assert died.value.ended


def test_a_first_pass_that_is_not_gone_on_with_is_ended(windows, tmp_path, spark, monkeypatch):
    """Else it would hold the slots of the next attempt's tasks."""
    write_lines(tmp_path, LINES)
    run = windows(COUNT.replace("wordsteps:split_batch", "gates:rest"))
    run.prepares = True

    def broken(*_):
        raise AttemptDied("no room for the kit")

    prepare = run.runner.prepare

    def prepare_and_break(plan):
        first = prepare(plan)
        monkeypatch.setattr(run.runner, "_kit", broken)
        return first

    run.runner.prepare = prepare_and_break
    with pytest.raises(AttemptDied, match="no room for the kit"):
        run.go()
    assert_idle(spark)


def test_a_first_pass_that_was_cancelled_before_it_began_is_ended(windows, tmp_path, spark):
    write_lines(tmp_path, LINES)
    run = windows(COUNT.replace("wordsteps:split_batch", "gates:rest"))
    run.prepares = True
    prepare = run.runner.prepare

    def cancel_and_prepare(plan):
        run.runner.cancel(plan.id)
        return prepare(plan)

    run.runner.prepare = cancel_and_prepare
    with pytest.raises(AttemptDied, match="cancelled"):
        run.go()
    assert_idle(spark)


def test_a_first_pass_that_keeps_state_all_the_same_is_not_gone_on_with(
    windows, tmp_path, monkeypatch
):
    """A step that does not say so would keep it behind a state that is too old."""
    write_lines(tmp_path, LINES)
    run = windows(COUNT)
    run.prepares = True
    read = runner.decode_reports

    def decode(data):
        return [
            replace(one, segments=(("split", None),)) if one.task.pass_no == 0 else one
            for one in read(data)
        ]

    monkeypatch.setattr(runner, "decode_reports", decode)
    with pytest.raises(AttemptDied, match="keeps state"):
        run.go()


SHOWS = """
sinks:
  - {name: rows, inputs: [{from: last}], files: {path: rows, format: jsonLines}}
  - {name: words, inputs: [{from: split}], files: {path: words, format: jsonLines}}
"""


@pytest.mark.parametrize(
    ("spec", "small"),
    [
        (COUNT.replace(SINK, SHOWS), 0),
        (one_step("wordsteps:split_batch"), 0),
        (COUNT, 4096),
    ],
    ids=["shows rows", "has one pass", "is small"],
)
def test_a_first_pass_that_does_more_than_read_is_not_run_before(windows, tmp_path, spec, small):
    write_lines(tmp_path, LINES)
    run = windows(spec, small)
    run.prepares = True
    assert run.go().verdict.complete
    assert run.prepared is None


def test_small_and_large_windows_go_on_with_the_same_state(windows, tmp_path):
    (tmp_path / "texts").mkdir()
    run = windows(COUNT, small=50)
    for number, lines in enumerate([LINES[:120], LINES[120:150], LINES[150:300]]):
        write_lines(tmp_path, lines, f"{number}.txt")
        outcome = run.go()
        assert outcome.verdict.complete
        assert run.shape == ((1,) if number == 1 else (2, 2, 2))
    totals = {r["word"]: r["n"] for r in outcome.rows["rows"]}
    assert totals == {w: n for w, n in WORDS.items() if w in totals}
    assert "alpha" in totals


def test_few_records_are_several_tasks_once_user_code_is_known_to_take_long(windows, tmp_path):
    """Until the program is another one."""
    run = windows(one_step("wordsteps:pause"), FEW_ROOTS)
    (tmp_path / "texts").mkdir()
    shapes = []
    for number in range(6):
        if number == 5:
            run.runner.use(replace(run.program, tuple_timeout_s=29.0))
        write_lines(tmp_path, ["0.02"] * 20, f"{number}.txt")
        assert run.go().verdict.complete
        shapes.append(run.shape)
    assert shapes == [(1,)] * 3 + [(2,)] * 2 + [(1,)]


def test_a_first_pass_that_ran_before_is_gone_on_with_whatever_was_learned_since(
    windows, tmp_path, monkeypatch
):
    write_lines(tmp_path, LINES)
    run = windows(COUNT, FEW_ROOTS)
    one_task = iter([False, True])
    monkeypatch.setattr(run.runner._sizes, "one_task", lambda *_: next(one_task, True))

    run.prepares = True
    assert run.go().verdict.complete
    assert run.prepared is not None
    assert run.shape == (2, 2, 2)


def test_a_large_job_leaves_no_file_behind(windows, tmp_path, spark):
    """Such as one whose state lies in many objects."""
    kept = Path(spark.sparkContext._temp_dir)
    before = set(kept.iterdir())
    write_lines(tmp_path, LINES)
    run = windows(COUNT)
    run.chains["of no processor"] = bytes(2 << 20)
    assert run.go().verdict.complete
    assert set(kept.iterdir()) == before


def test_a_worker_that_is_killed_is_run_again_within_the_attempt(windows, tmp_path):
    write_lines(tmp_path, ["a", "b", f"kill {tmp_path}/mark", "c"])
    outcome = windows(one_step("deadlysteps:killed_once")).go()
    assert Counter(r["word"] for r in outcome.rows["rows"]) == Counter(["a", "b", "kill", "c"])
    assert outcome.verdict.complete
    assert isinstance(find_winners((2,), outcome.reports.values(), 4), Winners)
    assert (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    ("function", "cause"),
    [
        ("leave", "exit code 7"),
        ("crash", "SIGSEGV"),
        ("kill", "SIGKILL"),
        ("overflow", "SIGSEGV"),
        ("spin", "no progress within tupleTimeout (1 s)"),
        ("spin_in_c", "no progress within tupleTimeout (1 s)"),
    ],
)
@pytest.mark.parametrize("small", [0, 4096])
def test_what_ends_a_worker_is_told(windows, tmp_path, function, cause, small):
    write_lines(tmp_path, ["a", "b", "bad", "c"])
    patience = "1s" if function.startswith("spin") else "30s"
    run = windows(one_step(f"deadlysteps:{function}", patience=patience), small)
    with pytest.raises(AttemptDied) as caught:
        run.attempt(run.plan())
    assert cause in caught.value.reason
    assert "processor 'last'" in caught.value.reason
    assert not caught.value.member_lost
    assert caught.value.evidence is Evidence.USER_CODE
    roots = "0 to 3" if small else "2 to 3"
    assert f"roots {roots}" in caught.value.reason


def keyed(function):
    return one_step(function).replace("{from: lines}", "{from: lines, key: [value]}")


def test_a_grouped_function_that_ends_its_worker_is_evidence(windows, tmp_path):
    write_lines(tmp_path, ["a", "b", "bad", "c"])
    run = windows(keyed("deadlysteps:leave_many"), 4096)
    with pytest.raises(AttemptDied, match=r"roots 0 to 3\): exit code 7") as caught:
        run.attempt(run.plan())
    assert caught.value.evidence is Evidence.USER_CODE


def test_an_answer_of_another_form_than_declared_stops_and_is_evidence_of_nothing(
    windows, tmp_path
):
    write_lines(tmp_path, ["a", "b", "c"])
    run = windows(keyed("deadlysteps:answer_wrongly"))
    with pytest.raises(OutputError, match=r"processor 'last' returned parents from .* must lie in"):
        run.attempt(run.plan())


def test_what_is_told_of_a_death_goes_with_its_attempt(windows, tmp_path):
    write_lines(tmp_path, ["a", "b", "bad", "c"])
    run = windows(one_step("deadlysteps:leave"))
    with pytest.raises(AttemptDied):
        run.attempt(run.plan())
    (address,) = run.services.access.addresses
    listed = connect(address, run.program.uid).list_objects(STAMP)
    told = [name for name in listed.names if tells_death(name, run.current)]
    assert told, listed
    assert not any(tells_death(name, replace(run.current, attempt=2)) for name in told)
    running = Forget(STAMP, 0, (), (), frozenset())
    ended = replace(running, attempts=(run.current,))
    assert [name for name in told if running.covers(name)] == []
    assert [name for name in told if ended.covers(name)] == told


def test_without_a_state_server_that_could_tell_a_death_the_window_waits(windows, tmp_path):
    write_lines(tmp_path, ["a", "b", "bad", "c"])
    run = windows(one_step("deadlysteps:leave"))
    (address,) = run.services.access.addresses
    gone = replace(address, url="redis://127.0.0.1:1")
    access = replace(run.services.access, addresses=(gone,))
    run.services = replace(run.services, access=access)
    with pytest.raises(AttemptDied, match="how its worker ended is not known") as caught:
        run.attempt(run.plan())
    assert caught.value.member_lost
    assert caught.value.evidence is Evidence.NONE


def test_a_worker_that_ends_without_a_note_is_evidence_of_nothing(windows, tmp_path):
    write_lines(tmp_path, ["a", "b", "bad", "c"])
    run = windows(one_step("deadlysteps:leave_without_a_note"))
    with pytest.raises(AttemptDied, match="exit code 7") as caught:
        run.attempt(run.plan())
    assert caught.value.evidence is Evidence.NONE
    assert not caught.value.member_lost


def test_an_assertion_in_the_engine_is_evidence_of_nothing(windows, tmp_path):
    write_lines(tmp_path, LINES)
    run = windows(COUNT, transport="deadlysteps:Asserting")
    with pytest.raises(AttemptDied, match="AssertionError: no such type") as caught:
        run.attempt(run.plan())
    assert caught.value.evidence is Evidence.NONE


def test_a_worker_that_dies_before_its_batch_is_evidence_of_nothing(windows, tmp_path):
    write_lines(tmp_path, ["a"])
    run = windows(one_step("deadlysteps:DiesAtTheDoor"))
    with pytest.raises(AttemptDied, match="exit code 9") as caught:
        run.attempt(run.plan())
    assert caught.value.evidence is Evidence.NONE


def test_memory_beyond_the_limit_fails_the_root_alone(windows, tmp_path):
    write_lines(tmp_path, ["a", "bad", "c"])
    outcome = windows(one_step("deadlysteps:hoard")).go()
    assert outcome.failed == {1: ("last", "MemoryError")}
    assert [r["word"] for r in outcome.rows["rows"]] == ["a", "c"]


@pytest.mark.parametrize("small", [0, 4096])
def test_user_code_that_keeps_all_memory_is_evidence_and_told(windows, tmp_path, small):
    """A process that has none left must still be able to say so."""
    write_lines(tmp_path, ["a", "bad", "c"])
    run = windows(one_step("deadlysteps:leak"), small)
    with pytest.raises(AttemptDied, match="has no memory left") as caught:
        run.attempt(run.plan())
    assert caught.value.evidence is Evidence.USER_CODE


def test_a_cancelled_attempt_ends(windows, tmp_path):
    gate = tmp_path / "gate"
    gate.touch()
    write_lines(tmp_path, [str(gate)])
    run = windows(one_step("deadlysteps:slow", patience="60s"))
    started = tmp_path / "gate.started"
    outcome: list[object] = []

    def attempt():
        try:
            outcome.append(run.attempt(run.plan()))
        except AttemptDied as died:
            outcome.append(died.reason)

    thread = threading.Thread(target=attempt)
    thread.start()
    while not started.exists():
        thread.join(0.01)
    run.runner.cancel_all()
    thread.join(30)
    gate.unlink()
    assert outcome == ["cancelled"]


def test_a_state_server_that_is_away_is_no_roots_fault(windows, tmp_path):
    write_lines(tmp_path, LINES)
    run = windows(COUNT)
    (address,) = run.services.access.addresses
    gone = replace(address, url="redis://127.0.0.1:1")
    access = replace(run.services.access, addresses=(gone,))
    run.services = replace(run.services, access=access)
    with pytest.raises(AttemptDied) as caught:
        run.attempt(run.plan())
    assert caught.value.member_lost
    assert "cannot be reached" in caught.value.reason


SQL = f"""
{SOURCE}
processors:
  - name: upper
    inputs: [{{from: lines}}]
    sql:
      select: ["upper(value) AS value", "length(value) AS size"]
      where: "size(split(value, ' ')) > 1"
  - name: words
    inputs: [{{from: upper}}]
    sql: {{select: ["*", "CAST(substr(value, 1, 1) AS string) AS initial"], where: "size < 17"}}
  - {{name: raw, function: "wordsteps:split", inputs: [{{from: lines}}]}}
  - name: last
    inputs: [{{from: words, key: [initial]}}]
    aggregate: {{columns: [{{name: n, function: count}}, {{name: sizes, function: sum, of: size}}]}}
  - name: rawcounts
    inputs: [{{from: raw, key: [word]}}]
    aggregate: {{columns: [{{name: n, function: count}}]}}
sinks:
  - {{name: rows, inputs: [{{from: last}}], files: {{path: rows, format: jsonLines}}}}
  - {{name: raws, inputs: [{{from: rawcounts}}], files: {{path: raws, format: jsonLines}}}}
  - {{name: uppers, inputs: [{{from: upper}}], files: {{path: uppers, format: jsonLines}}}}
"""


@pytest.mark.parametrize("small", [0, 4096])
def test_sql_steps_run_in_the_jvm_beside_other_consumers(windows, tmp_path, small):
    lines = ["alone", *LINES]
    write_lines(tmp_path, lines)
    outcome = windows(SQL, small).go()
    kept = [line for line in lines if " " in line]
    assert Counter((r["value"], r["size"]) for r in outcome.rows["uppers"]) == Counter(
        (line.upper(), len(line)) for line in kept
    )
    short = [line for line in kept if len(line) < 17]
    assert outcome.rows["rows"] == [
        {"initial": "A", "n": len(short), "sizes": sum(map(len, short))}
    ]
    assert {r["word"]: r["n"] for r in outcome.rows["raws"]} == WORDS + Counter(["alone"])
    assert outcome.verdict.complete


LOOKED_UP = f"""
{SOURCE}
processors:
  - name: sized
    inputs: [{{from: lines}}]
    sql: {{select: ["value", "length(value) AS size"]}}
  - name: known
    inputs: [{{from: sized}}]
    lookup: {{table: {{path: sizes.parquet}}, key: [{{column: size}}], columns: [{{name: name}}]}}
  - name: sure
    inputs: [{{from: lines}}]
    lookup: {{table: {{path: sizes.parquet}}, key: [{{column: value, of: name}}], missing: Fail}}
sinks:
  - {{name: rows, inputs: [{{from: known}}], files: {{path: rows, format: jsonLines}}}}
  - {{name: raws, inputs: [{{from: sure}}], files: {{path: raws, format: jsonLines}}}}
"""


@pytest.mark.parametrize("small", [0, 4096])
def test_what_the_jvm_computed_is_looked_up(windows, tmp_path, small):
    """By a whole number of another width, and beside a look-up in what the source read."""
    lines = ["one", "three", "seven more", "x"]
    write_lines(tmp_path, lines)
    sizes = {"size": pa.array([3, 5, 10], pa.int64()), "name": ["one", "three", "x"]}
    pq.write_table(pa.table(sizes), tmp_path / "sizes.parquet")
    run = windows(LOOKED_UP, small)
    intent = run.plan()
    outcome = run.attempt(intent)
    assert set(outcome.failed) == outcome.verdict.incomplete == {2}
    again = run.attempt(intent, excluded={2})
    assert again.verdict.complete
    assert {(r["value"], r["size"], r["name"]) for r in again.rows["rows"]} == {
        ("one", 3, "one"),
        ("three", 5, "three"),
        ("x", 1, None),
    }
    assert sorted(r["value"] for r in again.rows["raws"]) == ["one", "three", "x"]


def test_what_the_jvm_reads_keeps_failing_and_excluded_roots_apart(windows, tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_bytes(b"a b\n\xff\xff\nc d\ne f\n")
    run = windows(SQL)
    intent = run.plan()
    outcome = run.attempt(intent)
    assert set(outcome.failed) == {1}
    assert outcome.verdict.incomplete == {1}
    again = run.attempt(intent, excluded={1, 2})
    assert again.verdict.complete
    assert sorted(r["value"] for r in again.rows["uppers"]) == ["A B", "E F"]


def test_a_cast_that_spark_refuses_ends_the_attempt(windows, tmp_path):
    write_lines(tmp_path, ["1", "2", "three", "4"])
    spec = f"""
{SOURCE}
processors:
  - {{name: last, inputs: [{{from: lines}}], sql: {{select: ["CAST(value AS int) AS n"]}}}}
{SINK}
"""
    run = windows(spec)
    intent = run.plan()
    with pytest.raises(AttemptDied, match="CAST_INVALID_INPUT") as caught:
        run.attempt(intent)
    assert caught.value.evidence is Evidence.ROW


ROW_ERRORS = {
    "100 / CAST(value AS int)": "0",
    "CAST(value AS tinyint)": "300",
    "element_at(array(1), CAST(value AS int))": "7",
    "date_add(DATE'2024-01-01', CAST(value AS int)) + CAST(raise_error(value) AS int)": "1",
}


@pytest.mark.parametrize("expression", ROW_ERRORS)
def test_expressions_that_fail_for_a_row_are_evidence(windows, tmp_path, expression):
    write_lines(tmp_path, [ROW_ERRORS[expression]])
    spec = f"""
{SOURCE}
processors:
  - {{name: last, inputs: [{{from: lines}}], sql: {{select: ["{expression} AS n"]}}}}
{SINK}
"""
    run = windows(spec)
    with pytest.raises(AttemptDied) as caught:
        run.attempt(run.plan())
    assert caught.value.evidence is Evidence.ROW


def test_a_failure_in_the_jvm_that_is_not_about_a_value_is_evidence_of_nothing(windows, tmp_path):
    """It may well speak of one: whoever reads a row's bytes could make it say anything."""
    write_lines(tmp_path, ["[CAST_INVALID_INPUT] SQLSTATE: 22018"])
    call = "java_method('java.util.UUID', 'fromString', value) AS n"
    spec = f"""
{SOURCE}
processors:
  - {{name: last, inputs: [{{from: lines}}], sql: {{select: ["{call}"]}}}}
{SINK}
"""
    run = windows(spec)
    with pytest.raises(AttemptDied) as caught:
        run.attempt(run.plan())
    assert caught.value.evidence is Evidence.NONE


class Bomb:
    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return open, (str(self.file), "w")


@pytest.mark.parametrize("tag", ["", "." + "0" * 64])
def test_a_record_that_looks_like_an_error_of_ours_runs_nothing(windows, tmp_path, tag):
    """Spark shows the record in the text that the driver looks for errors in."""
    bomb = base64.b64encode(pickle.dumps(Bomb(tmp_path / "executed"))).decode()
    write_lines(tmp_path, [f"MILLRACE-ERROR[{bomb}{tag}]"])
    spec = f"""
{SOURCE}
processors:
  - {{name: last, inputs: [{{from: lines}}], sql: {{select: ["CAST(value AS int) AS n"]}}}}
{SINK}
"""
    run = windows(spec)
    intent = run.plan()
    with pytest.raises(AttemptDied, match="CAST_INVALID_INPUT") as caught:
        run.attempt(intent)
    assert bomb[:40] in caught.value.reason
    assert not (tmp_path / "executed").exists()


def test_a_row_that_where_takes_out_is_not_evaluated(windows, tmp_path):
    write_lines(tmp_path, ["1", "2", "three", "4"])
    sql = 'select: ["CAST(value AS int) AS n"], where: "value RLIKE \'^[0-9]+$\'"'
    spec = f"""
{SOURCE}
processors:
  - {{name: last, inputs: [{{from: lines}}], sql: {{{sql}}}}}
{SINK}
"""
    outcome = windows(spec).go()
    assert sorted(r["n"] for r in outcome.rows["rows"]) == [1, 2, 4]
    assert outcome.verdict.complete


@pytest.mark.parametrize(
    ("select", "told"),
    [
        ("nosuch AS n", "nosuch"),
        ("count(*) AS n", ""),
        ("explode(split(value, ' ')) AS word", ""),
        ("row_number() OVER (ORDER BY value) AS n", "one row at a time"),
        ("value AS v, value AS v", "twice"),
    ],
)
def test_sql_that_cannot_run_is_a_topology_error(windows, tmp_path, select, told):
    write_lines(tmp_path, ["a"])
    spec = f"""
{SOURCE}
processors:
  - {{name: last, inputs: [{{from: lines}}], sql: {{select: ["{select}"]}}}}
{SINK}
"""
    with pytest.raises(TopologyError, match="'last'") as caught:
        windows(spec)
    assert told in str(caught.value)
