"""A driver that stands by: when it is started, how it takes over, and what becomes of it else."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from standins import Run, alive, running, until

from millrace.errors import ExitCode
from millrace.guard import FIRST_TO_GO
from millrace.homes.documents import Status
from millrace.homes.restarts import (
    STANDBY_DELAYS_S,
    STANDBY_EARLY_PATIENCE_S,
    STANDBY_PATIENCE_S,
)
from millrace.homes.settings import TAKE_OVER, answer_to
from millrace.local.children import ProcessSpec
from millrace.local.crew import Death
from millrace.local.inspect.table import process_rows
from millrace.local.launch import _Plan
from millrace.local.standby.keeper import IDLE_S, SOON_S, STANDBY, StandbyKeeper
from millrace.local.workdir import find_folder, open_folder
from millrace.topology.load import parse

SCRIPT = Path(__file__).with_name("standin_standby.py")
DRIVERS = {"STANDIN_DRIVER": str(SCRIPT), "STANDIN_STANDBY": "1"}


def pid_of(run: Run, name: str) -> int:
    return int(run.processes().get(name, {}).get("pid", 0))


def ready(run: Run, lives: int = 1) -> int:
    """Wait until the ``lives``-th driver that stands by has said that it does; its pid."""
    until(lambda: len(told(run, "StandbyReady")) >= lives, "a driver that stands by")
    until(lambda: pid_of(run, "standby") == run.tree("standby")[-1], "it in the list")
    return pid_of(run, "standby")


def told(run: Run, kind: str) -> list[str]:
    try:
        lines = (run.folder / "events.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return []
    events = [json.loads(line) for line in lines]
    return [event["text"] for event in events if event["kind"] == kind]


def test_it_takes_over_and_another_one_stands_by(tmp_path: Path) -> None:
    with running(tmp_path, **DRIVERS) as run:
        first, heir = until(lambda: pid_of(run, "driver"), "the driver"), ready(run)
        below = {row.name for row in process_rows(find_folder(tmp_path))}
        assert {"driver", "guard of driver", "standby", "guard of standby"} <= below
        assert "other-0 of standby" in below
        os.kill(first, signal.SIGKILL)
        until(lambda: pid_of(run, "driver") == heir, "the one that stood by as the driver")
        (text,) = until(lambda: told(run, "DriverEnded"), "what is told of it")
        assert text == (
            f"driver (process {first}) ended with signal 9; process {heir}, which stood by, takes "
            "over"
        )
        assert run.processes()["driver"]["restarts"] == 1
        assert ready(run, 2) not in (first, heir)
        os.kill(run.pid, signal.SIGINT)
        assert run.result()["restarts"] == {"driver": 1}
        # What it wrote while it stood by is in a log of its own, and shown to nobody.
        shown = [line["output"] for line in run.lines if "output" in line]
        assert shown == ["driver on the console"] * 2
        logs = {
            name: (tmp_path / "logs" / f"{name}.log").read_text() for name in ("driver", STANDBY)
        }
        assert logs["driver"] == "driver in the log\n" * 2
        assert logs[STANDBY] == "standby on the console\nstandby in the log\n" * 2


def judged(pid: int) -> int:
    """How much sooner than others the kernel ends a process where memory runs out."""
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def test_the_kernel_ends_it_before_the_driver_and_not_once_it_is_the_driver(
    tmp_path: Path,
) -> None:
    with running(tmp_path, **DRIVERS) as run:
        first, heir = until(lambda: pid_of(run, "driver"), "the driver"), ready(run)
        rows = {row.name: row.pid for row in process_rows(find_folder(tmp_path))}
        own = judged(run.pid)
        assert own < FIRST_TO_GO
        assert [judged(rows[name]) for name in ("standby", "other-0 of standby")] == [
            FIRST_TO_GO
        ] * 2
        others = [name for name in rows if name not in ("standby", "other-0 of standby")]
        assert {name: judged(rows[name]) for name in others} == dict.fromkeys(others, own)
        os.kill(first, signal.SIGKILL)
        until(lambda: run.tree("driver")[1:], "the one that stood by as the driver")
        tree = [rows[name] for name in ("standby", "guard of standby", "other-0 of standby")]
        assert rows["standby"] == heir
        assert [judged(pid) for pid in tree] == [own] * 3


def test_the_standby_of_a_real_run_is_expendable(tmp_path: Path) -> None:
    topology = parse(TOPOLOGY)
    folder = open_folder(tmp_path, "t", Path("t.yaml"), Still())
    plan = _Plan(folder, topology, tmp_path / "tmp").plan()
    assert plan.standby is not None
    assert plan.standby(()).expendable
    assert plan.standby_bytes == 1 << 30
    assert not plan.driver(()).expendable


TOPOLOGY = """
apiVersion: millrace.dev/v1alpha1
kind: StreamTopology
metadata: {name: t}
spec:
  guarantee: AtLeastOnce
  sources: [{name: made, generator: {}}]
  sinks: [{name: shown, inputs: [{from: made}], console: {}}]
