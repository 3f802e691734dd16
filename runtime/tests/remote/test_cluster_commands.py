"""``status``, ``describe``, ``scale`` and ``snapshot create`` of a topology on a cluster."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest
from fake_cluster import CORE, NAMESPACE, SPEC, TOPOLOGIES, FakeCluster

from millrace.cli.cluster.commands import Looking
from millrace.clock import SystemClock
from millrace.errors import ExitCode, SnapshotError
from millrace.homes import codec, pods
from millrace.homes.documents import Ask, Request, RunEvent, RunningWindow
from millrace.protocol.types import Member, Phase, Totals
from millrace.remote import scaling, snapshots
from millrace.remote.cluster import ClusterError, NotThereError, connect
from millrace.remote.overview import overview
from millrace.remote.topology import RemoteTopology, find

FIGURES: dict[str, Any] = {
    "epoch": 2,
    "phase": "open",
    "members": ("words-state-0",),
    "sealed": 17,
    "published": 16,
    "totals": Totals(roots=1234567, windows=17, replays=2, dead=1, dropped=0),
    "pending_replays": 0,
    "dead_letters": 1,
    "lag_records": 5,
    "window": RunningWindow(18, 1, 100, 0.0),
}
PLACE = ("-n", NAMESPACE)
ENDED_BESIDE_A_PROXY = {
    "containerStatuses": [
        {"name": "proxy", "state": {"running": {}}},
        {"name": "driver", "state": {"terminated": {"exitCode": 137}}},
    ]
}


@pytest.fixture
def words(cluster: FakeCluster) -> RemoteTopology:
    cluster.running()
    return find(connect(None, None), "words")


# -- status


def test_status_is_what_resource_pods_and_driver_tell(cluster: FakeCluster) -> None:
    cluster.running()
    cluster.tell(**FIGURES)
    done = cluster.millrace("status", "words", *PLACE, "--json")
    found = json.loads(done.stdout)
    assert (found["name"], found["namespace"], found["context"]) == (
        "words",
        "jobs",
        "context here",
    )
    assert (found["alive"], found["state"], found["tracking"]) == (True, "running", "On")
    assert (found["sealed"], found["published"], found["lagRecords"]) == (17, 16, 5)
    assert found["totals"]["roots"] == 1234567
    assert found["resource"]["phase"] == "Running"
    names = [pod["name"] for pod in found["pods"]]
    assert names == ["words-driver-7", "words-acker-0", "words-state-0"]
    assert found["requests"] == 0
    shown = cluster.millrace("status", "words", *PLACE).stdout
    for text in ("is running (running)", "window 17 is the last", "jobs of context here"):
        assert text in shown
    assert "1,234,567 roots in 17 windows" in shown
    assert "words-acker-0" in shown
    assert "node-1" in shown


def test_figures_of_another_life_are_not_believed(
    cluster: FakeCluster, words: RemoteTopology
) -> None:
    cluster.tell(**FIGURES, uid="another")
    found = overview(words)
    assert (found["sealed"], found["totals"], found["state"]) == (None, None, "starting")


@pytest.mark.parametrize(
    ("state", "change"),
    [
        ("starting", lambda c: c.pod("words-driver-7", "driver", ready=False)),
        ("starting", lambda c: c.pod("words-driver-7", "driver", status={"phase": "Failed"})),
        ("starting", lambda c: c.pod("words-driver-7", "driver", status=ENDED_BESIDE_A_PROXY)),
        ("drained", lambda c: _drained(c)),
        ("suspended", lambda c: _suspended(c)),
        ("stalled", lambda c: _stalled(c)),
        ("deleting", lambda c: _deleting(c)),
    ],
)
def test_how_it_stands(cluster: FakeCluster, words: RemoteTopology, state, change) -> None:
    assert overview(words)["state"] == "running"
    change(cluster)
    assert overview(words)["state"] == state


def _drained(cluster: FakeCluster) -> None:
    cluster.pod("words-driver-7", "driver", ready=False, status={"phase": "Succeeded"})
    cluster.tell(state="drained")


def _suspended(cluster: FakeCluster) -> None:
    del cluster.objects[f"{CORE}/pods/words-driver-7"]
    cluster.topology(spec={**SPEC, "suspend": True}, metadata={"uid": "uid-words"})


def _stalled(cluster: FakeCluster) -> None:
    condition = {"type": "Stalled", "status": "True", "reason": "NamesTaken", "message": "by x"}
    cluster.topology(status={"conditions": [condition]}, metadata={"uid": "uid-words"})


def _deleting(cluster: FakeCluster) -> None:
    when = {"deletionTimestamp": "2026-01-01T10:00:00Z"}
    cluster.topology(metadata={"uid": "uid-words", **when})


def test_a_stall_is_a_warning_in_its_own_words(cluster: FakeCluster, words: RemoteTopology) -> None:
    _stalled(cluster)
    assert overview(words)["warnings"] == ["NamesTaken: by x"]


def test_watching_goes_on_while_the_api_server_is_away(
    cluster: FakeCluster, words: RemoteTopology
) -> None:
    look = Looking(words)
    assert look()["warnings"] == []
    cluster.refused = {"words": 503}
    kept = look()
    assert kept["state"] == "running"
    assert kept["warnings"][0].startswith("not up to date: context here: ")
    cluster.refused = {"words": 403}
    kept = look()
    assert "refused to you" in kept["warnings"][0]
    with pytest.raises(ClusterError, match="refused to you"):
        Looking(words)()
    cluster.refused = {}
    del cluster.objects[f"{TOPOLOGIES}/words"]
    with pytest.raises(NotThereError):
        look()


# -- describe


def test_describe_draws_the_resource(cluster: FakeCluster) -> None:
    cluster.running()
    done = cluster.millrace("describe", "words", *PLACE)
    assert done.returncode == 0, done.stderr
    assert "words: ExactlyOnce, tracked" in done.stdout
    for part in ("lines", "out", "pass"):
        assert part in done.stdout
    done = cluster.millrace("describe", "words", *PLACE, "--set", "spec.keyGroups=1")
    assert done.returncode == ExitCode.USAGE


# -- scale


def test_ackers_go_through_the_scale_of_the_resource(cluster: FakeCluster) -> None:
    """As kubectl scale does, with no more rights than that takes."""
    cluster.running()
    cluster.refused = {"/words/status": 403}
    done = cluster.millrace("scale", "words", *PLACE, "--ackers", "5", "--timeout", "0")
    assert done.stdout == "words is asked to have 5 ackers\n"
    changes = [(method, path) for method, path, _ in cluster.asked if method != "GET"]
    assert changes == [("PATCH", f"{TOPOLOGIES}/words/scale")]
    assert cluster.objects[f"{TOPOLOGIES}/words"]["spec"]["ackers"] == {"replicas": 5}


def test_state_servers_are_a_field_of_the_spec(cluster: FakeCluster) -> None:
    cluster.running()
    done = cluster.millrace("scale", "words", *PLACE, "--state-servers", "3", "--timeout", "0")
    assert done.returncode == 0, done.stderr
    spec = cluster.objects[f"{TOPOLOGIES}/words"]["spec"]
    assert spec["stateServers"] == {"replicas": 3}
    assert spec["sources"] == SPEC["sources"]


def test_what_cannot_be_is_refused_before_anything_is_written(cluster: FakeCluster) -> None:
    cluster.topology(spec={**SPEC, "stateServers": {"replicas": 2, "copies": 2}})
    done = cluster.millrace("scale", "words", *PLACE, "--state-servers", "1")
    assert done.returncode == ExitCode.USAGE
    assert "there must be 2 to 64" in done.stderr
    assert all(method == "GET" for method, _, _ in cluster.asked)


def test_between_two_numbers_of_ackers_the_nearest_one_is_had(cluster: FakeCluster) -> None:
    cluster.topology(spec={**SPEC, "ackers": {"replicas": 2, "min": 2, "max": 4}})
    for number in range(4):
        cluster.pod(f"words-acker-{number}", "acker")
    done = cluster.millrace("scale", "words", *PLACE, "--ackers", "9")
    assert done.stdout.splitlines() == [
        "words has 2 to 4 ackers by spec.ackers.min and max, never 9",
        "words has 4 ackers; its resource says so from now on",
    ]


def test_it_is_scaled_when_pods_and_view_say_so(
    cluster: FakeCluster, words: RemoteTopology
) -> None:
    assert scaling.is_scaled(words, 1, 1)
    assert not scaling.is_scaled(words, None, 2)
    cluster.pod("words-acker-1", "acker", ready=False)
    assert not scaling.is_scaled(words, None, 2)
    cluster.pod("words-acker-1", "acker")
    assert scaling.is_scaled(words, None, 2)
    one, two = (
        Member(f"words-state-{n}", f"run-{n}", f"redis://10.0.0.{n}:6379") for n in range(2)
    )
    cluster.pod("words-state-1", "state-server")
    assert not scaling.is_scaled(words, 2, None)
    cluster.view(one, two, phase=Phase.MOVING)
    assert not scaling.is_scaled(words, 2, None)
    cluster.view(one, two)
    assert scaling.is_scaled(words, 2, None)
    cluster.view(one)
    assert not scaling.is_scaled(words, 1, None), "the pod that was to leave is still there"


def test_waiting_for_a_size_ends(cluster: FakeCluster) -> None:
    cluster.running()
    done = cluster.millrace("scale", "words", *PLACE, "--ackers", "2", "--timeout", "0.1")
    assert done.returncode == ExitCode.FAILED
    assert "does not have 2 ackers within 0.1 s" in done.stderr


# -- snapshots


def driver(cluster: FakeCluster, kind: str, text: str) -> threading.Thread:
    """Tells an event of the first request for a snapshot, then takes the request out."""

    def work() -> None:
        end_s = time.monotonic() + 30
        while time.monotonic() < end_s:
            asked = [k for k in cluster.data("words-inbox") if k.startswith(pods.REQUEST_PREFIX)]
            if asked:
                request = codec.decode(Request, cluster.data("words-inbox")[asked[0]])
                cluster.tell(RunEvent(1.0, kind, text.format(request.name)))
                left = {k: v for k, v in cluster.data("words-inbox").items() if k not in asked}
                cluster.config_map("words-inbox", **left)
                seen.append(request)
                return
            time.sleep(0.01)

    seen: list[Request] = []
    thread = threading.Thread(target=work)
    thread.seen = seen  # type: ignore[attr-defined]
    thread.start()
    return thread


def test_a_snapshot_is_taken_by_the_driver(cluster: FakeCluster) -> None:
    cluster.running()
    text = "snapshot {} is taken behind window 17: 3 objects, 1,000 bytes"
    thread = driver(cluster, "SnapshotTaken", text)
    asked = ("--name", "before", "--place", "s3://bucket/place", "--json")
    done = cluster.millrace("snapshot", "create", "words", *PLACE, *asked)
    thread.join()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"name": "before", "window": 17}
    wanted = Request(Ask.SNAPSHOT, name="before", to="s3://bucket/place")
    assert thread.seen == [wanted]  # type: ignore[attr-defined]


def test_the_drivers_reason_is_the_commands(cluster: FakeCluster, words: RemoteTopology) -> None:
    thread = driver(cluster, "SnapshotFailed", "snapshot {} was not taken: the disk is full")
    with pytest.raises(SnapshotError, match="snapshot s was not taken: the disk is full"):
        snapshots.take(words, "s", None, 30.0, SystemClock(), time.sleep)
    thread.join()


def test_an_event_of_before_is_no_answer_and_silence_takes_the_request_back(
    cluster: FakeCluster, words: RemoteTopology
) -> None:
    cluster.tell(RunEvent(1.0, "SnapshotTaken", "snapshot s is taken behind window 3: 1 objects"))
    with pytest.raises(SnapshotError, match=r"was not taken within 0\.2 s"):
        snapshots.take(words, "s", None, 0.2, SystemClock(), lambda s: time.sleep(s / 10))
    assert set(cluster.data("words-inbox")) == {pods.PROPOSAL}


def test_a_driver_that_says_nothing_is_not_believed(
    cluster: FakeCluster, words: RemoteTopology
) -> None:
    thread = driver(cluster, "WindowSplit", "something else {}")
    now = [0.0]

    class Clock(SystemClock):
        def monotonic_s(self) -> float:
            return now[0]

    def pause(seconds: float) -> None:
        if thread.is_alive():
            thread.join()
        now[0] += seconds

    with pytest.raises(SnapshotError, match="its word of how it went did not come"):
        snapshots.take(words, "s", None, 100.0, Clock(), pause)


def test_a_place_must_mean_the_same_in_a_pod(cluster: FakeCluster) -> None:
    cluster.running()
    done = cluster.millrace("snapshot", "create", "words", *PLACE, "--place", "here")
    assert done.returncode == ExitCode.FAILED
    assert "name a URL, or a whole path as the driver's pod sees it" in done.stderr
    assert set(cluster.data("words-inbox")) == {pods.PROPOSAL}


def test_nothing_is_asked_before_the_operator_has_made_the_inbox(
    cluster: FakeCluster, words: RemoteTopology
) -> None:
    """An object of that name that is not the operator's would stand in its way."""
    del cluster.objects[f"{CORE}/configmaps/words-inbox"]
    with pytest.raises(ClusterError, match="the operator has not set it up yet"):
        snapshots.take(words, "s", None, 1.0, SystemClock(), time.sleep)
    assert f"{CORE}/configmaps/words-inbox" not in cluster.objects
