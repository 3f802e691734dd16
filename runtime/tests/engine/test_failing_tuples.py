"""Which roots fail when user code raises, what is left of their outputs, and what it says."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from engine_support import compiled, write_lines

from millrace.engine.task.faults import TaskError
from millrace.errors import SourceAwayError
from millrace.ids import DEFAULT_KEY_GROUPS
from millrace.protocol.types import Replay

GOOD = [f"w{i % 9}" for i in range(60)]


def spec(function, key="", more=""):
    module = "poisonsteps"
    return f"""
sources: [{{name: lines, files: {{path: texts}}}}]
processors:
  - {{name: step, function: "{module}:{function}", inputs: [{{from: lines{key}}}]}}
{more}
sinks:
  - {{name: rows, inputs: [{{from: step}}], files: {{path: rows, format: jsonLines}}}}
"""


@pytest.fixture(autouse=True)
def forget_calls(tmp_path, windows, uid):
    """User code counts its calls in its own module, which the engine imported."""
    write_lines(tmp_path, ["x"])
    compiled(spec("in_row"), tmp_path, uid)
    import poisonsteps

    poisonsteps.CALLS.clear()


def with_poison(words, seed=5):
    lines = [*GOOD, *words]
    random.Random(seed).shuffle(lines)
    return lines


def places(lines, prefix):
    return {i for i, line in enumerate(lines) if line.startswith(prefix)}


STEPS = [
    ("in_row", "", 2),
    ("in_where", "", 1),
    ("in_batch", "", 1),
    ("in_state", ", key: [value]", 1),
    ("in_groups", ", key: [value]", 1),
    ("InClass", "", 2),
    ("InKeyedClass", ", key: [value]", 1),
]


RAISED = {
    "exit1": "SystemExit: 3",
    "huge1": "MemoryError",
    "panic1": "Panic: not understood",
    "cancel1": "CancelledError",
    "mute1": "MuteError",
}


@pytest.mark.parametrize(("function", "key", "each"), STEPS)
@pytest.mark.parametrize("whole", [False, True])
def test_only_what_raises_twice_fails(windows, tmp_path, function, key, each, whole):
    lines = with_poison(["bad1", "once1", "once2", "bad2", *RAISED])
    write_lines(tmp_path, lines)
    run = windows(spec(function, key), whole)
    outcome = run.attempt(run.plan())
    poison = places(lines, ("bad", *RAISED))
    assert set(outcome.failed) == poison
    assert outcome.failed[lines.index("bad1")] == ("step", "ValueError: cannot take bad1")
    for word, error in RAISED.items():
        assert outcome.failed[lines.index(word)] == ("step", error)
    assert outcome.verdict.incomplete <= poison
    words = Counter(r.get("word", r.get("value")) for r in outcome.rows["rows"])
    good = Counter(line for i, line in enumerate(lines) if i not in poison)
    expected = good
    if each == 2:
        expected = good + Counter({f"first of {w}": n for w, n in good.items()})
    assert words == expected


@pytest.mark.parametrize(("function", "key", "each"), STEPS)
def test_without_the_failed_roots_the_window_is_complete(windows, tmp_path, function, key, each):
    lines = with_poison(["bad1", "bad2"])
    write_lines(tmp_path, lines)
    run = windows(spec(function, key))
    intent = run.plan()
    first = run.attempt(intent)
    second = run.attempt(intent, excluded=set(first.failed))
    assert second.failed == {}
    assert second.verdict.complete
    assert len(second.rows["rows"]) == len(GOOD) * each


@pytest.mark.parametrize("function", ["in_state", "in_groups", "InKeyedClass"])
def test_a_failed_call_leaves_the_state_as_it_was(windows, tmp_path, function):
    lines = ["once", "once", "bad", "bad", "once"]
    write_lines(tmp_path, lines)
    outcome = windows(spec(function, ", key: [value]")).go()
    assert sorted(r["n"] for r in outcome.rows["rows"] if r["word"] == "once") == [1, 2, 3]
    assert set(outcome.failed) == {2, 3}


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("in_state", "n of type int64 cannot hold 'many'"),
        ("in_small_groups", "value 1099511627776 not in range"),
    ],
)
def test_a_value_that_does_not_fit_the_state_fails_its_tuple(windows, tmp_path, function, told):
    write_lines(tmp_path, ["mistyped", "fine"])
    outcome = windows(spec(function, ", key: [value]")).go()
    processor, error = outcome.failed[0]
    assert (processor, set(outcome.failed)) == ("step", {0})
    assert told in error


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("Returns", "processor 'step': process returned dict, which goes nowhere; call out.emit"),
        ("KeyedReturns", "processor 'step': process returned dict, which goes nowhere"),
        ("late_where", "processor 'step' returned generator, which is always true; return True"),
    ],
)
def test_what_nobody_takes_fails_its_tuple(windows, tmp_path, function, told):
    write_lines(tmp_path, ["a", "returned", "b"])
    key = ", key: [value]" if function == "KeyedReturns" else ""
    outcome = windows(spec(function, key)).go()
    assert set(outcome.failed) == {1}
    assert told in outcome.failed[1][1]
    assert sorted(r.get("word", r.get("value")) for r in outcome.rows["rows"]) == ["a", "b"]


@pytest.mark.parametrize("function", ["InClass", "InKeyedClass"])
def test_a_class_can_fail_a_tuple_by_name(windows, tmp_path, function):
    write_lines(tmp_path, ["a", "refused", "b"])
    key = ", key: [value]" if function == "InKeyedClass" else ""
    outcome = windows(spec(function, key)).go()
    assert outcome.failed == {1: ("step", "refused by name")}
    assert not [r for r in outcome.rows["rows"] if "refused" in r["word"]]


@pytest.mark.parametrize("function", ["CannotOpen", "CannotBeMade"])
def test_a_class_that_cannot_get_ready_blames_no_root(windows, tmp_path, function):
    write_lines(tmp_path, ["a", "b"])
    run = windows(spec(function))
    with pytest.raises(TaskError) as caught:
        run.attempt(run.plan())
    error = run.error_in(caught.value)
    assert error.retryable
    assert "'step' cannot be opened: OSError: no such service" in str(error)


def test_a_class_that_cannot_be_closed_has_done_its_work(windows, tmp_path):
    write_lines(tmp_path, ["a", "b"])
    outcome = windows(spec("CannotClose")).go()
    assert [r["word"] for r in outcome.rows["rows"]] == ["a", "b"]
    assert outcome.verdict.complete


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("wrong_type", "'step', column 'n': expected long, got str 'bad'"),
        ("wrong_columns", "'step' did not put out its column 'n' (long), only m"),
        ("too_many_columns", "'step' put out the column 'm', which it does not declare"),
        ("bad_parents", "'step' returned parents from 1 to 1 for a batch of 1 rows"),
        ("too_few_parents", "'step' returned 0 parents for 1 output rows"),
        ("wrong_array", "'step', column 'n': expected long, got string"),
    ],
)
def test_output_that_was_not_declared_is_refused(windows, tmp_path, function, told):
    lines = ["a", "b", "bad", "c", "d"]
    write_lines(tmp_path, lines)
    outcome = windows(spec(function)).go()
    assert set(outcome.failed) == {2}
    assert told in outcome.failed[2][1]
    assert len(outcome.rows["rows"]) == 4


def test_bytes_that_are_no_text_fail_their_root_alone(windows, tmp_path):
    (tmp_path / "texts" / "a.txt").write_bytes(b"fine\n\xff\xfe\nalso\n")
    run = windows(spec("in_where"))
    intent = run.plan()
    outcome = run.attempt(intent)
    assert set(outcome.failed) == {1}
    assert outcome.failed[1][0] == "lines"
    assert "UTF-8" in outcome.failed[1][1]
    assert [r["value"] for r in outcome.rows["rows"]] == ["fine", "also"]


COMBINED = """
sources: [{name: lines, files: {path: texts}}]
processors:
  - name: counts
    inputs: [{from: lines, key: [value]}]
    aggregate: {columns: [{name: n, function: count}]}
  - name: renamed
    inputs: [{from: counts}]
    function: "poisonnames:rename"
  - {name: check, function: "poisonsteps:after_combine", inputs: [{from: renamed}]}
