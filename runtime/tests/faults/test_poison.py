"""Poison in streams of 20,000 good roots: the good ones come out exactly, the bad ones are dead
letters that say why, and no window is run more often for it than the design allows.

Each story is a history of two runs of ``millrace run``. Between them the user mends the code and
asks for the dead letters again.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from faults_driver import CODE
from poison_feed import Story, Stream, bound, kind_of, problems

from millrace_e2e import quickjvm
from millrace_e2e.harness import Place

pytestmark = pytest.mark.timeout(2000)
"""Many attempts, each of which starts workers again."""

GOOD = 20_000
LARGE, SMALL = 5_000, 500
"""Roots of a window: of several tasks with an exchange, and of one task."""

RAISING = dict.fromkeys((101, 4900, 10000, 20010), "raise")
RAISING |= dict.fromkeys((7, 9000, 14999), "once")
RAISING |= dict.fromkeys((8, 9100, 15000), "flaky")
RAISING |= dict.fromkeys(range(1000, 20000, 1531), "combine")
RAISING |= {7_777: "behind"}
# They stand together, so that most halves of their window die of all of them at once, and those
# that never end in a last window that is small: each death by time-out costs its time.
KILLING = {2_001: "exit", 2_002: "segv", 2_004: "hog", 2_005: "leak"}
KILLING |= {GOOD + 3: "spin", GOOD + 4: "cspin"}
CASTING = {GOOD + 9: "cast"}

STORIES = {
    "raising": (Stream(GOOD + len(RAISING), RAISING), LARGE),
    "killing": (Stream(GOOD + 12, KILLING), SMALL),
    "casting": (Stream(GOOD + 12, CASTING), LARGE // 2),
}

DEADLY = ("behind", "exit", "segv", "hog", "leak", "spin", "cspin", "cast")
BAD = ("raise", "combine", *DEADLY)
FAILING = ("raise", "flaky", "combine")

CAUSES = {
    "raise": ("parse", "ValueError: line ", "is poison"),
    "combine": ("weigh", "ValueError: a total of ", "is too much"),
    "behind": ("(worker)", "'number'", "exit code 9"),
    "exit": ("(worker)", "'parse'", "exit code 3"),
    "segv": ("(worker)", "'parse'", "SIGSEGV"),
    "hog": ("parse", "MemoryError", ""),
    "leak": ("(worker)", "no memory left", "MemoryError"),
    "spin": ("(worker)", "'parse'", "no progress within tupleTimeout (1 s)"),
    "cspin": ("(worker)", "'parse'", "no progress within tupleTimeout (1 s)"),
    "cast": ("(worker)", "CAST_INVALID_INPUT", "'bad'"),
}
"""Of each kind: the processor that its letter names, and what the text must say."""


def files(name: str, producer: str) -> dict[str, Any]:
    sink = {"path": name, "format": "jsonLines"}
    return {"name": name, "inputs": [{"from": producer}], "files": sink}


def step(name: str, producer: str, key: str | None = None) -> dict[str, Any]:
    edge = {"from": producer, **({"key": [key]} if key else {})}
    return {"name": name, "inputs": [edge], "function": f"fault_poison:{name}"}


def topology(name: str) -> dict[str, Any]:
    count = {"columns": [{"name": "n", "function": "count"}]}
    counts = {"name": "counts", "inputs": [{"from": "parse", "key": ["key"]}], "aggregate": count}
    java = {"spark.driver.extraJavaOptions": quickjvm.options()}
    memory = {"spark.executor.pyspark.memory": "3g"} if name == "killing" else {}
    first = [step("parse", "lines")]
    if name == "casting":
        select = ["value", "CAST(split(value, ' ')[2] AS long) AS number"]
        first = [{"name": "cast", "inputs": [{"from": "lines"}], "sql": {"select": select}}]
        first.append(step("parse", "cast"))
    return {
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "StreamTopology",
        "metadata": {"name": name},
        "spec": {
            "window": {"maxRecords": STORIES[name][1], "maxInterval": "50ms"},
            "ackers": {"maxReplays": 1, "backoff": "50ms"},
            "tupleTimeout": "1s",
            "parallelism": 2,
            "keyGroups": 16,
            "code": {"path": str(CODE)},
            "spark": {"conf": {**java, **memory}, "driver": {"memory": "512m"}},
            "sources": [{"name": "lines", "files": {"path": "texts", "watch": False}}],
            "processors": [
                *first,
                step("number", "parse", "bucket"),
                counts,
                step("weigh", "counts"),
            ],
            "sinks": [files("rows", "number"), files("totals", "weigh")],
        },
    }


def told(name: str, place: Place) -> Story:
    """Run a story to its end: the code is mended, one letter is dropped, all others come again."""
    stream, window = STORIES[name]
    story = Story(place.make(), stream, window)
    story.begin(topology(name))
    story.mend(BAD)
    story.command("drop", story.after[0].letters[0]["id"])
    story.command("replay", "--all")
    try_cast = (
        "spec.processors[cast].sql.select[1]=TRY_CAST(split(value, ' ')[2] AS long) AS number"
    )
    story.run(*(["--set", try_cast] if name == "casting" else []))
    return story


def test_every_kind_of_poison_is_in_a_stream_of_so_many_good_roots() -> None:
    streams = [stream for stream, _ in STORIES.values()]
    assert all(stream.count - len(stream.poison) >= GOOD for stream in streams)
    kinds = {kind for stream in streams for kind in stream.poison.values()}
    assert kinds == {*BAD, *FAILING, "once"}
    assert set(CAUSES) == set(BAD)


@pytest.mark.parametrize("name", STORIES)
def test_a_story_of_poison_ends_exactly(name: str, tmp_path: Path) -> None:
    """All of a story in one test, since workers that share its parts would each tell it anew."""
    story = told(name, Place(tmp_path / name))
    the_good_roots_come_out_exactly(story)
    the_bad_ones_are_dead_letters_with_their_cause(story)
    every_letter_can_be_replayed_or_dropped(story)
    no_window_is_run_more_often_than_the_design_allows(story)


def the_good_roots_come_out_exactly(story: Story) -> None:
    assert problems(story.stream.without(BAD), story.after[0]) == []


def the_bad_ones_are_dead_letters_with_their_cause(story: Story) -> None:
    letters = story.after[0].letters
    bad = story.stream.of(BAD)
    assert Counter(letter["payload"] for letter in letters) == Counter(bad)
    for letter in letters:
        processor, *texts = CAUSES[kind_of(letter["payload"])]
        assert letter["processor"] == processor, letter
        assert all(text in letter["error"] for text in texts), letter


def every_letter_can_be_replayed_or_dropped(story: Story) -> None:
    dropped = story.after[0].letters[0]["payload"]
    due = [line for line in story.stream.lines() if line != dropped]
    assert story.after[1].letters == []
    assert problems(due, story.after[1]) == []


def no_window_is_run_more_often_than_the_design_allows(story: Story) -> None:
    counts = story.attempts()
    lines = story.stream.lines()
    parts = [lines[at : at + story.window] for at in range(0, len(lines), story.window)]
    unlucky = story.unlucky()
    assert set(counts) == set(range(len(parts)))
    for number, part in enumerate(parts):
        killers = sum(kind_of(line) in DEADLY for line in part)
        failing = sum(kind_of(line) in FAILING or line.split()[0] in unlucky for line in part)
        # Each bad root comes once more by itself, and once more when its letter is replayed.
        again = 2 * bound(1, 1) * (killers + failing)
        assert counts[number] <= bound(len(part), killers) + again, number
