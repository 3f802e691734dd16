"""A topology that is edited and dies, in one process: the production driver machine, publisher and
removed sinks around an engine, a state server and sinks that are simple and keep everything.

Whatever an edit could confuse is written into what comes out: a row says which life of its source
it is from, and the how-manieth row of each processor's state it became.
"""

from __future__ import annotations

import queue
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from millrace.engine.driver.callbacks import Callbacks
from millrace.engine.driver.publisher import Publisher
from millrace.engine.driver.retired import RetiredSinks
from millrace.errors import FencedError, SinkError
from millrace.homes.accepted import Accepted, accept
from millrace.protocol import events as e
from millrace.protocol import server as s
from millrace.protocol.codec import decode_record, encode_record
from millrace.protocol.driver import Driver
from millrace.protocol.record import Backoff
from millrace.protocol.settings import Settings
from millrace.protocol.types import (
    AttemptPlan,
    FailedRoot,
    Guarantee,
    Member,
    Record,
    Replay,
    RootRange,
    Segment,
    Staged,
    TaskId,
    TaskReport,
    View,
)
from millrace.simulate.parts.server import ServerModel
from millrace.sinks.base import Sink

MEMBER = Member("s", "r1")
UID = "u"
Life = tuple[str, int]
"""A component's name and the number of the edit that brought it."""

NAMES = {"sources": "abc", "processors": "pq", "sinks": "xyz"}


def document(sources: str, processors: str, sinks: str) -> dict[str, Any]:
    names = {"sources": sources, "processors": processors, "sinks": sinks}
    return {"spec": {section: [{"name": n} for n in ns] for section, ns in names.items()}}


@dataclass(frozen=True, slots=True)
class Row:
    """A root that was sealed; ``places`` is what it was to the state of each processor."""

    source: Life
    offset: int
    places: tuple[tuple[Life, int], ...]


def fails(offset: int, number: int) -> bool:
    """Some records fail the first time, some always."""
    return offset % 7 == 6 or (offset % 5 == 4 and number == 0)


@dataclass
class World:
    """All that outlives a driver."""

    server: ServerModel = field(default_factory=lambda: ServerModel("s", "r1"))
    view: tuple[int, View | None] = (0, None)
    available: dict[str, int] = field(default_factory=lambda: dict.fromkeys("abc", 0))
    rows: dict[str, list[Row]] = field(default_factory=dict)
    states: dict[str, list[Row]] = field(default_factory=dict)
    letters: dict[str, tuple[Replay, ...]] = field(default_factory=dict)
    shown: dict[Life, dict[int, list[Row]]] = field(default_factory=dict)
    fences: dict[Life, int] = field(default_factory=dict)
    marks: dict[Life, dict[int, str]] = field(default_factory=dict)
    commits: list[Record] = field(default_factory=list)
    now_s: float = 100.0


class MemorySink(Sink):
    """One life of a sink."""

    def __init__(self, name: str, world: World, life: Life) -> None:
        super().__init__(name, {}, Path())
        self.world, self.life = world, life

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
        marks = self.world.marks.setdefault(self.life, {})
        if marks.get(sealed.window, sealed.digest) != sealed.digest:
            raise SinkError(f"{self.life}: window {sealed.window} is another")
        if sealed.window in marks:
            return
        rows = [row for staged in mine for row in self.world.rows[staged.name]]
        self.world.shown.setdefault(self.life, {})[sealed.window] = rows
        marks[sealed.window] = sealed.digest


class DiedError(Exception):
    """The process ends here."""


