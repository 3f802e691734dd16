"""Executors that share nothing with the driver but the state servers and Spark's own connections:
what ended a worker there is told all the same, and its root alone is to blame."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from faults_driver import laboratory
from test_blame import simple, totals

from millrace_e2e import feed

WORDS = [f"w{n}" for n in range(4)]
POISON = {
    "exit": "exit code 3",
    "kill": "SIGKILL",
    "segv": "SIGSEGV",
    "overflow": "SIGSEGV",
}

END_S = 400.0
"""Each of them ends a few workers, and each time a job."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with laboratory(tmp_path_factory.mktemp("lab"), executors=2) as made:
        yield made


def test_a_root_that_ends_its_worker_is_blamed_alone(lab, live, place):
    document = simple("fault_blame:deadly", {"files": {"path": "rows", "format": "jsonLines"}})
    document["spec"]["window"]["maxRecords"] = 2
    document["spec"]["ackers"]["maxReplays"] = 0
    place.write(document)
    lines = [line for pair in zip(WORDS, POISON, strict=True) for line in pair]
    feed.add_file(place.texts / "a.txt", "".join(f"{line}\n" for line in lines).encode())
    life = live()
    assert life.wait(END_S) == 0
    shown = [json.loads(line) for f in place.sink("rows").glob("part-*") for line in f.open()]
    assert Counter(r["word"] for r in shown) == Counter(WORDS)
    assert (totals(place)["dead"], totals(place)["roots"]) == (len(POISON), len(WORDS))
    told = [event["text"] for event in life.events("DeadLetters")]
    assert len(told) == len(POISON)
    for text, cause in zip(told, POISON.values(), strict=True):
        assert "processor 'step'" in text, told
        assert cause in text, told
    assert not [f for f in lab.folder.rglob("*") if f.suffix in (".note", ".death")]
