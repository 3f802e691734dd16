"""The word count of the examples on two nodes, by the commands of docs/install.md and through a
campaign of ``millrace chaos``: pods of every kind, the operator and two kinds at once; what the
command line says of it, and a line that ends whoever reads it."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from chart_command import Shell, block, commands
from words_on_nodes import (
    DEADLY,
    EXAMPLE,
    NAME,
    RESTRICTED,
    TWICE,
    WAIT_S,
    Campaign,
    Manifest,
    Space,
    campaign_of,
    check,
    counted,
    reachable_folder,
    space_of,
    volume,
)

from millrace.chaos.cluster import WAYS
from millrace.chaos.plan import VictimKind
from millrace.homes.pods import Role
from millrace.remote.cluster import connect
from millrace.remote.topology import find
from millrace_e2e.cluster.layout import Layout
from millrace_e2e.waiting import until

SPACE, CAMPAIGN = "wordcount", "campaign"
QUICK = bool(os.environ.get("MILLRACE_CAMPAIGN_QUICK"))
"""One kill of each kind, where somebody works at these tests themselves."""

KILLED = "acker,driver,executor,state-server,operator,acker+driver"
EVERY_S = 40
MOMENTS = (6 if QUICK else 18) * EVERY_S
"""Each kind three times: deleted, deleted by force, and its process killed."""

ONE_S = 10
pytestmark = pytest.mark.timeout(2_700)


# -- as the document says


@pytest.fixture
def first(shell: Shell, request: pytest.FixtureRequest) -> Iterator[Space]:
    with space_of(shell, SPACE, request) as space:
        yield space


def test_the_word_count_of_the_examples_runs_by_the_commands_of_the_document(
    shell: Shell, first: Space, tmp_path: Path
) -> None:
    """Ready within a minute: the document's own wait gives it no more."""
    counts = reachable_folder(tmp_path / "counts")
    shell.must(
        "kubectl", "apply", "-f", "-",
        stdin=json.dumps(volume(SPACE, SPACE, "wordcount-counts", counts)),
    )  # fmt: skip
    *before, apply, wait = commands(block("Words of texts", "kubectl apply -k examples/wordcount"))
    assert "apply -f examples/wordcount/topology.yaml" in apply
    assert "--for=condition=Ready --timeout=60s" in wait
    for command in before:
        shell.script(command)
    told = first.began(partial(shell.script, apply), partial(shell.script, wait))
    print(json.dumps(told), flush=True)
    labels = shell.must("kubectl", "get", "namespace", SPACE, "-o", "jsonpath={.metadata.labels}")
    assert RESTRICTED.items() <= json.loads(labels).items()
    first.await_finished()
    found = counted(EXAMPLE / "texts", counts)
    assert (found["equal"], found["repeated"]) == (True, 0), found
    first.delete()


# -- a campaign


@pytest.fixture(scope="module")
def campaign(
    shell: Shell, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Campaign]:
    folder = tmp_path_factory.mktemp("campaign")
    with campaign_of(shell, CAMPAIGN, folder, TWICE, request) as made:
        yield made


