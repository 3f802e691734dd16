"""One life of a driver process: the production machine, and what its actions do in the world.

A life may be killed or frozen between any two actions. A frozen one is a zombie: it wakes up
later, carries out the rest of its list and hears everything that was said to it meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import assert_never

from millrace.ids import Execution
from millrace.protocol import events as e
from millrace.protocol import server as s
from millrace.protocol.driver import Driver
from millrace.protocol.membership import Standing
from millrace.protocol.record import behind
from millrace.protocol.types import AttemptId, AttemptPlan, Member, Replay, Stamp, View
from millrace.simulate import history as h
from millrace.simulate.parts.acklog import Verdicts
from millrace.simulate.parts.cluster import ViewStore, owners_of
from millrace.simulate.parts.copying import Copying, refused
from millrace.simulate.parts.engine import Attempt, Plant
from millrace.simulate.parts.flow import edges
from millrace.simulate.parts.sinks import SinkRefusalError
from millrace.simulate.parts.snapshots import Shelf, Taker
from millrace.simulate.parts.workload import Workload, cut
from millrace.simulate.world import Clock, World


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a driver process finds outside of itself."""

    plant: Plant
    store: ViewStore
    workload: Workload
    ackers: Callable[[], tuple[str, ...]]
    gone: Callable[[DriverProcess, str], None]
    clock: Callable[[World], Clock]
    shelf: Shelf


