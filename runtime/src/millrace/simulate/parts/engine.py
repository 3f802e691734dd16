"""Simulated workers: run a window attempt task by task, with retries, losers and lost tuples.

A task attempt computes, puts its state objects on their owners, appends its ack messages or
encloses them in its report, stages its output, and only then counts as finished; it may die in
between, and a second attempt of the same task may run beside it. Readers of a pass normally see one
attempt of each partition.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from millrace.protocol import acklog as al
from millrace.protocol import events as e
from millrace.protocol import server as s
from millrace.protocol.names import TaskObject
from millrace.protocol.types import (
    AttemptPlan,
    EnclosedAcks,
    Evidence,
    Member,
    Segment,
    Staged,
    TaskId,
    TaskReport,
    View,
)
from millrace.simulate import history as h
from millrace.simulate.options import Options
from millrace.simulate.parts import flow as f
from millrace.simulate.parts.acklog import AckLog
from millrace.simulate.parts.cluster import Cluster, Side, owners_of
from millrace.simulate.parts.plainfold import PlainMessage, enclosed
from millrace.simulate.parts.sinks import Sink
from millrace.simulate.parts.transport import Transport
from millrace.simulate.world import START_S, World

MAX_TASK_ATTEMPTS = 4
KILLS_BEFORE_JOB_DIES = 2

OUTAGE_CALM_S = 40.0
"""How long an outage of the engine lasts behind the storm: longer than a driver waits."""

Act = Callable[["Task"], None]


@dataclass(frozen=True, slots=True)
class Plant:
    """What workers work with."""

    world: World
    history: h.History
    options: Options
    cluster: Cluster
    log: AckLog
    sinks: dict[str, Sink]
    flow: f.Flow
    attempt: type[Attempt]


@dataclass(slots=True)
class Task:
    """One task attempt on its way through its steps."""

    id: TaskId
    read: tuple[TaskId, ...] = ()
    work: f.Work = field(default_factory=f.Work)
    objects: tuple[tuple[str, Segment], ...] = ()
    staged: tuple[Staged, ...] = ()
    partitions: tuple[int, ...] = ()
    acks: EnclosedAcks = ()
    unread: frozenset[int] = frozenset()
    skipped: frozenset[int] = frozenset()
    waiting: int = 0
    dead: bool = False


class Attempt:
    """One window attempt. ``post`` gets one ``RunDone`` or ``RunDied``, perhaps twice."""

    def __init__(
        self, plant: Plant, plan: AttemptPlan, view: View, post: Callable[[e.Event], None]
    ) -> None:
        self.plant = plant
        self.plan = plan
        self.facts = h.AttemptFacts(plan)
        plant.history.attempts[plan.id] = self.facts
        self._view = view
        self._members = {m.name: m for m in view.target}
        self._post = post
        self._over = False
        self._gone = False
        self._held = False
        self._untold: e.Event | None = None
        self._numbers: dict[tuple[int, int], int] = {}
        self._kills: dict[tuple[int, int], int] = {}
        self._finished: dict[tuple[int, int], list[Task]] = {}
        self._tasks: dict[TaskId, Task] = {}
        self._chosen: dict[tuple[int, int], TaskId] = {}
        self._transport = Transport(plant.world, plant.history, plant.options, plan)

    # -- what the driver's process calls

    def start(self) -> None:
        self._begin_pass(0)

    def prepare(self) -> None:
        """Run the first pass; what comes of it is told once it is to go on."""
        self._held = True
        self.start()

    def go_on(self, plan: AttemptPlan) -> None:
        """Run what is left, by a plan that knows the state to start from."""
        self.plan = self.facts.plan = plan
        self._held = False
        if self._untold is not None:
            self._say(self._untold)
        elif self._passed(0):
            self._begin_pass(1)

    def cancel(self) -> None:
        """Tasks that run already may go on for a while, unheard."""
        self._over = True
        self._gone = self.plant.world.rng.random() < 0.5

    # -- tasks

    def _begin_pass(self, pass_no: int) -> None:
        for partition in range(self.plant.options.parallelism):
            self._launch(pass_no, partition)
            if self.plant.world.chance(self.plant.options.chaos.loser):
                self._launch(pass_no, partition)

    def _launch(self, pass_no: int, partition: int) -> None:
        where = (pass_no, partition)
        number = self._numbers.get(where, 0)
        if self._over or self._finished.get(where):
            return
        if number >= MAX_TASK_ATTEMPTS:
            self._die(f"task {where} failed {MAX_TASK_ATTEMPTS} times")
            return
        self._numbers[where] = number + 1
        task = Task(TaskId(pass_no, partition, number))
        self.plant.world.after(0.01 + 0.04 * self.plant.world.rng.random(), self._compute, task)

    def _compute(self, task: Task) -> None:
        if self._gone or self._dies(task) or not self._read_state(task):
            return
        self._run(task)
        if task.work.killed:
            self._killed(task)
            return
        self._name_outputs(task)
        self._tasks[task.id] = task
        self._put(task)

    def _dies(self, task: Task) -> bool:
        """Whether the task attempt fails here; Spark then runs it again."""
        if self.plant.world.chance(self.plant.options.chaos.task):
            task.dead = True
            self._launch(task.id.pass_no, task.id.partition)
        return task.dead

    def _killed(self, task: Task) -> None:
        where = (task.id.pass_no, task.id.partition)
        self._kills[where] = self._kills.get(where, 0) + 1
        if self._kills[where] >= KILLS_BEFORE_JOB_DIES:
            self._die(f"a worker died in task {where}", evidence=Evidence.USER_CODE)
        else:
            self._launch(*where)

    def _run(self, task: Task) -> None:
        flow, plan, work, partition = self.plant.flow, self.plan, task.work, task.id.partition
        states = f.States(flow, plan, self.plant.history.contents)
        last = self.plant.options.passes - 1
        if task.id.pass_no == 0:
            task.unread = self._transport.short_told(partition)
            task.skipped = self._transport.short_read(partition) | task.unread
            work = task.work = flow.source_task(plan, partition, self._salt(task.id), task.skipped)
        else:
            task.read = self._sources(task.id.pass_no - 1)
        if work.killed:
            return
        if task.id.pass_no == min(1, last):
            flow.count(work, plan, partition, self._inputs(task, f.SPLIT_COUNT), states)
            flow.side(work, self._inputs(task, f.SPLIT_SIDE))
        if task.id.pass_no == 2:
            flow.totals(work, plan, partition, self._inputs(task, f.COUNT_TOTALS), states)

    def _salt(self, task: TaskId) -> str:
        if not self.plant.options.random_output:
            return ""
        attempt = self.plan.id
        return f"{attempt.execution}.{attempt.attempt}.{task.partition}.{task.task_attempt}"

    def _sources(self, pass_no: int) -> tuple[TaskId, ...]:
        """The attempts of the previous pass that one reader sees."""
        chosen = []
        for partition in range(self.plant.options.parallelism):
            where = (pass_no, partition)
            ready = self._finished[where]
            seen = self._chosen.setdefault(where, ready[0].id)
            if len(ready) > 1 and self.plant.world.chance(self.plant.options.chaos.mixed):
                seen = self.plant.world.rng.choice(ready).id
                if seen != self._chosen[where]:
                    self._transport.hit_all()
            chosen.append(seen)
        if self.plant.world.chance(self.plant.options.chaos.unread):
            self._transport.hit_all()
            chosen.remove(self.plant.world.rng.choice(chosen))
        return tuple(chosen)

    def _inputs(self, task: Task, edge: str) -> list[f.Item]:
        """What arrives on an edge; a single pass reads what it has just made."""
        where = (edge, task.id.partition)
        if not task.read:
            return task.work.envelopes.get(where, [])
        items: list[f.Item] = []
        for read in task.read:
            items += self._transport.carry(self._tasks[read].work.envelopes, where)
        return items

    # -- state

    def _owners(self, name: str, groups: int) -> list[Member]:
        return [self._members[n] for n in owners_of(self._view.owners, name, groups)]

    def _read_state(self, task: Task) -> bool:
        """Whether all blobs that the task starts from can be read from one of their owners."""
        groups = self.plant.flow.groups_of(task.id.partition)
        for processor in self._stateful(task.id.pass_no):
            for segment in f.mine(self.plan.chains.get(processor, ()), groups):
                if not self._readable(segment, segment.groups & groups):
                    return False
        return True

    def _stateful(self, pass_no: int) -> tuple[str, ...]:
        if pass_no == min(1, self.plant.options.passes - 1):
            return (f.COUNT,)
        return (f.TOTALS,) if pass_no == 2 else ()

    def _readable(self, segment: Segment, groups: int) -> bool:
        answered, away = True, ""
        for owner in self._owners(segment.name, groups):
            reply = self.plant.cluster.get(owner, self.plan.stamp, (segment.name,), Side.TASKS)
            if reply is None or isinstance(reply, s.NotOwner):
                answered, away = False, owner.name if reply is None else ""
            elif isinstance(reply[0], s.Found):
                return True
        if answered and not self._over:
            raise h.ViolationError(
                "I6", f"{segment.name} is on none of its owners, all of which answer"
            )
        self._die(f"no owner of {segment.name} answers", member_lost=True, away=away)
        return False

    # -- steps after computing

    def _name_outputs(self, task: Task) -> None:
        objects = []
        for processor, (base, groups, content) in task.work.states.items():
            name = str(TaskObject(self.plan.id, task.id, "state", processor))
            self.plant.history.contents[name] = content
            objects.append((processor, Segment(name, self.plan.id.window, groups, base)))
        task.objects = tuple(objects)
        staged = []
        for sink, rows in task.work.rows.items():
            name = str(TaskObject(self.plan.id, task.id, "out", sink))
            self.plant.history.contents[name] = tuple(rows)
            digest = f"{zlib.crc32(repr(rows).encode()):08x}"
            staged.append(Staged(sink, name, digest, len(rows), len(rows)))
        task.staged = tuple(staged)

    def _put(self, task: Task) -> None:
        """State objects go to all their owners before anything else (rule 18)."""
        shares: dict[Member, list[str]] = {}
        for _, segment in task.objects:
            for owner in self._owners(segment.name, segment.groups):
                shares.setdefault(owner, []).append(segment.name)
        task.waiting = len(shares)
        if not shares:
            self._next(self._acknowledge, task)
        for owner, names in shares.items():
            self._put_on(task, owner, tuple(names), 0)

    def _put_on(self, task: Task, owner: Member, names: tuple[str, ...], tries: int) -> None:
        cluster, stamp = self.plant.cluster, self.plan.stamp
        settled: list[bool] = []

        def answer(reply: s.PutReply) -> None:
            if settled:
                return
            settled.append(True)
            if isinstance(reply, s.NotOwner):
                self._die(f"{owner.name} refuses state objects", member_lost=True)
            else:
                self._put_done(task)

        def again() -> None:
            if settled or self._gone:
                return
            settled.append(True)
            if tries >= 2:
                text = f"{owner.name} takes no state objects"
                self._die(text, member_lost=True, away=owner.name)
            else:
                self._put_on(task, owner, names, tries + 1)

        cluster.ask(owner, lambda: cluster.put(owner, stamp, names, Side.TASKS), answer, again)
        self.plant.world.after(1.0, again)

    def _put_done(self, task: Task) -> None:
        task.waiting -= 1
        if task.waiting == 0:
            self._next(self._acknowledge, task)

    def _next(self, act: Act, task: Task) -> None:
        if not self._dies(task):
            self.plant.world.soon(act, task)

    def _acknowledge(self, task: Task) -> None:
        if self._gone:
            return
        facts = h.TaskFacts(task.id, task.read, task.work.trees, task.work.tuples)
        self.facts.tasks[task.id] = facts
        if self.plant.options.tracking:
            messages = self.messages(task)
            task.partitions = tuple(m.partition for m in messages)
            if self._encloses():
                task.acks = tuple((m.partition, enclosed(m)) for m in messages)
                facts.enclosed |= set(task.partitions)
            for message in messages:
                self._perhaps_mislead(message, facts)
                if not task.acks:
                    self._append(message, facts)
        self._next(self._stage, task)

    def _encloses(self) -> bool:
        """Whether a task's report encloses its messages: that of a window of one task does, but the
        ackers must not depend on which."""
        share = self.plant.options.encloses
        return share > 0 and self.plant.world.rng.random() < share

    def messages(self, task: Task) -> list[PlainMessage]:
        """One message for each slice that the task has something to say about."""
        window, slices = self.plan.id.window, self.plan.slices
        check = al.check_partition(window, slices)
        parts: dict[int, dict[str, dict[int, int]]] = {check: {}}
        for edge, nets in task.work.nets.items():
            for sequence, value in nets.items():
                if value:
                    part = parts.setdefault(al.partition_of(window, sequence, slices), {})
                    part.setdefault(edge, {})[sequence] = value
        return [
            PlainMessage(
                self.plan.id, task.id, part, nets, task.work.checks if part == check else {}
            )
            for part, nets in sorted(parts.items())
        ]

    def _append(self, message: PlainMessage, facts: h.TaskFacts) -> None:
        world = self.plant.world
        if world.chance(self.plant.options.chaos.tuple_lost * 0.2):
            self._transport.hit_all()
            return
        facts.appended[message.partition] = self.plant.log.life
        self.plant.log.append(message)
        if world.chance(0.1):
            world.send(self.plant.log.append, message)

    def _perhaps_mislead(self, message: PlainMessage, facts: h.TaskFacts) -> None:
        """Append it to a slice that does not hold its roots, whether or not it comes to its own."""
        if not (message.nets and self.plant.world.chance(self.plant.options.chaos.misled)):
            return
        opened = al.Open(self.plan.id, self.plan.intent.roots, (), self.plan.slices)
        others = [
            part
            for part in opened.partitions()
            if part not in facts.appended and part != message.partition
        ]
        if others:
            part = self.plant.world.rng.choice(others)
            self._transport.hit_all()
            facts.misled.add(part)
            self.plant.log.append(replace(message, partition=part))

    def _stage(self, task: Task) -> None:
        if self._gone:
            return
        for staged in task.staged:
            self.plant.sinks[staged.sink].stage(staged)
        self._next(self._finish, task)

    def _finish(self, task: Task) -> None:
        if self._over:
            return
        pass_no = task.id.pass_no
        self._finished.setdefault((pass_no, task.id.partition), []).append(task)
        first = len(self._finished[pass_no, task.id.partition]) == 1
        if self._held or not first or not self._passed(pass_no):
            return
        if pass_no + 1 < self.plant.options.passes:
            self._begin_pass(pass_no + 1)
        else:
            self._end()

    def _passed(self, pass_no: int) -> bool:
        """Whether every task of a pass has finished once."""
        parts = range(self.plant.options.parallelism)
        return all(self._finished.get((pass_no, part)) for part in parts)

    # -- the end of an attempt

    def _end(self) -> None:
        if self._breaks():
            self.plant.history.add(h.Broken(self.plan))
            self._die("an assertion in the engine")
            return
        self._over = True
        self.plant.history.add(h.Telling(self.plan))
        last = self.plant.options.passes - 1
        reports = []
        for (pass_no, _), tasks in sorted(self._finished.items()):
            counted = tasks[:1] if pass_no == last else tasks
            reports += [self.report(task) for task in counted]
        self.facts.winners = self._winners()
        shape = (self.plant.options.parallelism,) * self.plant.options.passes
        self._say(e.RunDone(self.plan.id, shape, tuple(reports)))

    def _breaks(self) -> bool:
        """Whether the engine fails the attempt; an outage lasts until well behind the storm."""
        world, begin_s = self.plant.world, self.plant.options.outage_s
        if begin_s is not None:
            behind_s = world.now_s - START_S - begin_s
            if 0.0 <= behind_s < self.plant.options.storm_s + OUTAGE_CALM_S:
                return True
        return world.chance(self.plant.options.chaos.engine)

    def report(self, task: Task) -> TaskReport:
        runs: tuple[tuple[int, int], ...] = ()
        holes: tuple[tuple[int, int], ...] = ()
        if task.id.pass_no == 0:
            holes = _runs(s for s in self.holes(task) if s not in task.unread)
            share = self.plant.flow.share(self.plan.intent.roots, task.id.partition)
            runs = _runs(sequence for sequence in share if sequence not in task.unread)
        return TaskReport(
            task=task.id,
            read=task.read,
            roots_read=runs,
            holes=holes,
            partitions=task.partitions,
            acks=task.acks,
            segments=task.objects,
            staged=task.staged,
            failed=tuple(task.work.failed),
            combined_failures=tuple(task.work.combined_failures),
        )

    def holes(self, task: Task) -> list[int]:
        """What a source task claims to carry no record, and what a bug may make of it."""
        return self.plant.flow.holes(self.plan, task.id.partition)

    def _winners(self) -> tuple[TaskId, ...] | None:
        """The attempts whose output went into the result, None if readers disagreed or somebody
        says of itself that it has not read all."""
        parts = range(self.plant.options.parallelism)
        last = self.plant.options.passes - 1
        wanted = {self._finished[last, p][0].id for p in parts}
        found: list[TaskId] = []
        for _ in range(last + 1):
            if len(wanted) != len(parts):
                return None
            tasks = [self._tasks[task] for task in wanted]
            if any(task.unread or len(task.read) not in (0, len(parts)) for task in tasks):
                return None
            found += sorted(wanted)
            wanted = {read for task in tasks for read in task.read}
        return tuple(sorted(found))

    def _die(
        self,
        reason: str,
        member_lost: bool = False,
        evidence: Evidence = Evidence.NONE,
        away: str = "",
    ) -> None:
        if not self._over:
            self._over = True
            if evidence is not Evidence.NONE:
                self.plant.history.add(h.Telling(self.plan))
            self._say(e.RunDied(self.plan.id, reason, member_lost, evidence, away=away))

    def _say(self, event: e.Event) -> None:
        if self._held:
            self._untold = event
            return
        self.plant.world.soon(self._post, event)
        if self.plant.world.chance(0.05):
            self.plant.world.after(1.0, self._post, event)


def _runs(sequences: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Rising sequence numbers as (first, count) of neighbours."""
    runs: list[tuple[int, int]] = []
    for sequence in sequences:
        if runs and sum(runs[-1]) == sequence:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((sequence, 1))
    return tuple(runs)
