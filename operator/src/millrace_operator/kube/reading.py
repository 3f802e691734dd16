"""From objects of the API server to the values that a plan is made of; pure functions."""

from __future__ import annotations

import base64
import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from millrace import checked
from millrace.errors import NewerFormatError, WorkFolderError
from millrace.homes import codec
from millrace.homes import pods as names
from millrace.homes.accepted import Accepted, accepted_from
from millrace.homes.documents import Proposal, RunEvent, Status
from millrace.homes.pods import Role
from millrace.kube.inboxmap import proposal_in, texts_of
from millrace.kube.journalmap import events_in
from millrace.protocol.codec import decode_view
from millrace.protocol.types import View
from millrace.snapshots.timelines import Fork, decoded
from millrace.topology.problems import format_path
from millrace_operator.api.resources import (
    DeletionPolicy,
    SnapshotPhase,
    SnapshotStatus,
    TopologyStatus,
)
from millrace_operator.api.times import until_s
from millrace_operator.builders.documents import ACCEPTED_KEY, BOOKS_KEY, FORMAT
from millrace_operator.builders.naming import DIGEST, FINGERPRINT, MADE_WITH
from millrace_operator.kube.objects import owner_uid
from millrace_operator.reconcile.observe import (
    Booked,
    Books,
    Child,
    Pod,
    PodPhase,
    Resource,
    Secrets,
    Snapshot,
)

Object = Mapping[str, Any]


def resource_of(found: Object) -> Resource:
    """A topology, with what this release knows of its status."""
    metadata = found["metadata"]
    status, unread = _status(found.get("status") or {})
    return Resource(
        metadata["name"],
        metadata["namespace"],
        metadata["uid"],
        metadata["generation"],
        {"metadata": {"annotations": metadata.get("annotations") or {}}, "spec": found["spec"]},
        status,
        "deletionTimestamp" in metadata,
        unread,
    )


_SHOWN_ALONE = ("phase",)
"""Fields of a status that nothing follows from."""


def _status(document: Object) -> tuple[TopologyStatus, str]:
    """A status, and what of it cannot be read though something may follow from it. Fields that
    only a newer release knows are left out: what there was before them means what it meant."""
    for _ in range(2):
        try:
            return TopologyStatus.model_validate(document), ""
        except ValidationError as error:
            faults = error.errors(include_input=False, include_url=False)
        document = copy.deepcopy(document)
        for fault in faults:
            *above, last = fault["loc"]
            if fault["type"] == "extra_forbidden" or fault["loc"][:1] == _SHOWN_ALONE:
                holder: Any = document
                for step in above:
                    holder = holder[step]
                holder.pop(last, None)
    fault = faults[0]
    text = (
        f"{format_path(('status', *fault['loc']))}: {fault['msg']}: another release may have "
        "written it; run that operator again, or a newer one"
    )
    return TopologyStatus(), text


_ANNOTATIONS = (DIGEST, FINGERPRINT, MADE_WITH, names.STANDBY_ANNOTATION)
"""Of a pod, that are read."""


