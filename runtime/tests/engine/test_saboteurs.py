"""Damage between two passes is noticed with tracking on; off, the loss shows in the output."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
from engine_support import CODE, write_lines

from millrace.engine.program.usercode import use_path
from millrace.engine.task.exchange import EnvelopeError
from millrace.engine.task.faults import TaskError
from millrace.protocol.winners import Inconsistent, Winners, find_winners

use_path(str(CODE))
import saboteurs  # noqa: E402

LINES = [f"a{i % 5} b{i % 11} c{i}" for i in range(80)]
WORDS = Counter(word for line in LINES for word in line.split())

COUNT = """
sources: [{name: lines, files: {path: texts}}]
processors:
  - {name: split, function: "wordsteps:split", inputs: [{from: lines}]}
  - {name: step, inputs: [{from: split, key: [word]}], %s}
sinks:
  - {name: rows, inputs: [{from: step}], files: {path: rows, format: jsonLines}}
"""
COMBINED = COUNT % "aggregate: {columns: [{name: n, function: count}]}"
STATEFUL = COUNT % 'function: "wordsteps:running_count"'
GROUPED = STATEFUL.replace("running_count", "grouped_count")
NATIVE = COMBINED.replace('function: "wordsteps:split"', "split: {column: value, into: word}")
DUCK = "sql: {engine: duckdb, select: [\"value || '' AS value\"], where: value <> ''}"
JSON = NATIVE.replace("inputs: [{from: lines}]", "inputs: [{from: read}]").replace(
    "processors:\n",
    "processors:\n  - {name: read, inputs: [{from: lines}],"
    " json: {column: value, columns: [{name: value, type: string}]}}\n",
)
SQL = JSON.replace("json: {column: value, columns: [{name: value, type: string}]}", DUCK)
LOOKUP = JSON.replace(
    "json: {column: value, columns: [{name: value, type: string}]}",
    "lookup: {table: {path: texts.csv, schema: 'id string, n long'},"
    " key: [{column: value, of: id}], columns: [{name: n}], missing: Fail}",
)
SPECS = {
    "combined": COMBINED,
    "native": NATIVE,
    "json": JSON,
    "sql": SQL,
    "lookup": LOOKUP,
    "stateful": STATEFUL,
    "grouped": GROUPED,
}


def write(tmp_path, kind):
    """The lines, for the kind that reads JSON within it, and a table of them."""
    (tmp_path / "texts.csv").write_text("\n".join(["id,n", *(f"{v},1" for v in LINES)]))
    write_lines(tmp_path, [json.dumps({"value": v}) for v in LINES] if kind == "json" else LINES)


def totals(outcome):
    found: dict[str, int] = {}
    for row in outcome.rows["rows"]:
        found[row["word"]] = max(found.get(row["word"], 0), row["n"])
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("damage", ["Drop", "Double", "Triple", "AlterId", "Misroute"])
@pytest.mark.parametrize("kind", SPECS)
def test_damage_in_transport_ends_the_attempt(windows, tmp_path, monkeypatch, kind, damage, seed):
    monkeypatch.setattr(saboteurs, "SEED", seed)
    write(tmp_path, kind)
    run = windows(SPECS[kind], transport=f"saboteurs:{damage}")
    with pytest.raises(TaskError) as caught:
        run.attempt(run.plan())
    assert isinstance(run.error_in(caught.value), EnvelopeError)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("damage", ["HiddenDrop", "HiddenDouble", "HiddenAlterId"])
@pytest.mark.parametrize("kind", SPECS)
def test_damage_that_is_covered_up_is_seen_by_the_ackers(
    windows, tmp_path, monkeypatch, kind, damage, seed
):
    monkeypatch.setattr(saboteurs, "SEED", seed)
    write(tmp_path, kind)
    run = windows(SPECS[kind], transport=f"saboteurs:{damage}")
    verdict = run.attempt(run.plan()).verdict
    if kind not in ("stateful", "grouped"):
        assert set(verdict.window) == {"split>step"}
    else:
        assert set(verdict.edges) == {"split>step"}
        assert 1 <= len(verdict.incomplete) <= 2


PAIRS = """
sources: [{name: lines, files: {path: texts}}]
processors:
  - name: counts
    inputs: [{from: lines, key: [value]}]
    aggregate: {columns: [{name: n, function: count}]}
  - {name: pairs, function: "wordsteps:Pairs", inputs: [{from: counts}]}
  - {name: step, sql: {engine: duckdb, where: pair <> ''}, inputs: [{from: pairs, key: [pair]}]}
