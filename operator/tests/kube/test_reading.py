"""Objects of the API server, as plans see them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from memory_world import KEY, World, running

from millrace import checked
from millrace.errors import MillraceError, NewerFormatError
from millrace.homes import codec
from millrace.homes import pods as names
from millrace.homes.documents import Proposal, RunEvent, Status
from millrace.homes.pods import Role
from millrace_operator.builders.documents import BOOKS_KEY
from millrace_operator.builders.naming import DIGEST, FINGERPRINT, MADE_WITH
from millrace_operator.kube import reading
from millrace_operator.kube.objects import owner_uid
from millrace_operator.reconcile.observe import PodPhase

NOW = datetime(2026, 2, 1, 0, 1, tzinfo=UTC)


def pod(name: str = "words-driver-3", role: str = "driver", **status: Any) -> dict[str, Any]:
    metadata = {"name": name, "uid": "u1", "labels": {"app.kubernetes.io/component": role}}
    return {"metadata": metadata, "spec": {}, "status": status}


def container(last: dict[str, Any] | None = None, **state: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"state": state, "lastState": last or {}}]}


def test_a_pod_that_nobody_looked_at_yet():
    found = pod()
    del found["status"]
    read = reading.pod_of(found, NOW)
    assert read is not None
    assert (read.component, read.index, read.phase) == (Role.DRIVER, 3, PodPhase.PENDING)
    assert (read.ready, read.node, read.reason, read.lived_s) == (False, None, "", 0.0)


@pytest.mark.parametrize(
    ("name", "role"), [("words-driver-x", "driver"), ("words-web-1", "web"), ("words", "acker")]
)
def test_a_pod_that_is_none_of_ours(name: str, role: str):
    assert reading.pod_of(pod(name, role), NOW) is None


def test_nothing_that_is_read_of_a_pod_is_left_out_of_what_is_kept_of_it():
    full = pod(**running("c1"))
    full["metadata"] |= {
        "resourceVersion": "7",
        "deletionTimestamp": "2026-02-01T00:00:00Z",
        "annotations": {FINGERPRINT: "abc", "large": "x" * 1000},
        "ownerReferences": [{"uid": "t1", "controller": True, "name": "words"}],
    }
    full["spec"] = {
        "nodeName": "node-1",
        "containers": [{"image": "runtime:1", "env": ["x" * 1000]}, {"image": "other"}],
        "volumes": [{"name": "x" * 1000, "emptyDir": {}}],
    }
    kept = reading.brief(full)
    read = reading.pod_of(full, NOW, "r1")
    assert read is not None
    assert reading.pod_of(kept, NOW, "r1") == read
    assert (read.image, read.fingerprint, read.node) == ("runtime:1", "abc", "node-1")
    assert owner_uid(kept) == "t1"
    assert kept["metadata"]["resourceVersion"] == "7"
    assert "x" * 1000 not in json.dumps(kept)


def test_an_executor_has_whatever_name_spark_gives_it():
    read = reading.pod_of(pod("words-driver-3-exec-a", "executor"), NOW)
    assert read is not None
    assert read.component is Role.EXECUTOR


STARTED = "2026-02-01T00:00:30Z"


@pytest.mark.parametrize(
    ("status", "reason", "code"),
    [
        (container(waiting={"reason": "ContainerCreating"}), "", None),
        (
            container(waiting={"reason": "ImagePullBackOff", "message": "m"}),
            "ImagePullBackOff",
            None,
        ),
        (
            container({"terminated": {"reason": "Error"}}, waiting={"reason": "CrashLoopBackOff"}),
            "CrashLoopBackOff",
            None,
        ),
        (
            container(
                {"terminated": {"reason": "OOMKilled"}}, waiting={"reason": "CrashLoopBackOff"}
            ),
            "OOMKilled",
            None,
        ),
        (container(terminated={"reason": "Error", "exitCode": 12}), "Error", 12),
        ({"reason": "Evicted", "message": "memory"}, "Evicted", None),
        (
            {"reason": "Evicted", **container(terminated={"reason": "Error", "exitCode": 137})},
            "Evicted",
            137,
        ),
        (
            {
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
                ]
            },
            "Unschedulable",
            None,
        ),
        ({"conditions": None, "containerStatuses": None}, "", None),
    ],
)
def test_why_a_pod_waits_or_ended(status: dict[str, Any], reason: str, code: int | None):
    read = reading.pod_of(pod(**status), NOW)
    assert read is not None
    assert (read.reason, read.exit_code) == (reason, code)


CUT = f"lang.Thread.run(Thread.java:840)\n{'a line of a log' * 150}\nE: no table of rates"


@pytest.mark.parametrize(
    ("ended", "says"),
    [
        ({"exitCode": 1, "message": "a\nb"}, "a\nb"),
        ({"exitCode": 1, "message": CUT}, CUT.partition("\n")[2]),
        ({"exitCode": 1, "message": CUT.replace("\n", " ")}, CUT.replace("\n", " ")),
        ({"exitCode": 137, "message": CUT}, "killed by SIGKILL"),
        ({"exitCode": 143, "message": CUT}, "ended by SIGTERM"),
        ({"exitCode": 137, "reason": "OOMKilled", "message": CUT}, ""),
        ({"exitCode": 139, "message": "Fatal Python error"}, "Fatal Python error"),
    ],
)
def test_what_a_container_says_of_its_end(ended: dict[str, Any], says: str):
    """What it logged before it was killed is no reason; half a line is none either."""
    read = reading.pod_of(pod(**container(terminated={"reason": "Error", **ended})), NOW)
    assert read is not None
    assert read.message == says


@pytest.mark.parametrize(
    ("deleted", "holds", "read_as"),
    [
        (True, "True", ("EvictionByEvictionAPI", "Eviction API: evicting")),
        (True, "False", ("Error", "asked to end")),
        # Who was to drive it out has not done so, and may never do.
        (False, "True", ("Error", "asked to end")),
    ],
)
def test_who_drives_out_a_pod_that_is_being_deleted(
    deleted: bool, holds: str, read_as: tuple[str, str]
):
    """Its process ends as in any deletion; that it had to go says a condition alone."""
    target = {
        "type": "DisruptionTarget",
        "status": holds,
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
    }
    ended = {"reason": "Error", "message": "asked to end", "exitCode": 130}
    found = pod(conditions=[target], **container(terminated=ended))
    if deleted:
        found["metadata"]["deletionTimestamp"] = STARTED
    read = reading.pod_of(found, NOW)
    assert read is not None
    assert ((read.reason, read.message), read.exit_code) == (read_as, 130)


def came_back(began: str = STARTED, ready: bool = False, **last: Any) -> dict[str, Any]:
    """A container that was started again at once, and how it ended before."""
    status = "True" if ready else "False"
    return {
        "phase": "Running",
        **container({"terminated": last}, running={"startedAt": began}),
        "conditions": [{"type": "Ready", "status": status}],
    }


KILLED: dict[str, Any] = {"reason": "OOMKilled", "exitCode": 137}


@pytest.mark.parametrize(
    ("status", "reason", "code", "before"),
    [
        (came_back(**KILLED), "OOMKilled", 137, "OOMKilled, exit code 137"),
        (
            came_back(reason="Error", exitCode=3, message="no room"),
            *("Error", 3, "Error, exit code 3: no room"),
        ),
        # As it is to end.
        (came_back(reason="Completed", exitCode=0), "", None, ""),
        # It is no trouble any more, and still why it is another one now.
        (came_back(ready=True, **KILLED), "", None, "OOMKilled, exit code 137"),
        # What keeps it from being ready for so long is something else.
        (came_back("2026-01-31T23:00:00Z", **KILLED), "", None, ""),
        (
            {**came_back(**KILLED), "reason": "Evicted"},
            *("Evicted", None, "OOMKilled, exit code 137"),
        ),
    ],
)
def test_why_a_container_that_is_back_at_once_is_not_ready(
    status: dict[str, Any], reason: str, code: int | None, before: str
):
    """Nobody may have seen it wait: its first end has no back-off."""
    read = reading.pod_of(pod(**status), NOW)
    assert read is not None
    assert (read.reason, read.exit_code, read.before) == (reason, code, before)


def test_how_long_a_pod_lived():
    runs = reading.pod_of(pod(**container(running={"startedAt": STARTED})), NOW)
    over = {"startedAt": STARTED, "finishedAt": "2026-02-01T00:00:41Z", "exitCode": 1}
    ended = reading.pod_of(pod(**container(terminated=over)), NOW)
    assert runs is not None
    assert ended is not None
    assert (runs.lived_s, ended.lived_s) == (30.0, 11.0)


def test_a_container_that_could_not_be_started_has_not_lived_since_1970():
    """As containerd has it of one whose program is not there."""
    never = {
        "startedAt": "1970-01-01T00:00:00Z",
        "finishedAt": "2026-02-01T00:00:41Z",
        "exitCode": 128,
        "reason": "StartError",
    }
    unknown = {"startedAt": STARTED, "finishedAt": None, "exitCode": 137}
    read = [reading.pod_of(pod(**container(terminated=one)), NOW) for one in (never, unknown)]
    assert [one and one.lived_s for one in read] == [0.0, 30.0]


def test_the_image_of_a_pod_is_that_which_it_was_given():
    """Whatever a webhook has made of it: it would never be that which the operator gives."""
    changed, older = pod(), pod()
    for one in (changed, older):
        one["spec"]["containers"] = [{"image": "mirror.example.org/runtime@sha256:1"}]
    changed["metadata"]["annotations"] = {MADE_WITH: "runtime:1"}
    read = [reading.pod_of(reading.brief(one), NOW) for one in (changed, older)]
    images = [one and one.image for one in read]
    assert images == ["runtime:1", "mirror.example.org/runtime@sha256:1"]


@pytest.mark.parametrize(
    ("told", "begun"),
    [
        ({"state": {"waiting": {"reason": "ImagePullBackOff"}}, "restartCount": 0}, False),
        ({"state": {"waiting": {"reason": "CreateContainerError"}}, "lastState": {}}, False),
        ({"state": {"waiting": {}}, "lastState": {"terminated": {"exitCode": 1}}}, True),
        ({"state": {"waiting": {}}, "restartCount": 1}, True),
        ({"state": {"running": {"startedAt": STARTED}}}, True),
        ({"state": {"terminated": {"exitCode": 1}}}, True),
    ],
)
def test_a_pod_has_begun_once_its_container_was_started(told: dict[str, Any], begun: bool):
    """Whatever its phase is: one beside it may not have been."""
    found = {**pod(), "status": {"phase": "Pending", "containerStatuses": [told]}}
    found["metadata"]["annotations"] = {DIGEST: "d"}
    read = reading.pod_of(reading.brief(found), NOW)
    assert read is not None
    assert (read.begun, read.digest) == (begun, "d")


def test_a_pod_on_no_node_has_not_begun():
    read = reading.pod_of(reading.brief({**pod(), "status": {}}), NOW)
    assert read is not None
    assert not read.begun


@pytest.mark.parametrize(
    ("ready", "answers"), [("True", True), ("False", True), ("Unknown", False)]
)
def test_a_node_that_fell_silent_does_not_answer(ready: str, answers: bool):
    conditions = [{"type": "Ready", "status": ready}]
    assert reading.node_answers({"status": {"conditions": conditions}}) is answers
    assert reading.node_answers({})


def test_a_status_of_a_newer_release_says_what_it_always_said():
    """Forgotten numbers of drivers would be used again, and lost stores be made anew."""
    status = {
        "phase": "Dreaming",
        "driver": {"number": 7, "fruitless": 2, "dreams": [{"of": "sheep"}]},
        "conditions": [
            {"type": "Ready", "status": "True", "reason": "A", "message": "", "colour": "red"}
            | {"lastTransitionTime": "2026-02-01T00:00:30Z"}
        ],
        "sleep": {"deep": True},
    }
    read = reading.resource_of(topology(status))
    assert read.unread == ""
    assert read.status.driver is not None
    assert (read.status.driver.number, read.status.driver.fruitless) == (7, 2)
    assert (read.status.phase, len(read.status.conditions)) == (None, 1)
    changed = reading.resource_of(topology({**status, "driver": {"number": "seven"}}))
    assert "status.driver.number" in changed.unread


def topology(status: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": "words", "namespace": "default", "uid": "u1", "generation": 1}
    return {"metadata": metadata, "spec": {}, "status": status}


def test_an_accepted_topology_of_a_newer_format_is_not_taken_for_a_lost_one():
    text = json.dumps(checked.with_checksum({"format": 99, "topology": {}}))
    with pytest.raises(NewerFormatError, match="format 99"):
        reading.accepted_of({"data": {"accepted.json": text}})


def test_a_status_that_no_release_wrote_counts_as_none():
    world = World()
    world.resource["status"] = {"driver": {"number": "many"}}
    assert reading.resource_of(world.resource).status.driver is None


def test_what_was_written_is_read_as_it_was():
    world = World()
    operator = world.settle()
    operator.turn(KEY)
    maps = {p.rpartition("/")[2]: o for p, o in world.api.objects.items() if "/configmaps/" in p}
    accepted = reading.accepted_of(maps["words-accepted"])
    assert accepted is not None
    assert accepted.topology["metadata"]["name"] == "words"
    view, proposal = reading.view_of(maps["words-view"]), reading.proposal_of(maps["words-inbox"])
    assert view is not None
    assert proposal is not None
    assert view.target == proposal.members


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 1}'])
def test_what_is_damaged_is_no_accepted_topology_and_no_proposal(text: str):
    assert reading.accepted_of({"data": {"accepted.json": text}}) is None
    assert reading.proposal_of({"data": {"proposal": text}}) is None
    assert reading.proposes({"data": {"proposal": text}})


@pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
def test_a_view_that_is_none_is_no_missing_view(text: str):
    with pytest.raises(MillraceError):
        reading.view_of({"data": {"view": text}})
    assert reading.view_of(None) is None
    assert reading.view_of({}) is None


def test_what_the_driver_told_is_read_line_by_line():
    line = codec.encode_line(RunEvent(1.0, "Started", "go", 3))
    newer = json.dumps({**json.loads(line), "format": codec.FORMAT + 1})
    text = f"a-1 {line}a-2 {{\na-3 {newer}\n\na-4 {line}"
    told = reading.told_of({"data": {"events": text}})
    assert list(told) == ["a-1", "a-4"]
    assert told["a-1"] == RunEvent(1.0, "Started", "go", 3)
    assert reading.told_of(None) == {}


def test_what_a_newer_operator_proposed_and_booked_stands_in_nobodys_way():
    """One that takes over from it proposes and books anew, for every topology."""
    newer = json.dumps(checked.with_checksum({"format": codec.FORMAT + 1, "more": 1}))
    known = checked.verified(dict(codec.encode(Proposal((), ()))))
    unknown = json.dumps(checked.with_checksum({**known, "more": 1}))
    for text in (newer, unknown):
        assert reading.proposal_of({"data": {names.PROPOSAL: text}}) is None
        assert reading.booked_of({"data": {BOOKS_KEY: text}}) == ()


def test_of_figures_that_cannot_be_read_nothing_is_known():
    figures = Status(sealed=7, follows=3)
    told = json.dumps(codec.encode(figures))
    assert reading.status_of({"data": {"status": told}}) == figures
    newer = json.dumps(checked.with_checksum({"format": codec.FORMAT + 1}))
    for text in ("", "{", newer):
        assert reading.status_of({"data": {"status": text}}) is None
    assert reading.status_of(None) is None
    with pytest.raises(NewerFormatError):
        codec.decode(Status, newer)


@pytest.mark.parametrize(
    ("ready", "containers", "silenced"),
    [
        ("False", "True", True),
        ("False", "False", False),
        ("True", "True", False),
        ("False", None, False),
    ],
)
def test_a_pod_that_was_called_not_ready_for_its_nodes_silence(
    ready: str, containers: str | None, silenced: bool
):
    """Kubernetes' node controller changes the one condition and not the other."""
    found = [{"type": "Ready", "status": ready}]
    found += [{"type": "ContainersReady", "status": containers}] if containers else []
    read = reading.pod_of(pod("words-state-0", "state-server", conditions=found), NOW)
    assert read is not None
    assert (read.ready, read.silenced) == (ready == "True", silenced)


@pytest.mark.parametrize(
    ("condition", "ready_s"),
    [
        ({"status": "True", "lastTransitionTime": "2026-02-01T00:00:30Z"}, 30.0),
        ({"status": "False", "lastTransitionTime": "2026-02-01T00:00:30Z"}, 0.0),
        ({"status": "True", "lastTransitionTime": None}, 0.0),
        ({"status": "True"}, 0.0),
    ],
)
def test_since_when_a_pod_is_ready(condition: dict[str, Any], ready_s: float):
    found = pod("words-state-0", "state-server", conditions=[{"type": "Ready", **condition}])
    read = reading.pod_of(found, NOW)
    assert read is not None
    assert read.ready_s == ready_s
