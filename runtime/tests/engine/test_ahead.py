"""The first pass of a window of one task, begun while another window runs: real Spark, and what
befalls the worker."""

from __future__ import annotations

import os
import signal
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as LateError
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from beside_support import OBJECTS, WORDS, Beside
from engine_support import CODE, SLICES, STAMP, WordWindows, assert_idle, compiled
from psutil import Process

from millrace.engine.jobs import resident as residents
from millrace.engine.jobs.firstpass import AheadRun, Prepared, runs_beside
from millrace.engine.jobs.resident import Resident
from millrace.engine.jobs.runner import AttemptDied
from millrace.engine.jobs.session import SessionSettings, build_session
from millrace.engine.jobs.shares import share
from millrace.engine.program.link import Place, Work
from millrace.engine.program.usercode import use_path
from millrace.engine.task.faults import TaskError
from millrace.engine.task.stay import ahead
from millrace.engine.task.stay.ahead import Aheads
from millrace.engine.task.worker import Job, encode_pieces
from millrace.errors import SourceError
from millrace.protocol.types import AttemptId, AttemptPlan, Evidence, Intent
from millrace.protocol.winners import Winners, find_winners
from millrace.topology.kinds.registry import PROCESSORS
from millrace_e2e.waiting import until

ROOT = Path(__file__).parents[3]
WAIT_S = 60.0
LARGE = 1 << 20

TABLE = OBJECTS.replace("{from: words, key: [word]}", "{from: known, key: [word]}").replace(
    "  - name: counts",
    "  - name: known\n    inputs: [{from: words}]\n    lookup: {table: {path: known.csv,"
    " schema: 'id string, n long'}, key: [{column: word, of: id}], columns: [{name: n}],"
    " missing: Fail}\n  - name: counts",
)
GATED = WORDS.replace(
    "files: {path: rows, format: jsonLines}",
    'custom: {class: "gatesink:Gated", options: {path: rows, format: jsonLines}}',
)
FUNCTION = WORDS.replace("split: {column: value, into: word}", 'function: "wordsteps:split_batch"')
BEHIND = WORDS.replace("[{from: counts}]", "[{from: more}]").replace(
    "sinks:", '  - {name: more, inputs: [{from: counts}], function: "wordsteps:tag"}\nsinks:'
)


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    session = build_session(SessionSettings("ahead", tmp_path_factory.mktemp("spark")))
    yield session
    session.stop()


@pytest.fixture
def windows(tmp_path, state_server, uid, spark):
    (tmp_path / "texts").mkdir()
    made = []

    def make(spec: str = WORDS, **changes) -> Ahead:
        program = compiled(spec, tmp_path, uid, **changes)
        made.append(Ahead(program, state_server.address, spark, LARGE))
        return made[-1]

    yield make
    for one in made:
        one.close()
    assert_idle(spark)


class Ahead(WordWindows):
    """Windows of words that are all prepared, and what befalls between that and their turn."""

    def __init__(self, *given):
        super().__init__(*given)
        self.prepares = True

    def begin(self, intent: Intent) -> Prepared | None:
        """Begin with a window whose turn has not come."""
        return self.runner.prepare(self.announced(intent))

    def count(self, *words: str) -> tuple[int, ...]:
        """Feed words, run them, and compare; the shape of the run."""
        self.feed(*words)
        self.check(self.go(), *words)
        return self.shape

    def check(self, outcome, *words):
        super().check(outcome, *words)
        found = find_winners(self.shape, outcome.reports.values(), outcome.intent.roots)
        assert isinstance(found, Winners)
        assert len(found.reports) == len(outcome.reports)


def test_windows_go_on_with_what_was_begun_ahead(windows):
    """The first finds no task that stays. Each is two tasks to the ackers from then on."""
    run = windows()
    assert run.count("a", "b") == (1,)
    for words in (["a"], ["c", "a", "c"], ["b"] * 50):
        assert run.count(*words) == (1, 1)
        assert isinstance(run.prepared, AheadRun)


@pytest.mark.parametrize("prepared", [False, True])
def test_who_runs_it_is_told_when_others_work_on_it(windows, prepared):
    run = windows()
    run.count("a", "b")
    run.feed("c")
    intent = run.plan()
    first = run.begin(intent) if prepared else None
    told: list[str] = []
    plan = replace(run.announced(intent), chains=run.chains)
    result = run.runner.run(plan, first, lambda: told.append("submitted"))
    assert told == ["submitted"]
    assert result.reports


