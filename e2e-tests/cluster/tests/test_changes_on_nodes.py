"""What users do to a topology that runs, on two nodes: edits in place and with a restart, one that
is refused, suspend and resume, a node drained by the document's command, a snapshot by
``kubectl apply`` and another topology that begins with it. Words are counted exactly through it."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from functools import partial

import pytest
from chart_command import Shell, block
from words_on_nodes import NAME, WAIT_S, Campaign, Space, campaign_of, counted

from millrace.homes.pods import Role
from millrace_e2e.waiting import until

SPACE = "changes"
SPEC = {
    "ackers": {"replicas": 2},
    "stateServers": {"replicas": 3, "copies": 2, "memory": "256m"},
    # One node has room for all, while the other one is drained.
    "pods": {"driver": {"resources": {"requests": {"cpu": "200m"}}}},
}
SECOND, SNAPSHOT = "wordcount-2", "before"

pytestmark = pytest.mark.timeout(2_400)


@pytest.fixture(scope="module")
def campaign(
    shell: Shell, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Campaign]:
    folder = tmp_path_factory.mktemp("campaign")
    with campaign_of(shell, SPACE, folder, SPEC, request) as made:
        yield made


def uids(space: Space, role: Role) -> set[str]:
    return {one["metadata"]["uid"] for one in space.pods(role)}


def await_event(space: Space, reason: str, words: str) -> None:
    says = f"an event {reason} that names {words}"
    until(lambda: any(words in text for text in space.told(reason)), says, WAIT_S, 0.5)


def test_edits_in_place_restart_nobody(campaign: Campaign) -> None:
    space = campaign.space
    before = uids(space, Role.DRIVER), uids(space, Role.EXECUTOR)
    with campaign.words.coming():
        edit = {"window": {"maxRecords": 700}, "parallelism": 3, "stateServers": {"replicas": 4}}
        space.patch(edit)
        for field in ("spec.window.maxRecords", "spec.parallelism", "spec.stateServers.replicas"):
            await_event(space, "EditedInPlace", field)
        until(lambda: len(space.pods(Role.STATE_SERVER)) == 4, "four servers", WAIT_S, 0.5)
        space.await_ready()
        campaign.await_windows()
        space.patch({"ackers": {"min": 2, "max": 3}})
        space.kubectl("scale", f"topo/{NAME}", "--replicas=9")
        until(lambda: len(space.pods(Role.ACKER)) == 3, "as many ackers as may be", WAIT_S, 0.5)
        space.patch({"ackers": {"min": None, "max": None, "replicas": 2}})
        until(lambda: len(space.pods(Role.ACKER)) == 2, "two ackers", WAIT_S, 0.5)
        campaign.await_windows()
    campaign.await_words()
    assert (uids(space, Role.DRIVER), uids(space, Role.EXECUTOR)) == before


def test_an_edit_with_a_restart_goes_on_behind_what_is_sealed(campaign: Campaign) -> None:
    space = campaign.space
    before = uids(space, Role.DRIVER)
    with campaign.words.coming():
        space.patch({"restartNonce": 1})
        await_event(space, "EditedWithRestart", "spec.restartNonce")
        gone = partial(uids, space, Role.DRIVER)
        until(lambda: gone() and not gone() & before, "another driver", WAIT_S, 0.5)
        campaign.await_windows()
    campaign.await_words()


def test_an_edit_that_would_lose_what_is_kept_is_refused_and_the_topology_runs_on(
    campaign: Campaign,
) -> None:
    space = campaign.space
    before = uids(space, Role.DRIVER)
    sources = deepcopy(space.topology()["spec"]["sources"])
    elsewhere = deepcopy(sources)
    elsewhere[0]["files"]["path"] = "other"
    space.patch({"sources": elsewhere})
    stalled = partial(space.condition, "Stalled")
    until(lambda: stalled() == ("True", "EditRefused"), "the edit is refused", WAIT_S, 0.5)
    with campaign.words.coming():
        campaign.await_windows()
    space.patch({"sources": sources})
    until(lambda: stalled()[0] == "False", "nothing stalls any more", WAIT_S, 0.5)
    campaign.await_words()
    assert uids(space, Role.DRIVER) == before


def test_what_is_suspended_keeps_its_state_and_goes_on(campaign: Campaign) -> None:
    space = campaign.space
    campaign.words.write()
    servers = uids(space, Role.STATE_SERVER)
    space.patch({"suspend": True})
    others = (Role.DRIVER, Role.EXECUTOR, Role.ACKER)
    until(lambda: not any(space.pods(role) for role in others), "its pods are gone", WAIT_S, 0.5)
    until(lambda: space.topology()["status"]["phase"] == "Suspended", "its phase", WAIT_S, 0.5)
    campaign.words.write()
    space.patch({"suspend": False})
    space.await_ready()
    campaign.await_words()
    assert uids(space, Role.STATE_SERVER) == servers


def test_a_node_is_drained_by_the_command_of_the_document(campaign: Campaign) -> None:
    space = campaign.space
    roles = (Role.DRIVER, Role.EXECUTOR, Role.ACKER, Role.STATE_SERVER)
    (node,) = {one["spec"]["nodeName"] for one in space.pods(Role.DRIVER)}

    def on_node() -> list[str]:
        every = (one for role in roles for one in space.pods(role))
        return [one["metadata"]["name"] for one in every if one["spec"]["nodeName"] == node]

    assert any("state" in name for name in on_node())
    with campaign.words.coming():
        drain = block("Draining nodes", "kubectl drain", "operator.md")
        space.shell.script(drain.replace("NODE", node))
        assert on_node() == []
        campaign.await_windows()
        space.await_ready()
        space.shell.must("kubectl", "uncordon", node)
    campaign.await_words()
    assert space.told("StateServerLeaves")
    assert space.told("StateLost") == []


def test_another_topology_begins_with_a_snapshot(campaign: Campaign) -> None:
    """With other numbers of everything, behind the window of the snapshot: what came before is in
    its totals, and what the first one did afterwards is done again."""
    space = campaign.space
    first = space.topology()
    taken = {"topology": NAME, "to": "/data/snapshots"}
    api = {"apiVersion": first["apiVersion"]}
    space.apply(api | {"kind": "TopologySnapshot", "metadata": {"name": SNAPSHOT}, "spec": taken})
    space.kubectl("wait", f"toposnap/{SNAPSHOT}", "--for=condition=Ready", f"--timeout={WAIT_S:g}s")
    campaign.words.write()
    campaign.await_words()
    space.patch({"suspend": True})
    spec = deepcopy(first["spec"])
    spec["restoreFrom"] = {"snapshot": SNAPSHOT, "topology": NAME}
    spec["ackers"], spec["parallelism"] = {"replicas": 1}, 2
    spec["stateServers"] = {**spec["stateServers"], "replicas": 2}
    spec["sinks"][0]["files"]["path"] = "counts-2"
    space.apply(api | {"kind": first["kind"], "metadata": {"name": SECOND}, "spec": spec})
    counts = campaign.data / "counts-2"

    def equal() -> bool:
        return counts.is_dir() and bool(counted(campaign.words.texts, counts)["equal"])

    until(equal, "all words of both", WAIT_S, 1.0)
    campaign.words.write()
    until(equal, "all words behind the restore", WAIT_S, 1.0)
    assert counted(campaign.words.texts, counts)["repeated"] == 0
    assert space.condition("Restored", SECOND) == ("True", "BeganWithSnapshot")
    space.kubectl("delete", "topo", SECOND, NAME, f"--timeout={WAIT_S:g}s")