class DriverProcess:
    """``number`` counts the lives; the execution is claimed by the machine itself."""

    taker = Taker

    def __init__(self, around: Surroundings, machine: Driver, number: int) -> None:
        self.number = number
        self.machine = machine
        machine.windows.on_bug = self._bug
        self.alive = True
        self.frozen = False
        self.started = False
        self.actions = 0
        self.awake_since_s = around.plant.world.now_s
        self._around = around
        self._plant = around.plant
        self._world: World = around.plant.world
        self._clock = around.clock(self._world)
        wall = self._world.wall_clock()
        machine.windows.wall_ms = lambda: int(wall() * 1000)
        self._rest: deque[e.Action] = deque()
        self._unheard: deque[e.Event] = deque()
        self._handling = False
        self._change = around.plant.options.chaos.change
        self._attempts: dict[AttemptId, Attempt] = {}
        self._carried: set[str] = set()
        self._verdicts = Verdicts(
            self._world,
            self._plant.log,
            around.ackers,
            self.post,
            self._plant.options.chaos.verdict_short,
        )
        self._claimed = Execution(0)
        self._taker = self.make_taker()

    def make_taker(self) -> Taker | None:
        every_s = self._plant.options.snapshot_s
        if not every_s:
            return None
        cluster, shelf = self._plant.cluster, self._around.shelf
        return self.taker(self._world, cluster, shelf, every_s, self._view_now, self._runs)

    def _view_now(self) -> View | None:
        return self.machine.membership.view

    def _runs(self) -> bool | None:
        return not self.frozen if self.alive else None

    # -- life and death

    def stand_by(self) -> None:
        """Be ready, and do nothing: the execution is claimed when ``take_over`` says so."""
        self._plant.history.add(h.StandsBy(self.number))

    def take_over(self) -> None:
        """The driver before is gone. May be said late, twice or to a process that is gone."""
        if self.frozen:
            self._world.after(0.1, self.take_over)
        elif self.alive and not self.started:
            self._plant.history.add(h.TakesOver(self.number))
            self.start()

    def start(self) -> None:
        self.started = True
        self.awake_since_s = self._world.now_s
        self._plant.history.add(h.DriverStarted(self.number))
        if self._taker is not None:
            self._taker.start()
        self._carry_out(self.machine.start(self._clock()))

    def post(self, event: e.Event) -> None:
        """Hear an event, unless the process is gone; a frozen one hears it when it wakes. One that
        stands by looks at what there is when it starts."""
        if not self.alive or not self.started:
            return
        self._unheard.append(event)
        self._listen()

    def kill(self) -> None:
        self._end("killed")

    def freeze(self, seconds: float) -> None:
        self.frozen = True
        self._plant.history.add(h.DriverGone(self.number, "frozen"))
        self._world.after(seconds, self._wake_up)

    @property
    def claims(self) -> bool:
        """Whether it has, or may still come by, an execution above all others."""
        return self.machine.membership.standing in (Standing.IDLE, Standing.CLAIMING)

    def acker_change(self) -> None:
        """The ackers alive have changed."""
        if self.alive and self._claimed:
            self._verdicts.place(self._claimed)

    def _wake_up(self) -> None:
        if not self.alive:
            return
        self.frozen = False
        self.awake_since_s = self._world.now_s
        self._plant.history.add(h.DriverGone(self.number, "woken"))
        if self.started:
            self._carry_out([])
            self._listen()

    def _listen(self) -> None:
        while self._unheard and self.alive and not self.frozen and not self._rest:
            event = self._unheard.popleft()
            self._carry_out(self.machine.handle(event, self._clock()))

    def _carry_out(self, actions: list[e.Action]) -> None:
        self._rest.extend(actions)
        while self._rest and self.alive and not self.frozen:
            action = self._rest.popleft()
            self._note_claim()
            self._perform(action)
            self.actions += 1
            self._plant.history.add(h.Acted(self.number, self._claimed, action))
            if self.alive and self._is_struck():
                self._strike()

    def _perform(self, action: e.Action) -> None:
        match action:
            case e.ReadView():
                self._read_view(action)
            case e.CasView():
                self._cas_view(action)
            case e.SendStamp():
                self._send_stamp(action)
            case e.SendRecord():
                self._send_record(action)
            case e.CopyObjects():
                self._copy_objects(action)
            case e.FenceSinks():
                self._fence_sinks(action)
            case e.Plan():
                self._plan(action)
            case e.OpenLog():
                self._open_log(action)
            case e.Prepare():
                self._prepare(action)
            case e.Run():
                self._run(action)
            case e.Cancel():
                self._cancel(action)
            case e.AskVerdict():
                self._ask_verdict(action)
            case e.WriteDead():
                self._write_dead(action)
            case e.Split():
                self._split(action)
            case e.Publish():
                self._publish(action)
            case e.Forget():
                self._forget(action)
            case e.Wake():
                self._wake(action)
            case e.Stop():
                self._stop(action)
            case e.Committed():
                if self._taker is not None:
                    self._taker.committed(action.record)
            case e.Notify():
                pass  # the checkers see them in the history
            case _:
                assert_never(action)

    def _is_struck(self) -> bool:
        if self._world.chance(self._plant.options.chaos.driver):
            return True
        return self._is_changing() and self._world.chance(self._change)

    def _is_changing(self) -> bool:
        """Whether it is on its way to an open view, where some runs strike more often."""
        on_the_way = self.machine.membership.standing is not Standing.RECOVERED
        return self._change > 0.0 and on_the_way

    def _strike(self) -> None:
        rng = self._world.rng
        if rng.random() < self._plant.options.chaos.freeze:
            self.freeze(rng.expovariate(1 / 3.0))
            self._around.gone(self, "frozen")
        else:
            self.kill()

    def _note_claim(self) -> None:
        execution = self.machine.membership.execution
        if execution != self._claimed:
            self._claimed = execution
            self._plant.history.add(h.Claimed(self.number, execution))

    def _end(self, how: str) -> None:
        if not self.alive:
            return
        self.alive = False
        self._rest.clear()
        self._unheard.clear()
        self._verdicts.closed = True
        for attempt in self._attempts.values():
            attempt.cancel()
        self._plant.history.add(h.DriverGone(self.number, how))
        self._around.gone(self, how)

    def _stop(self, action: e.Stop) -> None:
        self._end(action.kind)

    def _bug(self, text: str) -> None:
        raise h.ViolationError("machine", text)

    # -- the view

    def _read_view(self, action: e.ReadView) -> None:
        def read() -> None:
            found = e.ViewRead(*self._around.store.read(), action.token)
            self._world.send(self.post, found)

        self._world.send(read)

    def _cas_view(self, action: e.CasView) -> None:
        life = self._around.store.life

        def swap() -> None:
            version = self._around.store.cas(action.expected, action.view, life)
            if version is None or self._world.chance(self._plant.options.chaos.cas_answer_lost):
                self._world.send(self.post, e.CasLost(action.view))
            else:
                self._world.send(self.post, e.CasDone(version, action.view))

        self._world.send(swap)

    # -- state servers

    def _send_stamp(self, action: e.SendStamp) -> None:
        member, stamp, cluster = action.member, action.stamp, self._plant.cluster

        def answer(reply: s.StampReply) -> None:
            if isinstance(reply, s.NotOwner):
                self.post(refused(member, stamp, reply))
            else:
                record = None if reply.record is None else cluster.vault.decode(reply.record)
                self.post(e.Stamped(member, stamp, record, action.held))

        life = str(self.number)
        cluster.ask(
            member,
            lambda: cluster.stamp(member, stamp, life),
            answer,
            self._unreachable(member, stamp),
        )

    def _send_record(self, action: e.SendRecord) -> None:
        member, stamp, record = action.member, action.stamp, action.record
        cluster = self._plant.cluster

        def answer(reply: s.WriteReply) -> None:
            if isinstance(reply, s.NotOwner):
                self.post(refused(member, stamp, reply))
            elif isinstance(reply, s.Ok) or reply.current == record.tag:
                self.post(e.RecordAck(member, stamp, record.tag.seq))
            else:
                self.post(e.Refused(member, stamp, e.TAG))

        cluster.ask(
            member,
            lambda: cluster.write(member, stamp, record),
            answer,
            self._unreachable(member, stamp),
        )

    def _unreachable(self, member: Member, stamp: Stamp) -> Callable[[], None]:
        return lambda: self.post(e.Unreachable(member, stamp))

    def _copy_objects(self, action: e.CopyObjects) -> None:
        self._world.soon(self._copy_some, self.make_copying(action))

    def make_copying(self, action: e.CopyObjects) -> Copying:
        return Copying(self._plant.cluster, action)

    def _copy_some(self, copying: Copying) -> None:
        """Copy until a random pause; the process may be gone by then."""
        if not self.alive:
            return
        while copying.left:
            trouble = copying.one()
            if isinstance(trouble, e.Unreachable):
                self._plant.history.add(h.CopyBroken(self.number, trouble.member, copying.action))
            if trouble is not None:
                self._world.after(0.1, self.post, trouble)
                return
            if self._world.chance(0.1):
                self._world.soon(self._copy_some, copying)
                return
        self._plant.history.add(h.CopyEnded(self.number))
        self._world.send(self.post, e.Copied(copying.action.stamp, copying.action.planned))

    # -- windows

    def _plan(self, action: e.Plan) -> None:
        components = self.machine.settings.components
        size = self.machine.windows.settings.max_records
        found = self._around.workload.plan(action, self._world.now_s, size, components)
        if found is None:
            self._world.soon(self.post, e.Planned(action.token, (), action.offsets, True))
        elif isinstance(found, e.Planned):
            self._world.soon(self.post, found)
            if self._world.chance(0.05):
                self._world.after(0.5, self.post, found)
        else:
            self._world.after(max(0.0, found - self._world.now_s) + 0.05, self._plan_later, action)

    def _plan_later(self, action: e.Plan) -> None:
        if self.alive:
            self._plan(action)

    def _open_log(self, action: e.OpenLog) -> None:
        names = edges(self._plant.options, self._around.workload)
        self._verdicts.open(action.id, action.roots, names)

    def _prepare(self, action: e.Prepare) -> None:
        if action.tracked:
            self._open_log(e.OpenLog(action.plan.id, action.plan.intent.roots))
        self._attempt(action.plan).prepare()

    def _run(self, action: e.Run) -> None:
        if action.prepared:
            self._attempts[action.plan.id].go_on(self._verdicts.planned(action.plan))
        else:
            self._attempt(action.plan).start()

    def _attempt(self, plan: AttemptPlan) -> Attempt:
        view = self.machine.membership.view
        assert view is not None
        attempt = self._plant.attempt(self._plant, self._verdicts.planned(plan), view, self.post)
        self._attempts[plan.id] = attempt
        return attempt

    def _cancel(self, action: e.Cancel) -> None:
        attempt = self._attempts.pop(action.id, None)
        if attempt is not None:
            attempt.cancel()

    def _ask_verdict(self, action: e.AskVerdict) -> None:
        self._verdicts.ask(action.marker)

    def _write_dead(self, action: e.WriteDead) -> None:
        """What is stored under a name is decided on once, whatever is read afterwards."""
        if action.after is None or action.name in self._plant.history.contents:
            self._store_dead(action, None)
        else:
            self._carry_over(action, self._owners(action.after.name))

    def _owners(self, name: str) -> list[Member]:
        """Dead letters are with the key group that their name decides on."""
        view = self.machine.membership.view
        assert view is not None
        members = {m.name: m for m in view.target}
        return sorted((members[n] for n in owners_of(view.owners, name, 0)), key=lambda m: m.name)

    def _carry_over(self, action: e.WriteDead, owners: list[Member]) -> None:
        """Ask one owner after the other for the letters that are to stand first. Where none gives
        them the others are stored alone."""
        if not owners:
            self._store_dead(action, None)
            return
        assert action.after is not None
        name, cluster = action.after.name, self._plant.cluster
        unread = self._plant.options.chaos.letters_unread
        member, *others = owners

        def answer(reply: s.GetReply) -> None:
            found = not isinstance(reply, s.NotOwner) and isinstance(reply[0], s.Found)
            if found and not self._world.chance(unread):
                self._once_awake(self._store_dead, action, self.letters_in(name))
            else:
                self._once_awake(self._carry_over, action, others)

        cluster.ask(
            member,
            lambda: cluster.get(member, None, (name,)),
            answer,
            lambda: self._once_awake(self._carry_over, action, others),
        )

    def _once_awake(self, act: Callable[..., None], *arguments: object) -> None:
        """Go on with an action whose answer has come, unless the process is gone."""
        if self.alive and self.frozen:
            self._world.after(0.2, self._once_awake, act, *arguments)
        elif self.alive:
            act(*arguments)

    def letters_in(self, name: str) -> tuple[Replay, ...]:
        """What an object of dead letters holds."""
        return self._plant.history.letters(name)

    def _store_dead(self, action: e.WriteDead, carried: tuple[Replay, ...] | None) -> None:
        contents = self._plant.history.contents
        if action.name not in contents:
            contents[action.name] = (*(carried or ()), *action.letters)
            if carried is not None:
                self._carried.add(action.name)
        written = e.DeadWritten(action.name, action.name in self._carried)
        waiting = set(self._owners(action.name))
        cluster = self._plant.cluster
        slow_s = self._world.rng.expovariate(0.7) if self._world.chance(0.3) else 0.005

        def put(member: Member) -> None:
            def answer(reply: s.PutReply) -> None:
                if isinstance(reply, s.Ok):
                    waiting.discard(member)
                    if not waiting:
                        self._world.after(slow_s, self.post, written)

            cluster.ask(
                member,
                lambda: cluster.put(member, action.stamp, (action.name,)),
                answer,
                lambda: None,
            )

        for member in sorted(waiting, key=lambda one: one.name):
            put(member)

    def _split(self, action: e.Split) -> None:
        first, second = cut(action.intent, action.at)
        done = e.SplitDone(action.intent.window, first, second)
        delay_s = self._world.rng.expovariate(2.0) if self._world.chance(0.3) else 0.01
        self._world.after(delay_s, self.post, done)
        if self._world.chance(0.2):
            self._world.after(self._world.rng.expovariate(2.0), self.post, done)

    # -- sinks

    def _fence_sinks(self, action: e.FenceSinks) -> None:
        def fence() -> None:
            sinks = self._plant.sinks.values()
            ahead = behind(action.record, [mark for s in sinks if (mark := s.mark()) is not None])
            if ahead is not None:
                self.post(e.SinkRefused(ahead, fenced=False, behind=True))
                return
            try:
                for sink in sinks:
                    sink.fence(action.execution)
            except SinkRefusalError as refusal:
                self.post(e.SinkRefused(str(refusal), refusal.fenced))
                return
            self.post(e.SinksFenced(action.execution))

        self._world.send(fence)

    def _publish(self, action: e.Publish) -> None:
        self._world.soon(self._publish_step, action, self._publish_steps(action))

    def _publish_steps(self, action: e.Publish) -> Iterator[None]:
        for name, sink in self._plant.sinks.items():
            mine = [staged for staged in action.sealed.staged if staged.sink == name]
            yield from sink.publish(action.sealed, mine, action.execution)
            yield

    def _publish_step(self, action: e.Publish, steps: Iterator[None]) -> None:
        """One step of publishing; the process may be killed or frozen between two of them."""
        if not self.alive:
            return
        if self.frozen:
            self._world.after(0.2, self._publish_step, action, steps)
            return
        window = action.sealed.window
        if self._world.chance(self._plant.options.chaos.sink_away):
            self._world.soon(self.post, e.PublishFailed(window, "a sink is away"))
            if self._world.rng.random() < 0.5:
                return
        try:
            next(steps)
        except StopIteration:
            self._world.soon(self.post, e.Published(window))
        except SinkRefusalError as refusal:
            self.post(e.SinkRefused(str(refusal), refusal.fenced))
        else:
            self._world.soon(self._publish_step, action, steps)
            if self._world.chance(self._plant.options.chaos.driver):
                self._strike()

    def _forget(self, action: e.Forget) -> None:
        view = self.machine.membership.view
        assert view is not None
        if self._taker is not None:
            action = self._taker.spared(action)
        for member in view.target:
            self._world.send(self._forget_on, member, action)
        self._world.send(self._discard, action)
        self._verdicts.forget(action.attempts)

    def _forget_on(self, member: Member, action: e.Forget) -> None:
        cluster = self._plant.cluster
        names = action.names
        if action.keep is not None:
            listed = cluster.listed(member, action.stamp)
            if not isinstance(listed, s.Listed):
                return
            names = tuple(name for name in listed.names if action.covers(name))
        cluster.delete(member, action.stamp, names)

    def _discard(self, action: e.Forget) -> None:
        if action.keep is not None:
            for sink in self._plant.sinks.values():
                sink.discard(action.covers)

    # -- time

    def _wake(self, action: e.Wake) -> None:
        self._ring(action.at_s)

    def _ring(self, at_s: float) -> None:
        """Tick as soon as the clock of the process has come that far."""
        left_s = at_s - self._clock()
        if left_s <= 0:
            self.post(e.Tick())
        elif self.alive:
            self._world.after(max(left_s, 1e-6), self._ring, at_s)
