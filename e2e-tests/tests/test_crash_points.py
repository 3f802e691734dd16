"""SIGKILL right after every step of a window, under each guarantee.

Several points fire in one ``millrace run``: each kills its process once for the whole history, and
the supervisor starts the next life. Each run of the history then ends with a SIGKILL of the
supervisor itself, and the next one goes on; the last one goes on until it is drained.

Every step is killed under ``ExactlyOnce``. Under the others those are left out whose code, and
whose recovery, is the same under each guarantee: they are named below, with the reason.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pytest

from millrace.cli.app import main
from millrace.crash import POINTS
from millrace_e2e import feed, harness, valkey
from millrace_e2e.checker import Faults, Promise
from millrace_e2e.harness import Place, running
from millrace_e2e.judge import bad_lines, judge
from millrace_e2e.topologies import Shape, history

LINES = 32
WINDOW = 8
MAX_REPLAYS = 1
FIRE_S = 240.0
SEED = 7

# Points that a driver reaches before Spark has started cost less than the others, so those that
# come behind a seal follow it at once: the next driver shows the window before anything else. Few
# in one run, since lives without progress make the supervisor wait longer and longer.
ROUNDS = """
driver.claimed driver.stamped driver.written-back driver.record-sent driver.edited driver.planned
driver.moving driver.copied driver.opening driver.view-opened
driver.opened worker.read worker.state-written worker.staged worker.acked acker.opened \
    acker.folded acker.answered driver.sealed publish.manifest publish.rename publish.renamed \
    publish.done publish.loaded publish.transaction
driver.started driver.ran driver.closed driver.judged driver.published driver.marked \
    driver.forgotten driver.dead-written driver.split
"""

TRACKING = {point for point in POINTS if point.startswith("acker.")}
TRACKING |= {"driver.closed", "driver.judged", "worker.acked"}

CLAIMING = {
    *("driver.claimed", "driver.stamped", "driver.written-back", "driver.record-sent"),
    *("driver.moving", "driver.copied", "driver.opening", "driver.view-opened"),
}
PLANNING = {"driver.planned", "driver.edited"}
PUBLISHING = {point for point in POINTS if point.startswith("publish.")}
PUBLISHING |= {"driver.published", "driver.marked", "driver.forgotten"}

OF_ALL = {
    "members and records are held before a driver looks at any window": CLAIMING,
    "what is read next, and an edit, does not depend on how what was read ends": PLANNING,
    "what is sealed is shown, whatever the guarantee let be sealed": PUBLISHING,
}
"""Steps that are the same under each guarantee, by the reason why."""

LEFT_OUT: dict[Promise, dict[str, set[str]]] = {
    Promise.EXACTLY_ONCE: {},
    Promise.AT_LEAST_ONCE: OF_ALL,
    Promise.AT_MOST_ONCE: {
        **OF_ALL,
        "nothing is tracked": TRACKING,
        "what fails is counted and dropped": {"driver.dead-written", "driver.split"},
    },
}


def points_of(promise: Promise) -> list[list[str]]:
    """The points of each run; one that has none is not run."""
    left_out = set().union(*LEFT_OUT[promise].values())
    rounds = [
        [point for point in text.split() if point not in left_out]
        for text in ROUNDS.strip().splitlines()
    ]
    return [points for points in rounds if points]


def feed_round(place: Place, number: int, die: bool) -> None:
    """Lines for one run of the history, some of them trouble."""
    first = number * LINES
    special = {first + 5: feed.RAISE, first + 17: feed.FLAKY}
    if die:
        special[first + 23] = feed.DIE
    data = feed.text(range(first, first + LINES), SEED, special)
    feed.add_file(place.texts / f"round-{number}.txt", data)


def dead_letters(place: Place) -> list[str]:
    """The payloads that ``millrace dead-letters`` shows, sorted."""
    listing = ("dead-letters", "list", "--json", "--workdir", str(place.work))
    code, said = harness.called(main, *listing)
    assert code == 0, said
    return sorted(json.loads(line)["payload"] for line in said.splitlines())


def test_every_point_is_in_a_round() -> None:
    assert sorted(ROUNDS.split()) == sorted(POINTS)
    assert sorted(chain.from_iterable(points_of(Promise.EXACTLY_ONCE))) == sorted(POINTS)


@pytest.mark.parametrize("promise", Promise, ids=lambda promise: promise.value)
def test_a_point_that_is_left_out_is_one_for_one_reason(promise: Promise) -> None:
    killed = sorted(chain.from_iterable(points_of(promise)))
    named = [point for points in LEFT_OUT[promise].values() for point in points]
    assert sorted([*killed, *named]) == sorted(POINTS)
    # What a driver does with a window, from its intent to its seal, is killed under each.
    assert {"driver.opened", "driver.started", "driver.ran", "driver.sealed"} <= set(killed)
    assert {"worker.read", "worker.state-written", "worker.staged"} <= set(killed)


@dataclass(frozen=True)
class Told:
    """What there was at the end of a history."""

    due: set[str]
    fired: set[str]
    problems: list[str]
    letters: list[str]
    bad: list[str]


def told(promise: Promise, folder: Path) -> Told:
    """Live one history to its end."""
    place = Place(folder / "history").make()
    with valkey.serving(folder / "sink-server") as sink_server:
        place.write(
            history(
                Shape(
                    guarantee=promise.value,
                    max_records=WINDOW,
                    redis=sink_server.url,
                    max_replays=MAX_REPLAYS,
                    watch=True,
                )
            )
        )
        place.gate.touch()
        due: set[str] = set()
        rounds = points_of(promise)
        for number, points in enumerate(rounds[:-1]):
            feed_round(place, number, die=False)
            due |= set(points)
            with running(place, environment=killing(place, points)) as run:
                run.until(lambda: place.fired() >= due, f"the points {points}", FIRE_S)  # noqa: B023
        # Finding a line that ends its worker takes many runs: one is enough.
        feed_round(place, len(rounds) - 1, die=True)
        feed_round(place, len(rounds), die=False)
        due |= set(rounds[-1])
        last = harness.run_to_end(
            place,
            *("--set", "spec.sources[lines].files.watch=false"),
            environment=killing(place, rounds[-1]),
            deadline_s=FIRE_S,
        )
        with sink_server.client() as client:
            # Each run but the last one ends with a kill of all that it is.
            faults = Faults(len(place.fired()) + len(rounds) - 1, WINDOW, MAX_REPLAYS)
            dropped = last.status()["totals"]["dropped"]
            problems = judge(place, promise, client, dropped, faults)
        return Told(due, place.fired(), problems, dead_letters(place), bad_lines(place))


def killing(place: Place, points: list[str]) -> dict[str, str]:
    """The environment of a run that dies at these points."""
    return {"MILLRACE_CRASH_AT": ",".join(points), "MILLRACE_CRASH_DIR": str(place.marks)}


@pytest.mark.parametrize("promise", Promise, ids=lambda promise: promise.value)
def test_sigkill_after_every_step_keeps_the_promise(
    promise: Promise, tmp_path: Path, quick_jvm: None
) -> None:
    found = told(promise, tmp_path / promise.value)
    assert found.fired == found.due
    assert found.problems == []
    if promise is not Promise.AT_MOST_ONCE:
        assert found.letters == found.bad
