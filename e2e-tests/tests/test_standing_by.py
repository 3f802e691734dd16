"""A driver that stands by takes over in the middle of the work, or dies on its way: exact."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.crash import STANDBY_POINTS
from millrace.local.children import Child, ProcessSpec
from millrace_e2e import feed, harness, processes, valkey
from millrace_e2e.chaos import Nemesis
from millrace_e2e.checker import Promise
from millrace_e2e.harness import START_S, Place, Run, running
from millrace_e2e.judge import judge
from millrace_e2e.topologies import Shape, history

PART = 600
WINDOW = 100
"""A part of the input is some windows: some are left when the driver that was hit has an heir."""

FENCED, INTERRUPTED = 7, 130

SLOW = {"MILLRACE_E2E_CALL_S": "2"}
"""So long, at least, takes a window while the gate is closed: few are done, one is in flight."""

TO_THE_END = ("--set", "spec.sources[lines].files.watch=false")


def feed_part(place: Place) -> None:
    """One part more of the input, with windows for the next kill to hit."""
    number = sum(1 for _ in place.texts.iterdir())
    lines = feed.text(range(number * PART, (number + 1) * PART), number)
    feed.add_file(place.texts / f"part-{number}.txt", lines)


def start(place: Place, shape: Shape) -> None:
    feed_part(place)
    place.write(history(shape))


def hit(run: Run, *beside: int) -> int:
    """Kill the driver, with windows left to be done, and others with it; the last sealed one."""
    sealed = int(run.status()["sealed"])
    feed_part(run.place)
    run.await_sealed(sealed + 1)
    for pid in (*beside, only(run.place, "driver")):
        assert processes.signalled(pid, signal.SIGKILL)
    return sealed + 1


def only(place: Place, role: str) -> int:
    """The one living process of a role, 0 where there is none."""
    return next(iter(processes.listed(place.work, role)), 0)


def await_ready(run: Run, lives: int) -> int:
    """Wait until so many drivers have stood by; the pid of the one that does."""
    run.until(lambda: len(run.events("StandbyReady")) >= lives, f"standby {lives}", START_S)
    return int(run.until(lambda: only(run.place, "standby"), "it in the list", START_S))


def await_driver(run: Run, pid: int) -> None:
    run.until(lambda: only(run.place, "driver") == pid, f"process {pid} as the driver", START_S)


def await_next(run: Run, *before: int) -> int:
    """Wait for a driver that is none of these; its pid."""

    def found() -> int:
        pid = only(run.place, "driver")
        return pid if pid not in before else 0

    return int(run.until(found, f"a driver other than {before}", START_S))


def test_it_takes_over_with_work_in_flight(place: Place, sink_server: valkey.Server) -> None:
    """One stands by where nothing is said and the input is watched."""
    shape = Shape(max_records=WINDOW, redis=sink_server.url, watch=True, standby=None)
    start(place, shape)
    with running(place, environment=SLOW) as run:
        nemesis = Nemesis(run, 1)
        for kills in (1, 2):
            heir = await_ready(run, kills)
            feed_part(place)
            kill = nemesis.kill("driver")
            await_driver(run, heir)
            run.await_sealed(kill.window + 1)
            assert run.status()["execution"] == kill.execution + 1
        assert run.events("StandbySilent") == []
        see_out(run)
    assert run.status()["totals"]["roots"] == 3 * PART
    with sink_server.client() as client:
        assert judge(place, Promise.EXACTLY_ONCE, client) == []


def see_out(run: Run) -> None:
    """Let the run hurry until all that was fed is shown, and end it."""
    run.place.gate.touch()
    fed = PART * sum(1 for _ in run.place.texts.iterdir())

    def all_shown() -> bool:
        status = run.status()
        return status["totals"]["roots"] == fed and status["published"] == status["sealed"]

    run.until(all_shown, f"{fed} roots", START_S)
    run.interrupt()
    assert run.wait(START_S) == INTERRUPTED, run.tail()


CLAIMING = ("driver.claimed", "driver.stamped", "driver.written-back")


@pytest.fixture
def armed(place: Place) -> dict[str, str]:
    """The environment of a run in which no point fires until its mark is taken away."""
    points = [*STANDBY_POINTS, *CLAIMING]
    for point in points:
        (place.marks / point).touch()
    return {
        **SLOW,
        "MILLRACE_CRASH_AT": ",".join(points),
        "MILLRACE_CRASH_DIR": str(place.marks),
    }


def arm(place: Place, point: str) -> None:
    (place.marks / point).unlink()


def await_fired(run: Run, point: str) -> None:
    run.until(lambda: point in run.place.fired(), point, START_S)


def test_it_dies_while_it_gets_ready_or_takes_over_and_the_driver_too(
    place: Place, armed: dict[str, str]
) -> None:
    start(place, Shape(max_records=WINDOW, watch=True, standby=1))
    for point in ("standby.begun", "standby.ready"):
        arm(place, point)
    with running(place, environment=armed) as run:
        await_fired(run, "standby.begun")
        await_fired(run, "standby.ready")
        run.until(lambda: len(run.events("StandbyEnded")) == 2, "two deaths", START_S)
        ready = len(run.events("StandbyReady"))
        driver = only(place, "driver")
        for _ in range(3):  # it comes after a while, and the driver works until then
            feed_part(place)
        # Told before anything of it is up, it takes over as a driver that starts would.
        heir = run.until(lambda: only(place, "standby"), "the third", START_S)
        assert processes.signalled(driver, signal.SIGKILL)
        await_driver(run, heir)
        assert len(run.events("StandbyReady")) == ready
        feed_part(place)
        run.await_sealed(run.status()["sealed"] + 1)
        # Both at once: a driver is started.
        second = await_ready(run, ready + 1)
        sealed = hit(run, second)
        await_next(run, 0, driver, heir, second)
        run.await_sealed(sealed + 1)
        # On its way: another driver is started, and another one stands by.
        points = ("standby.told", *CLAIMING)
        for number, point in enumerate(points, start=ready + 2):
            heir, driver = await_ready(run, number), only(place, "driver")
            arm(place, point)
            sealed = hit(run)
            await_fired(run, point)
            await_next(run, 0, driver, heir)
            run.await_sealed(sealed + 1)
        assert [int((place.marks / point).read_text()) > 0 for point in points] == [True] * 4
        see_out(run)
    assert judge(place, Promise.EXACTLY_ONCE) == []


def test_a_driver_that_was_only_stopped_is_fenced_by_the_one_that_stood_by(place: Place) -> None:
    """No supervisor would say so while the driver lives: this test does."""
    shape = Shape(max_records=WINDOW, watch=True, servers=3, copies=2)
    start(place, shape)
    with running(place, environment=SLOW) as run:
        run.await_sealed(1)
        with standing_by(place) as (heir, ready):
            run.until(lambda: ready.exists() or heir.ended() is not None, "the one that stands by")
            sealed = run.status()["sealed"]
            feed_part(place)
            run.await_sealed(sealed + 1)
            driver, before = only(place, "driver"), run.status()
            assert processes.signalled(driver, signal.SIGSTOP)
            heir.order(b"take over\n")
            run.until(lambda: run.status()["pid"] == heir.pid, "its figures")
            run.await_sealed(before["sealed"] + 2)
            assert run.status()["execution"] == before["execution"] + 1
            assert processes.state_of(driver) == "T"
            assert processes.signalled(driver, signal.SIGCONT)
            assert run.wait(START_S) == FENCED
            assert heir.ended() is None
    place.gate.touch()
    # Where nothing is said none stands by for what is read to its end.
    place.write(history(replace(shape, standby=None)))
    harness.run_to_end(place, *TO_THE_END)
    logs = {path.name for path in (place.work / "logs").iterdir()}
    assert ("driver.log" in logs, "standby.log" in logs) == (True, False)
    assert judge(place, Promise.EXACTLY_ONCE) == []


@contextmanager
def standing_by(place: Place) -> Iterator[tuple[Child, Path]]:
    """A driver that stands by, started by nobody but this test, and the file that it makes."""
    ready, folder = place.base / "ready", place.base / "by-hand"
    folder.mkdir()
    environment = {
        **SLOW,
        "MILLRACE_E2E_GATE": str(place.gate),
        "MILLRACE_E2E_MARKS": str(place.flaky),
        "MILLRACE_STATE_ROOT_KEY": (place.work / "root").read_text().strip(),
    }
    settings = place.work / "driver.json"
    assert json.loads(settings.read_text())
    program = (sys.executable, "-m", "millrace.engine.driver.main")
    command = (*program, "--settings", str(settings), "--standby", str(ready))
    spec = ProcessSpec(
        "heir", "standby", command, environment, folder, tree=True, ready=ready, ordered=True
    )
    with (folder / "log").open("wb") as log:
        child = Child(spec, log.fileno(), log.fileno())
        try:
            yield child, ready
        finally:
            child.kill()
            ended = child.wait(harness.END_S)
            child.close()
            assert ended is not None
