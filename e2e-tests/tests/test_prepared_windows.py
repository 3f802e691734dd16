"""Windows that are prepared beside the window before: exact, whoever dies meanwhile.

Of few roots the log alone is opened there, of others the first pass is run, too.
"""

from __future__ import annotations

from collections import Counter

import pytest

from millrace.crash import AHEAD_POINTS, PREPARING_POINTS
from millrace.engine.jobs.sizes import FEW_ROOTS
from millrace_e2e import checker, feed, harness, ledger
from millrace_e2e.checker import Faults, Promise
from millrace_e2e.harness import Place, running
from millrace_e2e.topologies import compiled_words, remembered

WINDOW = FEW_ROOTS + 904
SMALL = 200
AHEAD = 6
"""Windows that a run has before it, or one fewer where it died before it could say what it had
sealed: it dies before it is done with three or four."""

FLAKY_EVERY = 4
"""A line fails in each fourth file alone: while a replay waits no window is prepared."""

AHEAD_AS_ONE = 14
"""The same where windows are to be one task each: three are several before that is known."""

MAX_REPLAYS = 3
SEED = 11
GOOD = (feed.OK, feed.FLAKY)
FIRE_S = 120.0

KILLS = (
    *PREPARING_POINTS,
    *("driver.ran:2", "driver.closed:2", "driver.sealed:2", "worker.read:3", "worker.acked:3"),
)
"""Steps that come while a window is prepared, besides those of preparing."""

KILLS_SMALL = (
    *(f"driver.preparing{at}" for at in ("", ":2", ":3")),
    *("driver.judged:2", "driver.sealed:2", "acker.opened:3", "worker.acked:3"),
)
"""The same of windows of few roots, of which the log alone is opened then."""

KILLS_AS_ONE = (
    *AHEAD_POINTS,
    *(f"{point}:2" for point in AHEAD_POINTS),
    *(f"{point}:6" for point in PREPARING_POINTS),
    *("worker.state-written:7", "worker.acked:14", "driver.sealed:7"),
)
"""The later ones come as windows are one task each."""


@pytest.mark.parametrize(
    ("promise", "roots", "kills"),
    [
        (Promise.EXACTLY_ONCE, WINDOW, KILLS),
        (Promise.AT_LEAST_ONCE, WINDOW, tuple(PREPARING_POINTS)),
        (Promise.EXACTLY_ONCE, SMALL, KILLS_SMALL),
    ],
)
def test_words_are_counted_once_whoever_dies_while_a_window_is_prepared(
    promise: Promise, roots: int, kills: tuple[str, ...], place: Place
) -> None:
    place.write(remembered(roots, guarantee=promise.value, ackers={"maxReplays": MAX_REPLAYS}))
    fed_windows = sealed = 0
    for number, kill in enumerate(kills):
        fed_windows += feed_windows(place, number, fed_windows, sealed + AHEAD, roots=roots)
        sealed = max(sealed, run_into(place, kill))
    place.gate.touch()
    harness.run_to_end(place)
    fed = ledger.read_fed(place.texts)
    words, buckets = fed.word_counts(GOOD), fed.bucket_counts(GOOD)
    totals, numbers = (ledger.read_rows(place.sink(name)) for name in ("counts", "numbers"))
    # Each run but the last one ends with a kill of all that it is.
    most = Faults(2 * len(kills), roots, MAX_REPLAYS).most_doubled(fed)
    assert checker.check_totals(words, totals, promise, most=most * fed.longest) == []
    assert checker.check_numbers(buckets, numbers, promise, most=most) == []


@pytest.mark.parametrize("promise", [Promise.EXACTLY_ONCE, Promise.AT_LEAST_ONCE])
def test_words_are_counted_once_whoever_dies_while_one_task_has_two_windows(
    promise: Promise, place: Place
) -> None:
    place.write(compiled_words(WINDOW, guarantee=promise.value))
    kills = KILLS_AS_ONE if promise is Promise.EXACTLY_ONCE else tuple(AHEAD_POINTS)
    fed_windows = sealed = 0
    for number, kill in enumerate(kills):
        fed_windows += feed_windows(place, number, fed_windows, sealed + AHEAD_AS_ONE, flaky=False)
        sealed = max(sealed, run_into(place, kill))
    harness.run_to_end(place)
    texts = (path.read_text() for path in ledger.visible_files(place.texts))
    words = Counter(word for text in texts for word in text.split())
    totals = ledger.read_rows(place.sink("counts"))
    most = 0 if promise is Promise.EXACTLY_ONCE else 2 * len(kills) * WINDOW * feed.MOST_WORDS
    assert checker.check_totals(words, totals, promise, most=most) == []


def run_into(place: Place, kill: str) -> int:
    """Run until ``kill`` has fired, and end all of it; the last window that was told to be sealed.

    The mark of the kill goes, so that the same point can fire again.
    """
    environment = {"MILLRACE_CRASH_AT": kill, "MILLRACE_CRASH_DIR": str(place.marks)}
    with running(place, environment=environment) as run:
        run.until(lambda: kill.partition(":")[0] in place.fired(), kill, FIRE_S)
        sealed = int(run.status().get("sealed", 0))
    for mark in place.marks.iterdir():
        mark.unlink()
    return sealed


def feed_windows(
    place: Place, number: int, first: int, end: int, flaky: bool = True, roots: int = WINDOW
) -> int:
    """One file of the windows that are missing, at least one, and how many these are; a line of the
    last one may fail, once."""
    windows = max(end - first, 1)
    start, stop = first * roots, (first + windows) * roots
    fails = {stop - 9: feed.FLAKY} if flaky and not number % FLAKY_EVERY else {}
    data = feed.text(range(start, stop), SEED, fails)
    feed.add_file(place.texts / f"{number}.txt", data)
    return windows
