"""What a plan asks for, done to the API server, one action after the other.

Every write stands under a condition that fails if the plan was made of something that is not true
any more: the status under the topology's version, so that a number of a driver is written by one
operator alone; a proposal under the inbox's; deletions under uid and version; creations under a
name. ``StaleError`` then ends the plan, and the next one is made of what is there; but where a pod
that was to be deleted has changed meanwhile, as those of a lost node do all at once, or may not be
deleted, it is raised behind the last action: a driver that the status speaks of shall not wait for
it. A child that the API server does not take, or fails at as where an admission webhook does not
answer, is noted: a pod, or the config map that it is told by, does not hold up the others, and a
disruption budget, or a change of what stands there already, is raised behind the last action;
anything else ends the plan, since what follows needs it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from http import HTTPStatus
from typing import assert_never

from millrace.clock import Clock
from millrace.errors import MillraceError
from millrace.homes import codec
from millrace.homes import pods as names
from millrace.homes.documents import Proposal
from millrace.homes.stores import HomeAwayError
from millrace.kube.inboxmap import texts_of, written
from millrace.topology.model import API_VERSION, KIND
from millrace_operator.api.resources import TopologyStatus
from millrace_operator.builders.documents import secret_values
from millrace_operator.kube import kinds
from millrace_operator.kube.events import Subject, announce
from millrace_operator.kube.objects import Object, Objects, RefusedError, StaleError, owner_uid
from millrace_operator.kube.observing import Seen
from millrace_operator.kube.reading import Inbox, inbox_of
from millrace_operator.reconcile.actions import (
    Action,
    Announce,
    Apply,
    AskDriver,
    Create,
    CreateSnapshot,
    DeleteChild,
    DeletePod,
    DeleteSnapshot,
    FillSecret,
    Propose,
    Withdraw,
    WriteSnapshotStatus,
    WriteStatus,
)
from millrace_operator.reconcile.observe import Resource

_DRIVEN_OUT = "is there already, and belongs to something else; delete or rename that"

_UNANSWERED = "its creation is not answered, as where an admission webhook hangs"

_TRIES = 3
"""Writes of a proposal, between which requests were put beside it or taken away."""

_LONG_S = 2.0
"""A creation that fails after so long waited for something: the API server gives a webhook ten
seconds, and says then that it failed."""


class NotLeadingError(MillraceError):
    """Another operator may act by now."""


@dataclass(slots=True)
class Acting:
    """Carries out the plan made of ``seen``. ``leading`` is asked before each action; ``refusals``
    collects pods that were not taken, with what the API server said, and ``created`` the others."""

    objects: Objects
    seen: Seen
    now: datetime
    clock: Clock
    leading: Callable[[], bool] = lambda: True
    refusals: dict[str, str] = field(default_factory=dict)
    created: set[str] = field(default_factory=set)
    _pods: set[str] = field(default_factory=set, init=False)
    """Names of those that are to be created."""
    _version: str | None = field(default=None, init=False)
    """Of the topology, behind a status that was written."""
    _unanswered: dict[str | None, str] = field(default_factory=dict, init=False)
    """Roles of which a pod's creation was not answered, or failed late, and what is told of it."""
    _late: RefusedError | None = field(default=None, init=False)
    _changed: StaleError | None = field(default=None, init=False)

    def carry_out(self, actions: Sequence[Action]) -> None:
        """All of them, up to the first that fails. Raises as ``Objects``, what nothing else needs
        at the end."""
        made = [action.manifest for action in actions if isinstance(action, Create)]
        self._pods = {one["metadata"]["name"] for one in made if one["kind"] == "Pod"}
        for action in actions:
            if not self.leading():
                raise NotLeadingError("this operator leads no more")
            self._act(action)
        late = self._late or self._changed
        if late is not None:
            raise late

    def _act(self, action: Action) -> None:
        match action:
            case Announce():
                announce(self.objects, self.seen.observed.resource, action, self.now)
            case WriteStatus(status):
                self._write_status(status)
            case Apply(manifest):
                self._apply(manifest)
            case Create(manifest):
                self._create(manifest)
            case FillSecret():
                self._fill(action)
            case DeletePod():
                self._delete_pod(action)
            case DeleteChild(kind, name, uid):
                self._delete(kind, name, uid)
            case Propose(proposal):
                self._propose(proposal)
            case AskDriver(token, request):
                self._inbox(token, json.dumps(codec.encode(request)))
            case Withdraw(token):
                self._inbox(token, None)
            case CreateSnapshot(manifest):
                self.objects.create(manifest)
            case DeleteSnapshot(name, uid):
                self._delete(kinds.SNAPSHOT, name, uid)
            case WriteSnapshotStatus():
                write_snapshot(self.objects, self._space, action, self.now)
            case other:
                assert_never(other)

    def _write_status(self, status: TopologyStatus) -> None:
        resource, version = self.seen.observed.resource, self._version or self.seen.version
        self._version = write_status(self.objects, resource, version, status)

    def _apply(self, manifest: Object) -> None:
        metadata = manifest["metadata"]
        there = self.objects.get(
            kinds.one(manifest["kind"], metadata["namespace"], metadata["name"])
        )
        if there is not None:
            self._check_own(manifest, there)
            # Another may take its place meanwhile.
            held = {name: there["metadata"][name] for name in ("uid", "resourceVersion")}
            manifest = {**manifest, "metadata": {**metadata, **held}}
        try:
            self.objects.apply(manifest)
        except RefusedError as error:
            # Pods that die meanwhile are to be replaced all the same; but a driver goes by what it
            # is told, and must not be ahead of what is kept of that.
            new = there is None and manifest["kind"] != "PodDisruptionBudget"
            if new or (manifest["kind"] == "ConfigMap" and not _holds(there, manifest)):
                raise
            self._late = self._late or error

    def _create(self, manifest: Object) -> None:
        kind, metadata = manifest["kind"], manifest["metadata"]
        if kind == "Pod" and metadata["name"] in self.refusals:
            return  # it is told nothing
        role = metadata.get("labels", {}).get(names.ROLE_LABEL)
        if kind == "Pod" and role in self._unanswered:
            self.refusals[metadata["name"]] = self._unanswered[role]
            return  # the next plan asks again, and others are not to wait so often
        begin_s = self.clock.monotonic_s()
        try:
            if self.objects.create(manifest):
                self.created.add(metadata["name"])
                return
            path = kinds.one(kind, metadata["namespace"], metadata["name"])
            there = self.objects.get(path)
            if there is None:
                raise StaleError(f"{kind} {metadata['name']}: was there, and is gone")
            self._check_own(manifest, there)
        except (RefusedError, StaleError, HomeAwayError) as error:
            pod, of_pod = kind == "Pod", kind == "ConfigMap" and metadata["name"] in self._pods
            silent = isinstance(error, HomeAwayError) and error.status is None
            if not (pod or of_pod) or not (_answered(error) or (pod and silent)):
                raise
            said = error.message if isinstance(error, RefusedError) else str(error)
            if silent:
                said = f"{_UNANSWERED}: {said}"
            if pod and self.clock.monotonic_s() - begin_s >= _LONG_S:
                self._unanswered[role] = said
            self.refusals[metadata["name"]] = f"its ConfigMap: {said}" if of_pod else said

    def _fill(self, filled: FillSecret) -> None:
        held = {"resourceVersion": filled.version}
        body = {"metadata": held, "data": secret_values(filled.data)}
        self.objects.merge(kinds.one("Secret", self._space, filled.name), body)

    def _check_own(self, manifest: Object, there: Object) -> None:
        if owner_uid(there) != self.seen.observed.resource.uid:
            name = manifest["metadata"]["name"]
            raise RefusedError(f"{manifest['kind']} {name}", 409, _DRIVEN_OUT)

    def _delete_pod(self, pod: DeletePod) -> None:
        version = self.seen.pod_versions.get(pod.uid)
        place = kinds.one("Pod", self._space, pod.name)
        try:
            self.objects.delete(place, pod.uid, version, 0 if pod.force else None)
        except StaleError as error:
            self._changed = self._changed or error
        except RefusedError as error:
            self._late = self._late or error

    def _delete(self, kind: str, name: str, uid: str) -> None:
        self.objects.delete(kinds.one(kind, self._space, name), uid)

    @property
    def _space(self) -> str:
        return self.seen.observed.resource.namespace

    def _inbox(self, token: str, text: str | None) -> None:
        """One request alone."""
        resource = self.seen.observed.resource
        path = kinds.one("ConfigMap", resource.namespace, names.inbox_map(resource.name))
        self.objects.merge(path, {"data": {names.REQUEST_PREFIX + token: text}})

    def _propose(self, proposal: Proposal) -> None:
        """Its keys alone: requests that lie beside them are others', and may come and go; but not
        over a proposal that the plan knows nothing of, an operator's that leads by now."""
        resource = self.seen.observed.resource
        path = kinds.one("ConfigMap", resource.namespace, names.inbox_map(resource.name))
        inbox = self.seen.inbox
        for left in reversed(range(_TRIES)):
            held = {"resourceVersion": (inbox or self._same_inbox(path)).version}
            try:
                self.objects.merge(path, {"metadata": held, "data": written(proposal)})
            except StaleError:
                if not left:
                    raise
                inbox = None
            else:
                return

    def _same_inbox(self, path: str) -> Inbox:
        """The inbox as it is now. Raises ``StaleError`` where it holds another proposal than the
        plan was made of."""
        there = self.objects.get(path)
        now, before = inbox_of(there), self.seen.inbox
        own = there is not None and owner_uid(there) == self.seen.observed.resource.uid
        proposed = before.texts if before is not None else texts_of({})
        if now is None or not own or now.texts != proposed:
            raise StaleError(f"{path}: holds another proposal by now")
        return now


