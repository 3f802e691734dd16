"""The files and the memory of every state server are gone, and the topology goes on by itself from
a snapshot; what comes out in the end is judged by what was fed."""

from __future__ import annotations

import shutil
import signal
from typing import Any

from millrace_e2e import feed, harness, processes
from millrace_e2e.checker import Promise
from millrace_e2e.harness import Place, command, running
from millrace_e2e.judge import judge
from millrace_e2e.topologies import Shape, history

LINES, WINDOW = 9_000, 300
SLOW_S = 240.0
CALL_S = {"MILLRACE_E2E_CALL_S": "0.4"}
POINTS = (
    *("restore.marked", "restore.fenced", "restore.retracted", "restore.noted", "restore.claimed"),
    *("restore.cleared", "restore.put", "restore.recorded", "restore.opened"),
    "lost.restored",
)


def set_up(place: Place, servers: int, copies: int, seed: int, **spec: Any) -> None:
    feed.add_file(place.texts / "a.txt", feed.text(range(LINES), seed))
    document = history(Shape(max_records=WINDOW, servers=servers, copies=copies))
    document["spec"] |= {"onStateLoss": "Restore", **spec}
    place.write(document)


def servers_of(place: Place) -> dict[str, int]:
    """Pids of the living state servers."""
    table = processes.read_json(place.work / "processes.json") or {"processes": []}
    return {row["name"]: row["pid"] for row in table["processes"] if row["role"] == "state"}


def lose_everything(place: Place) -> None:
    """Nothing of any server is left on disk, and then they die."""
    victims = servers_of(place)
    for folder in place.work.glob("state-*"):
        shutil.rmtree(folder)
    for pid in victims.values():
        assert processes.signalled(pid, signal.SIGKILL)


def test_a_running_topology_loses_every_copy_and_goes_on_exactly(place: Place) -> None:
    set_up(place, servers=3, copies=2, seed=1)
    with running(place, environment=CALL_S) as run:
        run.await_sealed(2, SLOW_S)
        code, text = command(place, "snapshot", "create", "--name", "early", deadline_s=SLOW_S)
        assert code == 0, text
        (taken,) = run.until(lambda: run.events("SnapshotTaken"), "what is told of it", SLOW_S)
        shown = run.status()["published"]
        run.until(lambda: run.status()["published"] >= shown + 2, "windows behind it", SLOW_S)
        lose_everything(place)
        (told,) = run.until(lambda: run.events("StateRestored"), "the restore", SLOW_S)
        window = taken["window"] or int(text.split("behind window ")[1].split(":")[0])
        assert f"snapshot early is restored behind window {window}, as timeline 2" in told["text"]
        assert f"windows {window + 1} to " in told["text"]
        assert len(run.events("StateLost")) == 1
        restored = harness.status_command(place)["restored"]
        assert (restored["window"], restored["lost"]) == (window, True)
        assert restored["last"] >= shown + 2
        place.gate.touch()
        assert run.wait(SLOW_S) == 0, run.tail()
    assert judge(place, Promise.EXACTLY_ONCE) == []


def test_whoever_dies_in_the_restore_is_followed_by_one_that_goes_on(place: Place) -> None:
    """The files are gone between two runs; the snapshot is one that the topology took by itself."""
    set_up(place, servers=1, copies=1, seed=2, snapshots={"every": "1s"})
    with running(place, environment=CALL_S) as run:
        run.until(lambda: run.events("SnapshotTaken"), "a snapshot", SLOW_S)
        run.await_sealed(run.status()["sealed"] + 2, SLOW_S)
        run.kill()
    shutil.rmtree(place.work / "state-0")
    crashes = {"MILLRACE_CRASH_AT": ",".join(POINTS), "MILLRACE_CRASH_DIR": str(place.marks)}
    for number in range(1, len(POINTS) + 1):
        with running(place, environment={**CALL_S, **crashes}) as run:
            assert run.wait(SLOW_S) == -signal.SIGKILL, run.tail()
        assert len(place.fired()) == number
    place.gate.touch()
    with running(place, environment={**CALL_S, **crashes}) as run:
        assert run.wait(SLOW_S) == 0, run.tail()
        assert len(run.events("StateLost")) == 1, "the loss was found by one driver alone"
    assert judge(place, Promise.EXACTLY_ONCE) == []


def test_a_topology_without_a_snapshot_ends_and_changes_nothing(place: Place) -> None:
    """When all copies are gone, whatever it is to do then."""
    set_up(place, servers=3, copies=2, seed=3)
    with running(place, environment=CALL_S) as run:
        run.await_sealed(2, SLOW_S)
        run.kill()
    before = sorted(path.name for path in place.sink("rows").iterdir())
    for policy, said in (
        ("Stop", "all copies are gone"),
        ("Restore", "holds no snapshot of it that can be restored"),
    ):
        for folder in place.work.glob("state-*"):
            shutil.rmtree(folder)
        with running(place, "--set", f"spec.onStateLoss={policy}") as run:
            assert run.wait(SLOW_S) == 15
            assert said in run.output()
            assert "nothing is lost" not in run.output()
        assert sorted(path.name for path in place.sink("rows").iterdir()) == before
