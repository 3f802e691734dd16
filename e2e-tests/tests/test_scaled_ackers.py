"""Ackers come, go and are killed while windows run; what comes out is exact, and little moves."""

from __future__ import annotations

import signal

import pytest

from millrace_e2e import feed, processes
from millrace_e2e.acklog import Watcher
from millrace_e2e.checker import Promise
from millrace_e2e.harness import Place, Run, command, running
from millrace_e2e.judge import judge
from millrace_e2e.topologies import Shape, history

LINES = 24_000
WINDOW = 600
"""More than two blocks of roots, so that several ackers have something to judge."""

SLOW_S = 240.0
CALL_S = {"MILLRACE_E2E_CALL_S": "0.4"}


def ackers(place: Place) -> list[str]:
    """Those that are proposed to the driver."""
    found = processes.read_json(place.work / "proposal.json") or {"ackers": []}
    return sorted(found["ackers"])


def kill(place: Place, run: Run, name: str) -> None:
    """Kill an acker that lives, and wait until another life of it is proposed."""
    before = pid_of(place, name)
    assert processes.signalled(before, signal.SIGKILL)
    run.until(lambda: pid_of(place, name) not in (0, before), f"the next {name}", SLOW_S)


def pid_of(place: Place, name: str) -> int:
    table = processes.read_json(place.work / "processes.json") or {"processes": []}
    found = [row["pid"] for row in table["processes"] if row["name"] == name]
    return found[0] if found else 0


def scale(place: Place, run: Run, count: int) -> None:
    """Ask for so many ackers; one of those that stay is killed before it is done."""
    code, text = command(place, "scale", "--ackers", str(count), "--timeout", "0")
    assert code == 0, text
    kill(place, run, "acker-1")
    wanted = [f"acker-{number}" for number in range(count)]
    run.until(lambda: ackers(place) == wanted, f"{count} ackers", SLOW_S)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_ackers_come_go_and_die_under_load(seed: int, place: Place) -> None:
    feed.add_file(place.texts / "a.txt", feed.text(range(LINES), seed))
    place.write(history(Shape(max_records=WINDOW, ackers=2)))
    with running(place, environment=CALL_S) as run, Watcher(place.work) as watcher:
        run.await_sealed(1, SLOW_S)
        for count in (6, 3):
            scale(place, run, count)
            run.await_sealed(run.status()["sealed"] + 2, SLOW_S)
            kill(place, run, f"acker-{(seed + 1) % count}")
            run.await_sealed(run.status()["sealed"] + 1, SLOW_S)
        place.gate.touch()
        assert run.wait(SLOW_S) == 0, run.tail()
        opened, moves = watcher.opened(), watcher.moves()
    assert judge(place, Promise.EXACTLY_ONCE) == []
    # The driver knew of each number, and what opened then was shared evenly.
    shares = {(len(one.shares), one.slices) for one in opened}
    assert {(2, 16), (6, 18), (3, 18)} <= shares
    assert all(max(one.shares) - min(one.shares) <= 1 for one in opened)
    # Windows that were open when ackers came, went or died moved as little as can be.
    assert [move for move in moves if move.moved]
    assert [move for move in moves if not 0 <= move.moved - move.least <= 1] == []


def test_a_scale_beyond_what_the_topology_allows_is_cut_and_told(place: Place) -> None:
    document = history(Shape(max_records=WINDOW, ackers=2, watch=True))
    document["spec"]["ackers"] |= {"min": 1, "max": 2}
    feed.add_file(place.texts / "a.txt", feed.text(range(WINDOW), 1))
    place.write(document)
    with running(place) as run:
        run.await_sealed(1, SLOW_S)
        code, text = command(place, "scale", "--ackers", "5", "--timeout", "60")
        assert code == 0, text
        assert "1 to 2 ackers by spec.ackers.min and max" in text
        assert ackers(place) == ["acker-0", "acker-1"]
        # The number was that already: the command has its answer before the run is asked.
        run.until(lambda: run.events("ScaleAsked"), "the size asked for", SLOW_S)
        (told,) = run.events("ScaleAsked")
        assert "2 ackers" in told["text"]
        run.interrupt()
        run.wait(SLOW_S)