def brief(found: Object) -> Object:
    """What of a pod is read here, by whomever it was made: the rest may be large."""
    metadata, labels = found["metadata"], found["metadata"].get("labels") or {}
    annotations = metadata.get("annotations") or {}
    kept = ("name", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp")
    owners, spec = metadata.get("ownerReferences") or [], found.get("spec", {})
    role, status = labels.get(names.ROLE_LABEL, ""), found.get("status", {})
    containers = _ours(spec.get("containers"), role)[:1]
    return {
        "kind": "Pod",
        "metadata": {
            **{name: metadata[name] for name in kept if name in metadata},
            "ownerReferences": [{n: o[n] for n in ("uid", "controller") if n in o} for o in owners],
            "labels": {n: labels[n] for n in (names.ROLE_LABEL,) if n in labels},
            "annotations": {n: annotations[n] for n in _ANNOTATIONS if n in annotations},
        },
        "spec": {
            **{n: spec[n] for n in ("nodeName",) if n in spec},
            "containers": [{"image": c.get("image", "")} for c in containers],
            "volumes": list(_needed(spec)),
        },
        "status": {**status, "containerStatuses": _ours(status.get("containerStatuses"), role)},
    }


_VOLUMES = (("ConfigMap", "configMap", "name"), ("Secret", "secret", "secretName"))
"""Kinds of objects that volumes are made of, and where a volume says which."""


def _needed(spec: Object) -> Iterator[Object]:
    for volume in spec.get("volumes") or []:
        for _, form, field in _VOLUMES:
            told = volume.get(form) or {}
            if field in told and not told.get("optional"):
                yield {form: {field: told[field]}}


def mounted(found: Object) -> list[tuple[str, str]]:
    """Kinds and names of what a pod that was put on a node waits for before it begins, as ``brief``
    has it; nothing for others."""
    status, spec = found.get("status", {}), found.get("spec", {})
    if status.get("phase", "Pending") != "Pending" or not spec.get("nodeName") or _why(status)[0]:
        return []
    return [
        (kind, volume[form][field])
        for volume in spec.get("volumes") or []
        for kind, form, field in _VOLUMES
        if form in volume
    ]


def _ours(listed: list[Object] | None, role: str) -> list[Object]:
    """Of containers, or their statuses, that of ours: a mesh may have put others before it."""
    name = names.EXECUTOR_CONTAINER if role == Role.EXECUTOR else role
    return [one for one in listed or [] if one.get("name") == name] or list(listed or [])


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
    if "deletionTimestamp" in metadata:
        reason, message = _driven_out(status) or (reason, message)
    ready = _holds(status, "Ready")
    before = _ended_before(status, now)
    if not reason and not ready and before is not None:
        reason, message, exit_code = before
    return Pod(
        metadata["name"],
        metadata["uid"],
        component,
        int(number) if number.isdigit() else 0,
        PodPhase(names.driver_phase(status)),
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
        _made_with(metadata, spec),
        metadata.get("annotations", {}).get(names.STANDBY_ANNOTATION, ""),
        "" if before is None else _said(*before),
        metadata.get("annotations", {}).get(DIGEST, ""),
        _started(status),
        _age_s(metadata, now),
        _ready_s(status, now),
        not ready and _holds(status, "ContainersReady"),
    )


def _made_with(metadata: Object, spec: Object) -> str:
    """The image that the operator gave a pod. One of an older operator does not say so: what its
    container has is what it was given, or what somebody made of that."""
    noted: str = metadata.get("annotations", {}).get(MADE_WITH, "")
    return noted or next((one.get("image", "") for one in spec.get("containers") or []), "")


def _holds(status: Object, condition: str) -> bool:
    return any(c["type"] == condition and c["status"] == "True" for c in _conditions(status))


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
                return ended.get("reason", ""), _last_words(ended), exit_code
        waiting = state.get("waiting", {})
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            last = container.get("lastState", {}).get("terminated", {})
            killed = last.get("reason") if last.get("reason") == "OOMKilled" else None
            text = waiting.get("message", "") or _last_words(last)
            return killed or waiting["reason"], text, exit_code
    if status.get("reason") is not None:
        return status["reason"], status.get("message", ""), exit_code
    for condition in _conditions(status):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return condition.get("reason", ""), condition.get("message", ""), exit_code
    return "", "", exit_code


def _driven_out(status: Object) -> tuple[str, str] | None:
    """Who has a pod deleted for the sake of something else, and what for: an eviction, a taint, a
    pod of higher priority. Nothing else of the pod says so."""
    for condition in _conditions(status):
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            return condition.get("reason", ""), condition.get("message", "")
    return None


_JUST_BEGUN_S = 60.0
"""Of a container that runs for longer the end before says nothing any more."""


def _ended_before(status: Object, now: datetime) -> tuple[str, str, int] | None:
    """The same of a container that was started again just now: how it ended before, where that was
    not what it should. The first time nobody sees it wait."""
    for container in status.get("containerStatuses") or []:
        ended = container.get("lastState", {}).get("terminated") or {}
        runs = "running" in container.get("state", {})
        if runs and ended.get("exitCode") and _lived_s(status, now) < _JUST_BEGUN_S:
            return ended.get("reason") or "Error", _last_words(ended), ended["exitCode"]
    return None


_FROM_OUTSIDE = {137: "killed by SIGKILL", 143: "ended by SIGTERM"}
_LOG_BYTES = 2048
"""What of the end of its log Kubernetes takes for the message of a container without one."""


def _last_words(ended: Object) -> str:
    """What a container says of its end. The log of one that was killed says nothing of why, and
    the first line of one that is cut is none."""
    text = str(ended.get("message", ""))
    if ended.get("exitCode") in _FROM_OUTSIDE:
        return _FROM_OUTSIDE[ended["exitCode"]] if ended.get("reason") == "Error" else ""
    if len(text.encode()) >= _LOG_BYTES and "\n" in text:
        return text.partition("\n")[2]
    return text


def _said(reason: str, message: str, exit_code: int) -> str:
    text = f"{reason}, exit code {exit_code}"
    return f"{text}: {message}" if message else text


def _lived_s(status: Object, now: datetime) -> float:
    """How long the first container runs, or ran. One that could not be started is said by some
    runtimes to have begun in 1970."""
    for container in status.get("containerStatuses") or []:
        state = container.get("state", {})
        times = state.get("running") or state.get("terminated") or {}
        if times.get("startedAt"):
            begun, over = datetime.fromisoformat(times["startedAt"]), times.get("finishedAt")
            if begun.timestamp() <= 0:
                return 0.0
            end = datetime.fromisoformat(over) if over else now
            return max(0.0, (end - begun).total_seconds())
    return 0.0


def _age_s(metadata: Object, now: datetime) -> float:
    made = metadata.get("creationTimestamp")
    return math.inf if not made else -until_s(made, now)


def _ready_s(status: Object, now: datetime) -> float:
    """For how long it has been ready; 0 for one that is not, or does not say since when."""
    times = [c.get("lastTransitionTime") for c in _conditions(status) if c["type"] == "Ready"]
    return -until_s(times[0], now) if _holds(status, "Ready") and times[0] else 0.0


def _started(status: Object) -> bool:
    """Whether its container runs, or ran: also one that waits to be started again."""
    return any(
        container.get("restartCount")
        or container.get("lastState", {}).get("terminated")
        or {"running", "terminated"} & container.get("state", {}).keys()
        for container in status.get("containerStatuses") or []
    )


def node_answers(found: Object) -> bool:
    """Whether a node answers: Unknown is what Kubernetes says of one that fell silent."""
    conditions = _conditions(found.get("status", {}))
    return not any(c["type"] == "Ready" and c["status"] == "Unknown" for c in conditions)


def child_of(found: Object) -> Child:
    """Any other child."""
    metadata = found["metadata"]
    digest = (metadata.get("annotations") or {}).get(DIGEST, "")
    return Child(found["kind"], metadata["name"], metadata["uid"], digest)


def secrets_of(found: Object | None, uid: str) -> Secrets | None:
    """What the Secret of the topology with this uid holds, as far as it is text; None where there
    is none of its own."""
    if found is None or owner_uid(found) != uid:
        return None
    data = {}
    for key, value in (found.get("data") or {}).items():
        with suppress(ValueError):
            data[key] = base64.b64decode(value).decode()
    return Secrets(found["metadata"]["resourceVersion"], data)


def accepted_of(found: Object | None) -> Accepted | None:
    """The accepted topology in its config map; None where there is none that can be believed.
    Raises ``NewerFormatError``."""
    text = _data(found, ACCEPTED_KEY)
    try:
        document = None if text is None else checked.decode(text)
        if document is not None and document.get("format", FORMAT) > FORMAT:
            raise NewerFormatError(
                f"the accepted topology is written in format {document['format']}, and this "
                f"operator reads {FORMAT}; run the newer one"
            )
        return None if document is None else accepted_from(document)
    except (checked.DamagedError, KeyError, TypeError):
        return None


def proposal_of(found: Object | None) -> Proposal | None:
    """What was proposed last; what cannot be read, a newer release's too, is proposed anew."""
    try:
        return proposal_in((found or {}).get("data") or {})
    except (checked.DamagedError, NewerFormatError):
        return None


def proposes(found: Object | None) -> bool:
    """Whether there is a proposal, one that can be read or not."""
    return _data(found, names.PROPOSAL) is not None


@dataclass(frozen=True, slots=True)
class Inbox:
    """At which version an inbox holds which proposal, as it is written: requests beside it come
    and go."""

    version: str
    texts: tuple[str | None, ...]


def inbox_of(found: Object | None) -> Inbox | None:
    """None for one that is not there."""
    if found is None:
        return None
    return Inbox(found["metadata"]["resourceVersion"], texts_of(found.get("data") or {}))


def view_of(found: Object | None) -> View | None:
    """The view in its config map. Raises ``ProtocolError`` for what is none, and
    ``NewerFormatError``: nothing may be deleted on the ground of a view that cannot be read."""
    text = _data(found, names.VIEW)
    return None if text is None else decode_view(text.encode())


def writer_of(found: Object | None) -> str:
    """The pod that wrote the view, as far as its driver says so."""
    return (_data(found, names.WRITTEN_BY) or "").rpartition(".")[0]


def status_of(found: Object | None) -> Status | None:
    """The figures of a driver in its config map; None for what cannot be read: nothing follows."""
    text = _data(found, names.STATUS)
    try:
        return None if text is None else codec.decode(Status, text)
    except (checked.DamagedError, NewerFormatError):
        return None


def snapshot_of(found: Object) -> Snapshot:
    """The resource of a snapshot, with what this release knows of its status."""
    metadata, spec = found["metadata"], found["spec"]
    document = found.get("status") or {}
    known = {field.alias or name for name, field in SnapshotStatus.model_fields.items()}
    try:
        status = SnapshotStatus.model_validate({k: v for k, v in document.items() if k in known})
    except ValidationError:
        # A newer release's: what it has done is not done again.
        status = SnapshotStatus(phase=SnapshotPhase.READY)
    return Snapshot(
        metadata["name"],
        metadata["uid"],
        metadata["resourceVersion"],
        metadata.get("generation", 0),
        spec["topology"],
        spec.get("to"),
        spec.get("deletionPolicy") == DeletionPolicy.DELETE.value,
        (metadata.get("labels") or {}).get(names.PERIODIC_LABEL, ""),
        status,
    )


def booked_of(found: Object | None) -> tuple[Booked, ...]:
    """The books of snapshots; none where they cannot be read, since a newer release wrote them for
    example: then they begin anew, and files that were to be deleted stay."""
    text = _data(found, BOOKS_KEY)
    try:
        return () if text is None else codec.decode(Books, text).booked
    except (checked.DamagedError, NewerFormatError):
        return ()


def asked_of(found: Object | None) -> frozenset[str]:
    """Tokens of the requests in an inbox."""
    prefix = names.REQUEST_PREFIX
    data: Mapping[str, str] = (found or {}).get("data") or {}
    return frozenset(key.removeprefix(prefix) for key in data if key.startswith(prefix))


def forks_of(found: Object | None) -> tuple[Fork, ...]:
    """The restores noted beside the view; none where that cannot be read: nothing follows."""
    try:
        return decoded(_data(found, names.TIMELINES))
    except (WorkFolderError, NewerFormatError):
        return ()


def restoring(found: Object | None) -> bool:
    """Whether a restore has begun and is not done."""
    return _data(found, names.RESTORING) is not None


def told_of(found: Object | None) -> dict[str, RunEvent]:
    """Events that the driver told, by their names, older ones first."""
    return events_in((found or {}).get("data") or {})


def _data(found: Object | None, key: str) -> str | None:
    data: Mapping[str, str] = (found or {}).get("data") or {}
    return data.get(key)
