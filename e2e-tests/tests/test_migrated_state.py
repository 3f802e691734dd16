"""State that an older release of the code kept, migrated while drivers and workers die."""

from __future__ import annotations

from millrace_e2e import feed, harness
from millrace_e2e.checker import Promise
from millrace_e2e.harness import START_S, Place, running
from millrace_e2e.judge import judge
from millrace_e2e.topologies import Shape, history

SEED, INVALID = 13, 3


DEATHS = {"worker.state-written", "driver.sealed:2"}


def test_state_is_migrated_as_the_code_says_or_the_run_stops_and_loses_nothing(
    place: Place,
) -> None:
    feed.add_file(place.texts / "a.txt", feed.text(range(600), SEED))
    place.gate.touch()
    place.write(history(Shape(max_records=100)))
    harness.run_to_end(place, deadline_s=START_S)

    # ``hoard`` has a column more than ``number``, and no migration.
    feed.add_file(place.texts / "b.txt", feed.text(range(600, 1_000), SEED))
    place.write(history(Shape(max_records=40, numbers="hoard")))
    with running(place) as run:
        assert run.wait(START_S) == INVALID, run.tail()
        assert "say how to get from one to the other with @migrates" in run.output()

    place.write(history(Shape(max_records=40, numbers="number_and_last")))
    crash = {"MILLRACE_CRASH_AT": ",".join(DEATHS), "MILLRACE_CRASH_DIR": str(place.marks)}
    with running(place, environment=crash) as run:
        assert run.wait(START_S) == 0, run.tail()
    assert place.fired() == {point.partition(":")[0] for point in DEATHS}
    # Numbers go on where the code before left them.
    assert judge(place, Promise.EXACTLY_ONCE) == []
