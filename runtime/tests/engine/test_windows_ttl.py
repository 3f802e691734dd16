"""State that expires, in real tasks: by the window's time, whoever runs it, however it is cut."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_support import write_lines

from millrace.engine.program.cutting import cut_intent
from millrace.engine.task import worker

TTL_MS = 60_000
START = 1_000_000

SPEC = """
keyGroups: 16
sources: [{name: lines, files: {path: texts}}]
processors:
  - {name: split, function: "wordsteps:split_batch", inputs: [{from: lines}]}
  - {name: counts, inputs: [{from: split, key: [word]}], ttl: 1m, PROCESSOR}
sinks:
  - name: totals
    inputs: [{from: counts}]
    files: {path: totals, format: jsonLines}
"""
AGGREGATE = "aggregate: {columns: [{name: n, function: count}]}"
FINAL = "aggregate: {columns: [{name: n, function: count}], emit: final}"
PROCESSORS = {
    "aggregate": AGGREGATE,
    "function": 'function: "wordsteps:running_count"',
    "grouped": 'function: "wordsteps:grouped_count"',
    "class": 'function: "wordsteps:Expiring"',
}


def spec(processor: str) -> str:
    return SPEC.replace("PROCESSOR", processor)


def restart() -> None:
    """What a worker process knows goes with it."""
    worker._PROCESS.clear()


def counted(outcome) -> dict[str, int]:
    assert outcome.verdict.complete
    return {row["word"]: row["n"] for row in outcome.rows["totals"]}


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("processor", PROCESSORS)
def test_state_is_there_until_its_ttl_has_passed_since_the_last_update(
    windows, tmp_path, processor, whole
):
    write_lines(tmp_path, ["a b c d e f g h"])
    run = windows(spec(PROCESSORS[processor]), whole)
    # Time of the window, the words that it brings, and what they count up to.
    history = [
        (START + 1, "a b", {"a": 2, "b": 2}),
        (START + TTL_MS - 1, "c", {"c": 2}),
        (START + TTL_MS, "d a", {"d": 1, "a": 3}),
        (START + TTL_MS + 1, "b", {"b": 1}),
        (START + 2 * TTL_MS - 1, "c", {"c": 1}),
        (START + 2 * TTL_MS, "a d", {"a": 1, "d": 1}),
    ]
    first = run.attempt(replace(run.plan(), time_ms=START))
    run.seal(first)
    for number, (time_ms, words, expected) in enumerate(history):
        write_lines(tmp_path, [words], f"{number}.txt")
        intent = replace(run.plan(), time_ms=time_ms)
        # Another worker runs it first, much later maybe: it sees the same.
        assert counted(run.attempt(intent)) == expected
        restart()
        outcome = run.attempt(intent)
        assert counted(outcome) == expected
        run.seal(outcome)


@pytest.mark.parametrize("processor", PROCESSORS)
def test_both_halves_of_a_window_have_its_time(windows, tmp_path, processor):
    write_lines(tmp_path, ["a b"])
    run = windows(spec(PROCESSORS[processor]))
    run.seal(run.attempt(replace(run.plan(), time_ms=START)))
    write_lines(tmp_path, ["a", "a", "b", "a"], "b.txt")
    whole = replace(run.plan(), time_ms=START + TTL_MS)
    low, high = cut_intent(whole, 2, run.sources)
    assert (low.time_ms, high.time_ms) == (whole.time_ms, whole.time_ms)
    outcome = run.attempt(low)
    assert counted(outcome)["a"] == 2
    run.seal(outcome)
    restart()
    outcome = run.attempt(replace(high, window=high.window + 1))
    assert counted(outcome) == {"a": 3, "b": 1}


def test_totals_at_the_end_are_those_that_have_not_expired(windows, tmp_path):
    write_lines(tmp_path, ["a b", "b"])
    run = windows(spec(FINAL).replace("path: texts", "path: texts, watch: false"))
    run.seal(run.attempt(replace(run.plan(1), time_ms=START)))
    run.seal(run.attempt(replace(run.plan(1), time_ms=START + 1)))
    last = run.attempt(replace(run.plan(), final=True, time_ms=START + TTL_MS))
    assert counted(last) == {"b": 2}


@pytest.mark.parametrize("function", ["fails_on_demand", "grouped_fails_on_demand"])
def test_what_fails_is_no_update(windows, tmp_path, function):
    write_lines(tmp_path, ["a"])
    run = windows(spec(f'function: "wordsteps:{function}"'))
    run.seal(run.attempt(replace(run.plan(), time_ms=START)))
    write_lines(tmp_path, ["a a"], "b.txt")
    intent = replace(run.plan(), time_ms=START + 1)
    failed = run.attempt(intent)
    assert failed.failed
    run.seal(failed)
    write_lines(tmp_path, ["a"], "c.txt")
    outcome = run.attempt(replace(run.plan(), time_ms=START + TTL_MS))
    assert counted(outcome) == {"a": 1}
