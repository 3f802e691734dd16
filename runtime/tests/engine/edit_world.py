"""A topology that is edited and dies, in one process: the production driver machine, publisher,
removed sinks and settings around an engine, two state servers and sinks that are simple and keep
everything.

Whatever an edit could confuse is written into what comes out: a row says which life of its source
it is from and what that read, which code it ran through, and the how-manieth row of each
processor's state it became. What each life of a driver was started with, committed and ran is
written down beside it (``Log``); ``edit_judge`` judges that.
"""

from __future__ import annotations

import json
import queue
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

from edit_files import (
    NAMES,
    RENAMED,
    Document,
    TopologyFile,
    code_of,
    kept_under,
    part,
    reached,
    totals,
)

from millrace.engine.driver.callbacks import Callbacks
from millrace.engine.driver.home.tuner import Tuner
from millrace.engine.driver.process import settings_of
from millrace.engine.driver.publisher import Publisher
from millrace.engine.driver.retired import RetiredSinks
from millrace.errors import FencedError, SinkError
from millrace.homes.accepted import Accepted, accept
from millrace.homes.tuning import Tuning
from millrace.ids import WindowNumber
from millrace.local.edits import between
from millrace.local.launch import Edits
from millrace.protocol import events as e
from millrace.protocol import server as s
from millrace.protocol.codec import decode_record, encode_record
from millrace.protocol.cohorts import DeadLimit
from millrace.protocol.driver import Driver
from millrace.protocol.types import (
    AttemptPlan,
    FailedRoot,
    Intent,
    Member,
    Record,
    Replay,
    RootRange,
    Segment,
    Staged,
    TaskId,
    TaskReport,
    Verdict,
    View,
)
from millrace.simulate.parts.server import ServerModel
from millrace.sinks.base import Sink
from millrace.topology.edits import classify
from millrace.topology.model import StreamTopology


@lru_cache(100)
def _model(text: str) -> StreamTopology:
    return StreamTopology.model_validate_json(text)


def model_of(document: Document) -> StreamTopology:
    return _model(json.dumps(document))


MEMBERS = (Member("s", "r1"), Member("t", "r1"))
UID = "u"
LEAST_JUDGED = 10
"""Of so few roots on a share of dead letters counts here: histories are short."""

Life = tuple[str, int]
"""A component's name and the number of the edit that brought it."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a root was to a processor: ``place`` in its state, which is bound to ``under``, by which
    ``code``."""

    life: Life
    place: int
    under: tuple[Any, ...]
    code: str | None


@dataclass(frozen=True, slots=True)
class Row:
    """A root that was processed. ``seed`` is what its source was declared to read."""

    source: Life
    seed: int
    offset: int
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Total:
    """What an aggregate puts out once input ends: how many rows its state is made of."""

    processor: Life
    rows: int


def fails(offset: int, number: int) -> bool:
    """Some records fail the first time, some always."""
    return always_fails(offset) or (offset % 5 == 4 and number == 0)


def always_fails(offset: int) -> bool:
    return offset % 7 == 6


@dataclass
class Log:
    """One life of a driver: what it began with, and what it did. ``sizes``: up to how many roots
    the windows from a number on may have; ``ran``: attempt → its rows, and the roots that failed;
    ``ended``: the kind of its ``Stop``, or died."""

    accepted: Accepted
    dropping: bool
    sizes: list[tuple[int, int]]
    commits: list[Record] = field(default_factory=list)
    ran: dict[str, list[Row]] = field(default_factory=dict)
    plans: list[AttemptPlan] = field(default_factory=list)
    failed: set[tuple[Life, int]] = field(default_factory=set)
    edits_told: list[tuple[Record, str]] = field(default_factory=list)
    ended: str = ""


