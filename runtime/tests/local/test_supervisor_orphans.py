"""SIGKILL of any process of a run leaves no orphan, and the run goes on where it can."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from standins import alive, running, until


def test_sigkill_of_the_supervisor_leaves_no_process(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        run.up()
        family = run.family()
        names = {" ".join(p.cmdline()) for p in family}
        assert any("valkey" in name for name in names)
        assert len(family) >= 8  # guard, driver, jvm, daemon, two workers, acker, state server
        os.kill(run.pid, signal.SIGKILL)
        run.process.wait()
        until(lambda: not alive(family), "the end of the whole family")


def test_sigkill_of_the_driver_kills_its_tree_before_the_next_life(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        run.up()
        first = run.living("jvm", "daemon", "worker")
        assert len(alive(first)) == 4
        os.kill(run.tree("driver")[0], signal.SIGKILL)
        until(lambda: run.complete(2), "a second driver with its tree")
        assert alive(first) == []
        assert run.processes()["driver"]["pid"] == run.tree("driver")[1]
        assert run.processes()["driver"]["restarts"] == 1


def test_sigkill_of_the_jvm_leaves_no_worker(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        run.up()
        below = run.living("daemon", "worker")
        os.kill(run.tree("jvm")[0], signal.SIGKILL)
        until(lambda: run.complete(2), "a second driver with its tree")
        assert alive(below) == []


def test_sigkill_of_the_guard_leaves_no_process_of_the_driver(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        run.up()
        tree = run.living("driver", "jvm", "daemon", "worker")
        guard = run.processes()["driver"]["guard"]
        assert guard > 1
        os.kill(guard, signal.SIGKILL)
        until(lambda: run.complete(2), "a second driver with its tree")
        assert alive(tree) == []


def test_sigkill_of_supervisor_and_guard_together_is_cleaned_up_by_the_next_run(
    tmp_path: Path,
) -> None:
    with running(tmp_path) as run:
        run.up()
        family = run.family()
        guard = run.processes()["driver"]["guard"]
        assert guard > 1
        os.kill(run.pid, signal.SIGSTOP)
        os.kill(guard, signal.SIGSTOP)
        os.kill(run.pid, signal.SIGKILL)
        os.kill(guard, signal.SIGKILL)
        run.process.wait()
    with running(tmp_path) as second:
        until(lambda: second.complete(2), "the next run's driver")
        assert alive(family) == []


@pytest.mark.parametrize("name", ["acker-0", "state-0"])
def test_a_killed_helper_is_started_again_and_proposed_again(tmp_path: Path, name: str) -> None:
    with running(tmp_path) as run:
        run.up()
        before = json.loads((tmp_path / "proposal.json").read_text())
        assert [m["name"] for m in before["members"]] == ["state-0"]
        assert before["ackers"] == ["acker-0"]
        pid = run.processes()[name]["pid"]
        os.kill(pid, signal.SIGKILL)
        until(lambda: run.processes().get(name, {}).get("pid", pid) != pid, f"a new {name}")
        after = json.loads((tmp_path / "proposal.json").read_text())
        assert after["ackers"] == ["acker-0"]
        same = before["members"][0]["runId"] == after["members"][0]["runId"]
        assert same == (name == "acker-0")
        # The driver's life goes on through both.
        assert len(run.tree("driver")) == 1
        assert run.processes()["driver"]["restarts"] == 0