def test_owners_of_state_are_on_different_nodes(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = {
        one["metadata"]["name"]: one["spec"]["nodeName"]
        for one in campaign.space.pods(Role.STATE_SERVER)
    }
    assert sorted(Counter(at.values()).values()) == [2, 2]
    assert len(campaign.space.pods(Role.ACKER)) == 3
    executors = campaign.space.pods(Role.EXECUTOR)
    assert len(executors) == 2
    monkeypatch.setenv("KUBECONFIG", str(Layout.standard().kubeconfig))
    view = find(connect(None, CAMPAIGN), NAME).view()
    assert view is not None
    assert view.owners
    assert all(len({at[owner] for owner in owners}) == 2 for owners in view.owners)


def test_words_are_counted_exactly_while_ackers_come_and_go(campaign: Campaign) -> None:
    """``kubectl scale`` from two to five to one, while windows run."""
    with campaign.words.coming():
        for count in (2, 5, 1):
            campaign.space.kubectl("scale", f"topo/{NAME}", f"--replicas={count}")
            ackers = partial(campaign.space.pods, Role.ACKER)
            until(lambda: len(ackers()) == count, f"{count} ackers", WAIT_S, 0.5)  # noqa: B023
            campaign.await_windows()
    campaign.await_words()
    campaign.space.kubectl("scale", f"topo/{NAME}", "--replicas=3")
    until(lambda: len(ackers()) == 3, "three ackers", WAIT_S, 0.5)
    campaign.space.await_ready()


def test_the_command_line_means_what_runs_on_nodes(campaign: Campaign) -> None:
    """Among the words is a line that ends whoever splits it: an executor's worker, whose end the
    driver hears of through the state servers alone. Its root is a dead letter, nothing else is."""
    space, words = campaign.space, campaign.words
    words.write("mill race", DEADLY, "race")
    campaign.await_words()
    told = json.loads(space.millrace("status", NAME, "--json"))
    assert (told["state"], told["resource"]["phase"]) == ("running", "Running")
    roles = Counter(one["role"] for one in told["pods"] if one["ready"])
    assert roles == {"acker": 3, "state-server": 4, "executor": 2, "driver": 1}
    assert "split  function wordcount:split" in space.millrace("describe", NAME)

    def letters() -> list[Manifest]:
        told = space.millrace("dead-letters", "list", NAME, "--json")
        return [json.loads(line) for line in told.splitlines()]

    (letter,) = until(letters, "the dead letter", WAIT_S, 1.0)
    assert (letter["payload"], letter["processor"]) == (DEADLY, "(worker)")
    assert all(words in letter["error"] for words in ("processor 'split'", "exit code 7"))

    (row,) = space.millrace("state", "get", "-t", NAME, "counts", "mill", "--json").splitlines()
    assert json.loads(row)["state"] == {"n": words.totals()["mill"]}
    rows = map(
        json.loads, space.millrace("state", "scan", "-t", NAME, "counts", "--json").splitlines()
    )
    held = {row["key"]["word"]: row["state"]["n"] for row in rows}
    assert held | {DEADLY: 1} == words.totals()

    place = ("--place", "/data/snapshots", "--name", "by-hand", "--json")
    taken = json.loads(space.millrace("snapshot", "create", NAME, *place))
    assert taken["name"] == "by-hand"
    assert (campaign.data / "snapshots" / "by-hand").is_dir()
    wanted = {"topology": NAME, "to": "/data/snapshots", "deletionPolicy": "Retain"}
    api = {"apiVersion": space.topology()["apiVersion"], "kind": "TopologySnapshot"}
    space.apply({**api, "metadata": {"name": "by-manifest"}, "spec": wanted})
    ready = "--for=condition=Ready"
    space.kubectl("wait", "toposnap/by-manifest", ready, f"--timeout={WAIT_S:g}s")
    (listed,) = space.millrace("snapshot", "list", NAME, "--json").splitlines()
    found = json.loads(listed)
    assert (found["name"], found["phase"]) == ("by-manifest", "Ready")

    assert "has 2 ackers" in space.millrace("scale", NAME, "--ackers", "2")
    until(lambda: len(space.pods(Role.ACKER)) == 2, "two ackers", WAIT_S, 0.5)
    assert "has 3 ackers" in space.millrace("scale", NAME, "--ackers", "3")
    space.await_ready()


def test_words_are_counted_exactly_whatever_a_campaign_kills(campaign: Campaign) -> None:
    report = campaign.kill(KILLED, EVERY_S, MOMENTS)
    check(report)
    ways = defaultdict(set)
    for one in report["timeline"]:
        ways[one["kind"]].add(one["way"])
    kinds = {*("acker", "driver", "executor", "state-server"), VictimKind.OPERATOR.value}
    assert ways.keys() == kinds
    if not QUICK:
        assert all(found == set(WAYS) for found in ways.values()), ways
    campaign.await_words()


def test_words_are_counted_exactly_while_another_driver_stands_by(campaign: Campaign) -> None:
    """Each time the driver is killed one goes on that has all up already, and the next is made."""
    space = campaign.space
    space.stand_by(1)
    recovered_s = []
    for _ in range(1 if QUICK else 3):
        ready = partial(space.condition, "StandbyReady")
        until(lambda: ready()[0] == "True", "a driver stands by", WAIT_S, 0.5)  # noqa: B023
        took_over = len(space.told("StandbyTookOver"))
        report = campaign.kill("driver", ONE_S, ONE_S)
        check(report)
        recovered_s += report["recovery_s"]["driver"]
        assert len(space.told("StandbyTookOver")) == took_over + 1
    print(json.dumps({"standby_recovery_s": recovered_s}), flush=True)
    space.stand_by(0)
    campaign.await_words()
