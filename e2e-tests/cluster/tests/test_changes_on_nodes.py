"""What users do to a topology that runs, on two nodes: edits in place and with a restart, one that
is refused, suspend and resume, a pause of the operator, executors that follow the lag, a node
drained by the document's command, snapshots that it takes by itself and by ``kubectl apply``, the
loss of all copies of its state, and another topology that begins with a snapshot. Words are counted
exactly through it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path

import pytest
from chart_command import Shell, block
from words_on_nodes import (
    NAME,
    TARRYING,
    WAIT_S,
    WORDS,
    Campaign,
    Space,
    campaign_of,
    counted,
)

from millrace.homes.pods import PERIODIC_LABEL, TOPOLOGY_LABEL, Role
from millrace_e2e.waiting import until

SPACE = "changes"
SPEC = {
    "ackers": {"replicas": 2},
    "stateServers": {"replicas": 3, "copies": 2, "memory": "256m"},
    # One node has room for all, while the other one is drained.
    "pods": {"driver": {"resources": {"requests": {"cpu": "200m"}}}},
}
SECOND, SNAPSHOT = "wordcount-2", "before"
PAUSED = "millrace.dev/paused"
KEPT = 2
SLOW_LINES, SLOW_WINDOWS = 500, 120

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
        since = re.compile(r"from window \d+ on: spec\.window\.maxRecords 700")
        told = partial(space.told, "SettingsChanged")
        until(lambda: any(map(since.match, told())), "since when it holds", WAIT_S, 0.5)
        until(lambda: len(space.pods(Role.STATE_SERVER)) == 4, "four servers", WAIT_S, 0.5)
        space.await_ready()
        campaign.await_windows()
        space.patch({"ackers": {"min": 2, "max": 3}})
        space.kubectl("scale", f"topo/{NAME}", "--replicas=9")
        until(lambda: len(space.pods(Role.ACKER)) == 3, "as many ackers as may be", WAIT_S, 0.5)
        space.kubectl("scale", f"topo/{NAME}", "--replicas=1")
        until(lambda: len(space.pods(Role.ACKER)) == 2, "as few ackers as may be", WAIT_S, 0.5)
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


def test_while_it_is_paused_the_operator_leaves_all_as_it_is(campaign: Campaign) -> None:
    """Neither a pod that is gone nor an edit is followed; both are as soon as that is over."""
    space, gone = campaign.space, f"{NAME}-acker-1"
    space.kubectl("annotate", "topo", NAME, f"{PAUSED}=true")
    until(lambda: space.topology()["status"]["phase"] == "Paused", "its phase", WAIT_S, 0.5)
    space.kubectl("delete", "pod", gone)
    space.patch({"tupleTimeout": "40s"})

    def looked_at() -> bool:
        found = space.topology()
        (one,) = [c for c in found["status"]["conditions"] if c["type"] == "Reconciling"]
        return bool(one["observedGeneration"] == found["metadata"]["generation"])

    until(looked_at, "the operator has looked at it behind the edit", WAIT_S, 0.5)
    assert space.condition("Reconciling") == ("False", "Paused")
    assert gone not in {one["metadata"]["name"] for one in space.pods(Role.ACKER)}
    assert not any("spec.tupleTimeout" in text for text in space.told("EditedInPlace"))
    with campaign.words.coming():
        campaign.await_windows()
    space.kubectl("annotate", "topo", NAME, f"{PAUSED}-")
    until(lambda: len(space.pods(Role.ACKER)) == 2, "the acker is back", WAIT_S, 0.5)
    await_event(space, "EditedInPlace", "spec.tupleTimeout")
    await_event(space, "SettingsChanged", "from the next attempt on: spec.tupleTimeout 40s")
    space.await_ready()
    campaign.await_words()


def test_executors_that_a_quota_refuses_are_told_in_its_words(campaign: Campaign) -> None:
    """With one of two windows go on, with none they wait until there is room."""
    space = campaign.space
    one, another = (pod["metadata"]["name"] for pod in space.pods(Role.EXECUTOR))

    def await_condition(kind: str, status: str, reason: str) -> None:
        says = f"{kind} is {status} for {reason}"
        until(lambda: space.condition(kind) == (status, reason), says, WAIT_S, 0.5)

    with campaign.words.coming():
        with space.no_more_pods() as quota:
            space.kubectl("delete", "pod", one, "--wait=false")
            await_condition("SparkRunning", "True", "ExecutorsMissing")
            await_event(space, "ExecutorsRefused", quota)
            assert space.condition("Ready")[0] == "True"
            campaign.await_windows()
            space.kubectl("delete", "pod", another, "--wait=false")
            await_condition("SparkRunning", "False", "PodRefused")
            await_condition("Ready", "False", "PodRefused")
            await_event(space, "PodRefused", quota)
        until(lambda: len(space.pods(Role.EXECUTOR)) == 2, "two executors", WAIT_S, 0.5)
        space.await_ready()
        campaign.await_windows()
    campaign.await_words()


def _summary(space: Space) -> str:
    """Ready executors, and how many there are to be, as ``kubectl get -o wide`` has it."""
    return str(space.topology()["status"]["executors"]["summary"])


def test_executors_come_when_records_wait(campaign: Campaign) -> None:
    """One executor is behind with windows of few lines that take long: they become several tasks,
    which two executors run at once."""
    space = campaign.space
    before = uids(space, Role.DRIVER)
    executors = {"instances": 1, "min": 1, "max": 2}
    space.patch({"window": {"maxRecords": SLOW_LINES}, "spark": {"executors": executors}})
    await_event(space, "EditedWithRestart", "spec.spark.executors")
    driver = partial(uids, space, Role.DRIVER)
    until(lambda: driver() and not driver() & before, "another driver", WAIT_S, 0.5)
    space.await_ready()
    executors_told = partial(_summary, space)
    until(lambda: executors_told() == "1/1", "one executor", WAIT_S, 0.5)
    campaign.words.write(*[" ".join((TARRYING, *WORDS[:6]))] * SLOW_LINES * SLOW_WINDOWS)
    await_event(space, "ExecutorsScaled", "2 executors instead of 1")
    until(lambda: executors_told() == "2/2", "another executor", WAIT_S, 0.5)
    assert len(space.pods(Role.EXECUTOR)) == 2
    space.patch({"window": {"maxRecords": 50_000}})
    campaign.await_words()


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


def taken_by_itself(space: Space) -> dict[str, int]:
    """Windows of the snapshots that the topology has taken by itself, by their names."""
    found = space.get("topologysnapshots", "-l", PERIODIC_LABEL)["items"]
    status = {one["metadata"]["name"]: one.get("status", {}) for one in found}
    return {name: told["window"] for name, told in status.items() if "window" in told}


def folders(place: Path) -> set[str]:
    """Snapshots that are there as a whole."""
    return {one.parent.name for one in place.glob("*/manifest.json")}


def ask_for(space: Space, name: str, **spec: str) -> str:
    """What a snapshot that somebody asks for is called in its place."""
    api = {"apiVersion": space.topology()["apiVersion"], "kind": "TopologySnapshot"}
    wanted = {"topology": NAME, "to": "/data/snapshots", **spec}
    space.apply(api | {"metadata": {"name": name}, "spec": wanted})
    space.kubectl("wait", f"toposnap/{name}", "--for=condition=Ready", f"--timeout={WAIT_S:g}s")
    return str(space.get("topologysnapshot", name)["status"]["snapshot"])


def test_of_snapshots_that_it_takes_by_itself_the_newest_are_kept(campaign: Campaign) -> None:
    """Of these alone: one that somebody asked for goes when its resource does."""
    space, place = campaign.space, campaign.data / "snapshots"
    taken = {"to": "snapshots", "every": "3s", "keep": KEPT}
    space.patch({"snapshots": taken, "onStateLoss": "Restore"})
    await_event(space, "EditedWithRestart", "spec.snapshots")
    seen: dict[str, int] = {}

    def enough() -> bool:
        seen.update(taken_by_itself(space))
        return len(seen) >= 2 * KEPT

    asked = ask_for(space, "asked", deletionPolicy="Delete")
    with campaign.words.coming():
        until(enough, "more snapshots than are kept", WAIT_S, 0.5)
    campaign.await_words()
    kept = partial(taken_by_itself, space)
    until(
        lambda: len(kept()) == KEPT and {*kept(), asked} == folders(place),
        "resources and folders of the newest",
        WAIT_S,
        0.5,
    )
    seen.update(kept())
    assert sorted(kept().values()) == sorted(seen.values())[-KEPT:]
    space.kubectl("delete", "toposnap", "asked")
    until(lambda: {*kept()} == folders(place), "the files of the other are gone", WAIT_S, 0.5)
    await_event(space, "SnapshotDeleted", asked)


def test_when_all_copies_of_the_state_are_gone_the_newest_snapshot_takes_their_place(
    campaign: Campaign,
) -> None:
    """Words behind it are counted again, and what was shown of them is taken back."""
    space = campaign.space
    servers = f"{TOPOLOGY_LABEL}={NAME},app.kubernetes.io/component={Role.STATE_SERVER.value}"
    with campaign.words.coming():
        campaign.await_windows()
        newest = max(taken_by_itself(space).values())
        space.kubectl("delete", "pods", "-l", servers, "--force", "--grace-period=0")
        await_event(space, "StateRestored", "restored behind window")
        restored = partial(space.condition, "Restored")
        until(lambda: restored() == ("True", "StateLost"), "it is restored", WAIT_S, 0.5)
        space.await_ready()
        campaign.await_windows()
    campaign.await_words()
    (told,) = space.told("StateRestored")
    assert told.startswith("all copies of some state were gone: snapshot ")
    window = re.search(r"is restored behind window (\d+)", told)
    assert window is not None
    assert int(window[1]) >= newest


def test_another_topology_begins_with_a_snapshot(campaign: Campaign) -> None:
    """With other numbers of everything, behind the window of the snapshot: what came before is in
    its totals, and what the first one did afterwards is done again."""
    space = campaign.space
    first = space.topology()
    ask_for(space, SNAPSHOT)
    campaign.words.write()
    campaign.await_words()
    space.patch({"suspend": True})
    spec = deepcopy(first["spec"])
    spec["restoreFrom"] = {"snapshot": SNAPSHOT, "topology": NAME}
    spec["ackers"], spec["parallelism"] = {"replicas": 1}, 2
    spec["stateServers"] = {**spec["stateServers"], "replicas": 2}
    spec["sinks"][0]["files"]["path"] = "counts-2"
    made = {"apiVersion": first["apiVersion"], "kind": first["kind"]}
    space.apply(made | {"metadata": {"name": SECOND}, "spec": spec})
    counts = campaign.data / "counts-2"

    def equal() -> bool:
        return counts.is_dir() and bool(counted(campaign.words.texts, counts)["equal"])

    until(equal, "all words of both", WAIT_S, 1.0)
    campaign.words.write()
    until(equal, "all words behind the restore", WAIT_S, 1.0)
    assert counted(campaign.words.texts, counts)["repeated"] == 0
    assert space.condition("Restored", SECOND) == ("True", "BeganWithSnapshot")
    space.kubectl("delete", "topo", SECOND, NAME, f"--timeout={WAIT_S:g}s")