"""


def test_what_is_left_of_the_driver_is_killed_and_the_one_that_takes_over_is_not(
    tmp_path: Path,
) -> None:
    with running(tmp_path, **DRIVERS) as run:
        until(lambda: pid_of(run, "driver"), "the driver")
        heir = ready(run)
        rows = process_rows(find_folder(tmp_path))
        left = [row.pid for row in rows if row.name == "other-0"]
        kept = [row.pid for row in rows if row.name == "other-0 of standby"]
        # Without its guard nobody but the supervisor can end what is below the driver.
        os.kill(run.processes()["driver"]["guard"], signal.SIGKILL)
        until(lambda: pid_of(run, "driver") == heir, "the one that stood by as the driver")
        until(lambda: not any(map(living, left)), "the end of what was below the driver")
        assert len(left) == len(kept) == 1
        assert all(map(living, kept))


def living(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def test_one_that_dies_is_started_again_and_the_driver_goes_on(tmp_path: Path) -> None:
    with running(tmp_path, **DRIVERS) as run:
        first, dead = until(lambda: pid_of(run, "driver"), "the driver"), ready(run)
        os.kill(dead, signal.SIGKILL)
        assert ready(run, 2) != dead
        (text,) = told(run, "StandbyEnded")
        assert f"(process {dead}) ended with signal 9; another one is started" in text
        assert pid_of(run, "driver") == first
        assert run.processes()["driver"]["restarts"] == 0


def test_both_are_killed_and_a_driver_is_started(tmp_path: Path) -> None:
    with running(tmp_path, **DRIVERS) as run:
        first, dead = until(lambda: pid_of(run, "driver"), "the driver"), ready(run)
        os.kill(run.pid, signal.SIGSTOP)  # so that it sees both ends at once
        for pid in (dead, first):
            os.kill(pid, signal.SIGKILL)
        until(lambda: not living(first) and not living(dead), "the end of both")
        os.kill(run.pid, signal.SIGCONT)
        until(lambda: pid_of(run, "driver") not in (0, first, dead), "a driver")
        ready(run, 2)
        assert told(run, "StandbySilent") == []


def test_one_that_hangs_is_killed_and_a_driver_is_started(tmp_path: Path) -> None:
    with running(tmp_path, **DRIVERS) as run:
        first, hung = until(lambda: pid_of(run, "driver"), "the driver"), ready(run)
        os.kill(hung, signal.SIGSTOP)
        os.kill(first, signal.SIGKILL)
        until(
            lambda: told(run, "StandbySilent"),
            "that it does not take over",
            STANDBY_PATIENCE_S + 30,
        )
        until(lambda: pid_of(run, "driver") not in (0, first, hung), "a driver")
        ready(run, 2)
        assert not living(hung)


def test_a_driver_that_has_drained_has_no_heir(tmp_path: Path) -> None:
    with running(tmp_path, **DRIVERS) as run:
        until(lambda: pid_of(run, "driver"), "the driver")
        ready(run)
        family = run.family()
        os.kill(run.tree("driver")[0], signal.SIGUSR1)
        assert run.result()["reason"] == "drained"
        assert alive(family) == []


def test_one_that_others_than_the_run_asked_to_end_has_an_heir(tmp_path: Path) -> None:
    with running(tmp_path, **DRIVERS) as run:
        until(lambda: pid_of(run, "driver"), "the driver")
        heir = ready(run)
        os.kill(run.tree("driver")[0], signal.SIGTERM)
        until(lambda: pid_of(run, "driver") == heir, "the one that stood by as the driver")
        (text,) = until(lambda: told(run, "DriverEnded"), "what is told of it")
        assert f"ended with exit code {ExitCode.INTERRUPTED}" in text
        os.kill(run.pid, signal.SIGINT)
        assert run.result()["reason"] == "asked"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_it_ends_with_the_run(tmp_path: Path, number: signal.Signals) -> None:
    with running(tmp_path, **DRIVERS) as run:
        until(lambda: pid_of(run, "driver"), "the driver")
        ready(run)
        family = run.family()
        assert len(family) >= 8  # two trees of a guard, a driver and its child; acker, server
        os.kill(run.pid, number)
        run.process.wait(30)
        until(lambda: not alive(family), "the end of the whole family")


def test_one_that_cannot_get_ready_does_not_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "identity.json").write_text(
        json.dumps({"uid": "u", "name": "standin", "topology": "t", "created": 0})
    )
    (tmp_path / "standby-does").write_text("fails")
    with running(tmp_path, **DRIVERS) as run:
        until(lambda: told(run, "StandbyEnded"), "that it failed")
        assert told(run, "StandbyEnded")[0].endswith(f"started in {STANDBY_DELAYS_S[1]:g} s")
        assert told(run, "StandbyReady") == []
        first = pid_of(run, "driver")
        os.kill(first, signal.SIGKILL)
        until(lambda: pid_of(run, "driver") not in (0, first), "the next driver")


def test_one_that_cannot_be_started_does_not_end_the_run(tmp_path: Path) -> None:
    blocked = tmp_path / "logs" / "standby.log"
    blocked.mkdir(parents=True)
    identity = {"uid": "u", "name": "standin", "topology": "t", "created": 0}
    (tmp_path / "identity.json").write_text(json.dumps(identity))
    with running(tmp_path, **DRIVERS) as run:
        (text,) = until(lambda: told(run, "StandbyEnded"), "that it cannot be started")
        assert "a driver that is to stand by cannot be started" in text
        assert str(blocked) in text
        assert text.endswith(f"tried again in {STANDBY_DELAYS_S[1]:g} s")
        first = pid_of(run, "driver")
        blocked.rmdir()
        ready(run)
        assert pid_of(run, "driver") == first
        os.kill(run.pid, signal.SIGINT)
        assert run.result()["restarts"] == {}


def test_a_driver_that_cannot_be_started_for_a_while_does_not_end_the_run(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    here = tmp_path / "here"
    here.symlink_to(work)
    with running(work, STANDIN_DRIVER=str(SCRIPT), STANDIN_DRIVER_FOLDER=str(here)) as run:
        first = until(lambda: pid_of(run, "driver"), "the driver")
        until(lambda: run.tree("driver"), "that it is up")
        here.unlink()
        os.kill(first, signal.SIGKILL)
        texts = until(lambda: told(run, "DriverEnded")[2:], "that it cannot be started, twice")
        assert texts[0].startswith("driver cannot be started: [Errno 2] No such file")
        assert texts[0].endswith("that is tried again in 0.5 s")
        here.symlink_to(work)
        until(lambda: pid_of(run, "driver") not in (0, first), "the next driver")
        os.kill(run.pid, signal.SIGINT)
        assert run.result()["restarts"] == {"driver": 1}


def test_the_waits_are_those_that_are_told() -> None:
    operations = Path(__file__).parents[3] / "docs" / "operations.md"
    text = " ".join(operations.read_text().split())
    assert f"its `oom_score_adj` is {FIRST_TO_GO} until it takes over" in text
    assert SOON_S == 60.0
    assert "it or the driver dies within a minute of its start" in text
    assert STANDBY_DELAYS_S == (0.0, 10.0, 60.0, 300.0)
    assert (
        "at once if it had been ready, else after 10 s, a minute, then every five minutes" in text
    )
    assert f"One that does not take over within {STANDBY_PATIENCE_S:g} s is killed" in text
    assert STANDBY_EARLY_PATIENCE_S == 60.0
    assert "one that was not ready yet and does not within a minute" in text


# --- the keeper, with a clock and a crew of its own


class Still:
    """A clock that stands until it is set."""

    at_s = 100.0

    def monotonic_s(self) -> float:
        return self.at_s

    def now_s(self) -> float:
        return self.at_s


class Life:
    """A process that notes what it is told."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.guard = 0
        self.said: list[bytes] = []
        self.killed = False

    def order(self, text: bytes) -> None:
        self.said.append(text)

    def kill(self) -> None:
        self.killed = True


