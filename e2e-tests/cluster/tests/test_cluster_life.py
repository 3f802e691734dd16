"""A cluster comes up, also twice at once and behind one that was broken off, and goes entirely."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import machine_state
import pytest
from cluster_command import Tool

from millrace_e2e.cluster.layout import RUN, Layout
from millrace_e2e.cluster.own import OwnCluster
from millrace_e2e.cluster.processes import Process, end


@pytest.fixture(autouse=True)
def down(tool: Tool) -> Iterator[None]:
    """What tests before these have left up is no part of the machine."""
    tool.run("down")
    yield
    tool.run("down")


@pytest.fixture
def before(down: None) -> machine_state.State:
    return machine_state.read()


def started() -> dict[str, int]:
    """Processes that were started, by name."""
    found = json.loads(Layout.standard().processes.read_bytes())
    return {name: one["pid"] for name, one in found.items()}


def test_nothing_is_left_of_a_cluster_in_use(tool: Tool, before: machine_state.State) -> None:
    said = tool.run("up")
    assert said == f"export KUBECONFIG={Layout.standard().kubeconfig}\n"
    for name in ("one", "two"):
        tool.kubectl("run", name, "--image=millrace.local/pause:1", "--image-pull-policy=Never")
        tool.kubectl("expose", f"pod/{name}", "--port=80")
    tool.kubectl("wait", "--for=condition=Ready", "pod/one", "pod/two", "--timeout=120s")
    during = machine_state.left(before, machine_state.read())
    assert {"links", "mounts", "cgroups", "programs", "files"} <= set(during)
    assert not {"iptables", "ip6tables", "rules", "settings"} & set(during)
    home, trees = Layout.standard().home, machine_state.Trees.below(started().values())
    # Five of the control plane; two nodes with seven each and two pods with two each.
    assert len(trees.processes) >= 23
    assert len([name for name in trees.namespaces if name.startswith("net:")]) == 5
    tool.run("down")
    assert trees.alive() == []
    assert machine_state.wait_until_equal(before) == {}
    assert not home.exists()


def test_a_second_up_changes_nothing(tool: Tool) -> None:
    tool.run("up")
    first = started()
    tool.run("up")
    assert started() == first


def test_of_two_at_once_one_does_the_work(tool: Tool, before: machine_state.State) -> None:
    both = [tool.start("up"), tool.start("up")]
    said = [one.communicate() for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    assert set(started()) == {
        "etcd",
        "apiserver",
        "controllers",
        "scheduler",
        "dns",
        "n1",
        "n2",
    }
    assert tool.run("status") == "n1\tready\nn2\tready\n"
    trees = machine_state.Trees.below(started().values())
    tool.run("down")
    assert trees.alive() == []
    assert machine_state.wait_until_equal(before) == {}


@pytest.mark.parametrize("reached", ["net/millrace-cp", "etcd", "n1"])
def test_an_up_that_was_broken_off_is_completed_or_removed(
    reached: str, tool: Tool, before: machine_state.State
) -> None:
    """Killed when it is as far as ``reached``, a file of the network or a process."""

    def is_there() -> bool:
        if "/" in reached:
            return Path(RUN, reached).exists()
        try:
            return reached in started()
        except FileNotFoundError:
            return False

    for then in ("up", "down"):
        first = tool.start("up")
        while not is_there():
            assert first.poll() is None, first.communicate()
            time.sleep(0.001)
        first.send_signal(signal.SIGKILL)
        first.communicate()
        tool.run(then)
        if then == "up":
            assert tool.run("status") == "n1\tready\nn2\tready\n"
            tool.run("down")
        assert machine_state.wait_until_equal(before) == {}


@pytest.mark.parametrize("name", ["apiserver", "n1"])
def test_what_was_started_and_not_written_down_is_replaced(tool: Tool, name: str) -> None:
    """As an ``up`` leaves it that dies between the two; the old one holds its port."""
    tool.run("up")
    path = Layout.standard().processes
    rows = json.loads(path.read_bytes())
    old = machine_state.Trees.below([rows.pop(name)["pid"]])
    path.write_text(json.dumps(rows))
    tool.run("up")
    assert not [one for one in old.alive() if one in old.processes]
    assert tool.run("status") == "n1\tready\nn2\tready\n"


def test_one_that_died_with_its_machine_is_cleared_away_and_one_that_runs_is_not(
    tool: Tool, before: machine_state.State
) -> None:
    tool.run("up")
    assert not OwnCluster(print).remove_dead()
    assert tool.run("status") == "n1\tready\nn2\tready\n"
    trees = machine_state.Trees.below(started().values())
    end(found for pid in trees.pids() if (found := Process.of(pid)) is not None)
    assert OwnCluster(print).remove_dead()
    assert trees.alive() == []
    assert machine_state.wait_until_equal(before) == {}
    assert OwnCluster(print).remove_dead()


def test_down_without_a_cluster_is_no_error(tool: Tool, before: machine_state.State) -> None:
    tool.run("down")
    assert machine_state.left(before, machine_state.read()) == {}
