"""State of other columns than today's, in real tasks: migrated as it is read, once in effect."""

from __future__ import annotations

import pytest
from engine_support import write_lines

from millrace.engine.task import worker
from millrace.state.errors import StateMigrationError, StateSchemaError

SPEC = """
keyGroups: 16
sources: [{name: lines, files: {path: texts}}]
processors:
  - {name: split, function: "wordsteps:split_batch", inputs: [{from: lines}]}
  - {name: counts, inputs: [{from: split, key: [word]}], function: "wordsteps:FUNCTION"}
sinks:
  - name: totals
    inputs: [{from: counts}]
    files: {path: totals, format: jsonLines}
"""
OTHERS = [f"w{n}" for n in range(40)]
"""So many other words that a window's changes are no base."""


@pytest.fixture
def edited(windows, tmp_path):
    """Two windows of the old code, then the same topology with the new."""

    def make(function: str, words: str = "a b b", whole: bool = False):
        write_lines(tmp_path, [" ".join([*OTHERS, words])])
        before = windows(SPEC.replace("FUNCTION", "running_count"), whole)
        before.go()
        write_lines(tmp_path, ["c"], "b.txt")
        before.go()
        worker._PROCESS.clear()
        after = windows(SPEC.replace("FUNCTION", function), whole)
        after.chains, after.offsets, after.window = before.chains, before.offsets, before.window
        after.attempts = before.attempts
        return after

    yield make
    worker._PROCESS.clear()


def counted(outcome) -> dict[str, int]:
    assert outcome.verdict.complete
    return {row["word"]: row["n"] for row in outcome.rows["totals"]}


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    "function", ["count_with_last", "grouped_count_with_last", "CountWithLast"]
)
def test_state_goes_on_in_its_new_form(edited, tmp_path, function, whole):
    run = edited(function, whole=whole)
    write_lines(tmp_path, ["a b c d"], "c.txt")
    intent = run.plan()
    expected = {"a": 101, "b": 201, "c": 101, "d": 1}
    # Attempts that do not count, in this worker and in one that was started anew, change nothing.
    assert counted(run.attempt(intent)) == expected
    worker._PROCESS.clear()
    outcome = run.attempt(intent)
    assert counted(outcome) == expected
    run.seal(outcome)
    # What was written since then is in the new form, the rest still in the old one.
    worker._PROCESS.clear()
    write_lines(tmp_path, ["a w1"], "d.txt")
    outcome = run.attempt(run.plan())
    assert counted(outcome) == {"a": 102, "w1": 101}
    run.seal(outcome)


def test_a_migration_that_fails_stops_with_processor_and_key_and_loses_nothing(edited, tmp_path):
    run = edited("count_with_last", "a " + "b " * 13)
    chains = dict(run.chains)
    write_lines(tmp_path, ["a b"], "c.txt")
    intent = run.plan()
    for _ in range(2):
        with pytest.raises(Exception, match="MILLRACE-ERROR") as failed:
            run.attempt(intent)
        error = run.error_in(failed.value)
        assert isinstance(error, StateMigrationError)
        assert not error.retryable
        assert "processor 'counts': the state of key b, kept as (n int64)" in str(error)
        assert "without_last raised ValueError: an unlucky number" in str(error)
        assert "nothing is lost" in str(error)
    assert run.chains == chains


def test_without_a_migration_the_error_says_that_there_may_be_one(edited, tmp_path):
    run = edited("count_with_nothing_said")
    write_lines(tmp_path, ["a"], "c.txt")
    with pytest.raises(Exception, match="MILLRACE-ERROR") as failed:
        run.attempt(run.plan())
    error = run.error_in(failed.value)
    assert type(error) is StateSchemaError
    assert "@migrates" in str(error)
