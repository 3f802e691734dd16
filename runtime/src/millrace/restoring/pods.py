"""A restore by the driver of a pod, before its first window.

A topology that names a snapshot begins with it; one that has lost all copies of some state goes
back to its newest one (``onStateLoss: Restore``). What has been begun stands beside the view, in
the very write that claims it: so nobody ever finds the one without the other, and a driver that
was overtaken writes neither::

    nothing --> (snapshot is whole and fits, sinks are as they must be)
            --> view creating, timeline raised, mark beside it
            --> sinks fenced, windows taken back (not in a new life)
            --> objects and record on all members --> view open, no mark

==============================  ================================================================
the process dies right after    what follows
==============================  ================================================================
the checks                      nothing has been changed: the next driver begins anew
the view is claimed             no record of any member is ever read: the next driver finds the
                                mark and begins again with a higher timeline; a topology that
                                begins with a snapshot with the one that is named now, else the
                                same, one that lost its state with that or an older one
the sinks are fenced            the same; nothing of them has changed yet
the sinks have retracted        the same; doing it again is nothing
objects, record                 the same; they are written over
the view is open                the topology is restored, once: nothing ever asks for it again
==============================  ================================================================

An older driver that wakes up finds another version of the view, and ends. What it has committed it
may still show until the sinks are fenced; that is taken back. An older restore ends too: at each
attempt it looks whether the view has a higher execution than its own. Where the answer to a claim
was lost the fork beside the view says whose it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from millrace import crash
from millrace.clock import Clock
from millrace.errors import FencedError, MillraceError, SnapshotError, StateLostError
from millrace.homes import pods
from millrace.homes.accepted import Retired
from millrace.homes.documents import RunEvent
from millrace.homes.settings import DriverSettings
from millrace.homes.stores import Inbox, Journal
from millrace.protocol.record import next_timeline, restored, restoring_view
from millrace.protocol.types import Member, Phase, Record, Tag, View, nodes_of
from millrace.restoring.figures import figures
from millrace.restoring.fit import Choice, candidates, check_fit, newest, told
from millrace.restoring.marks import Begun, MarkedView, Marks
from millrace.restoring.removed import Make, RemovedSink, removed
from millrace.restoring.shown import Shown, last_behind, last_shown, take_back
from millrace.restoring.writing import in_new_life, put
from millrace.ring import owners
from millrace.sinks import Sink
from millrace.snapshots import timelines
from millrace.snapshots.manifest import Manifest
from millrace.snapshots.places import Place, open_place, snapshots_place
from millrace.snapshots.reading import faults, load
from millrace.snapshots.timelines import Fork
from millrace.state.client import StateClient
from millrace.topology.model import StreamTopology

log = logging.getLogger("millrace.driver")

PAUSE_S = 1.0
LONGEST_S = 30.0
"""What waits between attempts at a restore: twice as long each time, up to this."""

ALL_S = 20.0
"""So long all state servers are waited for; afterwards as many as there are to be copies do."""

FRUITLESS = 3
"""How often in a row state may be lost before a window is sealed that was not yet restored."""

_ELSEWHERE = "a new topology"
_GIVE_UP = (
    "leave what it shows as it is with the annotation millrace.dev/drop-removed-sinks, or begin "
    "with the snapshot in a new topology, with other places for the sinks"
)

T = TypeVar("T")


class RestoreStoppedError(MillraceError):
    """The process is asked to end; whoever follows goes on."""


@dataclass(frozen=True, slots=True)
class _Claim:
    """What this process wrote into the view, or tried to. It did where the view has the execution
    of ``opened`` and ``fork`` stands beside it."""

    fork: Fork
    record: Record
    opened: View
    text: str


@dataclass(frozen=True, slots=True)
class _Goal:
    """What the view is opened with: ``begun`` says what stands beside it meanwhile, ``sinks`` are
    taken back, ``passed`` are faults of newer snapshots."""

    begun: Begun
    place: Place
    manifest: Manifest
    record: Record
    sinks: Sequence[Shown] = ()
    passed: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a restore needs of the driver's process. ``sinks`` makes those of the topology, to be
    closed, ``kept_sink`` one of a declaration, behind those; ``client`` reaches a member; ``pause``
    waits so many seconds, and raises to give up."""

    view: MarkedView
    inbox: Inbox
    journal: Journal
    sinks: Callable[[], Sequence[Sink]]
    kept_sink: Make
    client: Callable[[Member], StateClient]
    pause: Callable[[float], None]
    clock: Clock


