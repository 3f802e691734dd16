"""The shortest way through everything on two nodes: the operator by helm, the word count, one pod
of each kind and the operator's killed, all of it removed again."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from chart_command import DOCUMENTS, Shell
from words_on_nodes import Campaign, Space, check, space_of

from millrace.chaos.plan import VictimKind
from millrace.engine.jobs.resident import CONNECTED
from millrace.homes.pods import Role
from millrace_e2e.waiting import until

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
        ask_what_it_does(space, driver)
        for pod in space.pods(Role.EXECUTOR):
            assert kernels(space, pod["metadata"]["name"]) == [], (
                "it has compiled what it was given"
            )
        space.delete()


def ask_what_it_does(space: Space, driver: str) -> None:
    """By the commands of docs/conditions.md: its threads are in its log, and it goes on."""
    _, _, section = (DOCUMENTS / "conditions.md").read_text().partition("nothing says why\n")
    lines = [line for line in section.splitlines() if line.startswith("kubectl ")]
    listed, asked, read = (line.replace("POD", driver) for line in lines)

    def told(command: str) -> str:
        return space.kubectl(*shlex.split(command)[1:])

    processes = [line.split() for line in told(listed).splitlines()]
    mine = ["-m", "millrace.pods", "driver"]
    (pid,) = (pid for pid, *words in processes if words[1:4] == mine)
    told(asked.replace("PID", pid))
    until(lambda: "Current thread" in told(read), "what its threads do", 20.0)
    (pod,) = space.pods(Role.DRIVER)
    assert pod["metadata"]["name"] == driver
    assert [one["restartCount"] for one in pod["status"]["containerStatuses"]] == [0]


def kernels(space: Space, executor: str) -> list[str]:
    """Those that it has and its image has not."""
    listed = "for d in $MILLRACE_KERNELS /tmp/millrace-kernels; do cd $d; find -type f; echo; done"
    told = space.kubectl("exec", executor, "--", "sh", "-c", listed)
    brought, found = (set(part.split()) for part in told.split("\n\n")[:2])
    assert brought
    return sorted(found - brought)