class DriverLife:
    """One driver under one accepted topology; dies behind ``actions_left`` actions, if given."""

    def __init__(
        self,
        world: World,
        accepted: Accepted,
        make: Callable[..., Driver] = Driver,
        actions_left: int | None = None,
    ) -> None:
        self.world, self.accepted = world, accepted
        self.actions_left = actions_left
        lives = accepted.components
        settings = Settings(
            UID,
            Guarantee.EXACTLY_ONCE,
            False,
            Backoff(1, 0.5),
            3,
            key_groups=1,
            components=lives,
        )
        owner = (("s",),)
        self.machine = make(settings, lambda members, before: owner, lambda piece, index: None)
        self.events: deque[e.Event] = deque()
        self.published: queue.SimpleQueue[e.Event] = queue.SimpleQueue()
        self.wakes: list[float] = []
        sinks = [self.sink(name, number) for name, number in lives.sinks.items()]
        retired = {(one.name, one.number) for one in accepted.retired}

        def removed(name: str, number: int) -> MemorySink:
            assert (name, number) in retired, f"{name} {number} is not known any more"
            return self.sink(name, number)

        self.publisher = Publisher(
            sinks,
            Callbacks([]),
            self.published.put,
            RetiredSinks(lives, False, removed),
            lambda notice: None,
            self.published.put,
        )

    def sink(self, name: str, number: int) -> MemorySink:
        sink = MemorySink(name, self.world, (name, number))
        sink.prepare(UID)
        return sink

    def run(self) -> str:
        """How it ended: the kind of its ``Stop``, or died."""
        try:
            self.carry_out(self.machine.start(self.world.now_s))
            self.events.append(e.MembersSeen((MEMBER,)))
            for _ in range(5_000):
                if self.machine.stopped is not None:
                    return self.machine.stopped.kind
                self.carry_out(self.machine.handle(self.next(), self.world.now_s))
            raise AssertionError(f"stuck: {self.world.commits[-1:]}")
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

    # -- actions

    def _readview(self, action: e.ReadView) -> list[e.Event]:
        return [e.ViewRead(*self.world.view, action.token)]

    def _casview(self, action: e.CasView) -> list[e.Event]:
        if action.expected != self.world.view[0]:
            return [e.CasLost(action.view)]
        self.world.view = (action.expected + 1, action.view)
        return [e.CasDone(*self.world.view)]

    def _sendstamp(self, action: e.SendStamp) -> list[e.Event]:
        reply = self.world.server.stamp("r1", action.stamp)
        if isinstance(reply, s.NotOwner):
            return [e.Refused(MEMBER, action.stamp, reply.reason.value)]
        record = None if reply.record is None else decode_record(reply.record)
        return [e.Stamped(MEMBER, action.stamp, record)]

    def _sendrecord(self, action: e.SendRecord) -> list[e.Event]:
        data = encode_record(action.record)
        reply = self.world.server.write_record("r1", action.stamp, action.record.tag, data)
        if isinstance(reply, s.NotOwner):
            return [e.Refused(MEMBER, action.stamp, reply.reason.value)]
        if isinstance(reply, s.Ok):
            self.world.commits.append(action.record)
        return [e.RecordAck(MEMBER, action.stamp, action.record.tag.seq)]

    def _copyobjects(self, action: e.CopyObjects) -> list[e.Event]:
        return [e.Copied(action.stamp)]

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
        offsets, ranges, left = dict(action.offsets), [], 3
        for name in self.accepted.components.sources:
            start = offsets.get(name, 0)
            count = min(left, self.world.available[name] - start)
            if count > 0:
                ranges.append(RootRange(name, 0, start, count, None))
                offsets[name] = start + count
                left -= count
        drained = all(
            offsets.get(name, 0) >= self.world.available[name]
            for name in self.accepted.components.sources
        )
        return [e.Planned(action.token, tuple(ranges), offsets, drained)]

    def _run(self, action: e.Run) -> list[e.Event]:
        return [e.RunDone(action.plan.id, (1,), (self._report(action.plan),))]

    def _report(self, plan: AttemptPlan) -> TaskReport:
        lives, world, intent = self.accepted.components, self.world, plan.intent
        roots = [
            (r.source, offset, 0)
            for r in intent.ranges
            for offset in range(r.start, r.start + r.count)
        ]
        roots += [(r.source, r.offset, r.number) for r in intent.replays]
        prefix = f"{plan.id.execution}.{plan.id.window}.{plan.id.attempt}"
        held = {
            p: sum(len(world.states[one.name]) for one in plan.chains.get(p, ()))
            for p in lives.processors
        }
        failed, rows = [], []
        for sequence, (source, offset, number) in enumerate(roots):
            life = (source, lives.sources[source])  # as an engine: one that is gone is a KeyError
            if sequence in plan.excluded:
                continue
            if fails(offset, number):
                failed.append(FailedRoot(sequence, "p", "no good"))
                continue
            at = len(rows) + 1
            places = tuple(((p, n), held[p] + at) for p, n in lives.processors.items())
            rows.append(Row(life, offset, places))
        segments, staged = [], []
        for p in lives.processors if rows else ():
            name = f"{prefix}/state/{p}"
            world.states[name] = rows
            segments.append((p, Segment(name, plan.id.window, 1, False)))
        for sink in lives.sinks if rows else ():
            name = f"{prefix}/out/{sink}"
            world.rows[name] = rows
            staged.append(Staged(sink, name, repr(rows), len(rows), 1))
        return TaskReport(
            TaskId(0, 0, 0),
            roots_read=((0, len(roots)),),
            segments=tuple(segments),
            staged=tuple(staged),
            failed=tuple(failed),
        )