def test_two_wait_for_their_turn(windows):
    """The second is begun while nobody has asked for the first one yet."""
    run = windows()
    run.count("a")
    waiting = []
    for words in (("a", "b"), ("b", "b")):
        run.feed(*words)
        plan = run.announced(run.plan())
        waiting.append((plan, run.runner.prepare(plan)))
        run.window += 1
    for plan, begun in waiting:
        result = run.runner.run(replace(plan, chains=run.chains), begun)
        assert result.shape == (1, 1)
        for name, segment in (found for report in result.reports for found in report.segments):
            run.chains[name] = (*run.chains.get(name, ()), segment)
    assert run.count("a", "b") == (1, 1)


def test_another_attempt_of_the_window_runs_whole(windows):
    """What was begun belongs to the attempt that was given up."""
    run = windows()
    run.count("a")
    run.feed("a", "b")
    intent = run.plan()
    assert isinstance(run.begin(intent), AheadRun)
    run.prepares = False
    run.check(run.attempt(intent), "a", "b")
    assert run.shape == (1,)


def test_a_worker_that_dies_before_the_turn_costs_no_more_than_the_work(windows):
    """And the next windows run alone for a while: it may be what the worker died of."""
    run = windows()
    run.count("a")
    run.between = lambda: os.kill(run.worker(), signal.SIGKILL)
    assert run.count("a", "b") == (1,)
    assert isinstance(run.prepared, AheadRun)
    run.between = lambda: None
    assert run.count("b") == (1,)
    assert run.prepared is None


def test_a_worker_that_dies_with_two_windows_says_nothing_of_either(windows, tmp_path):
    """The one whose turn it is runs again as another attempt, beside which none is begun."""
    run = windows(GATED)
    gate = tmp_path / "gate"
    run.count("a")
    run.feed("a", "b")
    first = run.plan()
    with held(run, first, gate) as told:
        run.feed("c")
        second = run.plan()
        assert isinstance(run.begin(replace(second, window=first.window + 1)), AheadRun)
        os.kill(run.worker(), signal.SIGKILL)
        with pytest.raises(AttemptDied, match="which had begun with the next window, too") as died:
            told()
    assert died.value.ended
    assert died.value.evidence is Evidence.NONE
    run.check(run.attempt(first), "a", "b")
    assert run.shape == (1,)
    assert run.prepared is None


def test_a_first_pass_runs_while_another_window_does(windows, tmp_path):
    run = windows(GATED)
    gate = tmp_path / "gate"
    run.count("a")
    run.count("a")  # from here on a thread of the worker listens
    run.feed("a", "b")
    first = run.plan()
    with held(run, first, gate) as told:
        long = "c" * 1_000_000
        run.feed(long)
        second = replace(run.plan(), window=first.window + 1)
        read = Process(run.worker()).io_counters
        before = read().read_chars
        assert isinstance(run.begin(second), AheadRun)
        until(lambda: read().read_chars - before > len(long), "that it has read it", WAIT_S)
        assert not told.over()
        gate.unlink()
        assert told().shape == (1,)


@contextmanager
def held(run, intent, gate):
    """While an attempt of a window waits at the gate of its sink; what it came to, when asked."""
    plan = run.announced(intent)
    gate.touch()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(run.runner.run, plan)
        until(lambda: gate.with_name("waits").exists(), "a window at the gate", WAIT_S)

        def told():
            return future.result(WAIT_S)

        told.over = future.done
        try:
            yield told
        finally:
            gate.unlink(missing_ok=True)


def test_a_worker_that_ends_between_windows_counts_too(windows):
    """Spark runs the task again before anybody asks for it."""
    run = windows()
    run.count("a")
    run.between = lambda: end_and_come_back(run)
    assert run.count("a", "b") == (1,)
    run.between = lambda: None
    run.count("b")
    assert run.prepared is None


def end_and_come_back(run) -> None:
    before = run.worker()
    os.kill(before, signal.SIGKILL)
    until(lambda: run.stay().runs == 2, "the task again", WAIT_S)


def test_each_time_it_is_alone_for_twice_as_long_until_all_went_well(monkeypatch):
    now_s = 1000.0
    monkeypatch.setattr(residents.time, "monotonic", lambda: now_s)
    resident = Resident(None, Place("nowhere"), "test")
    lasting_s = []
    for window in range(6):
        stay = residents._Stay(1, "kit", "group", aheads={AttemptId(1, window, 1)})
        resident._worker_ended(stay)
        resident._worker_ended(stay)  # it had none any more
        lasting_s.append(resident._alone_until_s - now_s)
    assert lasting_s == [60.0, 120.0, 240.0, 480.0, 600.0, 600.0]
    cancelled = residents._Stay(1, "kit", "group", aheads={AttemptId(1, 9, 1)}, doomed=True)
    now_s = 5000.0
    resident._worker_ended(cancelled)
    assert resident._alone_until_s < now_s
    for window in range(residents._FORGIVEN):
        stay.aheads = {AttemptId(1, window, 1)}
        resident._went_well(stay, AttemptId(1, window, 1))
    assert resident._alone_s == 60.0


