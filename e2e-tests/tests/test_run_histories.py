"""What a user does to a running topology: stop it, edit it, start it twice, start it over."""

from __future__ import annotations

from millrace_e2e import feed, harness, ledger
from millrace_e2e.checker import Promise
from millrace_e2e.harness import END_S, START_S, Place, Run, await_nothing_left, running
from millrace_e2e.judge import judge
from millrace_e2e.processes import alive, marked
from millrace_e2e.topologies import Shape, history

FENCED, INTERRUPTED, INVALID, SINK = 7, 130, 3, 6
SEED = 3


def shown(place: Place) -> int:
    return len(ledger.read_rows(place.sink("rows")))


def await_rows(run: Run, count: int) -> None:
    run.until(lambda: shown(run.place) >= count, f"{count} rows", START_S)


def test_a_growing_folder_through_ctrl_c_edits_a_second_run_and_a_start_over(place: Place) -> None:
    """One life of a topology whose input never stops growing."""
    place.write(history(Shape(max_records=50, watch=True)))
    place.gate.touch()
    grown = place.texts / "grown.txt"
    feed.append(grown, feed.text(range(100), SEED))

    # It starts, takes what there is, and what arrives meanwhile: a file that grows in the middle
    # of a line, and a new one.
    with running(place) as run:
        await_rows(run, 100)
        data = feed.text(range(100, 160), SEED)
        feed.append(grown, data[:1001])
        feed.add_file(place.texts / "new.txt", feed.text(range(1000, 1040), SEED))
        whole = data[:1001].count(b"\n")
        await_rows(run, 140 + whole)
        feed.append(grown, data[1001:])
        await_rows(run, 200)
        document = harness.status_command(place)
        assert document["state"] == "running"
        assert {"supervisor", "state", "acker", "driver"} <= {
            r["role"] for r in document["processes"]
        }
        assert all(alive(row["pid"]) for row in document["processes"])
        # Ctrl-C ends it cleanly, with everything published.
        run.interrupt()
        assert run.wait(END_S) == INTERRUPTED
        await_nothing_left(place.work)
    assert judge(place, Promise.EXACTLY_ONCE) == []
    sealed = run.status()["sealed"]

    # Input that comes while nothing runs is found, and the edits of the file are explained, one
    # and the other by a restart.
    feed.append(grown, feed.text(range(160, 200), SEED))
    place.write(history(Shape(max_records=20, parallelism=3, watch=True)))
    with running(place) as older:
        await_rows(older, 240)
        said = older.output()
        assert "spec.window.maxRecords: 50 → 20: restart" in said
        assert "spec.parallelism: 2 → 3: restart" in said
        assert f"behind window {sealed}, the last sealed one" in said

        # An edit that the state would not survive is refused, and the run is left alone.
        code, said = harness.run_refused(place, "--set", "spec.keyGroups=32")
        assert code == INVALID
        assert "spec.keyGroups: 16 → 32: refused" in said
        assert older.process.poll() is None

        # A second run takes over; the older one says so and ends.
        feed.append(grown, feed.text(range(200, 260), SEED))
        with running(place, "--set", "spec.sources[lines].files.watch=false") as newer:
            assert older.wait(START_S) == FENCED
            assert "fenced" in older.output()
            assert f"process {newer.pid}" in older.output()
            assert newer.wait(START_S) == 0
            assert "spec.sources[lines].files.watch: true → false: restart" in newer.output()
    assert judge(place, Promise.EXACTLY_ONCE) == []
    it_is_drained_and_started_over(place)


def it_is_drained_and_started_over(place: Place) -> None:
    """``--fresh`` forgets everything, but takes away what sinks show only when told to."""
    place.write(history(Shape(max_records=100)))
    before = {path.name for path in ledger.visible_files(place.sink("rows"))}

    with running(place, "--fresh") as refused:
        assert refused.wait(START_S) == SINK
    assert "--fresh --overwrite" in refused.output()
    assert {path.name for path in ledger.visible_files(place.sink("rows"))} == before

    feed.add_file(place.texts / "b.txt", feed.text(range(2000, 2050), SEED))
    run = harness.run_to_end(place, "--fresh", "--overwrite")
    assert run.status()["totals"]["roots"] == 350
    assert marked(place.work) == []
    assert judge(place, Promise.EXACTLY_ONCE) == []