class Histories:
    """A generated history: files, inputs and deaths; then the model's judgement."""

    def __init__(self, seed: int, make: Callable[..., Driver] = Driver) -> None:
        self.rng = Random(seed)
        self.make = make
        self.world = World()
        self.accepted: list[Accepted] = []

    def play(self, steps: int = 7) -> None:
        chosen = {section: self.some(names) for section, names in NAMES.items()}
        for step in range(steps):
            if step and self.rng.random() < 0.7:
                section = self.rng.choice(list(NAMES))
                chosen[section] = self.some(NAMES[section])
            self.start(document(**chosen), self.rng.randint(1, 70))
        assert self.start(document(**chosen), None) == "drained"

    def some(self, names: str) -> str:
        found = "".join(name for name in names if self.rng.random() < 0.6)
        return found or self.rng.choice(names)

    def start(self, topology: dict[str, Any], die_behind: int | None) -> str:
        for name in self.world.available:
            self.world.available[name] += self.rng.randint(0, 6)
        before = self.accepted[-1] if self.accepted else None
        self.accepted.append(accept(before, topology))
        return DriverLife(self.world, self.accepted[-1], self.make, die_behind).run()

    # -- the model

    def judge(self) -> None:
        """What the edits promised against what came out. Raises ``AssertionError``."""
        world, last = self.world, self.world.commits[-1]
        now = self.accepted[-1].components
        sealed = self.sealed()
        assert last.components == now
        assert (last.intents, last.replays, last.unpublished) == ((), (), ())
        rows = [(window, row) for window in sorted(sealed) for row in self.rows_of(sealed[window])]
        counts = Counter((row.source, row.offset) for _, row in rows)
        assert set(counts.values()) <= {1}, "a record of one life of a source is sealed twice"
        for name, number in now.sources.items():
            good = {n for n in range(world.available[name]) if n % 7 != 6}
            found = {offset for life, offset in counts if life == (name, number)}
            assert found == good, f"{name} {number} is not read whole, from its beginning"
        for life in {life for _, row in rows for life, _ in row.places}:
            places = [at for _, row in rows for p, at in row.places if p == life]
            assert places == list(range(1, len(places) + 1)), f"{life} kept or lost state"
        self.judge_sinks(sealed)
        self.judge_counts(counts)

    def sealed(self) -> dict[int, tuple[Record, Any]]:
        found: dict[int, tuple[Record, Any]] = {}
        for record in self.world.commits:
            for one in record.unpublished:
                found.setdefault(one.window, (record, one))
        return found

    def rows_of(self, sealed: tuple[Record, Any]) -> list[Row]:
        staged = sealed[1].staged
        return self.world.rows[staged[0].name] if staged else []

    def judge_sinks(self, sealed: dict[int, tuple[Record, Any]]) -> None:
        """Each life of a sink shows the windows that were sealed while it was there, no others."""
        wanted: dict[Life, dict[int, list[Row]]] = {}
        for window, (record, one) in sealed.items():
            for staged in one.staged:
                life = (staged.sink, record.components.sinks[staged.sink])
                wanted.setdefault(life, {})[window] = self.world.rows[staged.name]
        shown = {
            life: kept
            for life, windows in self.world.shown.items()
            if (kept := {window: rows for window, rows in windows.items() if rows})
        }
        assert shown == wanted

    def judge_counts(self, counts: Counter[tuple[Life, int]]) -> None:
        """Whatever was planned of a source that is gone was sealed, is dead, or is counted."""
        planned: dict[Life, int] = {}
        for record in self.world.commits:
            for name, at in record.offsets.items():
                lives = record.components.sources if record.components else {}
                planned[name, lives.get(name, 0)] = at
        last = self.world.commits[-1]
        letters = sum(one.count for one in last.dead)
        assert last.totals.roots == sum(counts.values())
        assert last.totals.dead == letters
        assert last.totals.dropped == sum(planned.values()) - sum(counts.values()) - letters