def test_the_text_says_for_how_long_and_for_which_kinds():
    text = " ".join((ROOT / "docs" / "guarantees.md").read_text().split())
    assert (residents._SHORTEST_ALONE_S, residents._LONGEST_ALONE_S) == (60.0, 600.0)
    assert "for a minute, and twice as long each further time, up to ten minutes" in text
    *others, last = (kind.name for kind in PROCESSORS if kind.beside)
    named = ", ".join(f"`{name}`" for name in others) + f" and `{last}`"
    assert f"sources that come with Millrace, {named}" in text


def test_they_run_beside_others_again_later(windows, monkeypatch):
    monkeypatch.setattr(residents, "_LONGEST_ALONE_S", 0.0)
    run = windows()
    run.runner._resident._alone_s = 0.0
    run.count("a")
    run.between = lambda: os.kill(run.worker(), signal.SIGKILL)
    run.count("a")
    run.between = lambda: None
    run.count("b")  # in another task that stays
    assert run.count("c") == (1, 1)


def test_records_that_cannot_be_read_fail_ahead_as_they_do_else(windows):
    run = windows(OBJECTS)
    run.feed('{"word": "a"}')
    run.go()
    run.feed('{"word": "b"}', "{", '{"word": "a"}', "{}")
    outcome = run.go()
    assert run.shape == (1, 1)
    assert sorted(outcome.failed) == [1, 3]
    assert all(name == "words" for name, _ in outcome.failed.values())
    assert outcome.verdict.incomplete == {1, 3}
    assert {r["word"]: r["n"] for r in outcome.rows["rows"]} == {"a": 2, "b": 1}


def test_rows_are_looked_up_in_tables_ahead(windows, tmp_path):
    (tmp_path / "known.csv").write_text("id,n\na,1\nb,2\n")
    run = windows(TABLE)
    for shape in ((1,), (1, 1)):
        run.feed('{"word": "a"}', '{"word": "c"}', '{"word": "b"}', '{"word": "a"}')
        outcome = run.go()
        assert run.shape == shape
        assert {s: name for s, (name, _) in outcome.failed.items()} == {1: "known"}
    assert {r["word"]: r["n"] for r in outcome.rows["rows"]} == {"a": 4, "b": 2}


def test_excluded_roots_are_left_out_ahead(windows):
    run = windows()
    run.count("a")
    run.feed("b", "c", "b")
    outcome = run.go(excluded=[2])
    assert run.shape == (1, 1)
    assert outcome.verdict.complete
    assert {r["word"]: r["n"] for r in outcome.rows["rows"]} == {"b": 1, "c": 1}


def test_keys_that_are_not_combined_go_one_by_one_ahead(windows):
    run = windows()
    run.count("a")
    run.feed("b", "c", "b")
    outcome = run.go(uncombined={"counts": -1})
    assert run.shape == (1, 1)
    assert outcome.verdict.complete
    assert {r["word"]: r["n"] for r in outcome.rows["rows"]} == {"b": 2, "c": 1}


def test_untracked_windows_are_begun_ahead_too(windows):
    run = windows(tracking=False)
    for shape in ((1,), (1, 1)):
        run.feed("a", "b")
        outcome = run.go()
        assert run.shape == shape
    assert {r["word"]: r["n"] for r in outcome.rows["rows"]} == {"a": 2, "b": 2}


@pytest.mark.parametrize("spec", [FUNCTION, BEHIND], ids=["in the first pass", "behind it"])
def test_programs_with_code_of_the_users_are_not_begun_ahead(windows, spec):
    """A worker that such a pass ends would be taken for one that the code has ended."""
    run = windows(spec)
    assert not runs_beside(run.program)
    for _ in range(2):
        run.feed("a", "b")
        assert run.go().verdict.complete
        assert run.prepared is None
        assert run.shape == (1,)


# -- without Spark


@pytest.fixture
def beside(tmp_path, state_server, uid):
    (tmp_path / "texts").mkdir()
    return lambda spec=WORDS, **changes: Beside(
        compiled(spec, tmp_path, uid, **changes), state_server.address
    )


def test_a_first_pass_that_fails_is_none(beside, tmp_path):
    """What was wrong is told, if it still is, when the attempt is run."""
    run = beside()
    path = tmp_path / "texts" / "a.txt"
    path.write_text("a b\n")
    intent = run.plan()
    path.rename(tmp_path / "away")
    with pytest.raises(TaskError) as caught:
        run.attempt(intent)
    assert isinstance(run.error_in(caught.value), SourceError)
    run.between = lambda: (tmp_path / "away").rename(path)
    outcome = run.attempt(intent)
    assert not run.taken
    assert outcome.verdict.complete
    assert {r["word"]: r["n"] for r in outcome.rows["rows"]} == {"a": 1, "b": 1}


