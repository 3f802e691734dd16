"""Several state servers with copies are killed, frozen, lost, added and taken away under load.

Every history is judged by what was fed and what came out.
"""

from __future__ import annotations

import signal

import pytest

from millrace_e2e import feed, processes
from millrace_e2e.checker import Promise
from millrace_e2e.harness import Place, Run, running
from millrace_e2e.judge import judge
from millrace_e2e.topologies import Shape, history

LINES = 8_000
WINDOW = 400
END_S = 240.0
SLOW_S = 240.0
CALL_S = {"MILLRACE_E2E_CALL_S": "0.1"}


def set_up(place: Place, servers: int, copies: int, seed: int, lines: int = LINES) -> None:
    feed.add_file(place.texts / "a.txt", feed.text(range(lines), seed))
    place.write(history(Shape(max_records=WINDOW, servers=servers, copies=copies)))


def pid_of(place: Place, name: str) -> int:
    """The living process of a state server."""
    table = processes.read_json(place.work / "processes.json") or {"processes": []}
    found = [row["pid"] for row in table["processes"] if row["name"] == name]
    return found[0] if found else 0


def drain(place: Place, run: Run) -> None:
    """Let the run hurry to its end, and judge what it shows."""
    place.gate.touch()
    assert run.wait(END_S) == 0, run.tail()
    assert judge(place, Promise.EXACTLY_ONCE) == []


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_any_r_minus_1_servers_killed_at_once(seed: int, place: Place) -> None:
    servers, copies = (5, 3) if seed == 3 else (3, 2)
    set_up(place, servers, copies, seed)
    with running(place, environment=CALL_S) as run:
        run.await_sealed(2, SLOW_S)
        assert run.status()["members"] == [f"state-{number}" for number in range(servers)]
        victims = [f"state-{(seed + step) % servers}" for step in range(copies - 1)]
        for name in victims:
            assert processes.signalled(pid_of(place, name), signal.SIGKILL)
        sealed = run.status()["sealed"]
        run.await_sealed(sealed + 3, SLOW_S)
        assert {name for name in victims if run.status()["members"].count(name)} == set(victims)
        drain(place, run)
