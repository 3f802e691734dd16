"""Processors that put out something else whenever they run, while what runs them is killed.

Nothing can be compared with a right result here. What must hold: the rows that are shown are those
that state has taken in, of each root the rows of one call of the processor, each of them once.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict

from faults_driver import CODE

from millrace_e2e import feed, ledger, quickjvm
from millrace_e2e.chaos import Nemesis
from millrace_e2e.harness import running

LINES = 25_000
WINDOW = 5_000
"""More than one task takes at first: envelopes cross between executors."""

KILLS = ["executor", "pythonWorker", "executor"]


def topology():
    def files(name, producer):
        sink = {"path": name, "format": "jsonLines"}
        return {"name": name, "inputs": [{"from": producer}], "files": sink}

    columns = [
        {"name": "n", "function": "count"},
        {"name": "total", "function": "sum", "of": "worth"},
    ]
    keyed = [{"from": "throw", "key": ["bucket"]}]
    quick = quickjvm.options()
    conf = {"spark.driver.extraJavaOptions": quick, "spark.executor.extraJavaOptions": quick}
    return {
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "StreamTopology",
        "metadata": {"name": "dice"},
        "spec": {
            "window": {"maxRecords": WINDOW, "maxInterval": "50ms"},
            "parallelism": 2,
            "keyGroups": 16,
            "code": {"path": str(CODE)},
            "spark": {
                "conf": conf,
                "driver": {"memory": "512m"},
                "executors": {"instances": 2, "cores": 1, "memory": "512m"},
            },
            "sources": [{"name": "lines", "files": {"path": "texts", "watch": False}}],
            "processors": [
                {"name": "throw", "inputs": [{"from": "lines"}], "function": "fault_dice:throw"},
                {"name": "tally", "inputs": keyed, "function": "fault_dice:tally"},
                {"name": "sums", "inputs": keyed, "aggregate": {"columns": columns}},
            ],
            "sinks": [files("rows", "throw"), files("tallies", "tally"), files("totals", "sums")],
        },
    }


def test_state_and_sinks_agree_whatever_the_processors_put_out(place):
    place.write(topology())
    feed.add_file(place.texts / "a.txt", feed.text(range(LINES), 1))
    with running(place, environment={"FAULTS_GATE": str(place.gate)}) as run:
        nemesis = Nemesis(run, 3)
        for role in KILLS:
            nemesis.kill(role)
        place.gate.touch()
        assert run.wait(120) == 0, run.tail()
    print("\n".join(json.dumps(kill.document()) for kill in nemesis.kills))
    rows, tallies, totals = (ledger.read_rows(place.sink(n)) for n in ("rows", "tallies", "totals"))
    assert whole_calls(rows) == []
    assert agreed(rows, tallies, totals) == []


def whole_calls(rows):
    """What is wrong, if each root shows all rows of exactly one call."""
    wrong = []
    calls = defaultdict(list)
    for one in rows:
        calls[one.row["root"]].append(one.row)
    missing = {f"r{n:07d}" for n in range(LINES)} - calls.keys()
    if missing:
        wrong.append(f"{len(missing)} roots show nothing, such as {min(missing)}")
    for root, mine in calls.items():
        nonces = {row["nonce"] for row in mine}
        if len(nonces) != 1 or sorted(row["part"] for row in mine) != list(range(mine[0]["parts"])):
            wrong.append(f"root {root} shows {[(r['nonce'][:6], r['part']) for r in mine]}")
    return wrong


def agreed(rows, tallies, totals):
    """What is wrong, if state behind each window is the sum of all rows shown up to it."""
    wrong = []
    counts, sums, at = Counter(), Counter(), 0
    for one in totals:
        while at < len(rows) and rows[at].window <= one.window:
            counts[rows[at].row["bucket"]] += 1
            sums[rows[at].row["bucket"]] += rows[at].row["worth"]
            at += 1
        bucket = one.row["bucket"]
        if (one.row["n"], one.row["total"]) != (counts[bucket], sums[bucket]):
            wrong.append(f"window {one.window}: {one.row}, but {counts[bucket]}, {sums[bucket]}")
    if at != len(rows):
        wrong.append(f"{len(rows) - at} rows are shown behind the last totals")
    shown = Counter((one.row["nonce"], one.row["part"]) for one in rows)
    taken = Counter((one.row["nonce"], one.row["part"]) for one in tallies)
    if shown != taken:
        wrong.append(
            f"shown and not tallied: {shown - taken}, tallied and not shown: {taken - shown}"
        )
    for bucket in counts:
        mine = sorted(
            (one.row["n"], one.row["total"]) for one in tallies if one.row["bucket"] == bucket
        )
        if [n for n, _ in mine] != list(range(1, counts[bucket] + 1)) or mine[-1][1] != sums[
            bucket
        ]:
            wrong.append(f"bucket {bucket} was tallied {mine[:3]} … {mine[-1]}")
    return wrong