def test_a_first_pass_that_takes_too_long_is_none(beside, tmp_path, monkeypatch):
    """As where the disk that it reads from does not answer: the attempt itself has a time-out."""

    waited: list[float | None] = []

    def late(self, timeout=None):
        waited.append(timeout)
        raise LateError

    run = beside(tuple_timeout_s=0.01)
    (tmp_path / "texts" / "a.txt").write_text("a b\n")
    run.between = lambda: monkeypatch.setattr(Future, "result", late)
    outcome = run.go()
    assert not run.taken
    assert outcome.verdict.complete
    assert ahead.PATIENCE_S in waited


def test_behind_one_that_takes_too_long_none_is_waited_for(monkeypatch):
    """All of them would come behind it."""
    toolbox = SimpleNamespace(program=SimpleNamespace(tuple_timeout_s=0.01))
    monkeypatch.setattr(ahead, "toolbox_of", lambda job: toolbox)
    monkeypatch.setattr(ahead, "PATIENCE_S", 0.01)
    first, second, third = (AttemptId(1, window, 1) for window in (1, 2, 3))
    aheads = Aheads()
    late: Future[Any] = Future()
    aheads._begun = {first: Future(), second: late}
    assert aheads.take(SimpleNamespace(plan=SimpleNamespace(id=first))) == []
    late.set_result(["of a pass that came at last"])
    aheads.begin(third, Work(b"", b"", ahead=True))
    assert list(aheads._begun) == [second]
    assert aheads.take(SimpleNamespace(plan=SimpleNamespace(id=second))) == []


def test_what_a_first_pass_took_is_its_own(beside, tmp_path):
    """Else all windows would seem to take as long as those before them together."""
    run = beside(OBJECTS)
    (tmp_path / "texts" / "a.txt").write_text('{"word": "a"}\n' * 2_000)
    intent = run.plan()
    (pieces,) = share(intent, 1, run.sources)
    place, took = ahead._Side(), []
    for number in range(20):
        attempt = AttemptId(1, 1, 1 + number)
        plan = AttemptPlan(attempt, STAMP, intent, frozenset(), {}, {}, SLICES)
        job = Job(str(run.kit), plan, run.services, True).encode()
        (parcel,) = place.first_pass(Work(job, encode_pieces(pieces), ahead=True))
        (report,) = parcel.header.reports
        assert 0 < report.worked_s < report.took_s
        took.append(report.worked_s)
    assert min(took[-3:]) < sum(took[:10])


@pytest.mark.parametrize("damage", ["Drop", "Double", "AlterId"])
@pytest.mark.parametrize("row", range(3))
def test_what_is_lost_between_the_threads_is_seen_by_the_ackers(beside, tmp_path, damage, row):
    use_path(str(CODE))
    import saboteurs

    (tmp_path / "texts" / "a.txt").write_text("a b\nc a\n")
    run = beside()

    def damaged(parcel):
        (lane,) = parcel.tables
        table = getattr(saboteurs, damage)().altered(parcel.tables[lane], row)
        return replace(parcel, tables={lane: table})

    run.damaged = damaged
    outcome = run.attempt(run.plan())
    assert run.taken
    assert not outcome.verdict.complete
    run.damaged = lambda parcel: parcel
    assert run.attempt(outcome.intent).verdict.complete


NUMBERS = """
sources: [{name: numbers, SOURCE}]
processors:
  - name: counts
    inputs: [{from: numbers, key: [n]}]
    aggregate: {columns: [{name: many, function: count}]}
sinks: [{name: rows, inputs: [{from: counts}], files: {path: rows, format: jsonLines}}]
"""


def test_a_source_of_the_users_is_not_read_ahead(tmp_path, uid):
    theirs = 'custom: {class: "numbersource:Numbers", options: {count: 3}}'
    ours = 'files: {path: texts, format: jsonLines, schema: "n long"}'
    for source, beside in ((theirs, False), (ours, True)):
        program = compiled(NUMBERS.replace("SOURCE", source), tmp_path, uid)
        assert runs_beside(program) == beside


def test_a_changed_program_begins_in_another_task(windows):
    run = windows()
    run.count("a")
    run.between = lambda: run.runner.use(replace(run.program, tuple_timeout_s=29.0))
    assert run.count("a") == (1,)


def test_the_first_pass_is_another_task_to_the_ackers(windows):
    """An attempt may run whole behind one that was begun, in the very same task of Spark's."""
    run = windows()
    run.count("a")
    run.feed("a")
    outcome = run.go()
    first, rest = sorted(outcome.reports, key=str)
    assert (first.pass_no, rest.pass_no) == (0, 1)
    assert first.task_attempt == rest.task_attempt + ahead._AHEAD