class Bench:
    """A crew of a driver and of whom the keeper wants."""

    def __init__(self, folder: Path) -> None:
        self.clock = Still()
        self.posts: dict[str, Any] = {}
        self.lives: dict[str, Life] = {"driver": Life(1)}
        self.status = Status(1, "running", "running")
        self.events: list[str] = []
        self.room: int | None = 4 << 30
        self.killed: int | None = 3
        self.ready_file = folder / "ready"
        note = lambda kind, _: self.events.append(kind)  # noqa: E731
        self.keeper = StandbyKeeper(
            lambda _: ProcessSpec(STANDBY, STANDBY, ("true",), ready=self.ready_file),
            self,  # type: ignore[arg-type]
            "driver",
            lambda: self.status,
            self.clock,
            note,
            note,
            1 << 30,
            lambda: self.room,
            lambda: self.killed,
        )

    def memory_runs_out(self) -> None:
        """The kernel ends something, and counts it where it does so at all."""
        if self.killed is not None:
            self.killed += 1

    def child(self, name: str) -> Life | None:
        return self.lives.get(name)

    def want(self, spec: ProcessSpec, _: object) -> None:
        post = type("Post", (), {"spec": spec, "child": self.lives.get(spec.name)})
        self.posts[spec.name] = post

    def hand_over(self, name: str, to: str) -> Life:
        self.lives[to] = self.lives.pop(name)
        return self.lives[to]

    @property
    def wanted(self) -> bool:
        """Whether one is asked for since the last look at this."""
        return self.posts.pop(STANDBY, None) is not None

    def look(self, sealed_before: int = 0) -> None:
        self.keeper.look((), sealed_before)

    def starts(self, pid: int) -> Life:
        self.lives[STANDBY] = Life(pid)
        self.ready_file.unlink(missing_ok=True)
        self.look()
        return self.lives[STANDBY]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


