"""Several state servers with copies are killed, frozen, lost, added and taken away under load.

Every history is judged by what was fed and what came out.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from millrace.crash import COPYING_POINTS
from millrace.state.keyed.chain import MAX_DELTAS
from millrace_e2e import feed, holdings, processes
from millrace_e2e.chaos import EMPTIED, Nemesis
from millrace_e2e.checker import Promise
from millrace_e2e.harness import Place, Run, command, running
from millrace_e2e.judge import judge
from millrace_e2e.topologies import Shape, history

WINDOW = 20
"""Lines: they touch a part of the state alone, so that there are deltas over a base."""

WINDOWS = 24
"""What a history takes, with some to spare: each costs the same, however few lines it has."""

CHAIN = MAX_DELTAS + 2
"""So many windows, and the state of one has been written whole again."""

END_S = 240.0
SLOW_S = 240.0
NAMES = tuple(f"state-{number}" for number in range(5))
TAUGHT = "driver.taught"
CALL_S = {"MILLRACE_E2E_CALL_S": "2", "MILLRACE_E2E_CALL_EVERY": "10"}
"""Two calls a window: whoever waits for something sees few go by, and always one in flight."""

LONG_CALL_S = {**CALL_S, "MILLRACE_E2E_CALL_S": "4"}
"""The same of whoever waits for commands that are slow to start."""


def set_up(place: Place, servers: int, copies: int, seed: int, windows: int = WINDOWS) -> None:
    feed.add_file(place.texts / "a.txt", feed.text(range(windows * WINDOW), seed))
    place.write(history(Shape(max_records=WINDOW, servers=servers, copies=copies)))


def pid_of(place: Place, name: str) -> int:
    """The living process of a state server or an acker."""
    return processes.pid_of(place.work, name)


def await_members(run: Run, names: list[str]) -> None:
    """The status follows the view by a moment, and a driver that has just started names none."""
    run.until(lambda: run.status().get("members") == names, f"the members {names}", SLOW_S)


def scale(place: Place, run: Run, servers: int, ackers: int, victim: str | None = None) -> None:
    """Ask for another size and wait until the run has it, with windows behind; a server that is to
    leave dies once others have learned what it holds."""
    asked = ("--state-servers", str(servers), "--ackers", str(ackers))
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(command, place, "scale", *asked, "--timeout", "200", deadline_s=SLOW_S)
        if victim is not None:
            run.until(lambda: TAUGHT in place.fired(), "a lesson at its end", SLOW_S)
            assert victim in run.status()["members"]
            assert processes.signalled(pid_of(place, victim), signal.SIGKILL)
        code, text = done.result()
    assert (code, run.process.poll()) == (0, None), text + run.tail()
    await_members(run, list(NAMES[:servers]))
    run.await_sealed(run.status()["sealed"] + 2, SLOW_S)


def kill(place: Place, *names: str) -> None:
    for name in names:
        assert processes.signalled(pid_of(place, name), signal.SIGKILL)


def go_on(run: Run, windows: int) -> None:
    run.await_sealed(run.status()["sealed"] + windows, SLOW_S)


def hang(place: Place, run: Run, names: list[str], hung: str) -> None:
    """Freeze a server until it is left out, and then let it go on: it is let in again."""
    zombie = pid_of(place, hung)
    told = len(run.events("StateServerLeftOut"))
    assert processes.signalled(zombie, signal.SIGSTOP)
    await_members(run, [name for name in names if name != hung])
    go_on(run, 2)
    assert len(run.events("StateServerLeftOut")) == told + 1
    assert processes.signalled(zombie, signal.SIGCONT)
    await_members(run, names)
    assert pid_of(place, hung) == zombie
    go_on(run, 1)


def drain(place: Place, run: Run) -> None:
    """Let the run hurry to its end, and judge what it shows."""
    place.gate.touch()
    assert run.wait(END_S) == 0, run.tail()
    assert judge(place, Promise.EXACTLY_ONCE) == []


def view_of(place: Place) -> dict[str, Any]:
    return processes.view(place.work)


def lives_of(view: dict[str, Any]) -> dict[str, str]:
    """Which life of each server a view means."""
    return {member["name"]: member["run_id"] for member in view["target"]}


def await_changed(place: Place, run: Run, before: dict[str, Any], lost: set[str]) -> None:
    """Another view is open, with every server in it, a later life of those that were lost, and
    windows behind it."""

    def whole() -> bool:
        view, lives = view_of(place), lives_of(before)
        found = lives_of(view)
        later = {name for name in found.keys() & lives if found[name] != lives[name]}
        return view["phase"] == "open" and found.keys() == lives.keys() and later >= lost

    run.until(whole, f"a view without what {sorted(lost)} were", SLOW_S)
    assert view_of(place)["epoch"] > before["epoch"]
    go_on(run, 2)


def arm(place: Place, steps: Sequence[str]) -> None:
    for step in steps:
        (place.marks / step).unlink()


def deaths(place: Place) -> list[str]:
    """Steps at which a driver has died, in that order; one that is not armed has an empty mark."""
    marks = [path for path in place.marks.iterdir() if path.stat().st_size]
    return [path.name for path in sorted(marks, key=lambda path: path.stat().st_mtime_ns)]


def await_deaths(place: Place, run: Run, steps: Sequence[str], phase: str) -> None:
    """Each step is the end of another driver, and in the order in which the view change has them.

    Behind the last one everybody has what the view says, and no window has run that could have
    brought it: the next driver does not have Spark yet.
    """
    for step in steps:
        run.until(lambda step=step: step in deaths(place), step, SLOW_S)
    assert deaths(place) == list(steps)
    assert holdings.lacking(place.work) == []
    assert view_of(place)["phase"] == phase


MOVING = ("driver.moving", "driver.claimed", "driver.stamped", "driver.copying", "driver.copied")
OPENING = ("driver.record-sent", "driver.opening", "driver.view-opened")
"""The steps of a view change, in its order."""

DEATHS: dict[int, tuple[Sequence[str], Sequence[str]]] = {
    1: (("driver.moving", "driver.claimed", "driver.copied"), ()),
    2: (("driver.moving", "driver.stamped", "driver.copying", "driver.copied"), ()),
    3: ((), OPENING),
}
"""Where drivers die in the first view change and in the second one, by seed: each death is one more
start. A driver that was there from the beginning dies at the first step, the others are of drivers
that find the view moving. Behind the last step of its half everybody has what the view says."""


def test_a_driver_dies_at_every_step_and_while_it_copies() -> None:
    halves = [half for both in DEATHS.values() for half in both]
    assert {step for half in halves for step in half} == {*MOVING, *OPENING}
    assert {half[-1] for half in halves if half} == {MOVING[-1], OPENING[-1]}
    assert set(COPYING_POINTS) <= set(MOVING)


def lose(place: Place, nemesis: Nemesis) -> tuple[dict[str, Any], set[str]]:
    """Kill R - 1 servers while a window is in flight, and take what they hold; the view before and
    their names."""
    before = view_of(place)
    nemesis.kill(EMPTIED)
    return before, {name for name, life in lives_of(before).items() if life in nemesis.killed}


@pytest.mark.parametrize(("servers", "copies"), [(3, 2), (5, 3)])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_whoever_is_killed_or_hangs_windows_go_on_exactly(
    seed: int, servers: int, copies: int, place: Place
) -> None:
    """All but one owner of some groups at once with all that they hold, and as soon as every copy
    is there again others that took part in that, with an acker; the driver at steps of the first
    view change, or with them and at those of the second one, and at each step with either number of
    servers; and a server that hangs: it lives, so only the driver can tell."""
    first, then = DEATHS[seed]
    set_up(place, servers, copies, seed)
    names = list(NAMES[:servers])
    for step in (*first, *then):
        (place.marks / step).touch()
    crashes = {
        "MILLRACE_CRASH_AT": ",".join((*first, *then)),
        "MILLRACE_CRASH_DIR": str(place.marks),
    }
    with running(place, environment={**CALL_S, **crashes}) as run:
        nemesis = Nemesis(run, seed)
        run.await_sealed(2, SLOW_S)
        await_members(run, names)
        arm(place, first)
        before, lost = lose(place, nemesis)
        if first:
            await_deaths(place, run, first, "moving")
        await_changed(place, run, before, lost)

        arm(place, then)
        before, lost = lose(place, nemesis)
        kill(place, "acker-0", *(["driver"] if then else []))
        if then:
            await_deaths(place, run, then, "open")
        await_changed(place, run, before, lost)

        hang(place, run, names, names[seed - 1])
        drain(place, run)


@pytest.mark.parametrize("copies", [1, 2])
def test_servers_and_ackers_come_and_go_under_load(copies: int, place: Place) -> None:
    """With two copies the driver dies when others have learned what they are to hold, as servers
    join and as two leave, and one that leaves dies with it; then all servers are killed, with the
    run and without it. With one copy the next run has fewer servers. What state there is has been
    written whole again before."""
    set_up(place, copies, copies, seed=7, windows=5 * WINDOWS)
    place.gate.touch()
    crashes = {"MILLRACE_CRASH_AT": TAUGHT, "MILLRACE_CRASH_DIR": str(place.marks)}
    deaths = copies == 2
    with running(place, environment={**LONG_CALL_S, **(crashes if deaths else {})}) as run:
        run.await_sealed(CHAIN, SLOW_S)
        place.gate.unlink()
        assert later_bases(place) > 0
        scale(place, run, 4, 3)
        if deaths:
            assert place.fired() == {TAUGHT}
            (driver,) = processes.listed(place.work, "driver")
            (place.marks / TAUGHT).unlink()
            lives = run.status().get("execution", 0)
            # Only a driver that has not learned anything yet dies there.
            assert processes.signalled(driver, signal.SIGKILL)
            run.until(lambda: run.status().get("execution", 0) > lives, "the next driver", SLOW_S)
            run.await_sealed(run.status()["sealed"] + 1, SLOW_S)
        scale(place, run, 2, 1, victim="state-3" if deaths else None)
        # Those that left have ended, and what they kept is gone.
        listed = set(processes.names(place.work))
        assert {*NAMES, "acker-0", "acker-1", "acker-2"} & listed == {*NAMES[:2], "acker-0"}
        assert not any((place.work / name).exists() for name in NAMES[2:4])
        scale(place, run, 3, 1)
        lives = run.status()["execution"]
        run.kill()
    if deaths:
        all_servers_are_killed_at_once_as_they_were_with_the_run(place, lives)
    else:
        the_next_run_has_fewer_servers_and_fetches_what_the_others_hold(place)


def later_bases(place: Place) -> int:
    """How many pieces of state have been written whole since the first window."""
    chains = holdings.record(place.work, NAMES[0])["chains"].values()
    return sum(segment["base"] and segment["window"] > 1 for chain in chains for segment in chain)


def all_servers_are_killed_at_once_as_they_were_with_the_run(place: Place, lives: int) -> None:
    """What is acknowledged is in every file: nothing is lost as long as the files are there."""
    three = ("--set", "spec.stateServers.replicas=3")
    with running(place, *three, environment=LONG_CALL_S) as run:
        run.until(lambda: run.status().get("execution", 0) > lives, "the next driver", SLOW_S)
        await_members(run, list(NAMES[:3]))
        go_on(run, 1)
        kill(place, *NAMES[:3])
        go_on(run, 2)
        drain(place, run)


def the_next_run_has_fewer_servers_and_fetches_what_the_others_hold(place: Place) -> None:
    """With one copy each: the file asks for one server, the run before was made larger."""
    with running(place, environment=LONG_CALL_S) as run:
        left = len(run.events("StateServerLeft"))
        run.until(
            lambda: len(run.events("StateServerLeft")) == left + 2,
            "the leave of two servers",
            SLOW_S,
        )
        await_members(run, ["state-0"])
        drain(place, run)