@dataclass
class World:
    """All that outlives a driver. ``broken`` sinks can show nothing any more."""

    servers: dict[str, ServerModel] = field(
        default_factory=lambda: {m.name: ServerModel(m.name, m.run_id) for m in MEMBERS}
    )
    view: tuple[int, View | None] = (0, None)
    available: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys((*NAMES["sources"], RENAMED), 0)
    )
    rows: dict[str, list[Row | Total]] = field(default_factory=dict)
    states: dict[str, list[Row]] = field(default_factory=dict)
    letters: dict[str, tuple[Replay, ...]] = field(default_factory=dict)
    shown: dict[Life, dict[int, list[Row | Total]]] = field(default_factory=dict)
    kinds: dict[Life, set[str]] = field(default_factory=dict)
    fences: dict[Life, int] = field(default_factory=dict)
    marks: dict[Life, dict[int, str]] = field(default_factory=dict)
    broken: set[Life] = field(default_factory=set)
    lives: list[Log] = field(default_factory=list)
    now_s: float = 100.0
    wall_ms: int = 1_000


class MemorySink(Sink):
    """One life of a sink."""

    def __init__(self, name: str, world: World, life: Life, declared: Document) -> None:
        super().__init__(name, {}, Path())
        self.world, self.life = world, life
        self.kind = "files" if "files" in declared else "console"

    def prepare(self, uid: str, fresh: bool = False, overwrite: bool = False) -> None:
        self.world.shown.setdefault(self.life, {})

    def fence(self, execution: int) -> None:
        if self.world.fences.get(self.life, 0) > execution:
            raise FencedError(f"{self.life} serves a newer execution")
        self.world.fences[self.life] = execution

    def last_shown(self) -> tuple[int, str] | None:
        marks = self.world.marks.get(self.life)
        return max(marks.items()) if marks else None

    def stage(self, name: str, batches: Sequence[Any]) -> Staged | None:
        raise NotImplementedError

    def publish(self, sealed, mine, execution, step=None) -> None:
        if self.life in self.world.broken:
            raise SinkError(f"{self.life} is broken")
        marks = self.world.marks.setdefault(self.life, {})
        if marks.get(sealed.window, sealed.digest) != sealed.digest:
            raise SinkError(f"{self.life}: window {sealed.window} is another")
        if sealed.window in marks:
            return
        rows = [row for staged in mine for row in self.world.rows[staged.name]]
        self.world.shown.setdefault(self.life, {})[sealed.window] = rows
        self.world.kinds.setdefault(self.life, set()).add(self.kind)
        marks[sealed.window] = sealed.digest


class DiedError(Exception):
    """The process ends here."""


@dataclass(frozen=True)
class Start:
    """How a driver is started; it dies behind ``actions_left`` actions, and ``edit`` is what is
    accepted while it runs, behind so many of its events."""

    accepted: Accepted
    dropping: bool = False
    actions_left: int | None = None
    edit_at: int | None = None


Change = Callable[[], Accepted]
"""Accepts an edit that a driver takes while it runs."""


