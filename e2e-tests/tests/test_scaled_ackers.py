"""Ackers come, go and are killed while windows run; what comes out is exact, and little moves."""

from __future__ import annotations

import signal
from pathlib import Path

from millrace_e2e import feed, processes
from millrace_e2e.acklog import Move, Opened, Watcher
from millrace_e2e.checker import Promise
from millrace_e2e.detour import STARTUP
from millrace_e2e.harness import Place, Run, command, running
from millrace_e2e.judge import judge
from millrace_e2e.topologies import Shape, history

SEEDS = (1, 2, 3)
WINDOWS = 16
"""What ackers come and go in once, with some to spare."""

WINDOW = 600
"""More than two blocks of roots, so that several ackers have something to judge."""

SLOW_S = 240.0
CALL_S = {"MILLRACE_E2E_CALL_S": "3"}
LARGE = {"MILLRACE_E2E_EARLY_ROOTS": "1", "PYTHONPATH": str(STARTUP)}
"""Each window has more slices than ackers divide, and ackers hear of it as it opens, but for those
that are one task, as the first three are."""


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


def test_ackers_come_go_and_die_under_load(place: Place) -> None:
    """Thrice in one run, from two ackers on, each time with other lines and other victims."""
    for number, seed in enumerate(SEEDS):
        lines = range(number * WINDOWS * WINDOW, (number + 1) * WINDOWS * WINDOW)
        feed.add_file(place.texts / f"{seed}.txt", feed.text(lines, seed))
    place.write(history(Shape(max_records=WINDOW, ackers=2)))
    opened: list[list[Opened]] = []
    moves: list[list[Move]] = []
    with running(place, environment=CALL_S | LARGE) as run, Watcher(place.work) as watcher:
        run.await_sealed(1, SLOW_S)
        for seed in SEEDS:
            if opened:
                two_again(place, run, watcher)
            for count in (6, 3):
                scale(place, run, count)
                run.await_sealed(run.status()["sealed"] + 2, SLOW_S)
                kill(place, run, f"acker-{(seed + 1) % count}")
                run.await_sealed(run.status()["sealed"] + 1, SLOW_S)
            opened.append(watcher.opened()[sum(map(len, opened)) :])
            moves.append(watcher.moves()[sum(map(len, moves)) :])
        place.gate.touch()
        assert run.wait(SLOW_S) == 0, run.tail()
        all_opened, all_moves = watcher.opened(), watcher.moves()
    assert judge(place, Promise.EXACTLY_ONCE) == []
    # The driver knew of each number, each time, and what opened was shared evenly.
    for some in opened:
        assert {(2, 4), (6, 6), (3, 6)} <= {(len(one.shares), one.slices) for one in some}
    assert all(max(one.shares) - min(one.shares) <= 1 for one in all_opened)
    # Windows that were open when ackers came, went or died moved as little as can be.
    assert all([move for move in some if move.moved] for some in moves)
    assert [move for move in all_moves if not 0 <= move.moved - move.least <= 1] == []


def two_again(place: Place, run: Run, watcher: Watcher) -> None:
    """Ask for two ackers, and wait until a window opens with them."""
    before = len(watcher.opened())
    code, text = command(place, "scale", "--ackers", "2", "--timeout", "0")
    assert code == 0, text
    run.until(
        lambda: any(len(one.shares) == 2 for one in watcher.opened()[before:]),
        "a window of two ackers",
        SLOW_S,
    )


def test_the_load_alone_has_more_ackers_come_and_go_again(place: Place, tmp_path: Path) -> None:
    """One is really busy, and the supervisor judges by the CPU that their processes use; a scale
    beyond what the topology allows is cut and told."""
    busy = tmp_path / "busy"
    busy.mkdir()
    environment = {
        "MILLRACE_E2E_CALL_S": "0.4",
        "PYTHONPATH": str(STARTUP),
        "MILLRACE_E2E_BUSY": str(busy),
        "MILLRACE_E2E_ACKERS_IDLE_S": "3",
    }
    document = history(Shape(max_records=WINDOW, ackers=1))
    document["spec"]["ackers"] |= {"min": 1, "max": 3}
    feed.add_file(place.texts / "a.txt", feed.text(range(18_000), 1))
    place.write(document)
    with running(place, environment=environment) as run, Watcher(place.work) as watcher:
        run.await_sealed(1, SLOW_S)
        assert run.events("AckersScaled") == []
        (busy / "acker-0").touch()
        await_shared(run, watcher, 2)
        code, text = command(place, "scale", "--ackers", "5", "--timeout", "60")
        assert code == 0, text
        assert "1 to 3 ackers by spec.ackers.min and max" in text
        (told,) = run.until(lambda: run.events("ScaleAsked"), "the size asked for", SLOW_S)
        assert "3 ackers" in told["text"]
        await_shared(run, watcher, 3)
        (busy / "acker-0").unlink()
        run.until(lambda: ackers(place) == ["acker-0"], "one acker again", SLOW_S)
        run.await_sealed(run.status()["sealed"] + 2, SLOW_S)
        place.gate.touch()
        assert run.wait(SLOW_S) == 0, run.tail()
    assert judge(place, Promise.EXACTLY_ONCE) == []
    # A core is too much for one acker, and neither too much nor too little for two or three; where
    # its window's own work comes to it, that asks for three at once.
    came, *went = [event["text"] for event in run.events("AckersScaled")]
    assert came in {f"{count} ackers instead of 1, as the load asks for" for count in (2, 3)}
    assert went == [
        "2 ackers instead of 3, as the load asks for",
        "1 acker instead of 2, as the load asks for",
    ]


def await_shared(run: Run, watcher: Watcher, count: int) -> None:
    """Wait until a window opened with so many ackers, or more."""

    def opened() -> bool:
        return any(len(one.shares) >= count for one in watcher.opened())

    run.until(opened, f"a window of {count} ackers", SLOW_S)