WORKING = {"pid": 1, "state": "running", "spark": "running"}


@pytest.mark.parametrize(
    ("figures", "time"),
    [
        ({}, False),
        ({**WORKING, "pid": 7}, False),  # what the driver before it said
        ({**WORKING, "spark": "starting"}, False),
        ({**WORKING, "state": "starting"}, False),  # it recovers
        ({**WORKING, "lag_records": 3}, False),  # it waits before it tries something again
        ({**WORKING, "lag_records": 3, "sealed": 5}, True),
        (WORKING, True),  # nothing to do
        ({**WORKING, "window": "w", "sealed": 4}, False),  # the first window since it began
        ({**WORKING, "window": "w", "sealed": 5}, True),
    ],
)
def test_it_is_started_when_the_driver_works(bench: Bench, figures: Any, time: bool) -> None:
    bench.status = Status(**figures)
    bench.look(sealed_before=4)
    bench.clock.at_s += IDLE_S
    bench.look(sealed_before=4)
    assert bench.wanted == time


def test_between_two_windows_a_driver_is_not_idle(bench: Bench) -> None:
    for window in (None, "w", None):
        bench.status = Status(**WORKING, window=window)  # type: ignore[arg-type]
        bench.look()
        bench.clock.at_s += IDLE_S - 0.1
    assert not bench.wanted
    bench.look()
    assert not bench.wanted
    bench.clock.at_s += 0.2
    bench.look()
    assert bench.wanted