class DriverLife:
    """One driver under one accepted topology, and what it takes while it runs."""

    def __init__(
        self, world: World, start: Start, make: Callable[..., Driver], change: Change
    ) -> None:
        self.world, self.accepted, self.change = world, start.accepted, change
        self.document: Document = dict(start.accepted.topology)
        self.actions_left, self.edit_at = start.actions_left, start.edit_at
        self.lives = lives = start.accepted.components
        topology = model_of(self.document)
        found = settings_of(topology, UID)
        settings = replace(
            found,
            components=lives,
            drop_removed=start.dropping,
            dead_limit=DeadLimit(found.dead_limit.percent, LEAST_JUDGED),
        )
        self.log = Log(start.accepted, start.dropping, [(0, settings.max_records)])
        world.lives.append(self.log)
        owner = (tuple(m.name for m in MEMBERS[: settings.copies]),) * settings.key_groups
        self.machine = make(settings, lambda members, before: owner, lambda piece, index: None)
        self.machine.windows.wall_ms = lambda: world.wall_ms
        self.size = settings.max_records
        self.tuner = Tuner(
            Tuning.of(topology, start.accepted.tuned), self.sized, lambda *_: None, lambda _: None
        )
        self.events: deque[e.Event] = deque()
        self.published: queue.SimpleQueue[e.Event] = queue.SimpleQueue()
        self.wakes: list[float] = []
        sinks = [
            self.sink(name, number, part(self.document, "sinks", name))
            for name, number in lives.sinks.items()
        ]
        retired = {(one.name, one.number): one.sink for one in start.accepted.retired}

        def removed(name: str, number: int) -> MemorySink:
            assert (name, number) in retired, f"{name} {number} is not known any more"
            return self.sink(name, number, retired[name, number])

        self.publisher = Publisher(
            sinks,
            Callbacks([]),
            self.published.put,
            RetiredSinks(lives, start.dropping, removed),
            lambda notice: None,
            self.published.put,
        )

    def sink(self, name: str, number: int, declared: Document) -> MemorySink:
        sink = MemorySink(name, self.world, (name, number), declared)
        sink.prepare(UID)
        return sink

    def run(self) -> str:
        """How it ended, as its log has it."""
        self.log.ended = self._live()
        return self.log.ended

    def _live(self) -> str:
        try:
            self.carry_out(self.machine.start(self.world.now_s))
            self.events.append(e.MembersSeen(MEMBERS))
            for step in range(5_000):
                if self.machine.stopped is not None:
                    return str(self.machine.stopped.kind)
                if step == self.edit_at:
                    self.take(self.change())
                self.tuner.take(self.resize)
                self.carry_out(self.machine.handle(self.next(), self.world.now_s))
            raise AssertionError(f"stuck: {self.log.commits[-1:]}")
        except DiedError:
            return "died"
        finally:
            self.publisher.stop()

    def next(self) -> e.Event:
        if self.events:
            return self.events.popleft()
        assert self.wakes, "nothing is left to happen"
        self.wakes.sort()
        self.world.now_s = max(self.world.now_s, self.wakes.pop(0)) + 0.001
        return e.Tick()

    def carry_out(self, actions: list[e.Action]) -> None:
        for action in actions:
            if self.actions_left is not None:
                self.actions_left -= 1
                if self.actions_left < 0:
                    raise DiedError
            method = getattr(self, f"_{type(action).__name__.lower()}", None)
            if method is not None:
                self.events += method(action) or []

    # -- an edit while it runs

    def take(self, accepted: Accepted) -> None:
        tuning = Tuning.of(model_of(dict(accepted.topology)), accepted.tuned)
        self.tuner.give(tuning)

    def resize(self, size: int) -> WindowNumber | None:
        window = self.machine.resize(size)
        if window is not None:
            self.log.sizes.append((window, size))
        return window

    def sized(self, window: Any) -> None:
        self.size = window.max_records

    # -- actions

    def _notify(self, action: e.Notify) -> None:
        record = self.machine.windows.record
        if action.kind == "TopologyEdited" and record is not None:
            self.log.edits_told.append((record, action.text))

    def _readview(self, action: e.ReadView) -> list[e.Event]:
        return [e.ViewRead(*self.world.view, action.token)]

    def _casview(self, action: e.CasView) -> list[e.Event]:
        if action.expected != self.world.view[0]:
            return [e.CasLost(action.view)]
        self.world.view = (action.expected + 1, action.view)
        return [e.CasDone(*self.world.view)]

    def _sendstamp(self, action: e.SendStamp) -> list[e.Event]:
        reply = self.world.servers[action.member.name].stamp("r1", action.stamp)
        if isinstance(reply, s.NotOwner):
            return [e.Refused(action.member, action.stamp, reply.reason.value)]
        record = None if reply.record is None else decode_record(reply.record)
        return [e.Stamped(action.member, action.stamp, record)]

    def _sendrecord(self, action: e.SendRecord) -> list[e.Event]:
        """No server is ever lost here, so the first that has it makes a record final."""
        member, record = action.member, action.record
        server = self.world.servers[member.name]
        reply = server.write_record("r1", action.stamp, record.tag, encode_record(record))
        if isinstance(reply, s.NotOwner):
            return [e.Refused(member, action.stamp, reply.reason.value)]
        if isinstance(reply, s.Ok) and self.log.commits[-1:] != [record]:
            self.log.commits.append(record)
        return [e.RecordAck(member, action.stamp, record.tag.seq)]

    def _copyobjects(self, action: e.CopyObjects) -> list[e.Event]:
        return [e.Copied(action.stamp, action.planned)]

    def _fencesinks(self, action: e.FenceSinks) -> list[e.Event]:
        self.publisher.fence(action.execution, action.record)
        return [self.published.get(timeout=30)]

    def _publish(self, action: e.Publish) -> list[e.Event]:
        self.publisher.publish(action.sealed, action.execution)
        return [self.published.get(timeout=30)]

    def _writedead(self, action: e.WriteDead) -> list[e.Event]:
        self.world.letters[action.name] = action.letters
        return [e.DeadWritten(action.name)]

    def _wake(self, action: e.Wake) -> None:
        self.wakes.append(action.at_s)

    def _plan(self, action: e.Plan) -> list[e.Event]:
        offsets, ranges, left = dict(action.offsets), [], self.size
        for name in self.lives.sources:
            start = offsets.get(name, 0)
            count = min(left, self.world.available[name] - start)
            if count > 0:
                ranges.append(RootRange(name, 0, start, count, None))
                offsets[name] = start + count
                left -= count
        drained = all(
            offsets.get(name, 0) >= self.world.available[name] for name in self.lives.sources
        )
        return [e.Planned(action.token, tuple(ranges), offsets, drained)]

    def _askverdict(self, action: e.AskVerdict) -> list[e.Event]:
        marker = action.marker
        failed = tuple(
            FailedRoot(n, "p", "no good")
            for n, (_, offset, number) in enumerate(roots_of(marker.intent))
            if n not in marker.excluded and fails(offset, number)
        )
        complete = marker.intent.roots - len(marker.excluded) - len(failed)
        return [e.VerdictGiven(Verdict(marker.id, (0,), complete, failed, True))]

    def _run(self, action: e.Run) -> list[e.Event]:
        self.log.plans.append(action.plan)
        return [e.RunDone(action.plan.id, (1,), (self._report(action.plan),))]

    def _report(self, plan: AttemptPlan) -> TaskReport:
        lives, world = self.lives, self.world
        held = {
            p: sum(len(world.states[one.name]) for one in plan.chains.get(p, ()))
            for p in lives.processors
        }
        rows: list[Row] = []
        failed, parts = [], _Parts()
        for sequence, (source, offset, number) in enumerate(roots_of(plan.intent)):
            life = (source, lives.sources[source])  # as an engine: one that is gone is a KeyError
            if sequence in plan.excluded:
                continue
            if fails(offset, number):
                failed.append(FailedRoot(sequence, "p", "no good"))
                self.log.failed.add((life, offset))
                continue
            row = self._row(life, offset, held, parts)
            rows.append(row)
        if plan.intent.final:
            for p, sink in totals(self.document):
                total = Total((p, lives.processors[p]), held[p])
                parts.shown.setdefault(sink, []).append(total)
        self.log.ran[str(plan.id)] = rows
        segments, staged = [], []
        for p, kept in parts.kept.items():
            name = f"{plan.id}/state/{p}"
            world.states[name] = kept
            segments.append((p, Segment(name, plan.id.window, 1, False)))
        for sink, shown in parts.shown.items():
            name = f"{plan.id}/out/{sink}"
            world.rows[name] = shown
            staged.append(Staged(sink, name, repr(shown), len(shown), 1))
        return TaskReport(
            TaskId(0, 0, 0),
            roots_read=((0, plan.intent.roots),),
            segments=tuple(segments),
            staged=tuple(staged),
            failed=tuple(failed),
        )

    def _row(self, life: Life, offset: int, held: dict[str, int], parts: _Parts) -> Row:
        document = self.document
        steps, sinks = reached(document, life[0])
        row = Row(
            life,
            part(document, "sources", life[0])["generator"]["seed"],
            offset,
            tuple(
                Step(
                    (p, self.lives.processors[p]),
                    held[p] + len(parts.kept.get(p, ())) + 1,
                    kept_under(document, p),
                    code_of(document, p),
                )
                for p in steps
            ),
        )
        for p in steps:
            parts.kept.setdefault(p, []).append(row)
        for sink in sinks:
            parts.shown.setdefault(sink, []).append(row)
        return row


