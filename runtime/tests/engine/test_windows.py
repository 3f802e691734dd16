"""Whole windows through every kind of processor and edge: output, state and check values."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from engine_support import write_lines

LINES = [f"alpha beta w{i % 7} w{i % 13}" for i in range(600)]
WORDS = Counter(word for line in LINES for word in line.split())

LINES_SOURCE = "sources: [{name: lines, files: {path: texts}}]"


def out(name, source):
    sink = f"files: {{path: {name}, format: jsonLines}}"
    return f"  - {{name: {name}, inputs: [{{from: {source}}}], {sink}}}"


COUNT = f"""
{LINES_SOURCE}
processors:
  - {{name: split, function: "wordsteps:FUNCTION", inputs: [{{from: lines}}]}}
  - name: counts
    inputs: [{{from: split, key: [word]}}]
    aggregate: {{columns: [{{name: n, function: count}}]}}
sinks:
{out("totals", "counts")}
"""


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("function", ["split", "split_batch"])
def test_word_count(windows, tmp_path, function, whole):
    write_lines(tmp_path, LINES)
    outcome = windows(COUNT.replace("FUNCTION", function), whole).go()
    assert {r["word"]: r["n"] for r in outcome.rows["totals"]} == WORDS
    assert outcome.verdict.complete
    assert outcome.failed == {}


def test_totals_go_on_from_window_to_window_whichever_way_they_run(windows, tmp_path):
    write_lines(tmp_path, LINES[:200])
    run = windows(COUNT.replace("FUNCTION", "split_batch"))
    totals = {}
    for number, lines in enumerate([LINES[:200], LINES[200:210], LINES[210:600]]):
        write_lines(tmp_path, lines, f"{number}.txt") if number else None
        run.whole = number == 1
        outcome = run.go()
        assert outcome.verdict.complete
        totals.update({r["word"]: r["n"] for r in outcome.rows["totals"]})
    assert totals == WORDS


def test_an_attempt_that_was_not_sealed_leaves_no_trace(windows, tmp_path):
    write_lines(tmp_path, LINES)
    run = windows(COUNT.replace("FUNCTION", "split"))
    intent = run.plan()
    for _ in range(2):
        outcome = run.attempt(intent)
    assert {r["word"]: r["n"] for r in outcome.rows["totals"]} == WORDS
    assert outcome.verdict.complete


FANNED = f"""
parallelism: 3
sources:
  - {{name: lines, files: {{path: texts, watch: false}}}}
  - {{name: more, files: {{path: others, watch: false}}}}
processors:
  - name: split
    function: "wordsteps:split"
    inputs: [{{from: lines}}, {{from: more}}]
  - {{name: noa, function: "wordsteps:no_a", inputs: [{{from: split}}]}}
  - {{name: turned, function: "wordsteps:reversed_batch", inputs: [{{from: noa}}]}}
  - {{name: sized, function: "wordsteps:sized", inputs: [{{from: split}}]}}
  - name: counts
    inputs: [{{from: split, key: [word]}}, {{from: turned, key: [word]}}]
    aggregate: {{columns: [{{name: n, function: count}}]}}
  - {{name: tagged, function: "wordsteps:tag", inputs: [{{from: counts}}, {{from: sized}}]}}
  - name: again
    inputs: [{{from: tagged, key: [word]}}, {{from: sized, key: [word]}}]
    aggregate:
      columns:
        - {{name: total, function: sum, of: n}}
        - {{name: largest, function: max, of: n}}
        - {{name: rows, function: count}}
  - {{name: everywhere, function: "wordsteps:no_a", inputs: [{{from: split, broadcast: true}}]}}
sinks:
{out("a", "again")}
{out("b", "everywhere")}
{out("c", "split")}
"""


@pytest.mark.parametrize("whole", [False, True])
def test_fan_out_merge_broadcast_relays_and_two_exchanges(windows, tmp_path, whole):
    write_lines(tmp_path, LINES[:150])
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "b.txt").write_text("alpha zeta\n" * 30)
    outcome = windows(FANNED, whole).go()
    words = Counter(w for line in LINES[:150] for w in line.split())
    words += Counter({"alpha": 30, "zeta": 30})
    counts = {w: n * (1 if "a" in w else 2) for w, n in words.items()}
    total, rows, largest = Counter(), Counter(), {}
    for word, n in words.items():
        for key, value, times in [
            (word + "!", counts[word], 1),
            (word + "!", len(word), n),
            (word, len(word), n),
        ]:
            total[key] += value * times
            rows[key] += times
            largest[key] = max(largest.get(key, 0), value)
    found = {r["word"]: (r["total"], r["rows"], r["largest"]) for r in outcome.rows["a"]}
    assert found == {w: (total[w], rows[w], largest[w]) for w in total}
    copies = 1 if whole else 3
    kept = {w: n * copies for w, n in words.items() if "a" not in w}
    assert Counter(r["word"] for r in outcome.rows["b"]) == kept
    assert Counter(r["word"] for r in outcome.rows["c"]) == words
    assert outcome.verdict.complete
    assert outcome.failed == {}


STATEFUL = f"""
{LINES_SOURCE}
processors:
  - {{name: split, function: "wordsteps:FUNCTION", inputs: [{{from: lines}}]}}
  - {{name: running, function: "wordsteps:running_count", inputs: [{{from: split, key: [word]}}]}}
  - {{name: firsts, function: "wordsteps:Dedup", inputs: [{{from: running, key: [word]}}]}}