sinks:
  - {name: rows, inputs: [{from: check}], files: {path: rows, format: jsonLines}}
"""


@pytest.mark.parametrize("whole", [False, True])
def test_a_failure_behind_a_combine_is_traced_to_its_roots(windows, tmp_path, whole):
    lines = with_poison(["bad1", "bad1", "bad2", "bad1"])
    write_lines(tmp_path, lines)
    run = windows(COMBINED, whole)
    intent = run.plan()
    first = run.attempt(intent)
    assert first.failed == {}
    assert set(first.combined) == {"counts"}
    groups = first.combined["counts"]
    assert 1 <= bin(groups).count("1") <= 2
    second = run.attempt(intent, uncombined=first.combined)
    assert second.combined == {}
    assert set(second.failed) == places(lines, "bad")
    assert second.failed[lines.index("bad1")][0] == "check"
    third = run.attempt(intent, excluded=set(second.failed), uncombined=first.combined)
    assert third.failed == {}
    assert third.verdict.complete
    assert {r["word"]: r["n"] for r in third.rows["rows"]} == Counter(GOOD)


def test_a_failure_behind_two_combines_is_traced_through_both(windows, tmp_path):
    lines = with_poison(["bad1", "bad2"])
    write_lines(tmp_path, lines)
    chained = COMBINED.replace(
        "  - {name: check",
        """  - name: sums
    inputs: [{from: renamed, key: [word]}]
    aggregate: {columns: [{name: n, function: sum, of: n}]}
  - {name: check""",
    ).replace("inputs: [{from: renamed}]", "inputs: [{from: sums}]")
    run = windows(chained)
    intent = run.plan()
    uncombined: dict[str, int] = {}
    named = []
    while True:
        outcome = run.attempt(intent, uncombined=uncombined)
        named.append(set(outcome.combined))
        if not outcome.combined:
            break
        for name, mask in outcome.combined.items():
            uncombined[name] = uncombined.get(name, 0) | mask
    assert named == [{"sums"}, {"counts"}, set()]
    assert set(outcome.failed) == places(lines, "bad")
    last = run.attempt(intent, excluded=set(outcome.failed), uncombined=uncombined)
    assert last.verdict.complete
    assert {r["word"]: r["n"] for r in last.rows["rows"]} == Counter(GOOD)


OVERFLOW = """
sources:
  - {name: table, files: {path: texts, format: jsonLines, schema: "k string, n long"}}
processors:
  - name: sums
    inputs: [{from: table, key: [k]}]
    aggregate: {columns: [{name: n, function: sum, of: n}]}
sinks:
  - {name: rows, inputs: [{from: sums}], files: {path: rows, format: jsonLines}}
"""


@pytest.mark.parametrize("whole", [False, True])
def test_a_sum_that_overflows_is_traced_to_its_roots(windows, tmp_path, whole):
    huge = 2**62
    lines = ['{"k": "a", "n": 1}', f'{{"k": "b", "n": {huge}}}'] * 2
    write_lines(tmp_path, lines)
    run = windows(OVERFLOW, whole)
    intent = run.plan()
    first = run.attempt(intent)
    assert set(first.combined) == {"sums"}
    second = run.attempt(intent, uncombined=first.combined)
    assert set(second.failed) == {1, 3}
    assert "sum n of key b leaves the range" in second.failed[1][1]
    third = run.attempt(intent, excluded={1, 3}, uncombined=first.combined)
    assert third.verdict.complete
    assert third.rows["rows"] == [{"k": "a", "n": 2}]


@pytest.mark.parametrize("whole", [False, True])
def test_a_sum_that_overflows_blames_no_root_of_another_key(windows, tmp_path, whole):
    lines = [f'{{"k": "k{n % 20}", "n": {2**62 if n % 20 == 3 else 1}}}' for n in range(40)]
    write_lines(tmp_path, lines)
    run = windows("keyGroups: 1" + OVERFLOW, whole)
    intent = run.plan()
    first = run.attempt(intent)
    second = run.attempt(intent, uncombined=first.combined)
    assert set(second.failed) == {3, 23}
    third = run.attempt(intent, excluded={3, 23}, uncombined=first.combined)
    assert third.verdict.complete
    assert {row["k"]: row["n"] for row in third.rows["rows"]} == {
        f"k{n}": 2 for n in range(20) if n != 3
    }


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("guarantee", ["AtMostOnce", "AtLeastOnce"])
def test_no_sum_that_wrapped_around_is_sealed(windows, tmp_path, whole, guarantee):
    """Where what fails is not run again without its roots the run stops."""
    write_lines(tmp_path, [f'{{"k": "b", "n": {2**62}}}'] * 2)
    run = windows(f"guarantee: {guarantee}" + OVERFLOW, whole)
    intent = run.plan()
    uncombined = {}
    if guarantee == "AtLeastOnce":
        uncombined = run.attempt(intent).combined
        assert set(uncombined) == {"sums"}
    with pytest.raises(TaskError, match="sum n of key b leaves the range"):
        run.attempt(intent, uncombined=uncombined)


@pytest.mark.parametrize("whole", [False, True])
def test_a_mean_of_numbers_that_no_double_is_fails_nobody(windows, tmp_path, whole):
    large = 2**53 + 1
    write_lines(tmp_path, [f'{{"k": "a", "n": {n}}}' for n in (large, large)] + ['{"k": "b"}'])
    outcome = windows(OVERFLOW.replace("function: sum", "function: avg"), whole).go()
    assert outcome.verdict.complete
    assert outcome.failed == {}
    rows = sorted(outcome.rows["rows"], key=lambda row: row["k"])
    assert rows == [{"k": "a", "n": float(large)}, {"k": "b", "n": None}]


def test_all_key_groups_uncombined_give_the_same_totals(windows, tmp_path):
    lines = with_poison([])
    write_lines(tmp_path, lines)
    run = windows(COMBINED)
    everything = {"counts": (1 << DEFAULT_KEY_GROUPS) - 1}
    outcome = run.attempt(run.plan(), uncombined=everything)
    assert {r["word"]: r["n"] for r in outcome.rows["rows"]} == Counter(GOOD)
    assert outcome.verdict.complete


def test_replays_are_read_alone_under_an_id_of_their_own(windows, tmp_path):
    write_lines(tmp_path, [f"w{i}" for i in range(10)])
    run = windows(spec("in_where"))
    intent = run.plan()
    run.seal(run.attempt(intent))
    (piece,) = intent.ranges
    source = run.sources["lines"]
    replays = [
        Replay("lines", piece.partition, piece.start + i, 2, 0.0, source.locate(piece, i))
        for i in (7, 3)
    ]
    outcome = run.attempt(run.plan(replays=replays))
    assert [r["value"] for r in outcome.rows["rows"]] == ["w7", "w3"]
    assert outcome.verdict.complete


def test_a_replay_is_not_to_blame_for_a_folder_that_is_away_nor_for_a_new_name(windows, tmp_path):
    write_lines(tmp_path, ["w1", "w2"], "a.txt")
    run = windows(spec("in_row"))
    (first,) = run.plan().ranges
    locator = run.sources["lines"].locate(first, 1)
    intent = run.plan(replays=(Replay("lines", first.partition, 1, 1, 0.0, locator),))
    (tmp_path / "texts" / "a.txt").rename(tmp_path / "texts" / "b.txt")
    outcome = run.attempt(intent)
    assert outcome.verdict.complete
    words = {r["word"] for r in outcome.rows["rows"]}
    assert "w2" in words
    assert "w1" not in words
    (tmp_path / "texts").rename(tmp_path / "unmounted")
    with pytest.raises(TaskError) as failure:
        run.attempt(intent)
    assert isinstance(run.error_in(failure.value), SourceAwayError)


def test_a_replay_of_a_record_that_is_gone_fails_alone_where_it_is_given_up(windows, tmp_path):
    """Records that were never processed are another matter: then the stream must stop."""
    write_lines(tmp_path, ["gone"], "a.txt")
    run = windows(spec("in_row"))
    (first,) = run.plan().ranges
    write_lines(tmp_path, ["w1", "w2"], "b.txt")
    locator = run.sources["lines"].locate(first, 0)
    replay = Replay("lines", first.partition, first.start, 1, 0.0, locator)
    intent = run.plan(replays=(replay,))
    (tmp_path / "texts" / "a.txt").unlink()
    with pytest.raises(TaskError) as failure:
        run.attempt(intent)
    assert "a.txt is gone" in str(run.error_in(failure.value))
    assert "--drop-gone" in str(run.error_in(failure.value))
    run = windows(spec("in_row"), drop_gone=True)
    outcome = run.attempt(intent)
    assert outcome.failed.keys() == {2}
    processor, error = outcome.failed[2]
    assert processor == "lines"
    assert "a.txt is gone" in error
    again = run.attempt(intent, excluded={2})
    assert again.verdict.complete
    assert {r["word"] for r in again.rows["rows"]} >= {"w1", "w2"}
    (tmp_path / "texts" / "b.txt").unlink()
    with pytest.raises(TaskError) as failure:
        run.attempt(intent)
    assert "b.txt is gone" in str(run.error_in(failure.value))
