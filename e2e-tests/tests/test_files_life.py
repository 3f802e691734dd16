"""Files are renamed, rotated, removed and brought back while processes are killed."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace_e2e import processes, quickjvm
from millrace_e2e.filelife import Folder, Sink, check, topology
from millrace_e2e.harness import END_S, START_S, Place, Run, await_nothing_left, running

INTERRUPTED = 130
STEPS = 90
MOST_AT_ONCE = 5
DOWN_STEPS = 12
"""Things that happen while no driver looks."""

LONGEST_FLIGHT_S = 0.08
"""From what was written to a kill: a window of these histories takes about as long."""


def live(run: Run, folder: Folder, sink: Sink, steps: int, seed: int) -> None:
    """Let things happen, a few between two looks; what was written is waited for, a little late."""
    chance = random.Random(seed)
    while steps > 0:
        wanted = folder.due if chance.random() < 0.7 else 0
        for _ in range(chance.randint(1, MOST_AT_ONCE)):
            folder.step()
            steps -= 1
        run.until(lambda: sink.read(folder) >= wanted, f"{wanted} lines", START_S)  # noqa: B023


def amid(folder: Folder, sink: Sink, chance: random.Random, kill: Callable[[], None]) -> None:
    """Kill while lines that were just written are on their way to the sink."""
    while True:
        for _ in range(chance.randint(1, MOST_AT_ONCE)):
            folder.step()
        time.sleep(chance.uniform(0, LONGEST_FLIGHT_S))
        if sink.read(folder) < folder.due:
            return kill()


def kill_driver(run: Run) -> None:
    (pid,) = run.until(lambda: processes.listed(run.place.work, "driver"), "a driver")
    with processes.held(pid) as handle:
        assert handle is not None
        processes.send(handle, signal.SIGKILL)


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_every_line_of_a_living_folder_comes_once_and_in_order(seed: int, place: Place) -> None:
    quick = {"spark.driver.extraJavaOptions": quickjvm.options()}
    order = "modified" if seed % 2 else "name"
    place.write(topology(random.Random(seed).choice((7, 40, 200)), order, quick))
    folder = Folder(place.texts, place.base / "away", seed)
    sink = Sink(place.sink("numbers"))
    chance = random.Random(-seed)
    with running(place) as run:
        live(run, folder, sink, STEPS // 3, seed)
        amid(folder, sink, chance, lambda: kill_driver(run))
        for _ in range(DOWN_STEPS):
            folder.step()
        live(run, folder, sink, STEPS // 3, seed + 100)
        amid(folder, sink, chance, run.kill)
    await_nothing_left(place.work)
    for _ in range(DOWN_STEPS):
        folder.step()
    with running(place) as run:
        live(run, folder, sink, STEPS // 3, seed + 200)
        run.until(lambda: sink.read(folder) >= folder.due, "all lines", START_S)
        run.interrupt()
        assert run.wait(END_S) == INTERRUPTED, run.tail()
    sink.read(folder)
    print(dict(folder.done))
    assert check(folder, sink.rows) == []
    assert {"rotate", "rename", "swap", "remove", "take away", "bring back"} <= folder.done.keys()


@pytest.mark.parametrize("seed", range(20))
def test_the_life_of_a_folder_is_known_to_who_judges_it(seed: int, tmp_path: Path) -> None:
    """What is written is what is due, and a line too much, too few or out of order is told."""
    folder = Folder(tmp_path / "texts", tmp_path / "away", seed)
    for _ in range(100):
        folder.step()
        for path in folder.inbox.iterdir():
            for line in path.read_text().splitlines():
                label, number = line.split()
                folder.shown[label, int(number)] = 2
    rows = []
    for file in folder.every:
        first = sum(row["file"] == file.label for row in rows)
        rows += [{"file": file.label, "n": first + i + 1, "line": i} for i in range(file.lines)]
    assert check(folder, rows) == []
    assert check(folder, rows[:-1])
    assert check(folder, [*rows, rows[0]])
    whole = next(f for f in folder.every if f.lines > 1 and not f.twin)
    one, two = (next(r for r in rows if r["file"] == whole.label and r["n"] == n) for n in (1, 2))
    one["line"], two["line"] = two["line"], one["line"]
    assert check(folder, rows)