sinks:
{out("counts", "running")}
{out("new", "firsts")}
"""


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("function", ["running_count", "grouped_count"])
def test_stateful_functions_and_classes_keep_typed_state(windows, tmp_path, function, whole):
    write_lines(tmp_path, LINES[:100])
    spec = STATEFUL.replace("FUNCTION", "split_batch").replace("running_count", function)
    run = windows(spec, whole)
    first = run.go()
    write_lines(tmp_path, LINES[100:300], "b.txt")
    second = run.go()
    words = Counter(w for line in LINES[:300] for w in line.split())
    seen = first.rows["counts"] + second.rows["counts"]
    for word, times in words.items():
        assert [r["n"] for r in seen if r["word"] == word] == list(range(1, times + 1))
    assert {r["word"] for r in first.rows["new"]} | {r["word"] for r in second.rows["new"]} == set(
        words
    )
    assert len(first.rows["new"]) + len(second.rows["new"]) == len(words)
    assert first.verdict.complete
    assert second.verdict.complete


@pytest.mark.parametrize("function", ["remember", "remember_many"])
def test_a_keys_tuples_come_in_root_order_however_they_arrived(windows, tmp_path, function):
    write_lines(tmp_path, [f"same{i % 3} x{i}" for i in range(90)])
    spec = STATEFUL.replace("FUNCTION", "split").replace("running_count", "remember")
    spec = spec.replace("wordsteps:remember", f"orderedsteps:{function}")
    rows = []
    run = windows(spec)
    intent = run.plan()
    for turn in (None, lambda box: box[::-1]):
        run.order = turn
        outcome = run.attempt(intent)
        assert outcome.verdict.complete
        rows.append(sorted((r["word"], r["n"]) for r in outcome.rows["counts"]))
    assert rows[0] == rows[1]
    assert [n for w, n in rows[0] if w == "same1"] == sorted(n for w, n in rows[0] if w == "same1")


CLASSES = f"""
{LINES_SOURCE}
processors:
  - {{name: pairs, function: "wordsteps:Pairs", inputs: [{{from: lines}}]}}
  - {{name: seen, function: "wordsteps:Counter", inputs: [{{from: lines}}]}}
sinks:
{out("both", "pairs")}
{out("sums", "seen")}
"""


@pytest.mark.parametrize("whole", [False, True])
def test_tuples_with_several_anchors_and_with_none(windows, tmp_path, whole):
    write_lines(tmp_path, [f"line{i}" for i in range(40)])
    outcome = windows(CLASSES, whole).go()
    tasks = 1 if whole else 2
    assert len(outcome.rows["both"]) == 40 - tasks
    assert "line3+line4" in {r["pair"] for r in outcome.rows["both"]}
    assert sum(r["lines"] for r in outcome.rows["sums"]) == 40
    assert len(outcome.rows["sums"]) == tasks
    assert outcome.verdict.complete


def test_final_totals_come_once_at_the_end(windows, tmp_path):
    write_lines(tmp_path, LINES)
    spec = COUNT.replace("FUNCTION", "split").replace("path: texts", "path: texts, watch: false")
    spec = spec.replace("aggregate: {", "aggregate: {emit: final, ")
    run = windows(spec)
    assert run.go().rows["totals"] == []
    end = replace(run.plan(), final=True)
    assert end.roots == 0
    run.whole = True
    outcome = run.attempt(end)
    assert {r["word"]: r["n"] for r in outcome.rows["totals"]} == WORDS
    assert outcome.verdict.complete


def test_tracking_off_writes_no_message_and_gives_the_same_output(windows, tmp_path):
    write_lines(tmp_path, LINES)
    spec = 'tracking: "Off"\n' + COUNT.replace("FUNCTION", "split_batch")
    outcome = windows(spec).go()
    assert {r["word"]: r["n"] for r in outcome.rows["totals"]} == WORDS
    assert {r.partitions for r in outcome.reports.values()} == {()}


NUMBERS = f"""
sources:
  - name: table
    files: {{path: texts, format: jsonLines, watch: false, schema: "k string, l long, x double"}}
processors:
  - name: stats
    inputs: [{{from: table, key: [k, l]}}]
    aggregate:
      columns:
        - {{name: n, function: count}}
        - {{name: total, function: sum, of: x}}
        - {{name: least, function: min, of: x}}
        - {{name: most, function: max, of: x}}
        - {{name: mean, function: avg, of: x}}
sinks:
{out("stats_out", "stats")}
"""


@pytest.mark.parametrize("whole", [False, True])
def test_every_aggregate_with_nulls_in_keys_and_values(windows, tmp_path, whole):
    lines = [
        '{"k": "a", "l": 1, "x": 2.0}',
        '{"k": "a", "l": 1, "x": null}',
        '{"k": null, "l": 1, "x": 5.0}',
        '{"k": "a", "l": null, "x": null}',
        '{"k": "a", "l": 1, "x": 4.0}',
        '{"k": null, "l": 1, "x": -1.0}',
    ]
    write_lines(tmp_path, lines)
    outcome = windows(NUMBERS, whole).go()
    found = {(r["k"], r["l"]): r for r in outcome.rows["stats_out"]}
    figures = {
        key: tuple(row[c] for c in ("n", "total", "least", "most", "mean"))
        for key, row in found.items()
    }
    assert figures == {
        ("a", 1): (3, 6.0, 2.0, 4.0, 3.0),
        (None, 1): (2, 4.0, -1.0, 5.0, 2.0),
        ("a", None): (1, None, None, None, None),
    }
    assert outcome.verdict.complete
