"""From objects of the API server to the values that a plan is made of; pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from millrace import checked
from millrace.errors import NewerFormatError
from millrace.homes import codec
from millrace.homes import pods as names
from millrace.homes.accepted import Accepted, accepted_from
from millrace.homes.documents import Proposal, RunEvent, Status
from millrace.homes.pods import Role
from millrace.kube.journalmap import events_in
from millrace.protocol.codec import decode_view
from millrace.protocol.types import View
from millrace_operator.api.resources import TopologyStatus
from millrace_operator.builders.documents import ACCEPTED_KEY
from millrace_operator.builders.naming import FINGERPRINT
from millrace_operator.reconcile.observe import Child, Pod, PodPhase, Resource
from millrace_operator.reconcile.plan import DIGEST

Object = Mapping[str, Any]


def resource_of(found: Object) -> Resource:
    """A topology. A status that no release wrote counts as none."""
    metadata = found["metadata"]
    try:
        status = TopologyStatus.model_validate(found.get("status") or {})
    except ValidationError:
        status = TopologyStatus()
    return Resource(
        metadata["name"],
        metadata["namespace"],
        metadata["uid"],
        metadata["generation"],
        {"metadata": {"annotations": metadata.get("annotations") or {}}, "spec": found["spec"]},
        status,
        "deletionTimestamp" in metadata,
    )


def pod_of(found: Object, now: datetime, run_id: str | None = None) -> Pod | None:
    """A pod of a topology; None for one whose labels or name say that it is none of ours."""
    metadata, spec, status = found["metadata"], found.get("spec", {}), found.get("status", {})
    number = metadata["name"].rpartition("-")[2]
    try:
        component = Role(metadata.get("labels", {}).get(names.ROLE_LABEL))
    except ValueError:
        return None
    if component is not Role.EXECUTOR and not number.isdigit():
        return None
    reason, message, exit_code = _why(status)
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in _conditions(status))
    return Pod(
        metadata["name"],
        metadata["uid"],
        component,
        int(number) if number.isdigit() else 0,
        PodPhase(status.get("phase", "Pending")),
        ready,
        "deletionTimestamp" in metadata,
        spec.get("nodeName"),
        status.get("podIP"),
        run_id,
        metadata.get("annotations", {}).get(FINGERPRINT, ""),
        reason,
        message,
        exit_code,
        _lived_s(status, now),
    )


def _conditions(status: Object) -> list[Object]:
    return list(status.get("conditions") or [])


def _why(status: Object) -> tuple[str, str, int | None]:
    """Reason, message and exit code: what the container says, then the pod, then the scheduler."""
    exit_code = None
    for container in status.get("containerStatuses") or []:
        state = container.get("state", {})
        ended = state.get("terminated")
        if ended is not None:
            exit_code = ended.get("exitCode")
            if status.get("reason") is None:
                return ended.get("reason", ""), ended.get("message", ""), exit_code
        waiting = state.get("waiting", {})
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            last = container.get("lastState", {}).get("terminated", {})
            killed = last.get("reason") if last.get("reason") == "OOMKilled" else None
            text = waiting.get("message", "") or last.get("message", "")
            return killed or waiting["reason"], text, exit_code
    if status.get("reason") is not None:
        return status["reason"], status.get("message", ""), exit_code
    for condition in _conditions(status):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return condition.get("reason", ""), condition.get("message", ""), exit_code
    return "", "", exit_code


def _lived_s(status: Object, now: datetime) -> float:
    """How long the first container runs, or ran."""
    for container in status.get("containerStatuses") or []:
        state = container.get("state", {})
        times = state.get("running") or state.get("terminated") or {}
        if times.get("startedAt"):
            end = datetime.fromisoformat(times["finishedAt"]) if "finishedAt" in times else now
            return max(0.0, (end - datetime.fromisoformat(times["startedAt"])).total_seconds())
    return 0.0


def node_answers(found: Object) -> bool:
    """Whether a node answers: Unknown is what Kubernetes says of one that fell silent."""
    conditions = _conditions(found.get("status", {}))
    return not any(c["type"] == "Ready" and c["status"] == "Unknown" for c in conditions)


def child_of(found: Object) -> Child:
    """Any other child."""
    metadata = found["metadata"]
    digest = (metadata.get("annotations") or {}).get(DIGEST, "")
    return Child(found["kind"], metadata["name"], metadata["uid"], digest)


def accepted_of(found: Object | None) -> Accepted | None:
    """The accepted topology in its config map; None where there is none that can be believed."""
    text = _data(found, ACCEPTED_KEY)
    try:
        return None if text is None else accepted_from(checked.verified(checked.parse(text)))
    except (checked.DamagedError, KeyError, TypeError):
        return None


def proposal_of(found: Object | None) -> Proposal | None:
    """What was proposed last; what cannot be read is proposed anew."""
    text = _data(found, names.PROPOSAL)
    try:
        return None if text is None else codec.decode(Proposal, text)
    except checked.DamagedError:
        return None


def view_of(found: Object | None) -> View | None:
    """The view in its config map. Raises ``ProtocolError`` for what is none, and
    ``NewerFormatError``: nothing may be deleted on the ground of a view that cannot be read."""
    text = _data(found, names.VIEW)
    return None if text is None else decode_view(text.encode())


def status_of(found: Object | None) -> Status | None:
    """The figures of a driver in its config map; None for what cannot be read: nothing follows."""
    text = _data(found, names.STATUS)
    try:
        return None if text is None else codec.decode(Status, text)
    except (checked.DamagedError, NewerFormatError):
        return None


def told_of(found: Object | None) -> dict[str, RunEvent]:
    """Events that the driver told, by their names, older ones first."""
    return events_in((found or {}).get("data") or {})


def _data(found: Object | None, key: str) -> str | None:
    data: Mapping[str, str] = (found or {}).get("data") or {}
    return data.get(key)
