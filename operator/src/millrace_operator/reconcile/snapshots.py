"""Resources of snapshots: taken for whoever applies one, told of where the topology takes them.

The driver alone sees where snapshots lie. A request goes into its inbox under a token made of the
resource's uid, and stays there until the status has the answer; the driver answers as long as the
request is there, and a snapshot says which request it answers. So whoever dies is followed by one
that does the same, and nothing is taken twice::

    applied --> booked --> asked (Taking) --> answered --> status Ready or Failed --> withdrawn

====================================  ========================================================
the operator dies right after         what follows
====================================  ========================================================
the books                             nothing was asked for yet: it is asked for
the request                           the driver takes the snapshot, and answers
the status                            the request is there still, and is withdrawn
the creation of a periodic one's      the next plan finds the resource, books it and tells its
resource                              status
====================================  ========================================================

No resource has a finalizer: it can be deleted, and so can its namespace, whoever is away. What a
resource that is gone had asked for on its deletion stands in the books, a config map of the
topology, and is done by the next driver. Where the topology goes first nobody is left to do it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from millrace.homes import pods as names
from millrace.homes.documents import (
    Answer,
    Ask,
    KeptSnapshot,
    Outcome,
    Request,
    delete_token,
    is_named_for,
    may_be_of,
    named_for,
    take_token,
)
from millrace.homes.pods import DATA_FOLDER, Role
from millrace.homes.settings import RestoreSettings
from millrace.protocol.types import Phase
from millrace.topology.checks.pods import lost_place
from millrace.topology.model import StreamTopology
from millrace_operator.api.resources import (
    ConditionType,
    SnapshotPhase,
    SnapshotStatus,
)
from millrace_operator.api.times import rfc3339
from millrace_operator.builders.documents import books_map, periodic_snapshot
from millrace_operator.builders.naming import Owner
from millrace_operator.reconcile.actions import (
    Action,
    Announce,
    Apply,
    AskDriver,
    CreateSnapshot,
    DeleteSnapshot,
    Withdraw,
    WriteSnapshotStatus,
)
from millrace_operator.reconcile.conditions import Fact, conditions_of, cut
from millrace_operator.reconcile.observe import Booked, Books, Observed, Snapshot
from millrace_operator.reconcile.troubles import Trouble

LOOK_S = 2.0
"""How often an answer is looked for: no watch tells of what the driver tells."""

SETTLED = (SnapshotPhase.READY, SnapshotPhase.FAILED)
"""Nothing follows from these any more, but for deletion."""


@dataclass(slots=True)
class SnapshotPlan:
    """``actions`` in order; ``wait_s``: look again then; ``newest``: name of the last one taken."""

    actions: list[Action] = field(default_factory=list)
    wait_s: float | None = None
    newest: str | None = None


def called(snapshot: Snapshot) -> str:
    """What a resource's snapshot is called in its place. A status that names somebody else's is not
    believed: it would be deleted with the resource."""
    if snapshot.periodic:
        return snapshot.name
    told = snapshot.status.snapshot
    if told is not None and is_named_for(told, snapshot.uid):
        return told
    return named_for(snapshot.name, snapshot.uid)


def plan_snapshots(
    observed: Observed, owner: Owner, topology: StreamTopology, now: datetime
) -> SnapshotPlan:
    """What follows for the snapshots of a topology."""
    return _Planner(observed, owner, topology, now).plan()


def plan_orphans(snapshots: tuple[Snapshot, ...], now: datetime) -> list[WriteSnapshotStatus]:
    """What is told of snapshots whose topology is not there."""
    made: list[WriteSnapshotStatus] = []
    for one in snapshots:
        if one.status.phase in SETTLED or one.periodic:
            continue
        if one.status.topology_uid is not None:
            made += _failed(one, now, "TopologyGone", _gone(one))
            continue
        text = f"there is no topology {one.topology!r} in this namespace yet"
        status = _status(one, now, SnapshotPhase.PENDING, "WaitsForTopology", text)
        made += _written(one, status)
    return made


def held_snapshots(
    observed: Observed, stalled: Trouble, now: datetime
) -> Iterator[WriteSnapshotStatus]:
    """What is told of those that are not asked for yet while nothing is done for the topology."""
    text = f"the topology is stalled ({stalled.reason}): {stalled.message}"
    for one in observed.snapshots:
        if one.topology != observed.resource.name or one.periodic:
            continue
        if one.status.phase in (None, SnapshotPhase.PENDING):
            status = _status(one, now, SnapshotPhase.PENDING, "TopologyStalled", text)
            yield from _written(one, status)


def was_open(observed: Observed) -> bool:
    """Whether windows of the topology may ever have run. A view that is being created is its first
    one, or that of a restore: then a fork says whether state had been lost."""
    view = observed.view
    if view is None or view.phase is not Phase.CREATING:
        return view is not None
    return any(fork.lost and fork.timeline == view.timeline for fork in observed.forks)


def begins_from(observed: Observed, topology: StreamTopology) -> RestoreSettings | Trouble | None:
    """The snapshot that a topology has to begin with, or why that cannot be; None where it has
    done so, or begins with nothing.

    One that has begun without it is given it, too: its driver refuses, so that somebody is told.
    So is one whose driver has claimed a snapshot and not restored it: another may be named, until
    windows run."""
    given, view = topology.spec.restore_from, observed.view
    if given is None or (view is not None and view.timeline > 1 and was_open(observed)):
        return None
    of = given.topology or ""
    if given.snapshot is None:
        return RestoreSettings(given.name or "", given.place or "", of)
    path = "spec.restoreFrom.snapshot"
    found = next((one for one in observed.snapshots if one.name == given.snapshot), None)
    if found is None and observed.restoring and _claimed(observed, given.snapshot):
        return None  # the driver needs no resource any more to go on
    if found is None:
        text = f"{path}: there is no TopologySnapshot {given.snapshot!r} in this namespace"
        return Trouble("SnapshotMissing", text)
    wanted = of or observed.resource.name
    if found.topology != wanted:
        text = (
            f"{path}: {given.snapshot} is of the topology {found.topology!r}, not of {wanted!r}; "
            "name another one, or that topology in spec.restoreFrom.topology"
        )
        return Trouble("SnapshotForeign", text)
    status = found.status
    if status.phase is not SnapshotPhase.READY or not (status.snapshot and status.place):
        why = f": {status.message}" if status.message else ""
        text = f"{path}: {given.snapshot} is not ready{why}"
        return Trouble("SnapshotNotReady", text)
    return RestoreSettings(status.snapshot, status.place, of)


def _claimed(observed: Observed, name: str) -> bool:
    """Whether the restore that has begun may be of the snapshot of a resource that is gone."""
    view = observed.view
    at = None if view is None else view.timeline
    claimed = next((one.snapshot for one in observed.forks if one.timeline == at), None)
    return claimed is None or may_be_of(claimed, name)


class _Planner:
    def __init__(
        self, observed: Observed, owner: Owner, topology: StreamTopology, now: datetime
    ) -> None:
        self._observed = observed
        self._owner = owner
        self._topology = topology
        self._now = now
        name = observed.resource.name
        self._mine = [one for one in observed.snapshots if one.topology == name]
        told = observed.told
        figures = told.snapshots if told is not None and told.uid == owner.uid else None
        self._answers = {one.token: one for one in figures.answers} if figures else {}
        kept = figures.kept if figures is not None else None
        self._kept = None if kept is None else {one.name: one for one in kept}
        self._place = figures.place if figures is not None else None
        self._made = SnapshotPlan()

    def plan(self) -> SnapshotPlan:
        booked = list(self._booked())
        if tuple(booked) != self._observed.booked:
            self._made.actions.append(Apply(books_map(self._owner, Books(tuple(booked)))))
        for one in self._mine:
            if one.periodic:
                self._made.actions += self._periodic(one)
            else:
                self._made.actions += self._asked_for(one)
        live = {one.uid for one in self._mine}
        for entry in self._observed.booked:
            if entry.uid not in live:
                self._made.actions += self._left(entry)
        self._made.actions += self._stale(live)
        self._made.actions += self._new_ones()
        ready = [one.status for one in self._mine if one.status.phase is SnapshotPhase.READY]
        ready = [one for one in ready if one.topology_uid == self._owner.uid and one.taken]
        last = max(ready, key=lambda one: one.taken or "", default=None)
        self._made.newest = last.snapshot if last is not None else None
        return self._made

    # -- the books

    def _booked(self) -> Iterator[Booked]:
        """What has a resource with which it is deleted, or one that the topology made for it, or
        had one and is to be deleted or not to be told of again."""
        live = set()
        for one in self._mine:
            if one.periodic and one.periodic != self._owner.uid:
                continue
            if one.status.topology_uid not in (None, self._owner.uid):
                continue
            live.add(one.uid)
            if not (one.deletes or one.periodic):
                # Nothing follows when it goes, and a config map has no room for all that may be.
                continue
            # The topology's own place may be another by the time that it is deleted.
            place, periodic = one.to or one.status.place, bool(one.periodic)
            yield Booked(one.uid, one.name, called(one), place, one.deletes, periodic)
        for entry in self._observed.booked:
            if entry.uid not in live and not self._done_with(entry):
                answer = self._answers.get(delete_token(entry.uid))
                # It would be asked for again and again.
                failed = answer is not None and answer.outcome is Outcome.FAILED
                yield replace(entry, deletes=False) if failed else entry

    def _done_with(self, entry: Booked) -> bool:
        """Whether nothing has to be known any more of one whose resource is gone."""
        answered = delete_token(entry.uid) in self._answers
        if not entry.periodic:
            return not entry.deletes or answered
        if entry.to not in (None, self._place):
            # What is told is of another place; this one may become the topology's again.
            return answered
        # As long as it is there another resource would be made for it.
        return self._kept is not None and entry.snapshot not in self._kept

    def _left(self, entry: Booked) -> Iterator[Action]:
        """The resource is gone."""
        if take_token(entry.uid) in self._observed.asked:
            yield Withdraw(take_token(entry.uid))
        token = delete_token(entry.uid)
        answer = self._answers.get(token)
        if answer is not None:
            if token in self._observed.asked:
                yield Withdraw(token)
            if answer.outcome is Outcome.FAILED:
                text = f"snapshot {entry.snapshot} was not deleted: {answer.text}"
                yield Announce("SnapshotLeft", text, warning=True)
            return
        if not entry.deletes or self._done_with(entry):
            if token in self._observed.asked:
                yield Withdraw(token)
            return
        self._look_for_an_answer()
        if token not in self._observed.asked:
            request = Request(Ask.DELETE_SNAPSHOT, name=entry.snapshot, to=entry.to, answered=True)
            yield AskDriver(token, request)

    def _stale(self, live: set[str]) -> Iterator[Action]:
        """Requests of which whoever made them died before it withdrew them."""
        known = live | {entry.uid for entry in self._observed.booked}
        for token in sorted(self._observed.asked):
            uid = token.partition("-")[2]
            if token in (take_token(uid), delete_token(uid)) and uid not in known:
                yield Withdraw(token)

    # -- asked for by somebody

    def _asked_for(self, one: Snapshot) -> Iterator[Action]:
        token = take_token(one.uid)
        asked = token in self._observed.asked
        answer = self._answers.get(token)
        if one.status.phase in SETTLED:
            if asked:
                yield Withdraw(token)
            return
        if one.status.topology_uid not in (None, self._owner.uid):
            yield from _failed(one, self._now, "TopologyGone", _gone(one))
            return
        if answer is not None:
            yield from self._answered(one, answer)
            if asked:
                yield Withdraw(token)
            return
        astray = lost_place(self._topology, one.to, DATA_FOLDER)
        if astray is not None and not asked:
            yield from self._waits(one, SnapshotPhase.PENDING, "NoPlace", astray)
            return
        if self._observed.child("ConfigMap", names.inbox_map(self._owner.name)) is None:
            text = "the topology's inbox is not made yet"
            yield from self._waits(one, SnapshotPhase.PENDING, "WaitsForDriver", text)
            return
        self._look_for_an_answer()
        reason, text = self._driver()
        yield from self._waits(one, SnapshotPhase.TAKING, reason, text)
        if not asked:
            request = Request(Ask.SNAPSHOT, name=called(one), to=one.to, answered=True)
            yield AskDriver(token, request)

    def _look_for_an_answer(self) -> None:
        """Where nobody answers, as behind the end of all input, a watch tells when somebody may."""
        if self._answers_come():
            self._made.wait_s = LOOK_S

    def _answers_come(self) -> bool:
        observed = self._observed
        return any(observed.alive(pod) and pod.ready for pod in observed.of(Role.DRIVER))

    def _driver(self) -> tuple[str, str]:
        if self._answers_come():
            return "Taking", "the driver is asked for it; it waits until sinks show what is sealed"
        return "WaitsForDriver", "no driver is ready; it takes the snapshot when there is one"

    def _waits(
        self, one: Snapshot, phase: SnapshotPhase, reason: str, text: str
    ) -> Iterator[Action]:
        status = _status(one, self._now, phase, reason, text)
        if phase is SnapshotPhase.TAKING:
            # Written before it is asked for: another topology of the name does not take it again.
            told = {"topology_uid": self._owner.uid, "snapshot": called(one)}
            status = status.model_copy(update=told)
        yield from _written(one, status)

    def _answered(self, one: Snapshot, answer: Answer) -> Iterator[Action]:
        taken = answer.snapshot
        self._made.wait_s = LOOK_S  # the topology's status names the newest one
        if answer.outcome is not Outcome.TAKEN or taken is None:
            text = answer.text or "the driver did not say why"
            yield from _failed(one, self._now, "SnapshotFailed", text)
            return
        status = self._ready(one, taken, answer.place)
        text = f"behind window {taken.window}: {taken.size_bytes:,} bytes in {answer.place}"
        told = Announce("SnapshotTaken", text)
        yield WriteSnapshotStatus(one.name, one.uid, one.version, status, told)

    def _ready(self, one: Snapshot, taken: KeptSnapshot, place: str) -> SnapshotStatus:
        status = _status(one, self._now, SnapshotPhase.READY, "Taken", "", holds=True)
        created = datetime.fromtimestamp(int(taken.created), UTC)
        return status.model_copy(
            update={
                "snapshot": taken.name,
                "topology_uid": self._owner.uid,
                "window": taken.window,
                "taken": rfc3339(created),
                "place": place,
                "size_bytes": taken.size_bytes,
            }
        )

    # -- taken by the topology itself

    def _periodic(self, one: Snapshot) -> Iterator[Action]:
        if one.periodic != self._owner.uid or self._kept is None:
            return
        there = self._kept.get(one.name)
        if there is None:
            if one.status.place in (None, self._place):
                # What lies in another place, which was the topology's before, is there still.
                yield DeleteSnapshot(one.name, one.uid)
        elif one.status.phase is not SnapshotPhase.READY:
            status = self._ready(one, there, self._place or "")
            yield WriteSnapshotStatus(one.name, one.uid, one.version, status)

    def _new_ones(self) -> Iterator[Action]:
        there = {one.name for one in self._observed.snapshots}
        known = there | {entry.snapshot for entry in self._observed.booked}
        for name in self._kept or ():
            if name not in known:
                self._made.wait_s = LOOK_S
                yield CreateSnapshot(periodic_snapshot(self._owner, name))


def _gone(one: Snapshot) -> str:
    return f"the topology {one.topology!r} that it was to be taken of is gone; make another one"


def _failed(one: Snapshot, now: datetime, reason: str, text: str) -> Iterator[WriteSnapshotStatus]:
    status = _status(one, now, SnapshotPhase.FAILED, reason, text)
    told = Announce(reason, text, warning=True)
    yield WriteSnapshotStatus(one.name, one.uid, one.version, status, told)


def _written(one: Snapshot, status: SnapshotStatus) -> Iterator[WriteSnapshotStatus]:
    if status != one.status:
        yield WriteSnapshotStatus(one.name, one.uid, one.version, status)


def _status(
    one: Snapshot,
    now: datetime,
    phase: SnapshotPhase,
    reason: str,
    text: str,
    *,
    holds: bool = False,
) -> SnapshotStatus:
    """The status with another phase and its condition; what else it says stays."""
    fact = Fact(ConditionType.READY, holds, reason, text)
    return one.status.model_copy(
        update={
            "observed_generation": one.generation,
            "phase": phase,
            "message": cut(text) or None,
            "conditions": conditions_of([fact], one.status.conditions, one.generation, now),
        }
    )
