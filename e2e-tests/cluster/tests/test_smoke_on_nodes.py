"""The shortest way through everything on two nodes: the operator by helm, the word count, one pod
of each kind and the operator's killed, all of it removed again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from chart_command import Shell
from words_on_nodes import Campaign, Space, check, space_of

from millrace.chaos.plan import VictimKind
from millrace.engine.jobs.resident import CONNECTED
from millrace.homes.pods import Role

SPACE = "smoke"
KILLED = "acker,driver,executor,state-server,operator"
EVERY_S = 25
SMALL = {
    "ackers": {"replicas": 2},
    "stateServers": {"replicas": 2, "copies": 2, "memory": "256m"},
}

pytestmark = pytest.mark.timeout(1_500)


def test_installed_the_word_count_is_exact_though_a_pod_of_each_kind_is_killed(
    shell: Shell, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with space_of(shell, SPACE, request) as space:
        campaign = Campaign(space, tmp_path / "campaign", SMALL)
        print(json.dumps(campaign.begin()), flush=True)
        report = campaign.kill(KILLED, EVERY_S, 5 * EVERY_S)
        check(report)
        killed = {*("acker", "driver", "executor", "state-server"), VictimKind.OPERATOR.value}
        assert {one["kind"] for one in report["timeline"]} == killed
        campaign.await_words()
        (driver,) = (pod["metadata"]["name"] for pod in space.pods(Role.DRIVER))
        assert CONNECTED in space.kubectl("logs", driver), "executors do not get to the driver"
        for pod in space.pods(Role.EXECUTOR):
            assert kernels(space, pod["metadata"]["name"]) == [], (
                "it has compiled what it was given"
            )
        space.delete()


def kernels(space: Space, executor: str) -> list[str]:
    """Those that it has and its image has not."""
    listed = "for d in $MILLRACE_KERNELS /tmp/millrace-kernels; do cd $d; find -type f; echo; done"
    told = space.kubectl("exec", executor, "--", "sh", "-c", listed)
    brought, found = (set(part.split()) for part in told.split("\n\n")[:2])
    assert brought
    return sorted(found - brought)
