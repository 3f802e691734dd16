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


def step(folders: list[Folder], chance: random.Random) -> int:
    """A few things happen in each folder, in all of them equally many; how many."""
    steps = chance.randint(1, MOST_AT_ONCE)
    for folder in folders:
        for _ in range(steps):
            folder.step()
    return steps


def live(run: Run, folders: list[Folder], sink: Sink, steps: int, seed: int) -> None:
    """Let things happen, a few between two looks; what was written is waited for, a little late."""
    chance = random.Random(seed)
    while steps > 0:
        wanted = due(folders) if chance.random() < 0.7 else 0
        steps -= step(folders, chance)
        run.until(lambda: sink.read(*folders) >= wanted, f"{wanted} lines", START_S)  # noqa: B023


def due(folders: list[Folder]) -> int:
    return sum(folder.due for folder in folders)


def amid(
    folders: list[Folder], sink: Sink, chance: random.Random, kill: Callable[[], None]
) -> None:
    """Kill while lines that were just written are on their way to the sink."""
    while True:
        step(folders, chance)
        time.sleep(chance.uniform(0, LONGEST_FLIGHT_S))
        if sink.read(*folders) < due(folders):
            return kill()


def kill_driver(run: Run) -> None:
    (pid,) = run.until(lambda: processes.listed(run.place.work, "driver"), "a driver")
    with processes.held(pid) as handle:
        assert handle is not None
        processes.send(handle, signal.SIGKILL)


@pytest.mark.parametrize(("seeds", "max_records"), [((1, 2, 3, 4), 20), ((5,), 200)])
def test_every_line_of_living_folders_comes_once_and_in_order(
    seeds: tuple[int, ...], max_records: int, place: Place
) -> None:
    """Folders that are read by turns, in either order: of a small window each has a few lines."""
    quick = {"spark.driver.extraJavaOptions": quickjvm.options()}
    orders = {f"texts-{seed}": "modified" if seed % 2 else "name" for seed in seeds}
    place.write(topology(max_records, orders, quick))
    folders = [
        Folder(place.base / texts, place.base / f"away-{seed}", seed)
        for texts, seed in zip(orders, seeds, strict=True)
    ]
    first = seeds[0]
    sink = Sink(place.sink("numbers"))
    chance = random.Random(-first)

    def nobody_looks() -> None:
        for folder in folders:
            for _ in range(DOWN_STEPS):
                folder.step()

    with running(place) as run:
        live(run, folders, sink, STEPS // 3, first)
        amid(folders, sink, chance, lambda: kill_driver(run))
        nobody_looks()
        live(run, folders, sink, STEPS // 3, first + 100)
        amid(folders, sink, chance, run.kill)
    await_nothing_left(place.work)
    nobody_looks()
    with running(place) as run:
        live(run, folders, sink, STEPS // 3, first + 200)
        run.until(lambda: sink.read(*folders) >= due(folders), "all lines", START_S)
        run.interrupt()
        assert run.wait(END_S) == INTERRUPTED, run.tail()
    sink.read(*folders)
    rows = [[row for row in sink.rows if folder.has(row)] for folder in folders]
    assert sum(map(len, rows)) == len(sink.rows)
    for folder, of_it in zip(folders, rows, strict=True):
        print(folder.seed, dict(folder.done))
        assert check(folder, of_it) == []
        done = {"rotate", "rename", "swap", "remove", "take away", "bring back"}
        assert done <= folder.done.keys()


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