sinks:
  - {name: rows, inputs: [{from: step}], files: {path: rows, format: jsonLines}}
"""


@pytest.mark.parametrize("damage", ["", "HiddenDrop", "HiddenDouble", "HiddenAlterId"])
def test_damage_to_what_is_anchored_to_two_totals_is_seen_by_the_ackers(windows, tmp_path, damage):
    write_lines(tmp_path, LINES)
    changes = {"transport": f"saboteurs:{damage}"} if damage else {}
    run = windows(PAIRS, **changes)
    verdict = run.attempt(run.plan()).verdict
    assert verdict.incomplete == set()
    assert set(verdict.window) == ({"lines>counts", "pairs>step"} if damage else set())


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("tracking", ["On", "Off"])
def test_a_tuple_of_another_partition_is_refused_by_its_key(windows, tmp_path, kind, tracking):
    write(tmp_path, kind)
    spec = f'tracking: "{tracking}"\n{SPECS[kind]}'
    run = windows(spec, transport="saboteurs:HiddenMisroute")
    with pytest.raises(TaskError, match="belong to another partition"):
        run.attempt(run.plan())


@pytest.mark.parametrize("damage", ["Drop", "Double", "Triple"])
@pytest.mark.parametrize("kind", SPECS)
def test_without_tracking_the_same_damage_goes_unnoticed(windows, tmp_path, kind, damage):
    write(tmp_path, kind)
    run = windows(f'tracking: "Off"\n{SPECS[kind]}', transport=f"saboteurs:{damage}")
    assert totals(run.attempt(run.plan())) != WORDS


@pytest.mark.parametrize("tracking", ["On", "Off"])
def test_mixed_attempts_are_visible_in_the_reports(windows, tmp_path, tracking):
    write_lines(tmp_path, LINES)
    spec = f'tracking: "{tracking}"\n{COMBINED}'
    for transport, expected in [
        ("millrace.engine.task.exchange:Transport", Winners),
        ("saboteurs:MixedAttempts", Inconsistent),
    ]:
        run = windows(spec, transport=transport)
        outcome = run.attempt(run.plan())
        found = find_winners((2, 2), outcome.reports.values(), len(LINES))
        assert isinstance(found, expected)


def test_a_lost_envelope_is_missed_even_without_tracking(windows, tmp_path):
    write_lines(tmp_path, LINES)
    run = windows(f'tracking: "Off"\n{COMBINED}', transport="saboteurs:LostEnvelope")
    with pytest.raises(TaskError, match="expected one of each of 2"):
        run.attempt(run.plan())


def test_a_short_read_leaves_its_roots_unread(windows, tmp_path):
    write_lines(tmp_path, LINES)
    spec = COMBINED.replace(
        "files: {path: texts}",
        'custom: {class: "shortreads:Short", options: {count: 50}}',
    ).replace("wordsteps:split", "shortreads:spell")
    run = windows(spec)
    outcome = run.attempt(run.plan())
    assert isinstance(find_winners((2, 2), outcome.reports.values(), 50), Inconsistent)
    assert outcome.verdict.incomplete == {49}


FILES = "files: {path: rows, format: jsonLines}"
SINK = 'custom: {class: "careless:Forgetful", options: {path: rows, format: jsonLines}}'
TEXTS = "files: {path: texts}"
SOURCE = 'custom: {class: "careless:Generous"}'


@pytest.mark.parametrize(
    ("instead_of", "careless", "told"),
    [
        (FILES, SINK, r"sink 'rows' was given \d+ rows and staged \d+"),
        (TEXTS, SOURCE, r"source 'lines' gave at least 4 records where 3 were planned"),
    ],
)
def test_code_of_users_that_gives_more_or_takes_less_is_noticed(
    windows, tmp_path, instead_of, careless, told
):
    write_lines(tmp_path, LINES)
    run = windows(STATEFUL.replace(instead_of, careless))
    with pytest.raises(TaskError) as caught:
        run.attempt(run.plan())
    assert re.search(told, str(run.error_in(caught.value)))
