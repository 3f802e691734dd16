"""State with a ttl, through edits of it, a crash and a look from outside."""

from __future__ import annotations

import json
import shutil
import time
from collections import defaultdict

from millrace_e2e import feed, harness, ledger
from millrace_e2e.checker import Promise
from millrace_e2e.harness import Place, running
from millrace_e2e.judge import judge
from millrace_e2e.ledger import bucket_of
from millrace_e2e.topologies import Shape, history
from millrace_e2e.waiting import until

SEED = 11
LONG, SHORT, SHORT_S = "24h", "1s", 1.0

FIRST, SECOND, THIRD = range(400), range(400, 498), range(498, 800)
"""Lines of each run; of the buckets b00 to b99 the second leaves out b98 and b99."""


def add(place: Place, name: str, lines: range) -> None:
    feed.add_file(place.texts / f"{name}.txt", feed.text(lines, SEED))


def write(place: Place, ttl: str, max_records: int) -> None:
    place.write(history(Shape(max_records=max_records, ttl=ttl)))


def numbers(place: Place) -> dict[str, list[int]]:
    """The numbers that the lines of each bucket were given, in the order of windows."""
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for one in ledger.read_rows(place.sink("numbers")):
        found[str(one.row["bucket"])].append((one.window, int(one.row["n"])))
    return {bucket: [n for _, n in sorted(pairs)] for bucket, pairs in found.items()}


def lines_of(bucket: str, *runs: range) -> list[int]:
    """How many lines of a bucket each run has."""
    return [sum(1 for n in run if bucket_of(f"r{n:07d}") == bucket) for run in runs]


def seen(place: Place, bucket: str) -> list[int]:
    """What ``millrace state get`` says that the bucket has counted."""
    code, told = harness.command(
        place, "state", "get", "-t", str(place.topology), "--json", "number", bucket
    )
    return [json.loads(told)["state"]["n"]] if code == 0 else []


def await_age(place: Place) -> None:
    """Wait until all windows so far are older than the short ttl."""
    last_s = max(path.stat().st_mtime for path in ledger.visible_files(place.sink("numbers")))
    until(lambda: time.time() > last_s + SHORT_S + 0.1, "a time", 60.0)


def test_state_expires_by_the_time_of_windows_and_is_never_seen_again(place: Place) -> None:
    add(place, "a", FIRST)
    write(place, LONG, 50)
    harness.run_to_end(place, deadline_s=harness.START_S)
    assert seen(place, "b98") == lines_of("b98", FIRST)
    code, told = harness.command(place, "snapshot", "create", "--json")
    assert code == 0, told
    taken = json.loads(told)["name"]

    # All of it has expired; the one window of this run has one time, whoever runs it and how often.
    await_age(place)
    add(place, "b", SECOND)
    write(place, SHORT, 1_000)
    crash = {"MILLRACE_CRASH_AT": "driver.ran", "MILLRACE_CRASH_DIR": str(place.marks)}
    with running(place, environment=crash) as run:
        assert run.wait(harness.START_S) == 0, run.tail()
    assert place.fired()
    shutil.rmtree(place.marks)
    place.marks.mkdir()
    assert seen(place, "b00") == lines_of("b00", SECOND)
    assert seen(place, "b98") == []

    # What was updated then is young by the ttl of this run, and goes on.
    add(place, "c", THIRD)
    write(place, LONG, 50)
    harness.run_to_end(place, deadline_s=harness.START_S)
    for bucket, given in numbers(place).items():
        first, second, third = lines_of(bucket, FIRST, SECOND, THIRD)
        wanted = [*range(1, first + 1), *range(1, second + third + 1)]
        if second:
            assert given == wanted, bucket
    # The other state of the topology has no ttl.
    problems = [one for one in judge(place, Promise.EXACTLY_ONCE) if not one.startswith("numbers")]
    assert problems == []

    # What a snapshot holds is as old as it was: it was updated by the first run, and not by the
    # restore.
    (place.texts / "c.txt").unlink()
    code, told = harness.command(place, "snapshot", "restore", taken, "-t", str(place.topology))
    assert code == 0, told
    write(place, SHORT, 1_000)
    harness.run_to_end(place, deadline_s=harness.START_S)
    found = numbers(place)
    assert found["b00"] == [1, 2, 3, 4, 1]
    assert found["b98"] == [1, 2, 3, 4]
    assert seen(place, "b98") == []
