"""State that an older release of the code kept, migrated while drivers and workers die."""

from __future__ import annotations

import shutil

import pytest

from millrace_e2e import feed, harness
from millrace_e2e.checker import Promise
from millrace_e2e.harness import START_S, Place, running
from millrace_e2e.judge import judge
from millrace_e2e.topologies import Shape, history

SEED, INVALID = 13, 3


@pytest.mark.parametrize("dies", ["worker.state-written", "driver.sealed:2"])
def test_numbers_go_on_where_the_code_before_left_them(place: Place, dies: str) -> None:
    feed.add_file(place.texts / "a.txt", feed.text(range(600), SEED))
    place.gate.touch()
    place.write(history(Shape(max_records=100)))
    harness.run_to_end(place, deadline_s=START_S)

    feed.add_file(place.texts / "b.txt", feed.text(range(600, 1_000), SEED))
    place.write(history(Shape(max_records=40, numbers="number_and_last")))
    crash = {"MILLRACE_CRASH_AT": dies, "MILLRACE_CRASH_DIR": str(place.marks)}
    with running(place, environment=crash) as run:
        assert run.wait(START_S) == 0, run.tail()
    assert place.fired()
    shutil.rmtree(place.marks)
    assert judge(place, Promise.EXACTLY_ONCE) == []


def test_code_that_does_not_say_what_becomes_of_its_state_stops_and_loses_nothing(
    place: Place,
) -> None:
    """``hoard`` has a column more than ``number``, and no migration."""
    feed.add_file(place.texts / "a.txt", feed.text(range(300), SEED))
    place.gate.touch()
    place.write(history(Shape(max_records=100)))
    harness.run_to_end(place, deadline_s=START_S)

    feed.add_file(place.texts / "b.txt", feed.text(range(300, 600), SEED))
    place.write(history(Shape(max_records=100, numbers="hoard")))
    with running(place) as run:
        assert run.wait(START_S) == INVALID, run.tail()
        assert "say how to get from one to the other with @migrates" in run.output()
    place.write(history(Shape(max_records=100)))
    harness.run_to_end(place, deadline_s=START_S)
    assert judge(place, Promise.EXACTLY_ONCE) == []