@pytest.mark.parametrize(
    ("early", "patience_s"), [(False, STANDBY_PATIENCE_S), (True, STANDBY_EARLY_PATIENCE_S)]
)
def test_who_does_not_take_over_in_time_is_killed_once(
    bench: Bench, early: bool, patience_s: float
) -> None:
    life = bench.starts(2)
    if not early:
        bench.ready_file.touch()
    assert bench.keeper.take_over() == 2
    assert life.said == [TAKE_OVER]
    bench.clock.at_s += patience_s - 0.1
    bench.look()
    assert not life.killed
    bench.clock.at_s += 0.2
    bench.look()
    assert (life.killed, bench.events) == (True, ["StandbySilent"])
    bench.look()
    assert bench.events == ["StandbySilent"]


def test_who_has_answered_is_not_killed_though_no_figures_say_that_it_works(bench: Bench) -> None:
    answer_to(bench.ready_file).touch()  # of an earlier one: it says nothing of this one
    life = bench.starts(2)
    bench.ready_file.touch()
    bench.keeper.take_over()
    assert not answer_to(bench.ready_file).exists()
    bench.clock.at_s += STANDBY_PATIENCE_S - 0.1
    bench.look()
    answer_to(bench.ready_file).touch()
    bench.clock.at_s += 10 * STANDBY_PATIENCE_S
    bench.look()
    assert (life.killed, bench.events) == (False, [])


def test_who_has_taken_over_is_a_driver_like_any_other(bench: Bench) -> None:
    life = bench.starts(2)
    bench.keeper.take_over()
    bench.status = Status(2, "starting", "starting")
    bench.look()
    bench.clock.at_s += 10 * STANDBY_PATIENCE_S
    bench.look()
    assert (life.killed, bench.events) == (False, [])
    bench.status = Status(2, "running", "running")
    bench.look()
    bench.clock.at_s += IDLE_S
    bench.look()
    assert bench.wanted


def test_without_one_nobody_takes_over(bench: Bench) -> None:
    assert bench.keeper.take_over() == 0
    assert bench.events == []


def waited(bench: Bench) -> float:
    """Seconds until the next one is asked for; the driver has sealed something."""
    bench.status = Status(bench.lives["driver"].pid, "running", "running", sealed=1)
    before_s = bench.clock.at_s
    bench.wanted  # noqa: B018
    bench.look()
    while not bench.wanted:
        bench.clock.at_s += 1.0
        bench.look()
    return bench.clock.at_s - before_s


@pytest.mark.parametrize("counted", [True, False])
def test_the_next_one_waits_where_drivers_die_of_its_start(bench: Bench, counted: bool) -> None:
    bench.killed = 3 if counted else None
    assert waited(bench) == 0.0
    waits = []
    for pid in range(2, 8):
        bench.starts(pid)
        bench.clock.at_s += SOON_S - 1.0
        bench.memory_runs_out()
        assert bench.keeper.take_over() == pid
        waits.append(waited(bench))
    assert waits == [*STANDBY_DELAYS_S, STANDBY_DELAYS_S[-1], STANDBY_DELAYS_S[-1]]
    # One that outlives such a start shows that there is room for both.
    bench.starts(9)
    bench.clock.at_s += SOON_S
    bench.memory_runs_out()
    bench.keeper.take_over()
    assert waited(bench) == 0.0


