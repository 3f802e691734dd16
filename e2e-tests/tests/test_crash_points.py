"""SIGKILL right after every step of a window, under each guarantee.

Several points fire in one ``millrace run``: each kills its process once for the whole history, and
the supervisor starts the next life. Each run of the history then ends with a SIGKILL of the
supervisor itself, and the next one goes on; the last one is left alone until it is drained.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from millrace.crash import POINTS
from millrace_e2e import feed, harness, valkey
from millrace_e2e.checker import Promise
from millrace_e2e.harness import Place, running
from millrace_e2e.judge import bad_lines, judge
from millrace_e2e.topologies import Shape, history

LINES = 32
WINDOW = 8
FIRE_S = 240.0
SEED = 7

# Points that a driver reaches before Spark has started cost two seconds each, the others eight;
# few in one run, since lives without progress make the supervisor wait longer and longer.
ROUNDS = """
driver.claimed driver.stamped driver.written-back driver.record-sent driver.edited driver.planned
driver.moving driver.copied driver.opening driver.view-opened
driver.opened driver.started driver.ran driver.closed driver.judged
worker.read worker.state-written worker.staged worker.acked acker.opened acker.folded \
    acker.answered driver.sealed publish.manifest publish.rename publish.renamed publish.done
driver.dead-written driver.split driver.published driver.marked driver.forgotten \
    publish.transaction
"""

TRACKING = {point for point in POINTS if point.startswith("acker.")}
TRACKING |= {"driver.closed", "driver.judged", "worker.acked"}
"""Steps that ``AtMostOnce`` has not: nothing is tracked."""

SETTING_ASIDE = {"driver.dead-written", "driver.split"}
"""Nor these: what fails is counted and dropped."""


def points_of(promise: Promise) -> list[list[str]]:
    left_out = TRACKING | SETTING_ASIDE if promise is Promise.AT_MOST_ONCE else set()
    rounds = ROUNDS.strip().splitlines()
    return [[point for point in text.split() if point not in left_out] for text in rounds]


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
    command = [sys.executable, "-m", "millrace.cli.app", "dead-letters", "list", "--json"]
    done = subprocess.run(
        [*command, "--workdir", str(place.work)], check=True, stdout=subprocess.PIPE, text=True
    )
    return sorted(json.loads(line)["payload"] for line in done.stdout.splitlines())


def test_every_point_is_in_a_round() -> None:
    assert sorted(ROUNDS.split()) == sorted(POINTS)


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
                    max_replays=1,
                    watch=True,
                )
            )
        )
        place.gate.touch()
        due: set[str] = set()
        rounds = points_of(promise)
        for number, points in enumerate(rounds):
            # Finding a line that ends its worker takes many runs: one is enough.
            feed_round(place, number, die="publish.transaction" in points)
            due |= set(points)
            environment = {
                "MILLRACE_CRASH_AT": ",".join(points),
                "MILLRACE_CRASH_DIR": str(place.marks),
            }
            with running(place, environment=environment) as run:
                run.until(lambda: place.fired() >= due, f"the points {points}", FIRE_S)  # noqa: B023
        fired = place.fired()
        feed_round(place, len(rounds), die=False)
        last = harness.run_to_end(place, "--set", "spec.sources[lines].files.watch=false")
        with sink_server.client() as client:
            problems = judge(place, promise, client, last.status()["totals"]["dropped"])
        return Told(due, fired, problems, dead_letters(place), bad_lines(place))


@pytest.mark.parametrize("promise", Promise, ids=lambda promise: promise.value)
def test_sigkill_after_every_step_keeps_the_promise(
    promise: Promise, tmp_path: Path, quick_jvm: None
) -> None:
    found = told(promise, tmp_path / promise.value)
    assert found.fired == found.due
    assert found.problems == []
    if promise is not Promise.AT_MOST_ONCE:
        assert found.letters == found.bad