class PodRestore:
    """``prepare`` before a driver runs, ``lost`` behind one that found its state lost."""

    def __init__(
        self, settings: DriverSettings, topology: StreamTopology, around: Surroundings
    ) -> None:
        self._told = settings
        self._topology = topology
        self._around = around
        self._marks = Marks(around.view, topology.spec.restart_nonce)
        self._folder = Path(settings.folder)
        self._heard: str | None = None
        self._held: int | None = None
        self._claim: _Claim | None = None

    def prepare(self) -> str | None:
        """Restore what is to be restored before windows run; says what, None where nothing is.

        What may be mended is waited for. Raises ``SnapshotError``, ``SinkError`` and others for
        what waiting does not mend, and what ``pause`` raises.
        """
        return self._patiently(self._prepare)

    def lost(self, execution: int) -> str:
        """Go back to the newest snapshot that can be restored, behind the driver ``execution``.

        Raises ``StateLostError`` where there is none, or state is lost again and again, and
        ``FencedError`` where a later driver has claimed the view.
        """
        self._held = execution
        return self._patiently(self._lost)

    def _patiently(self, work: Callable[[int, View | None], T]) -> str | T:
        pause_s = PAUSE_S
        while True:
            try:
                return self._attempt(work)
            except MillraceError as error:
                if not error.retryable:
                    raise
                self._tell("RestoreFailed", f"{error}; that is tried again", warning=True)
            self._around.pause(pause_s)
            pause_s = min(2 * pause_s, LONGEST_S)

    # -- what is to be done

    def _read(self) -> tuple[int, View | None, _Claim | None]:
        """The view, and this process's claim where it is open by that. Raises ``FencedError``
        where it is a later driver's."""
        version, view = self._around.view.read()
        if view is None or self._held is None or view.execution <= self._held:
            return version, view, None
        claim = self._claim
        mine = claim is not None and view.execution == claim.opened.execution
        if claim is None or not mine or not self._stands(claim):
            raise self._overtaken()
        return version, view, claim if view.phase is not Phase.CREATING else None

    def _stands(self, claim: _Claim) -> bool:
        """Whether it is beside the view, with the last window as it was known before or behind the
        fences: the answer to either write may be lost."""
        forks = {replace(fork, last=None) for fork in self._marks.forks()}
        return replace(claim.fork, last=None) in forks

    def _attempt(self, work: Callable[[int, View | None], T]) -> str | T:
        """One try: what this process has restored is said, and what was begun goes on; ``work``
        does what else there is to do, with the view and its version."""
        version, view, done = self._read()
        if done is not None:
            return self._restored(done)
        begun = self._marks.begun()
        if begun is None:
            return work(version, view)
        if begun.own:
            return self._own_life(version, view, begun)
        return self._new_life(version, view, self._wanted() or begun)

    def _wanted(self) -> Begun | None:
        """The snapshot that a new topology is to begin with. It goes before what was begun: nothing
        was ever open with that, which may be deleted or damaged by now."""
        wanted = self._told.restore
        if wanted is None:
            return None
        return Begun(wanted.snapshot, wanted.place, 0, own=False, topology=wanted.topology)

    def _prepare(self, version: int, view: View | None) -> str | None:
        wanted = self._wanted()
        if wanted is None:
            return None
        if view is not None and (view.phase is not Phase.CREATING or view.timeline > 1):
            if view.timeline == 1:
                raise SnapshotError(
                    f"snapshot {wanted.snapshot}: the topology has begun without it; take "
                    "spec.restoreFrom out and it goes on so, or delete the topology and make it "
                    "anew, with sinks that hold nothing"
                )
            return None
        return self._new_life(version, view, wanted)

    def _lost(self, version: int, view: View | None) -> str:
        self._check_fruitless()
        return self._own_life(version, view, None)

    def _check_fruitless(self) -> None:
        """Servers that lose everything again and again have a cause that no restore mends; who
        gives another nonce has mended it."""
        losses = self._marks.losses()
        counted = [
            f for f in self._marks.forks() if losses is not None and f.timeline >= losses.since
        ]
        forks = sorted(counted, key=lambda fork: fork.timeline)[-FRUITLESS:]
        sealed = self._around.journal.status().sealed
        last = forks[-1] if forks else None
        idle = last is not None and (sealed is None or sealed <= last.window)
        if len(forks) == FRUITLESS and idle and all(f.lost and f.last is None for f in forks[1:]):
            raise StateLostError(
                f"{self._topology.name}: all copies of some state were gone {FRUITLESS} times in a "
                "row, and no window was sealed between: find out what takes the state servers, "
                "then give spec.restartNonce another value"
            )

    def _beat(self) -> None:
        """Say that this lives, between steps that each may take long."""
        self._around.pause(0.0)

    # -- the two kinds

    def _new_life(self, version: int, view: View | None, begun: Begun) -> str:
        place = open_place(begun.place, self._folder)
        manifest = load(place, begun.snapshot)
        check_fit(self._topology, manifest, log.info, begun.topology, new_life=True)
        for fault in faults(place, manifest, self._beat):
            raise SnapshotError(fault)
        for sink in self._around.sinks():
            self._beat()
            sink.check_fresh(overwrite=False)
        record = in_new_life(manifest, self._told.components)
        begun = replace(begun, window=manifest.window)
        return self._open(version, view, _Goal(begun, place, manifest, record))

    def _own_life(self, version: int, view: View | None, begun: Begun | None) -> str:
        where = snapshots_place(
            self._topology.spec.snapshots.to, Path(self._told.workdir), self._folder
        )
        place = open_place(where, self._folder)
        most = None if begun is None else begun.window
        line = None if view is None else timelines.line_to(self._marks.forks(), view.timeline)
        found, broken = candidates(place, self._told.uid, line, most)
        choice = newest(found, self._topology, place, self._beat)
        if not isinstance(choice, Choice):
            text = (
                f"{self._topology.name}: no state server has its state any more, and "
                f"{place.shown} holds no snapshot of it that can be restored: make the topology "
                "anew, with sinks that hold nothing; spec.snapshots.every takes snapshots for the "
                "next time"
            )
            raise StateLostError("\n".join([text, *choice, *broken]))
        manifest = choice.manifest
        sinks: list[Shown] = [*self._around.sinks(), *self._removed(manifest)]
        last = self._last(manifest, self._shown(sinks, manifest), begun)
        begun = Begun(manifest.name, where, manifest.window, own=True, last=last)
        passed = (*choice.passed, *broken)
        goal = _Goal(begun, place, manifest, manifest.decoded, sinks, passed)
        return self._open(version, view, goal)

    def _removed(self, manifest: Manifest) -> Iterator[RemovedSink]:
        """Sinks that were removed since the snapshot. Raises ``SinkError``."""
        told, today = self._told, self._topology.document()
        if told.drop_removed:
            return
        retired = [Retired(one.name, one.number, one.sink) for one in told.retired]
        for declared in removed(manifest, today, told.components, retired):
            yield RemovedSink(declared, self._around.kept_sink, manifest, _GIVE_UP)

    def _shown(self, sinks: Sequence[Shown], manifest: Manifest) -> list[int]:
        return last_shown(sinks, manifest, _ELSEWHERE, lambda sink: sink.prepare(self._told.uid))

    def _last(self, manifest: Manifest, shown: Sequence[int], begun: Begun | None) -> int | None:
        before = None if begun is None else begun.last
        return last_behind(manifest, [*shown, self._around.journal.status().sealed, before])

    # -- the steps

    def _open(self, version: int, view: View | None, goal: _Goal) -> str:
        """From the claim of the view to an open one; says so."""
        manifest, begun = goal.manifest, goal.begun
        tag = next_timeline(manifest.decoded.tag, view)
        members = self._members()
        creating = self._creating(tag, members)
        claim = self._claim_of(goal, tag, creating)
        # Before it is sent: its answer may be lost.
        self._held = view.execution if view is not None else 0
        self._claim = claim
        version = self._swapped(version, creating, self._marks.of_claim(view, begun, claim.fork))
        crash.reached("restore.claimed")
        if begun.own:
            claim, version = self._taken_back(version, creating, goal, claim)
            self._beat()
        clients = {member.name: self._around.client(member) for member in members}
        put(clients, creating, claim.record, goal.place, manifest, self._beat)
        self._swapped(version, claim.opened, {pods.RESTORING: None})
        crash.reached("restore.opened")
        return self._restored(claim)

    def _taken_back(
        self, version: int, creating: View, goal: _Goal, claim: _Claim
    ) -> tuple[_Claim, int]:
        """Fence the sinks and take windows back. Where the driver of before showed more until the
        fences, that is noted before it goes."""
        manifest = goal.manifest

        def fenced(shown: Sequence[int]) -> None:
            nonlocal claim, version
            last = self._last(manifest, shown, goal.begun)
            if last == goal.begun.last:
                return
            begun, fork = replace(goal.begun, last=last), replace(claim.fork, last=last)
            text = self._text(goal, fork.timeline, last)
            self._claim = claim = replace(claim, fork=fork, text=text)
            beside = self._marks.of_claim(creating, begun, claim.fork)
            version = self._swapped(version, creating, beside)

        execution, hold = claim.record.tag.execution, lambda: self._hold(version)
        take_back(goal.sinks, manifest, execution, _ELSEWHERE, fenced, hold)
        return claim, version

    def _claim_of(self, goal: _Goal, tag: Tag, creating: View) -> _Claim:
        manifest, begun = goal.manifest, goal.begun
        parent, now_s = manifest.decoded.tag.timeline, self._around.clock.now_s()
        return _Claim(
            Fork(
                tag.timeline, parent, manifest.window, manifest.name, begun.last, begun.own, now_s
            ),
            restored(goal.record, self._told.uid, tag),
            replace(creating, phase=Phase.OPEN, restoring=False),
            self._text(goal, tag.timeline, begun.last),
        )

    def _text(self, goal: _Goal, timeline: int, last: int | None) -> str:
        own, passed = goal.begun.own, goal.passed
        return told(goal.manifest, self._topology, timeline, last, lost=own, passed=passed)

    def _restored(self, claim: _Claim) -> str:
        fork, text = claim.fork, claim.text
        now_s = self._around.clock.now_s()
        self._around.journal.tell(figures(claim.record, claim.opened, now_s))
        kind = "StateRestored" if fork.lost else "TopologyRestored"
        self._tell(kind, text, warning=fork.lost, window=fork.window)
        return text

    def _members(self) -> tuple[Member, ...]:
        """Who is proposed: all that there are to be, or after a while as many as are needed."""
        wanted = self._topology.spec.state_servers
        end_s = self._around.clock.monotonic_s() + ALL_S
        while True:
            proposal = self._around.inbox.proposal()
            members = proposal.placed() if proposal is not None else ()
            late = self._around.clock.monotonic_s() >= end_s
            if len(members) >= (wanted.copies if late else wanted.replicas):
                return tuple(sorted(members, key=lambda member: member.name))
            self._around.pause(PAUSE_S)

    def _creating(self, tag: Tag, members: tuple[Member, ...]) -> View:
        spec = self._topology.spec
        names = [member.name for member in members]
        placed = owners(spec.key_groups, names, spec.state_servers.copies, nodes_of(members))
        return restoring_view(self._told.uid, tag, members, placed)

    def _hold(self, version: int) -> None:
        """Before a sink is changed: the view is still as it was claimed. Not every sink asks for
        its fence when it takes windows back."""
        self._beat()
        if self._around.view.read()[0] != version:
            raise self._overtaken()

    def _swapped(self, version: int, view: View, beside: dict[str, str | None]) -> int:
        swapped = self._around.view.cas(version, view, beside)
        if swapped is None:
            raise self._overtaken()
        return swapped

    def _overtaken(self) -> FencedError:
        return FencedError(
            f"{self._topology.name}: another driver changed the view while a snapshot was "
            "restored; that one goes on"
        )

    # -- what is told

    def _tell(self, kind: str, text: str, *, warning: bool = False, window: int = 0) -> None:
        if text == self._heard:
            return
        self._heard = text
        log.log(logging.WARNING if warning else logging.INFO, "%s", text)
        event = RunEvent(self._around.clock.now_s(), kind, text, window, warning)
        self._around.journal.add(event)
