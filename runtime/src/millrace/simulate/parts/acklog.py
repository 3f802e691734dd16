"""The ack log with its one copy, the acker processes that read it, the driver's end of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from millrace.ids import Execution
from millrace.protocol import acker as a
from millrace.protocol import acklog as al
from millrace.protocol import events as e
from millrace.protocol.types import AttemptId, AttemptPlan, CloseMarker, Verdict
from millrace.simulate import history as h
from millrace.simulate.parts.plainfold import PlainFold, PlainMessage, read_enclosed
from millrace.simulate.world import World

T = TypeVar("T")
SliceKey = tuple[AttemptId, int]
MakeMachine = Callable[[str], a.AckerMachine[PlainMessage]]


def make_machine(name: str) -> a.AckerMachine[PlainMessage]:
    """The production acker machine over plain dictionaries."""
    return a.AckerMachine(name, PlainFold, read_enclosed)


class AckLog:
    """Streams of control entries, messages and verdicts; ``life`` rises when they are lost."""

    def __init__(self, history: h.History) -> None:
        self._history = history
        self._watchers: list[Callable[[], None]] = []
        self.life = 0
        self.control: list[al.ControlEntry] = []
        self.slices: dict[SliceKey, list[PlainMessage]] = {}
        self.verdicts: list[Verdict] = []

    def lose(self, kept: float = 0.0) -> None:
        """The server of the log restarts without it, or with what an old file has of it: of each
        stream a beginning, this share of it."""
        self.life += 1
        self.control = _beginning(self.control, kept)
        self.slices = {key: _beginning(told, kept) for key, told in self.slices.items()}
        self.verdicts = _beginning(self.verdicts, kept)
        self._changed()

    def watch(self, watcher: Callable[[], None]) -> None:
        self._watchers.append(watcher)

    def append_control(self, entry: al.ControlEntry) -> None:
        self.control.append(entry)
        self._changed()

    def append(self, message: PlainMessage) -> None:
        self.slices.setdefault((message.attempt, message.partition), []).append(message)
        self._changed()

    def answer(self, verdict: Verdict, life: int) -> None:
        if life == self.life:
            self.verdicts.append(verdict)
            self._changed()

    def forget(self, attempt: AttemptId) -> None:
        self._history.add(h.AttemptForgotten(attempt))
        for key in [key for key in self.slices if key[0] == attempt]:
            del self.slices[key]

    def _changed(self) -> None:
        for watcher in self._watchers:
            watcher()


def _beginning(entries: list[T], share: float) -> list[T]:
    return entries[: int(share * len(entries))]


class AckerProcess:
    """One acker: reads what is new whenever the log has changed; killed and started at will."""

    def __init__(
        self, name: str, world: World, history: h.History, log: AckLog, make: MakeMachine
    ) -> None:
        self.name = name
        self.alive = True
        self._world = world
        self._history = history
        self._log = log
        self._make = make
        self._reading = False
        self._begin()
        log.watch(self._notice)

    def _begin(self) -> None:
        self._machine = self._make(self.name)
        self._life = self._log.life
        self._at = 0
        self._followed: dict[SliceKey, int] = {}
        self._markers: dict[AttemptId, CloseMarker] = {}

    def kill(self) -> None:
        self.alive = False

    def start(self) -> None:
        """A new process of the same name knows nothing and reads from the beginning."""
        self.alive = True
        self._begin()
        self._notice()

    def _notice(self) -> None:
        if self.alive and not self._reading:
            self._reading = True
            self._world.soon(self._read)

    def _read(self) -> None:
        self._reading = False
        if not self.alive:
            return
        if self._life != self._log.life:
            self._begin()
        for key in list(self._followed):
            self._hand_in(key)
        for entry in self._log.control[self._at :]:
            if isinstance(entry, CloseMarker):
                self._markers.setdefault(entry.id, entry)
            self._carry_out(self._machine.control(entry))
        self._at = len(self._log.control)

    def _hand_in(self, key: SliceKey) -> None:
        messages = self._log.slices.get(key, [])
        for at in range(self._followed[key], len(messages)):
            self._machine.message(key[1], str(at), messages[at])
        self._followed[key] = len(messages)

    def _carry_out(self, actions: list[a.AckerAction]) -> None:
        for action in actions:
            if isinstance(action, a.Follow):
                self._followed[action.id, action.partition] = 0
            elif isinstance(action, a.Unfollow):
                self._followed.pop((action.id, action.partition), None)
            elif isinstance(action, a.Answer):
                self._answer(action.verdict)
            else:
                self._world.soon(self._later, action, self._life, self._machine)

    def _later(
        self, action: a.Drain | a.Reread, life: int, machine: a.AckerMachine[PlainMessage]
    ) -> None:
        if not self.alive or self._log.life != life or self._machine is not machine:
            return
        key = (action.id, action.partition)
        if isinstance(action, a.Drain):
            if key in self._followed:
                self._hand_in(key)
            self._carry_out(self._machine.drained(action.id, action.partition))
            return
        messages = self._log.slices.get(key, [])
        found = [messages[int(at)] if int(at) < len(messages) else None for at in action.entries]
        self._carry_out(self._machine.reread(action.id, action.partition, found))

    def _answer(self, verdict: Verdict) -> None:
        self._history.add(h.Answered(self.name, self._markers[verdict.id], verdict, self._life))
        self._world.soon(self._log.answer, verdict, self._life)


@dataclass(slots=True)
class _Case:
    """An attempt as its driver sees it."""

    opened: al.Open
    life: int
    marker: CloseMarker | None = None
    given: bool = False


class Verdicts:
    """The driver's end of the log: appends control entries in order and merges the answers."""

    def __init__(
        self,
        world: World,
        log: AckLog,
        ackers: Callable[[], tuple[str, ...]],
        post: Callable[[e.Event], None],
        short: float,
    ) -> None:
        self._world = world
        self._log = log
        self._ackers = ackers
        self._post = post
        self._short = short
        self._cases: dict[AttemptId, _Case] = {}
        self._owners: al.SliceOwners | None = None
        self._owners_life = -1
        self._queue: deque[tuple[int, al.ControlEntry]] = deque()
        self._sending = False
        self._looking = False
        self.closed = False
        log.watch(self._notice)

    def open(self, attempt: AttemptId, roots: int, edges: tuple[str, ...]) -> None:
        if self._owners_life != self._log.life:
            self.place(attempt.execution)
        # Without an acker nobody is told, and so many slices are as good as any.
        slices = al.slices_for(1) if self._owners is None else self._owners.slices
        opened = al.Open(attempt, roots, edges, slices)
        self._cases[attempt] = _Case(opened, self._log.life)
        # At once, which an acker that reads late takes for with its end.
        self._append(opened)

    def planned(self, plan: AttemptPlan) -> AttemptPlan:
        """The plan with as many slices as its attempt was opened with, if it was."""
        case = self._cases.get(plan.id)
        return plan if case is None else replace(plan, slices=case.opened.slices)

    def place(self, execution: Execution) -> None:
        """Say who owns which slice; called again when an acker comes or goes."""
        names = self._ackers()
        if not names:
            return
        self._owners_life = self._log.life
        live = {case.opened.id: case.opened.slices for case in self._cases.values()}
        self._owners = al.SliceOwners.of(execution, names, live, self._owners, virtual_nodes=4)
        self._append(self._owners)

    def ask(self, marker: CloseMarker) -> None:
        case = self._cases.get(marker.id)
        if case is None:
            return
        if case.life != self._log.life:
            self._append(marker)  # where the log came back with a beginning, it is taken
            self._post(e.VerdictLost(marker.id))
            return
        if case.marker is None or self._world.chance(0.1):
            case.marker = marker
            self._append(marker)
        case.given = False
        self._notice()

    def forget(self, attempts: tuple[AttemptId, ...]) -> None:
        for attempt in attempts:
            self._cases.pop(attempt, None)
            # At once, which an acker that reads late takes for with the next entry.
            self._append(al.ForgetAttempt(attempt))

    # -- appending, in order, again after a lost answer

    def _append(self, entry: al.ControlEntry) -> None:
        self._queue.append((self._log.life, entry))
        if not self._sending:
            self._sending = True
            self._world.soon(self._send)

    def _send(self) -> None:
        """Append what waits. An entry for a log that was lost as a whole since then is not sent."""
        if self.closed:
            return
        life, entry = self._queue[0]
        if life == self._log.life or self._log.control or isinstance(entry, al.SliceOwners):
            self._log.append_control(entry)
            if isinstance(entry, al.ForgetAttempt):
                self._log.forget(entry.id)
        if not self._world.chance(0.05):
            self._queue.popleft()
        self._sending = bool(self._queue)
        if self._sending:
            self._world.soon(self._send)

    # -- answers

    def _notice(self) -> None:
        if not self._looking and not self.closed:
            self._looking = True
            self._world.soon(self._look)

    def _look(self) -> None:
        self._looking = False
        if self.closed:
            return
        for case in list(self._cases.values()):
            if case.marker is None or case.given:
                continue
            answers = (v for v in self._log.verdicts if v.id == case.opened.id)
            found = a.merge_verdicts(answers, case.opened.slices)
            if case.life != self._log.life and (found is None or self._world.chance(0.5)):
                case.given = True
                self._post(e.VerdictLost(case.opened.id))
            elif found is not None:
                case.given = True
                self._post(e.VerdictGiven(self._shortened(found)))

    def _shortened(self, verdict: Verdict) -> Verdict:
        """An answer that forgets a root, and says so by its count alone."""
        if not verdict.incomplete or not self._world.chance(self._short):
            return verdict
        forgotten = self._world.rng.choice(verdict.incomplete)
        kept = tuple(root for root in verdict.incomplete if root is not forgotten)
        return replace(verdict, incomplete=kept)
