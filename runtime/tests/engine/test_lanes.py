"""First passes on several threads, each a task of its own: nothing twice, nothing left out."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from beside_support import OBJECTS, WORDS, Beside
from engine_support import CODE, WordWindows, assert_idle, compiled
from pyspark import SparkConf

from millrace.engine.jobs import sizes
from millrace.engine.jobs.firstpass import MOST_LANES, lanes_of, runs_beside
from millrace.engine.jobs.session import SessionSettings, build_session, cores_each, session_conf
from millrace.engine.program.usercode import use_path
from millrace.engine.task.stay import ahead, lanes, resident
from millrace.engine.task.stay.ahead import Aheads
from millrace.engine.task.stay.lanes import LANE_ROOTS, SharedReading, lanes_for
from millrace.engine.task.steps.ends import Piece
from millrace.engine.task.worker import decode_reports
from millrace.errors import SourceError
from millrace.protocol.types import RootRange
from millrace.protocol.winners import Winners, find_winners
from millrace.sources import lines
from millrace.sources.base import ReadBatch

LINES, WIDE = 9_000, 90
"""They are read in four blocks."""


@pytest.fixture
def run(tmp_path, state_server, uid, monkeypatch):
    """Makes windows whose first pass has three lanes, and reads block by block."""
    monkeypatch.setattr(lanes, "LANE_ROOTS", 1_000)
    monkeypatch.setattr(lines, "GROUP_BYTES", 1)
    (tmp_path / "texts").mkdir()

    def make(spec=WORDS, **changes) -> Beside:
        made = Beside(compiled(spec, tmp_path, uid, **changes), state_server.address)
        made.lanes = 3
        return made

    return make


@pytest.fixture
def in_turn(monkeypatch):
    """No lane reads a second block before each has read one."""
    met, all_read = set(), threading.Barrier(3, timeout=60)
    before = SharedReading.__call__

    def call(self, piece, batches):
        for found in before(self, piece, batches):
            lane = threading.get_ident()
            if lane not in met:
                met.add(lane)
                all_read.wait()
            yield found

    monkeypatch.setattr(SharedReading, "__call__", call)


def texts(folder, form="{} w{}") -> Counter[str]:
    """A file of lines of so many bytes, and its words."""
    wide = "x" * WIDE
    rows = [form.format(wide, n % 97) for n in range(LINES)]
    (folder / "texts" / "a.txt").write_text("".join(row + "\n" for row in rows))
    return Counter(word for row in rows for word in row.split())


def shape(outcome) -> tuple[int, ...]:
    found = Counter(task.pass_no for task in outcome.reports)
    return tuple(found[number] for number in sorted(found))


def totals(outcome) -> dict[str, int]:
    return {row["word"]: row["n"] for row in outcome.rows["rows"]}


def test_every_lane_reads_what_no_other_reads(run, tmp_path, in_turn):
    windows, words = run(), texts(tmp_path)
    outcome = windows.go()
    assert windows.taken == 3
    assert shape(outcome) == (3, 1)
    assert outcome.verdict.complete
    assert totals(outcome) == words
    found = find_winners((3, 1), outcome.reports.values(), LINES)
    assert isinstance(found, Winners)
    read = [sum(n for _, n in r.roots_read) for r in found.reports if r.task.pass_no == 0]
    assert min(read) > 0
    assert sum(read) == LINES
    lost = [r for r in outcome.reports.values() if (r.task.pass_no, r.task.partition) != (0, 1)]
    assert not isinstance(find_winners((3, 1), lost, LINES), Winners)


def test_untracked_and_uncombined_windows_have_lanes_too(run, tmp_path, in_turn):
    windows, words = run(tracking=False), texts(tmp_path)
    assert totals(windows.go()) == words
    assert windows.taken == 3


def test_keys_that_are_not_combined_come_from_every_lane(run, tmp_path, in_turn):
    windows, words = run(), texts(tmp_path)
    outcome = windows.go(uncombined={"counts": -1})
    assert windows.taken == 3
    assert outcome.verdict.complete
    assert totals(outcome) == words


def test_roots_fail_and_are_left_out_in_whichever_lane_they_are(run, tmp_path, in_turn):
    windows = run(OBJECTS)
    texts(tmp_path, '{{"word": "{}{}"}}')
    path = tmp_path / "texts" / "a.txt"
    rows = path.read_text().splitlines()
    broken, excluded = [3, 4_000, 8_999], [7, 5_000, 8_000]
    for row in broken:
        rows[row] = "{"
    path.write_text("".join(row + "\n" for row in rows))
    outcome = windows.go(excluded=excluded)
    assert windows.taken == 3
    assert sorted(outcome.failed) == broken
    assert outcome.verdict.incomplete == set(broken)
    assert sum(totals(outcome).values()) == LINES - len(broken) - len(excluded)


@pytest.mark.parametrize("damage", ["Drop", "Double", "AlterId"])
def test_what_is_lost_between_a_lane_and_the_rest_is_seen(run, tmp_path, in_turn, damage):
    use_path(str(CODE))
    import saboteurs

    windows, words = run(), texts(tmp_path)

    def damaged(parcel):
        (lane,) = parcel.tables
        table = getattr(saboteurs, damage)().altered(parcel.tables[lane], 1)
        return replace(parcel, tables={lane: table})

    windows.damaged = damaged
    outcome = windows.attempt(windows.plan())
    assert windows.taken == 3
    assert not outcome.verdict.complete
    windows.damaged = lambda parcel: parcel
    outcome = windows.attempt(outcome.intent)
    assert outcome.verdict.complete
    assert totals(outcome) == words


BOTH = WORDS.replace(
    "sinks: [",
    "  - name: both\n    inputs: [{from: words}, {from: counts, columns: {word: word}}]\n"
    "    split: {column: word, into: piece}\n"
    "sinks: [{name: each, inputs: [{from: both}], files: {path: each, format: jsonLines}}, ",
)


def test_what_is_brought_together_by_no_key_comes_from_every_lane(run, tmp_path, in_turn):
    """Such an edge leads to the task of the same number, of which there is one."""
    windows, words = run(BOTH), texts(tmp_path)
    assert runs_beside(windows.program)
    outcome = windows.go()
    assert outcome.verdict.complete
    assert totals(outcome) == words
    each = Counter(row["piece"] for row in outcome.rows["each"])
    assert each == words + Counter(set(words))
    assert windows.taken == 3


@pytest.mark.parametrize("number", range(3))
def test_one_lane_that_fails_is_no_first_pass_at_all(run, tmp_path, monkeypatch, number):
    """Also where the others have told the ackers already."""
    windows, words = run(), texts(tmp_path)
    before = ahead._Lane.run

    def fails(self, *given):
        parcel = before(self, *given)
        if self._number == number:
            raise SourceError("its disk is away")
        return parcel

    monkeypatch.setattr(ahead._Lane, "run", fails)
    outcome = windows.go()
    assert windows.taken == 0
    assert shape(outcome) == (1,)
    assert outcome.verdict.complete
    assert totals(outcome) == words


@pytest.mark.parametrize("fails", [False, True])
def test_a_window_that_nobody_has_begun_with_has_lanes_too(run, tmp_path, monkeypatch, fails):
    """And none where one of them fails: then it runs as any other."""
    windows, words = run(), texts(tmp_path)
    if fails:
        monkeypatch.setattr(ahead._Lane, "run", lambda self, *given: 1 // 0)

    def run_tasks(plan):
        job, work = windows.work_of(plan)
        with Aheads() as aheads:
            made = resident._run(job, replace(work, ahead=False), 0, aheads)
        return [report for data in made for report in decode_reports(data)]

    windows.run_tasks = run_tasks
    outcome = windows.go()
    assert shape(outcome) == ((1,) if fails else (3, 1))
    assert outcome.verdict.complete
    assert totals(outcome) == words


# -- what lanes read


def piece(first: int, count: int = 100) -> Piece:
    return Piece(first, RootRange("lines", 1, first, count))


def batch(rows: int) -> ReadBatch:
    return ReadBatch(pa.RecordBatch.from_arrays([pa.array(range(rows))], names=["n"]))


def test_each_batch_is_given_once_with_the_place_that_it_begins_at():
    shared, one, two = SharedReading(), piece(0), piece(100)
    first = shared(one, iter([batch(3), batch(0), batch(4)]))
    second = shared(one, iter([]))  # of one lane alone are they read
    assert next(first)[0] == 0
    assert [at for at, _ in second] == [3, 3]
    assert list(first) == []
    assert [at for at, _ in shared(two, iter([batch(2), batch(2)]))] == [0, 2]


def test_holes_count_as_places():
    with_holes = replace(batch(2), holes=((0, 5),))
    found = SharedReading()(piece(0), iter([with_holes, batch(1)]))
    assert [at for at, _ in found] == [0, 7]


def test_where_reading_fails_one_lane_hears_of_it_and_others_find_the_end():
    def broken():
        yield batch(1)
        raise SourceError("gone")

    shared, here = SharedReading(), piece(0)
    one, other = shared(here, broken()), shared(here, broken())
    assert next(one)[0] == 0
    with pytest.raises(SourceError, match="gone"):
        next(other)
    assert list(one) == []


def test_nobody_reads_any_more_once_it_is_stopped():
    shared, here = SharedReading(), piece(0)
    found = shared(here, iter([batch(1), batch(1)]))
    assert next(found)[0] == 0
    shared.stop()
    assert list(found) == []


# -- how many


def test_a_lane_has_enough_to_do():
    assert [lanes_for(n * LANE_ROOTS, 4) for n in (0, 1, 2, 3, 4, 9)] == [1, 1, 2, 3, 4, 4]
    assert lanes_for(2 * LANE_ROOTS - 1, 4) == 1
    text = " ".join((Path(__file__).parents[3] / "docs" / "guarantees.md").read_text().split())
    assert f"four, and one for each {LANE_ROOTS:,} records of the window" in text
    assert MOST_LANES == 4


def test_lanes_are_as_many_as_could_run_as_tasks_of_one_executor(tmp_path, uid):
    program = compiled(WORDS, tmp_path, uid)
    for cores, parallelism, wanted in ((1, 2, 1), (2, 2, 2), (8, 2, 2), (2, 8, 2), (9, 9, 4)):
        assert lanes_of(replace(program, parallelism=parallelism), cores) == wanted
    function = WORDS.replace("split: {column: value, into: word}", 'function: "wordsteps:tag"')
    assert lanes_of(compiled(function, tmp_path, uid), 2) == 0


@pytest.mark.parametrize(
    ("settings", "cores"),
    [
        ({"threads": 3}, 3),
        ({"instances": 2, "cores": 5}, 5),
        ({"instances": 2, "cores": 5, "cluster": {"spark.master": "k8s://https://a:443"}}, 5),
    ],
)
def test_the_cores_of_an_executor_are_those_of_its_session(tmp_path, settings, cores):
    conf = SparkConf(loadDefaults=False)
    conf.setAll(list(session_conf(SessionSettings("x", tmp_path, **settings)).items()))
    assert cores_each(conf) == cores


def test_windows_of_many_records_have_lanes_in_spark(tmp_path, state_server, uid, monkeypatch):
    """Two groups of blocks, one for each of both cores. First windows are several tasks, until it
    is known how long they take; the next one has lanes though it was not begun ahead, for there was
    no task that stays."""
    monkeypatch.setattr(sizes, "MOST_S", 1e9)  # whatever else this machine does
    spark = build_session(SessionSettings("lanes", tmp_path / "spark", threads=2))
    (tmp_path / "texts").mkdir()
    windows = WordWindows(compiled(WORDS, tmp_path, uid), state_server.address, spark, 1 << 20)
    windows.prepares = True
    try:
        words, shapes = [f"{n % 7}{'y' * 70}" for n in range(4 * LANE_ROOTS)], []
        for _ in range(6):
            windows.feed(*words)
            windows.check(windows.go(), *words)
            shapes.append(windows.shape)
        assert shapes == [(2, 2), (2, 2), (2, 2), (2, 1), (2, 1), (2, 1)]
        for prepares, wanted in ((True, (1, 1)), (False, (1,))):
            windows.prepares = prepares
            windows.feed("a")
            windows.check(windows.go(), "a")
            assert windows.shape == wanted
    finally:
        windows.close()
        assert_idle(spark)
        spark.stop()
