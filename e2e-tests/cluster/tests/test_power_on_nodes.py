"""The driver's node loses its power: another driver is there while nobody can know yet what became
of the pod of the first, also where the operator, which has to make it, was on that node too."""

from __future__ import annotations

import itertools
import json
import random
import sys
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from chart_command import SYSTEM, Shell
from words_on_nodes import TWICE, WAIT_S, Campaign, Space, campaign_of, check

from millrace.homes.pods import Role
from millrace_e2e.waiting import until
from millrace_operator.kube.lease import DURATION_S

NODES = ("n1", "n2")
OPERATORS = ("-n", SYSTEM, "get", "pods", "-l", "app.kubernetes.io/name=millrace", "-o", "json")
NODE_S, BACK_S = 60, 90
"""A node comes back long after its driver has a successor."""

pytestmark = pytest.mark.timeout(1_200)


@pytest.mark.parametrize("operator_too", [False, True])
def test_words_are_counted_exactly_though_the_drivers_node_loses_its_power(
    shell: Shell, tmp_path: Path, request: pytest.FixtureRequest, operator_too: bool
) -> None:
    name = "power-operator" if operator_too else "power"
    with campaign_of(shell, name, tmp_path, TWICE, request) as campaign:
        lose_power(campaign, operator_too)
        until(partial(all_ready, shell), "both nodes", WAIT_S, 1.0)


def lose_power(campaign: Campaign, operator_too: bool) -> None:
    space = campaign.space
    tool = f"{sys.executable} -m millrace_e2e.cluster --cluster=own"
    command = (
        f"sh -c '{tool} kill-node {{node}} || exit 1; "
        f"(sleep {BACK_S}; {tool} start-node {{node}}) > /dev/null 2>&1 &'"
    )
    space.await_ready()
    (driver,) = space.pods(Role.DRIVER)
    node = driver["spec"]["nodeName"]
    move_operator(space, node, onto=operator_too)
    number = space.topology()["status"]["driver"]["number"]
    started = len(space.told("DriverStarted"))
    report = campaign.kill("node", NODE_S, NODE_S, "--node-command", command, seed=seed_for(node))
    check(report)
    (killed,) = report["timeline"]
    assert (killed["kind"], killed["way"], killed["name"]) == ("node", "command", node)
    lost = f"is on node {node}, which does not answer or is gone"
    assert f"{driver['metadata']['name']} {lost}" in space.told("DriverGone")
    assert any(lost in text for text in space.told("NodeLost"))
    assert len(space.told("DriverStarted")) == started + 1
    assert space.topology()["status"]["driver"]["number"] == number + 1
    (successor,) = space.pods(Role.DRIVER)
    made = datetime.fromisoformat(successor["metadata"]["creationTimestamp"])
    at = datetime.fromisoformat(killed["time"])
    assert made < at + timedelta(seconds=BACK_S)
    noticed_s = round((not_ready_at(space) - at).total_seconds(), 1)
    told = {
        "operator_too": operator_too,
        "noticed_s": noticed_s,
        "recovery_s": round(killed["recovery_s"] - noticed_s, 1),
    }
    print(json.dumps(told), flush=True)
    if operator_too:
        assert led_after_s(space) < DURATION_S, "it has waited for the Lease of the lost one"
    campaign.await_words()
    space.await_ready()


def not_ready_at(space: Space) -> datetime:
    """When Kubernetes last noticed that a node is gone."""
    told = space.get("events", "-n", "default", "--field-selector", "reason=NodeNotReady")["items"]
    return max(datetime.fromisoformat(one["lastTimestamp"]) for one in told)


def led_after_s(space: Space) -> float:
    """How long the operator's pod was there when it took the Lease, by clocks of one machine."""
    found = json.loads(space.shell.must("kubectl", *OPERATORS))["items"]
    lease = space.get("lease", "millrace-operator", "-n", SYSTEM)["spec"]
    (pod,) = (one for one in found if lease["holderIdentity"].startswith(one["metadata"]["name"]))
    made = datetime.fromisoformat(pod["metadata"]["creationTimestamp"])
    return (datetime.fromisoformat(lease["acquireTime"]) - made).total_seconds()


def move_operator(space: Space, node: str, onto: bool) -> None:
    """Have the operator run on this node, or on another one."""

    def there() -> list[bool]:
        found = json.loads(space.shell.must("kubectl", *OPERATORS))["items"]
        return [one["spec"].get("nodeName") == node for one in found]

    if there() == [onto]:
        return
    closed = next(name for name in NODES if (name == node) != onto)
    space.shell.must("kubectl", "cordon", closed)
    try:
        restart = ("rollout", "restart", "deployment/millrace")
        space.shell.must("kubectl", "-n", SYSTEM, *restart)
        status = ("rollout", "status", "deployment/millrace", "--timeout=120s")
        space.shell.must("kubectl", "-n", SYSTEM, *status)
        until(lambda: there() == [onto], "the operator on its node", WAIT_S, 0.5)
    finally:
        space.shell.must("kubectl", "uncordon", closed)


def seed_for(node: str) -> int:
    """By which a campaign of one kill chooses this one of both nodes."""
    seeds = (seed for seed in itertools.count() if chosen(seed) == node)
    return next(seeds)


def chosen(seed: int) -> str:
    return random.Random(f"victims {seed}").choice(NODES)


def all_ready(shell: Shell) -> bool:
    path = "{.items[*].status.conditions[?(@.type=='Ready')].status}"
    told = shell.must("kubectl", "get", "nodes", "-o", f"jsonpath={path}")
    return told.split() == ["True"] * len(NODES)
