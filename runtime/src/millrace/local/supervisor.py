"""Keeps the processes of one topology alive on one machine, and ends with the driver.

It takes the place that the operator has on a cluster: it observes which processes live, proposes
members, and starts what died. It decides nothing about windows or membership.

=====================  ======================================================================
what happens           what the supervisor does
=====================  ======================================================================
a state server ends    starts it again on its folder and proposes the new incarnation
another size is asked  starts what is missing; proposes the state servers that are to leave no
                       more, and ends them when a view without them is open
an edit is asked for   takes it where no restart is needed: files first, then a proposal
an acker ends          proposes the others, starts it again, proposes it again
an acker is to go      proposes the others, and ends it a moment later (``local.ackers``)
the driver ends        drained, by code and figures: ends the run; fenced, by code and figures or
                       a newer run: ends the run as fenced; all copies of some state are gone:
                       ends the run, which restores a snapshot and begins again if the topology
                       says so (``local.launch``); anything else, also a code of these where the
                       figures do not say so: the one that stands by takes over, or it is
                       started again; what is left of its tree is killed (``local.standby``)
one cannot be started  tries again, after longer and longer waits; only a run that begins ends
SIGINT, SIGTERM        asks the driver to end and waits; a second one kills it
SIGHUP                 the same, but where it was ignored from the start (``nohup``)
a newer run claims     asks the driver to end, kills it a moment later, ends as fenced
SIGKILL of itself      the kernel and the guard kill all its processes; the next run goes on
=====================  ======================================================================

One thread; it sleeps until a child ends, a signal arrives or a moment has come.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import FrameType

from millrace.clock import Clock
from millrace.errors import ExitCode, MillraceError, NewerFormatError
from millrace.guard import become_subreaper
from millrace.homes import codec
from millrace.homes.documents import (
    EditAsked,
    ProcessRow,
    ProcessTable,
    Proposal,
    Scale,
    Status,
)
from millrace.homes.restarts import FINAL_CODES, GiveUp
from millrace.local.ackers import ACKER_STOP_S, AckerKeeper, AckerPlan
from millrace.local.children import ProcessSpec
from millrace.local.crew import Crew, Death, Failure, await_any
from millrace.local.edits import Editing
from millrace.local.files import write_json
from millrace.local.logs import Display, RunLog
from millrace.local.processes import ProcessId, kill_marked
from millrace.local.scale import Scaling, news, server_names
from millrace.local.servers import ServerKeeper, StateServer
from millrace.local.standby.keeper import STANDBY, StandbyKeeper
from millrace.local.takeover import Lease, fenced_by
from millrace.local.workdir import WorkFolder
from millrace.protocol.events import StopKind
from millrace.state.client import StateAddress

TICK_S = 0.25
"""Longest sleep: how soon a newer run is noticed and progress is shown."""

DRAIN_S = 60.0
"""How long an asked driver may take before it is killed."""

FENCED_DRAIN_S = 3.0
"""The same, when a newer run waits."""

DRIVER = "driver"


_ENDED = {"driver": "DriverEnded", "acker": "AckerEnded"}

_UNSAID = "it has not said that all input is processed: code of the topology may have ended it"
_UNFENCED = "it has not said that it is fenced: code of the topology may have ended it"


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The processes of a run.

    ``ackers`` and ``driver`` give the specifications for the servers at hand; they are asked
    again when a server changes. An acker whose specification changed is started anew, a driver
    goes on and learns of the change from the proposal. Without ``scaling`` the run keeps its size.
    ``standby`` is the specification of a driver that stands by, None where there is to be none,
    ``standby_bytes`` the memory that has to be free before one is started.
    """

    servers: Sequence[StateServer]
    ackers: AckerPlan
    driver: Callable[[Sequence[StateAddress]], ProcessSpec]
    scaling: Scaling | None = None
    standby: Callable[[Sequence[StateAddress]], ProcessSpec] | None = None
    standby_bytes: int = 0
    editing: Editing | None = None


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended. ``reason`` is drained, asked, fenced, lost or failed."""

    code: int
    reason: str
    message: str = ""
    restarts: Mapping[str, int] = field(default_factory=dict)


class Supervisor:
    """``run`` from the main thread; a supervisor runs once."""

    def __init__(
        self, folder: WorkFolder, lease: Lease, plan: RunPlan, display: Display, clock: Clock
    ) -> None:
        self._folder = folder
        self._lease = lease
        self._plan = plan
        self._display = display
        self._told_lost = display.lost > 0
        self._clock = clock
        self._inbox = folder.inbox
        self._log = RunLog(folder.journal, clock)
        self._crew = Crew(folder, clock, display.output)
        self._ackers = AckerKeeper(plan.ackers, self._crew, clock, self._tell)
        self._standby = StandbyKeeper(
            plan.standby,
            self._crew,
            DRIVER,
            self._figures,
            clock,
            self._tell,
            self._warn,
            plan.standby_bytes,
        )
        scaling = plan.scaling
        copies = scaling.copies if scaling is not None else 1
        self._servers = ServerKeeper(plan.servers, clock, self._warn, self._sealed, copies)
        if scaling is not None:
            self._servers.want(scaling.wanted, scaling.make)
        self._scale: Scale | None = None
        self._edit: EditAsked | None = None
        self._put_off: EditAsked | None = None
        self._tuning = plan.editing.tuning if plan.editing is not None else None
        self._wake_read, self._wake_write = os.pipe()
        self._signals = 0
        self._started = clock.now_s()
        self._sealed_at_start: dict[str, int] = {}
        self._addresses: tuple[StateAddress, ...] = ()
        self._told: tuple[object, object] = (None, None)
        self._ending: RunResult | None = None
        self._deadline_s: float | None = None
        self._result: RunResult | None = None
        self._ended = False

    def run(self) -> RunResult:
        """Start everything, keep it alive, and return when the run has ended and nothing lives.

        Raises ``StateServerError`` when a state server cannot be had at the start.
        """
        become_subreaper()
        for end in (self._wake_read, self._wake_write):
            os.set_blocking(end, False)
        try:
            # A signal in this line ends the run at once: there is nothing to be drained.
            self._servers.start_all()
            with self._caught_signals():
                self._start_all()
                while self._result is None:
                    self._step()
                self._end_all()
        except BaseException:
            self._end_all()
            raise
        finally:
            os.close(self._wake_read)
            os.close(self._wake_write)
        self._look_at_display()
        result, shortfall = self._result, self._display.shortfall
        if shortfall and not result.message:
            # Nobody prints these rows again, so that all went well is not for the run to say.
            result = replace(result, code=result.code or ExitCode.SINK, message=shortfall)
        return replace(result, restarts=self._crew.restarts() | self._servers.restarts())

    # -- the loop

    def _start_all(self) -> None:
        self._tell("RunStarted", f"run {self._lease.generation} has started")
        self._follow_addresses()
        failed = self._start_due()
        if failed:
            # A run that begins says at once what keeps it from that.
            raise failed[0].error

    def _step(self) -> None:
        handles = [self._wake_read, *self._crew.handles(), *self._servers.handles()]
        await_any(handles, self._sleep_s())
        self._drain_wakes()
        self._look_at_signals()
        self._look_at_lease()
        self._look_at_deadline()
        for death in self._crew.reap():
            if death.role == DRIVER:
                self._driver_ended(death)
            elif death.role == STANDBY:
                self._standby.ended(death)
                self._sweep()
            else:
                self._acker_ended(death)
        if self._result is None:
            self._look_at_edit()
            self._look_at_scale()
            self._ackers.look()
            self._servers.look()
            self._let_servers_leave()
            self._follow_addresses()
            if self._ending is None:
                self._standby.look(self._addresses, self._sealed_at_start.get(DRIVER, 0))
            for failure in self._start_due():
                self._not_started(failure)
            self._display.progress()
        self._look_at_display()

    def _sleep_s(self) -> float:
        due = (self._crew.next_due_s(), self._ackers.next_due_s(), self._servers.next_due_s())
        moments = (*due, self._deadline_s)
        now = self._clock.monotonic_s()
        return min([TICK_S, *(max(0.0, moment - now) for moment in moments if moment is not None)])

    def _drain_wakes(self) -> None:
        try:
            os.read(self._wake_read, 4096)
        except BlockingIOError:
            return

    # -- what ends a run

    def _look_at_signals(self) -> None:
        if not self._signals:
            return
        if self._ending is None:
            self._signals = 0
            self._tell("StopAsked", "asked to stop: what is sealed is published first")
            self._stop_driver(RunResult(ExitCode.INTERRUPTED, "asked"), DRAIN_S)
        else:
            self._force("asked to stop again: the driver is killed")

    def _look_at_lease(self) -> None:
        if self._ending is not None and self._ending.reason == "fenced":
            return
        newer = self._lease.newer()
        if newer is not None:
            message = str(fenced_by(newer))
            self._warn("Fenced", message)
            self._stop_driver(RunResult(ExitCode.FENCED, "fenced", message), FENCED_DRAIN_S)

    def _look_at_deadline(self) -> None:
        if self._deadline_s is not None and self._clock.monotonic_s() >= self._deadline_s:
            self._force("the driver did not end in time and is killed")

    def _look_at_edit(self) -> None:
        editing = self._plan.editing
        asked = editing.asked() if editing is not None and self._ending is None else None
        if editing is None or asked is None or asked == self._edit:
            return
        try:
            edits, tuning = editing.take(asked)
        except OSError as error:
            if asked != self._put_off:
                self._put_off = asked
                text = f"edits are taken as soon as they can be written: {error}"
                self._warn("EditPutOff", text)
            return
        except MillraceError as error:
            self._edit = asked
            self._warn("EditOvertaken", str(error))
            return
        self._edit = asked
        if tuning is not None:
            self._tuning = tuning
            fields = ", ".join(edit.path for edit in edits)
            self._tell("EditedInPlace", f"without a restart: {fields}")

    def _look_at_scale(self) -> None:
        scaling = self._plan.scaling
        if scaling is None or self._ending is not None:
            return
        asked = scaling.asked()
        if asked is not None and asked is not self._scale:
            # The same may be asked for again: the load has changed the number of ackers meanwhile.
            new = news(self._scale, asked)
            self._scale = asked
            if new != Scale():
                self._follow_scale(scaling, new)

    def _let_servers_leave(self) -> None:
        scaling = self._plan.scaling
        if scaling is not None and self._ending is None and self._servers.leaving:
            self._servers.settle(scaling.view(), scaling.view)

    def _follow_scale(self, scaling: Scaling, asked: Scale) -> None:
        refusal = scaling.refusal(asked)
        if refusal:
            self._warn("ScaleRefused", refusal)
            return
        parts = []
        if asked.state_servers is not None:
            self._servers.want(server_names(asked.state_servers), scaling.make)
            parts.append(f"{asked.state_servers} state servers")
        if asked.ackers is not None:
            parts.append(self._ackers.scale(asked.ackers))
        self._tell("ScaleAsked", f"the run is to have {' and '.join(parts)}")

    def _stop_driver(self, result: RunResult, grace_s: float) -> None:
        """Ask the driver to end, as the run then does with ``result``."""
        self._ending = result
        self._crew.unwant(DRIVER)
        driver = self._crew.child(DRIVER)
        if driver is None:
            self._result = result
            return
        driver.ask_to_stop()
        self._deadline_s = self._clock.monotonic_s() + grace_s
        self._standby.dismiss()

    def _force(self, text: str) -> None:
        self._signals = 0
        self._deadline_s = None
        driver = self._crew.child(DRIVER)
        if driver is not None:
            self._warn("StopForced", text)
            driver.kill()

    # -- what died

    def _driver_ended(self, death: Death) -> None:
        if self._ending is not None:
            self._result = self._ending
        elif death.code == ExitCode.OK and self._says(death.pid, StopKind.DRAINED):
            self._result = RunResult(ExitCode.OK, "drained")
        elif death.code == ExitCode.OK:
            self._start_again(replace(death, cause=_UNSAID), ExitCode.FAILED)
        elif death.code == ExitCode.STATE_LOST and self._says(death.pid, StopKind.LOST):
            # No further driver can do better. Whoever started this run may restore a snapshot.
            self._warn("StateLost", death.cause)
            self._result = RunResult(ExitCode.STATE_LOST, "lost", f"{death.name}: {death.cause}")
        elif death.code == ExitCode.FENCED and self._is_fenced(death.pid):
            self._result = RunResult(ExitCode.FENCED, "fenced", death.cause)
        elif death.code == ExitCode.FENCED:
            self._start_again(replace(death, cause=_UNFENCED), ExitCode.FAILED)
        else:
            self._start_again(death)
        # Behind that: who takes over fences what is left of the other.
        self._sweep()

    def _is_fenced(self, pid: int) -> bool:
        """Whether a newer run is there, or the driver itself says that it met one, or another one
        that lives tells the figures by now."""
        if self._lease.newer() is not None or self._says(pid, StopKind.FENCED):
            return True
        tells = self._figures().pid
        return tells is not None and tells not in (0, pid) and ProcessId.of(tells) is not None

    def _says(self, pid: int, kind: StopKind) -> bool:
        """Whether a driver itself says that it ends so: any code can end with any number, and what
        is drained is read no further; a restore takes back what sinks show."""
        figures = self._figures()
        return figures.pid == pid and figures.state == kind.value

    def _acker_ended(self, death: Death) -> None:
        if not self._ackers.ended(death) and self._ending is None:
            self._start_again(death)

    def _start_again(self, death: Death, counts_as: int = 0) -> None:
        """``counts_as``: the exit code that its end counts as, where that is another."""
        code = counts_as or death.code
        progressed = self._sealed() > self._sealed_at_start[death.name]
        restarts = self._crew.posts[death.name].restarts
        decision = restarts.ended(code, death.lived_s, progressed)
        if isinstance(decision, GiveUp):
            message = death.cause or f"it wrote nothing; see {self._log_of(death.name)}"
            self._warn("GivenUp", f"{death.name} ended with {death.how}: {message}")
            self._result = RunResult(decision.code, "failed", f"{death.name}: {message}")
            return
        heir = self._standby.take_over() if death.role == DRIVER else 0
        if heir:
            self._sealed_at_start[death.name] = self._sealed()
        else:
            self._crew.again(death.name, decision.delay_s)
        why = f": {death.cause}" if death.cause and code > 0 else ""
        wait = f" in {decision.delay_s:g} s" if decision.delay_s else ""
        follows = f"process {heir}, which stood by, takes over"
        self._warn(
            _ENDED[death.role],
            f"{death.name} (process {death.pid}) ended with {death.how}{why}; "
            f"{follows if heir else f'it is started again{wait}'}",
        )

    def _log_of(self, name: str) -> str:
        return str(self._folder.logs / f"{name}.log")

    # -- what is started

    def _follow_addresses(self) -> None:
        """Give the crew its orders for the servers that are there now."""
        addresses = self._servers.addresses
        if addresses and addresses != self._addresses:
            self._addresses = addresses
            self._ackers.follow(addresses)
        self._publish()

    def _start_due(self) -> Sequence[Failure]:
        """Start what is due; what cannot be."""
        if self._crew.child(DRIVER) is None:
            # Between two lives the driver may be told of servers that moved.
            self._crew.want(self._plan.driver(self._addresses), FINAL_CODES)
        started, failed = self._crew.start_due()
        for post in started:
            self._sealed_at_start[post.spec.name] = self._sealed()
        self._publish()
        return failed

    def _not_started(self, failure: Failure) -> None:
        """Processes, memory or room on the disk may be there again in a while."""
        post, name = failure.post, failure.post.spec.name
        # A guard that did not report may have begun something.
        self._sweep()
        if post.spec.role == STANDBY:
            self._standby.not_started(failure.error)
            return
        wait_s = post.restarts.next_wait_s()
        self._crew.again(name, wait_s)
        self._warn(
            _ENDED[post.spec.role],
            f"{name} cannot be started: {failure.error}; that is tried again in {wait_s:g} s",
        )

    def _publish(self) -> None:
        """Write ``proposal.json`` and ``processes.json`` where they changed."""
        leaving = self._servers.released or None
        proposal = Proposal(
            self._servers.proposed,
            self._ackers.proposed(),
            leaving=leaving,
            tuning=self._tuning,
        )
        me = ProcessId.me()
        own = ProcessRow("supervisor", "supervisor", me.pid, me.ticks, started=self._started)
        processes = ProcessTable((own, *self._servers.rows(), *self._crew.rows()))
        if self._told == (proposal, processes):
            return
        try:
            self._inbox.propose(proposal)
            write_json(self._folder.processes, codec.encode(processes), durable=False)
        except OSError:
            # A full disk: what has to be told is told when there is room again.
            return
        self._told = (proposal, processes)

    def _sealed(self) -> int:
        return self._figures().sealed or 0

    def _figures(self) -> Status:
        with suppress(NewerFormatError):  # the driver says so, and ends with it
            return self._folder.journal.status()
        return Status()

    # -- the end

    def _end_all(self) -> None:
        if self._ended:
            return
        self._ended = True
        posts = self._crew.posts
        drivers = (DRIVER, STANDBY)
        self._crew.end([name for name in posts if name in drivers], 0.0)
        self._crew.end([name for name in posts if name not in drivers], ACKER_STOP_S)
        self._servers.stop_all()
        self._sweep()
        self._crew.close()
        # Left behind by a full disk it names processes that are gone, which readers check.
        with suppress(OSError):
            write_json(self._folder.processes, codec.encode(ProcessTable()), durable=False)

    def _sweep(self) -> None:
        """Kill and reap what an ended driver left, if its guard could not."""
        keep = self._crew.pids() | self._servers.pids()
        # Where there is no file descriptor left to look with, the next sweep finds it.
        with suppress(OSError):
            for process in kill_marked(self._folder.path, keep):
                with suppress(ChildProcessError):
                    os.waitpid(process.pid, os.WNOHANG)

    # -- telling

    def _look_at_display(self) -> None:
        if self._display.lost and not self._told_lost:
            self._told_lost = True
            self._warn("OutputLost", self._display.trouble)

    def _tell(self, kind: str, text: str) -> None:
        self._display.event(self._log.add(kind, text))

    def _warn(self, kind: str, text: str) -> None:
        self._display.event(self._log.add(kind, text, warning=True))

    @contextmanager
    def _caught_signals(self) -> Iterator[None]:
        def count(_: int, __: FrameType | None) -> None:
            self._signals += 1
            os.write(self._wake_write, b"s")

        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, count) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
