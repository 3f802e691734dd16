"""Poison in a stream of 20,000 good roots: the good ones come out exactly, the bad ones are dead
letters that say why, and nothing is run more often for it than the design allows.

One history of three runs. Between them the user mends the code and asks for the dead letters again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from faults_driver import CODE
from poison_feed import Stream, attempts, bound, of, problems, without

from millrace_e2e import feed, harness, ledger
from millrace_e2e.harness import Place

QUICK_JVM = "-XX:TieredStopAtLevel=1 -Xshare:auto -XX:+UseSerialGC"

GOOD = 20_000

LARGE, SMALL = 5_000, 250
"""Roots of a window: of several tasks with an exchange, and of one task."""

RAISING = {101: "raise", 4_900: "raise", 10_000: "raise", 20_010: "raise"}
RAISING |= dict.fromkeys((7, 9000, 14999), "once")
RAISING |= dict.fromkeys((8, 9100, 15000), "flaky")
RAISING |= dict.fromkeys(range(1000, 20000, 1531), "combine")
RAISING |= {7_777: "behind", 12_345: "exit"}
KILLING = {
    n: k for n, k in zip(range(2_001, 20_000, 3_900), ("segv", "hog", "leak", "spin", "cspin"))
}

FIRST = Stream(0, GOOD + len(RAISING), RAISING)
SECOND = Stream(100_000, GOOD + len(KILLING), {100_000 + n: k for n, k in KILLING.items()})

FIRST_BAD = ("raise", "combine", "behind", "exit")
SECOND_BAD = tuple(KILLING.values())

CAUSES = {
    "raise": ("ValueError: line ", "is poison"),
    "combine": ("ValueError: a total of ", "is too much"),
    "behind": ("'number'", "exit code 9"),
    "exit": ("'parse'", "exit code 3"),
    "segv": ("'parse'", "SIGSEGV"),
    "hog": ("MemoryError", ""),
    "leak": ("memory", "'parse'"),
    "spin": ("'parse'", "no progress within tupleTimeout (1 s)"),
    "cspin": ("'parse'", "no progress within tupleTimeout (1 s)"),
}
PROCESSORS = {"raise": "parse", "combine": "weigh", "hog": "parse"}


def topology() -> dict[str, Any]:
    def files(name: str, producer: str) -> dict[str, Any]:
        sink = {"path": name, "format": "jsonLines"}
        return {"name": name, "inputs": [{"from": producer}], "files": sink}

    def step(name: str, producer: str, key: str | None = None) -> dict[str, Any]:
        edge = {"from": producer, **({"key": [key]} if key else {})}
        return {"name": name, "inputs": [edge], "function": f"fault_poison:{name}"}

    count = {"columns": [{"name": "n", "function": "count"}]}
    counts = {"name": "counts", "inputs": [{"from": "parse", "key": ["key"]}], "aggregate": count}
    return {
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "StreamTopology",
        "metadata": {"name": "poison"},
        "spec": {
            "window": {"maxRecords": LARGE, "maxInterval": "50ms"},
            "ackers": {"maxReplays": 1, "backoff": "50ms"},
            "tupleTimeout": "1s",
            "parallelism": 2,
            "keyGroups": 16,
            "code": {"path": str(CODE)},
            "spark": {
                "conf": {
                    "spark.driver.extraJavaOptions": QUICK_JVM,
                    "spark.executor.pyspark.memory": "6g",
                },
                "driver": {"memory": "512m"},
            },
            "sources": [{"name": "lines", "files": {"path": "texts", "watch": False}}],
            "processors": [
                step("parse", "lines"),
                step("number", "parse", "bucket"),
                counts,
                step("weigh", "counts"),
            ],
            "sinks": [files("rows", "number"), files("totals", "weigh")],
        },
    }


@dataclass
class Snapshot:
    """What a reader of the folders and a user of the command line saw after a run."""

    wrong: list[str]
    letters: list[dict[str, Any]]


@dataclass
class Story:
    place: Place
    after: list[Snapshot] = field(default_factory=list)

    @property
    def trace(self):
        return self.place.flaky

    def run(self, come_out: list[str], *arguments: str) -> None:
        environment = {"FAULTS_TRACE": str(self.trace)}
        harness.run_to_end(self.place, *arguments, environment=environment, deadline_s=300)
        rows, totals = (ledger.read_rows(self.place.sink(name)) for name in ("rows", "totals"))
        self.after.append(Snapshot(problems(come_out, rows, totals), self.letters()))

    def letters(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.command("list", "--json").splitlines()]

    def command(self, *arguments: str) -> str:
        base = [sys.executable, "-m", "millrace.cli.app", "dead-letters", *arguments]
        command = [*base, "--workdir", str(self.place.work)]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    def mend(self, *kinds: str) -> None:
        for kind in kinds:
            (self.trace / f"mended-{kind}").touch()


@pytest.fixture(scope="module")
def story(tmp_path_factory) -> Story:
    story = Story(Place(tmp_path_factory.mktemp("poison")).make())
    place = story.place
    place.write(topology())
    feed.add_file(place.texts / "a.txt", FIRST.text())
    due = without(FIRST.lines(), FIRST_BAD)
    story.run(due)

    story.mend(*FIRST_BAD)
    story.command("replay", "--all")
    feed.add_file(place.texts / "b.txt", SECOND.text())
    due += of(FIRST.lines(), FIRST_BAD) + without(SECOND.lines(), SECOND_BAD)
    story.run(due, "--set", f"spec.window.maxRecords={SMALL}")

    story.mend(*SECOND_BAD)
    dropped, *_ = (one for one in story.after[-1].letters if " spin " in one["payload"])
    story.command("drop", dropped["id"])
    story.command("replay", "--all")
    due += without(of(SECOND.lines(), SECOND_BAD), ["spin"])
    story.run(due)
    return story


@pytest.mark.parametrize("run", [0, 1, 2], ids=["raising", "killing", "replayed"])
def test_the_good_roots_come_out_exactly(story, run):
    assert story.after[run].wrong == []


@pytest.mark.parametrize(
    ("run", "stream", "kinds"),
    [(0, FIRST, FIRST_BAD), (1, SECOND, SECOND_BAD)],
    ids=["raising", "killing"],
)
def test_the_bad_ones_are_dead_letters_with_their_cause(story, run, stream, kinds):
    letters = story.after[run].letters
    assert Counter(one["payload"] for one in letters) == Counter(of(stream.lines(), kinds))
    for one in letters:
        kind = one["payload"].split()[1]
        assert all(part in one["error"] for part in CAUSES[kind]), one
        assert one["processor"] == PROCESSORS.get(kind, "(worker)"), one


def test_every_letter_is_replayed_or_dropped(story):
    assert story.after[2].letters == []


@pytest.mark.parametrize(
    ("stream", "window"), [(FIRST, LARGE), (SECOND, SMALL)], ids=["raising", "killing"]
)
def test_no_window_is_run_more_often_than_the_design_allows(story, stream, window):
    counts, total = attempts(story.trace, stream, window)
    unlucky = doubly_failed(story.trace)
    windows = -(-stream.count // window)
    assert set(counts) == set(range(windows))
    for number in range(windows):
        lines = stream.lines()[number * window : (number + 1) * window]
        killers = len(of(lines, ("behind", "exit", *SECOND_BAD)))
        failing = len(of(lines, ("raise", "flaky", "combine")))
        failing += sum(line.split()[0] in unlucky for line in lines)
        # Each bad root comes again once by itself and once when its letter is replayed.
        again = 2 * bound(1, 1) * (killers + failing)
        assert counts[number] <= bound(len(lines), killers) + again, number


def doubly_failed(trace) -> set[str]:
    """Lines whose two calls in one task both raised at random."""
    calls = Counter((trace / "random").read_text().splitlines())
    return {call.split()[0] for call, number in calls.items() if number > 1}