@dataclass
class _Parts:
    """What an attempt adds to the state of each processor, and shows on each sink."""

    kept: dict[str, list[Row]] = field(default_factory=dict)
    shown: dict[str, list[Row | Total]] = field(default_factory=dict)


def roots_of(intent: Intent) -> list[tuple[str, int, int]]:
    """(source, offset, how often it was replayed) of each root, in their order."""
    found = [(r.source, n, 0) for r in intent.ranges for n in range(r.start, r.start + r.count)]
    return found + [(r.source, r.offset, r.number) for r in intent.replays]


class Histories:
    """A generated history: edits, inputs and deaths."""

    def __init__(self, seed: int, make: Callable[..., Driver] = Driver) -> None:
        self.rng = Random(seed)
        self.make = make
        self.world = World()
        self.file = TopologyFile(self.rng)
        self.accepted: list[Accepted] = []

    def play(self, steps: int = 7) -> None:
        rng = self.rng
        for step in range(steps):
            if step and rng.random() < 0.15:
                self.refuse()
            if step and rng.random() < 0.8:
                self.file.edit()
            if step and rng.random() < 0.5:
                self.world.broken |= self.removed()
            self.start(
                dropping=rng.random() < 0.2,
                actions_left=rng.randint(1, 90),
                edit_at=rng.randint(12, 40) if rng.random() < 0.4 else None,
            )
        self.file.spec["deadLetters"] = {"maxShare": "100%"}
        ended = self.start(dropping=bool(self.world.broken))
        assert ended == "drained", ended

    def refuse(self) -> None:
        """An edit that is refused changes nothing; one that should have been, and was not, is
        taken, so that it shows what comes of that."""
        what, document = self.file.refused()
        if self.explained(document) is None:
            self.file.spec = document["spec"]
            self.start(actions_left=60)
        else:
            assert what

    def removed(self) -> set[Life]:
        """Sinks that the next start is the first to be without."""
        left = {one["name"] for one in self.file.spec["sinks"]}
        before = self.accepted[-1].components.sinks
        return {life for life in before.items() if life[0] not in left}

    def explained(self, document: Document) -> Exception | None:
        """Why a start with this document is refused, as a run explains it."""
        if not self.accepted:
            return None
        before = model_of(dict(self.accepted[-1].topology))
        return Edits(tuple(classify(before, model_of(document)))).refusal()

    def start(
        self,
        dropping: bool = False,
        actions_left: int | None = None,
        edit_at: int | None = None,
    ) -> str:
        if self.rng.random() < 0.8:
            for name in self.world.available:
                self.world.available[name] += self.rng.randint(0, 6)
        self.world.wall_ms += self.rng.randint(-2_000, 10_000)
        document = self.file.document()
        refusal = self.explained(document)
        assert refusal is None, refusal
        self.accepted.append(accept(self.accepted[-1] if self.accepted else None, document))
        start = Start(self.accepted[-1], dropping, actions_left, edit_at)
        return DriverLife(self.world, start, self.make, self.change).run()

    def change(self) -> Accepted:
        """As a supervisor takes an edit of a run that goes on."""
        before = model_of(dict(self.accepted[-1].topology))
        self.file.resize()
        document = self.file.document()
        assert between(before, model_of(document))
        accepted = accept(self.accepted[-1], document)
        self.accepted.append(replace(accepted, tuned=accepted.tuned + 1))
        return self.accepted[-1]