def _holds(there: Object | None, manifest: Object) -> bool:
    """Whether an object that is there has the data of one that is to be applied."""
    return there is not None and there.get("data") == manifest.get("data")


def _answered(error: MillraceError) -> bool:
    """Whether it says that nothing was made, as an admission webhook that fails does: that may last
    as long as any refusal. Should the pod be there all the same, the next plan finds it."""
    failed = HTTPStatus.INTERNAL_SERVER_ERROR
    return not isinstance(error, HomeAwayError) or error.status == failed


def write_status(objects: Objects, resource: Resource, version: str, status: TopologyStatus) -> str:
    """The status of a topology, if it still is what it was at ``version``: that which it has then.
    Raises as ``Objects``."""
    told = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": resource.name,
            "namespace": resource.namespace,
            "uid": resource.uid,
            "resourceVersion": version,
        },
        "status": status.model_dump(by_alias=True, mode="json", exclude_none=True),
    }
    return str(objects.apply(told, "/status")["metadata"]["resourceVersion"])


def write_snapshot(
    objects: Objects, namespace: str, action: WriteSnapshotStatus, now: datetime
) -> None:
    """The status of a snapshot's resource, and behind it what is to be told. Raises as
    ``Objects``."""
    told = {
        "apiVersion": API_VERSION,
        "kind": kinds.SNAPSHOT,
        "metadata": {
            "name": action.name,
            "namespace": namespace,
            "uid": action.uid,
            "resourceVersion": action.version,
        },
        "status": action.status.model_dump(by_alias=True, mode="json", exclude_none=True),
    }
    objects.apply(told, "/status")
    if action.told is not None:
        subject = Subject(action.name, namespace, action.uid, kinds.SNAPSHOT)
        announce(objects, subject, action.told, now)