def test_no_start_is_blamed_where_the_kernel_ended_nothing_for_want_of_memory(bench: Bench) -> None:
    for pid in range(2, 8):
        assert waited(bench) == 0.0
        bench.starts(pid)
        bench.ready_file.touch()
        bench.look()
        if pid % 2:
            assert bench.keeper.take_over() == pid
        else:
            del bench.lives[STANDBY]
            bench.keeper.ended(Death(STANDBY, STANDBY, pid, -signal.SIGKILL, 1.0, ""))


def test_a_driver_that_dies_with_the_one_beside_it_counts_as_well(bench: Bench) -> None:
    killed = Death(STANDBY, STANDBY, 2, -signal.SIGKILL, 1.0, "")
    waits = []
    for pid in range(2, 5):
        waits.append(waited(bench))
        bench.starts(pid)
        bench.ready_file.touch()
        bench.look()
        bench.memory_runs_out()
        del bench.lives[STANDBY]
        bench.keeper.ended(killed)
        assert bench.keeper.take_over() == 0
    assert waits == [0.0, *STANDBY_DELAYS_S[:2]]


def test_one_that_is_killed_again_and_again_waits_though_it_was_ready(bench: Bench) -> None:
    waits = []
    for lived_s in (1.0, 1.0, 1.0, SOON_S, 1.0):
        waited(bench)
        bench.starts(2)
        bench.ready_file.touch()
        bench.look()
        bench.memory_runs_out()
        bench.clock.at_s += lived_s
        del bench.lives[STANDBY]
        bench.keeper.ended(Death(STANDBY, STANDBY, 2, -signal.SIGKILL, lived_s, ""))
        waits.append(waited(bench))
    assert waits == [*STANDBY_DELAYS_S[:3], 0.0, 0.0]


def test_none_is_started_where_there_is_no_room_which_is_said_once(bench: Bench) -> None:
    bench.status = Status(1, "running", "running", sealed=1)
    bench.room = (1 << 30) - 1
    for _ in range(100):
        bench.look()
        bench.clock.at_s += 1.0
    assert not bench.wanted
    assert bench.events == ["StandbyLacksRoom"]
    bench.room = 1 << 30
    assert waited(bench) <= STANDBY_DELAYS_S[1]
    assert bench.events == ["StandbyLacksRoom"]


def test_it_is_started_where_nothing_says_how_much_room_there_is(bench: Bench) -> None:
    bench.room = None
    assert waited(bench) == 0.0


def test_waits_grow_until_one_gets_ready(bench: Bench) -> None:
    death = Death(STANDBY, STANDBY, 2, 1, 1.0, "no room")
    waits = []
    for _ in range(len(STANDBY_DELAYS_S) + 1):
        bench.starts(2)
        del bench.lives[STANDBY]
        bench.keeper.ended(death)
        before_s = bench.clock.at_s
        bench.wanted  # noqa: B018
        while not bench.wanted:
            bench.look()
            bench.clock.at_s += 1.0
        waits.append(bench.clock.at_s - 1.0 - before_s)
    assert waits == [*STANDBY_DELAYS_S[1:], STANDBY_DELAYS_S[-1], STANDBY_DELAYS_S[-1]]
    bench.starts(2)
    bench.ready_file.touch()
    bench.look()
    bench.status = Status(1, "running", "running", sealed=1)
    del bench.lives[STANDBY]
    bench.keeper.ended(death)
    bench.wanted  # noqa: B018
    bench.look()
    assert bench.wanted
