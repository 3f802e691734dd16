"""Puts a driver together: the state machine, its loop, and the real parts around it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from millrace import crash
from millrace.clock import Clock, SystemClock
from millrace.engine.driver.callbacks import Callbacks
from millrace.engine.driver.connectors import Connectors
from millrace.engine.driver.errands import Foreground
from millrace.engine.driver.home.advice import AckerAdviser
from millrace.engine.driver.home.executorload import ExecutorBounds
from millrace.engine.driver.home.inbox import Mailbox
from millrace.engine.driver.home.journal import EventTeller, StatusBoard
from millrace.engine.driver.home.readied import ReadiedExecutors
from millrace.engine.driver.home.refused import RefusedExecutors
from millrace.engine.driver.home.scaling import ExecutorScaling
from millrace.engine.driver.home.troubles import ServerTroubles
from millrace.engine.driver.home.tuner import Tuner
from millrace.engine.driver.loop import Loop
from millrace.engine.driver.performer import Equipment, RealPerformer
from millrace.engine.driver.places import (
    open_inbox,
    open_journal,
    open_view,
    restores_noted,
)
from millrace.engine.driver.planner import Pace, Planner
from millrace.engine.driver.publisher import Publisher
from millrace.engine.driver.retired import RetiredSinks
from millrace.engine.driver.room import Room
from millrace.engine.driver.snapshots import SnapshotPlan, SnapshotTaker
from millrace.engine.driver.statistics import SEALED, ClockWatch, Statistics
from millrace.engine.driver.stores import Stores
from millrace.engine.driver.verdicts import Verdicts
from millrace.engine.jobs.executors import have_executors
from millrace.engine.jobs.refusals import Refusals
from millrace.engine.jobs.runner import AttemptRunner
from millrace.engine.jobs.sizes import FEW_ROOTS
from millrace.engine.jobs.start import StartedSpark, start_spark
from millrace.engine.jobs.starttimes import StartTimes
from millrace.engine.program.cutting import IN_TURN
from millrace.engine.task.state import Services
from millrace.errors import ExitCode, FencedError, MillraceError, SinkError
from millrace.homes.documents import Status
from millrace.homes.passwords import PasswordOf
from millrace.homes.settings import ConfigMapPlace, DriverSettings
from millrace.homes.stores import Inbox
from millrace.homes.told import read_topology
from millrace.homes.tuning import Tuning
from millrace.metrics.tally import Sample
from millrace.protocol import events as e
from millrace.protocol.codec import as_read
from millrace.protocol.cohorts import DeadLimit
from millrace.protocol.driver import Driver
from millrace.protocol.record import Backoff
from millrace.protocol.settings import Settings
from millrace.protocol.types import (
    AttemptId,
    AttemptPlan,
    Guarantee,
    Json,
    Member,
    Record,
    RootRange,
    nodes_of,
)
from millrace.protocol.windows.doing import Running
from millrace.ring import owners
from millrace.sinks.base import Sink
from millrace.snapshots.places import snapshots_place
from millrace.snapshots.retention import Retention
from millrace.topology.duration import Duration
from millrace.topology.model import OnStateLoss, StreamTopology, Window

log = logging.getLogger("millrace.driver")

STARTED = "the start:"
"""Begins the line that tells when a driver had reached what, in seconds since it began."""

_STEPS: Mapping[type, str] = {
    e.CasDone: "view claimed",
    e.Stamped: "servers stamped",
    e.Planned: "window planned",
    e.RunDone: "tasks done",
    e.VerdictGiven: "window judged",
}
"""What a driver that starts has reached with the first event of a kind."""

RETRY_S = 1.0
"""Pause before a sink that was away is looked at again."""

Start = Callable[[StreamTopology, str, Path, Path], StartedSpark]
"""Gives (topology, uid, folder of its file, work folder) a session and the program."""


def settings_of(topology: StreamTopology, uid: str) -> Settings:
    """The protocol's view of a topology."""
    spec = topology.spec
    guarantee = Guarantee(spec.guarantee.value)
    return Settings(
        uid=uid,
        guarantee=guarantee,
        tracking=spec.tracked,
        backoff=Backoff(spec.ackers.max_replays, spec.ackers.backoff.seconds),
        max_records=spec.window.max_records,
        copies=spec.state_servers.copies,
        learners=True,
        prepares_from=_prepares_from(guarantee, spec.tracked),
        key_groups=spec.key_groups,
        dead_limit=DeadLimit(spec.dead_letters.max_percent),
        restores=spec.on_state_loss is OnStateLoss.RESTORE,
        emits_final=any(p.kind.at_end(p.settings) for p in spec.processors),
    )


def _prepares_from(guarantee: Guarantee, tracked: bool) -> int | None:
    """Of a window of few roots its log alone is prepared, where it has one. A record that is to be
    processed at most once is counted as read before anybody looks at it."""
    if guarantee is Guarantee.AT_MOST_ONCE:
        return None
    return 1 if tracked else FEW_ROOTS + 1


class DriverProcess:
    """One life of a driver. ``run`` from any one thread; ``ask_to_stop`` from anywhere.

    ``password_of`` knows those of the state servers. ``start`` gives the session and the compiled
    topology; it is called once, on another thread. ``beat`` is called whenever the loop turns,
    several times a second. ``inbox`` takes the place of the one that the settings name. Raises
    ``WorkFolderError``, ``SourceError``, ``SinkError``.
    """

    def __init__(
        self,
        told: DriverSettings,
        password_of: PasswordOf,
        clock: Clock | None = None,
        start: Start = start_spark,
        beat: Callable[[], None] = lambda: None,
        inbox: Inbox | None = None,
    ) -> None:
        self._times: StartTimes | None = StartTimes()
        self._reached("driver begun")
        self._told = told
        self._topology = topology = read_topology(Path(told.topology))
        self._folder = Path(told.folder)
        self._clock = clock or SystemClock()
        self._start = start
        self._stores = Stores(told.uid, password_of)
        self._connectors = Connectors(self._folder, self._stores)
        try:
            self._sources = self._connectors.sources(topology)
            self._sinks = self._connectors.sinks(topology)
        except BaseException:
            self._connectors.close()
            raise
        self._reached("sources and sinks made")
        self._callbacks = Callbacks(self._sources)
        self._settings = replace(
            settings_of(topology, told.uid),
            callbacks=self._callbacks.wanted,
            components=told.components,
            drop_removed=told.drop_removed,
        )
        self._view = open_view(told.view)
        self._machine = Driver(self._settings, self._owners, self._locate)
        self._machine.windows.on_bug = lambda text: log.error("unexpected: %s", text)
        self._machine.windows.wall_ms = lambda: int(self._clock.now_s() * 1000)
        self._loop = Loop(self._machine, self._clock)
        self._inbox = inbox or open_inbox(told.inbox)
        self._mailbox: Mailbox | None = None
        self._journal = journal = open_journal(told.journal)
        self._beat = beat
        self._troubles = ServerTroubles(lambda: self._machine.membership.view)
        self._events = EventTeller(journal, self._clock, self._troubles.heard)
        self._stop_asked = threading.Event()
        self._exit_code = ExitCode.FAILED
        self._spark: Future[StartedSpark] | None = None
        self._runner: AttemptRunner | None = None
        self._tuner = Tuner(
            Tuning.of(topology, told.tuned), self._resized, self._run_again, self._tell
        )
        self._planner: Planner | None = None
        self._adviser: AckerAdviser | None = None
        self._performing: RealPerformer | None = None
        self._statistics = Statistics(StatusBoard(journal, self._clock, told.uid), self._clock)
        self._scaling = self._executor_scaling()
        self._kept: Refusals | None = None
        self._refused = self._refused_executors()
        self._readied = self._readied_executors()
        ttl = any(one.ttl is not None for one in topology.spec.processors)
        self._clock_watch = ClockWatch(self._clock, self._tell) if ttl else None

    @property
    def status(self) -> Status:
        """The figures as they are now."""
        return self._statistics.status

    @property
    def execution(self) -> int:
        """The execution that it claimed last; 0 before."""
        return int(self._machine.membership.execution)

    def samples(self) -> Iterator[Sample]:
        """The figures as Prometheus wants them, from any thread."""
        return self._statistics.samples()

    def ask_to_stop(self) -> None:
        self._stop_asked.set()
        self._loop.post(e.StopAsked())

    def run(self) -> int:
        """Run until drained, asked, fenced or failed; the exit code says which."""
        try:
            for sink in self._sinks:
                self._prepare(sink)
            self._reached("sinks prepared")
            return self._run()
        except FencedError as error:
            # An exit code alone proves nothing: user code may end the process with any.
            self._statistics.stopped(e.Stop(e.StopKind.FENCED, str(error)))
            raise
        finally:
            self._connectors.close()
            self._journal.flush()

    def _run(self) -> int:
        starter = ThreadPoolExecutor(1, thread_name_prefix="spark-start")
        self._spark = starter.submit(
            self._start, self._topology, self._told.uid, self._folder, Path(self._told.workdir)
        )
        self._statistics.spark_runs = self._spark.done
        self._performing = performer = self._performer()
        try:
            stop = self._loop.run(performer, self._observe)
            # Told before anything is closed, which may take longer than a pod has to end.
            self._statistics.stopped(stop)
        except MillraceError as error:
            self._events.add(e.Notify("DriverStopped", str(error), warning=True))
            raise
        finally:
            for watcher in (self._adviser, self._refused, self._readied):
                if watcher is not None:
                    watcher.stop()
            performer.close()
            starter.shutdown(wait=False, cancel_futures=True)
        return self._code(stop)

    def _prepare(self, sink: Sink) -> None:
        """Wait for a sink that is away or full. Raises ``SinkError`` where waiting cannot help."""
        while True:
            try:
                sink.prepare(self._told.uid, self._told.fresh, self._told.overwrite)
                return
            except SinkError as error:
                if not error.retryable or self._stop_asked.is_set():
                    raise
                if self._events.add(e.Notify("SinkAway", str(error), warning=True)):
                    log.warning("%s", error)
            self._beat()
            self._stop_asked.wait(RETRY_S)

    # -- equipment

    def _performer(self) -> RealPerformer:
        spec, post = self._topology.spec, self._loop.post
        verdicts = Verdicts(
            self._stores,
            lambda: self._started().program.tracked_edges,
            post,
            self._tell,
            spec.ackers.virtual_nodes,
        )
        foreground = Foreground()
        planner = Planner(
            self._sources,
            spec.window.max_records,
            Pace.of(spec.window),
            self._clock,
            post,
            self._tell,
            foreground.give_way,
        )
        self._planner = planner
        planner.start()
        room = Room(self._stores.memory, self._tell)
        room.start()
        self._statistics.memory = lambda: room.figures
        self._statistics.lag = lambda: planner.lag_records
        self._statistics.taken = planner.taken
        if isinstance(self._told.view, ConfigMapPlace) and spec.tracked:
            # On one machine the supervisor sees for itself what its processes use.
            self._adviser = AckerAdviser(verdicts.ackers, verdicts.loads, self._clock)
            self._adviser.start()
            self._statistics.ackers = lambda: self._adviser.advice if self._adviser else None
        if self._refused is not None:
            self._refused.start()
        if self._readied is not None:
            self._readied.start()
        snapshots = self._snapshots()
        self._statistics.snapshots = snapshots.figures
        self._mailbox = mailbox = Mailbox(
            self._inbox,
            self._stores.fetch,
            verdicts.members,
            snapshots.asked,
            snapshots.waiting,
            self._tuner.give,
            self._overtaken,
            self._clock,
        )
        equipment = Equipment(
            view=self._view,
            stores=self._stores,
            verdicts=verdicts,
            planner=planner,
            publisher=Publisher(
                self._sinks, self._callbacks, post, self._retired(), self._tell, self._loop.fail
            ),
            mailbox=mailbox,
            events=self._events,
            sources={source.name: source for source in self._sources},
            runner=self._attempt_runner,
            foreground=foreground,
            committed=self._committed,
            running=self._runs,
            settle=self._settle,
            room=room,
            snapshots=snapshots,
        )
        return RealPerformer(equipment, post, self._loop.fail)

    def _overtaken(self) -> bool:
        view = self._view.read()[1]
        return view is not None and view.execution > self._machine.membership.execution

    def _snapshots(self) -> SnapshotTaker:
        told, topology = self._told, self._topology
        wanted = topology.spec.snapshots
        plan = SnapshotPlan(
            topology.name,
            topology.document(),
            topology.spec.key_groups,
            told.components,
            snapshots_place(wanted.to, Path(told.workdir), self._folder),
            self._folder,
            Retention(wanted.keep, None if wanted.max_age is None else wanted.max_age.seconds),
            None if wanted.every is None else wanted.every.seconds,
            lambda: restores_noted(told),
            isinstance(told.view, ConfigMapPlace),
        )
        fetch, done = self._stores.fetch, self._inbox.done
        return SnapshotTaker(plan, fetch, done, self._tell, self._clock)

    def _retired(self) -> RetiredSinks:
        told = self._told
        declared_as = {(one.name, one.number): one.sink for one in told.retired}

        def make(name: str, number: int) -> Sink:
            declared = declared_as.get((name, number))
            if declared is None:
                raise SinkError(f"sink {name!r} was removed, and nothing is known of it any more")
            sink = self._connectors.retired(declared)
            sink.prepare(told.uid)
            return sink

        return RetiredSinks(told.components, told.drop_removed, make)

    def _started(self) -> StartedSpark:
        assert self._spark is not None
        return self._spark.result()

    def _attempt_runner(self, plan: AttemptPlan) -> AttemptRunner:
        started, tuning = self._started(), self._tuner.begin(plan.id)
        program = replace(
            started.program,
            drop_gone=self._told.drop_gone,
            parallelism=tuning.parallelism,
            tuple_timeout_s=Duration(tuning.tuple_timeout_ms).seconds,
        )
        if self._runner is None:
            named = {source.name: source for source in self._sources}
            self._runner = AttemptRunner(
                started.spark, program, named, self._services, reached=self._reached
            )
        self._runner.use(program)
        self._reached("runner made")
        return self._runner

    def _executor_scaling(self) -> ExecutorScaling | None:
        asked = self._topology.spec.spark.executors
        if not isinstance(self._told.view, ConfigMapPlace) or not asked.least or not asked.most:
            return None
        return ExecutorScaling(
            asked,
            ExecutorBounds(asked.least, asked.most),
            self._clock,
            self._have_executors,
            self._statistics.executors,
            self._tell,
        )

    def _have_executors(self, count: int) -> None:
        if self._runner is not None:
            self._runner.rest()
        have_executors(self._started().spark, count)

    def _refused_executors(self) -> RefusedExecutors | None:
        pods = isinstance(self._told.view, ConfigMapPlace)
        if not pods or not self._topology.spec.spark.executors.instances:
            return None
        return RefusedExecutors(self._refusals, self._clock, self._tell)

    def _refusals(self) -> list[str]:
        """What was said against pods of executors since the last time."""
        if self._spark is None or not self._spark.done() or self._spark.exception() is not None:
            return []
        if self._kept is None:
            self._kept = Refusals(self._started().spark)
        return self._kept.drain()

    def _readied_executors(self) -> ReadiedExecutors | None:
        asked = self._topology.spec.spark.executors
        if max(asked.instances, asked.most or 0) < 2:
            return None
        return ReadiedExecutors(self._spare_executors, self._rehearse_on, self._clock)

    def _spare_executors(self) -> frozenset[str]:
        return frozenset() if self._runner is None else self._runner.spare_executors()

    def _rehearse_on(self, count: int) -> None:
        assert self._runner is not None
        self._runner.rehearse_on(count)

    def _scale(self) -> None:
        """Have more or fewer executors, where the lag says so."""
        scaling, performer, planner = self._scaling, self._performing, self._planner
        if scaling is None or performer is None or planner is None:
            return
        runner = self._runner
        if runner is None:  # nothing has run yet
            return
        windows = self._machine.windows
        lag = planner.lag_records
        if lag is None:  # a source cannot say it
            return
        waiting = lag / windows.settings.max_records
        tasks = runner.most_tasks(windows.settings.max_records, self._tuner.newest.parallelism)
        scaling.look(waiting, windows.attempt is not None, tasks, performer.between)

    def _resized(self, window: Window) -> None:
        assert self._planner is not None
        self._planner.tune(window)

    def _run_again(self, attempt: AttemptId, reason: str) -> None:
        """End an attempt that runs; one whose tasks are done needs no other."""
        if isinstance(self._machine.windows.doing, Running):
            self._loop.post(e.RunDied(attempt, reason, ended=True))

    def _services(self) -> Services:
        view = self._machine.membership.view
        assert view is not None
        return Services(self._stores.access(view), self._stores.log_address())

    # -- what the machine asks for

    def _owners(
        self, members: tuple[Member, ...], previous: tuple[tuple[str, ...], ...]
    ) -> tuple[tuple[str, ...], ...]:
        names, nodes = [member.name for member in members], nodes_of(members)
        return owners(self._settings.key_groups, names, self._settings.copies, nodes, previous)

    def _locate(self, piece: RootRange, index: int) -> Json:
        named = {source.name: source for source in self._sources}
        with IN_TURN:
            return as_read(named[piece.source].locate(piece, index))

    # -- watching

    def _observe(self, event: e.Event) -> None:
        self._tuner.take(self._machine.resize)
        if (step := _STEPS.get(type(event))) is not None:
            self._reached(step)
        if isinstance(event, e.CasDone):
            self._stores.use(event.view)
        elif (view := self._machine.membership.view) is not None:
            # One whose answer was lost is found by reading it.
            self._stores.use(view)
        if isinstance(event, e.SinkRefused) and not event.behind:
            self._exit_code = ExitCode.SINK  # which always stops the machine
        if isinstance(event, e.MembersSeen):
            self._troubles.proposed({member.name for member in event.members})
        self._statistics.observe(event)
        if isinstance(event, e.Published):
            self._told_start()

    def _tell(self, notice: e.Notify) -> None:
        if self._events.add(notice):
            log.log(logging.WARNING if notice.warning else logging.INFO, notice.text)

    def _reached(self, step: str) -> None:
        times = self._times  # another thread's, once the start is told
        if times is not None:
            times.reached(step)

    def _told_start(self) -> None:
        """The first window is shown: say once how the start went."""
        times, self._times = self._times, None
        if times is not None:
            times.reached("window shown")
            log.info("%s %s", STARTED, times.text(self._started().times))

    def _settle(self) -> None:
        self._beat()
        membership = self._machine.membership
        self._troubles.look()
        self._statistics.membership(membership.view, membership.followed(), self._troubles.now)
        if self._refused is not None:
            self._statistics.refused(self._refused.now)
        self._scale()
        self._statistics.settle()

    def _runs(self, plan: AttemptPlan) -> None:
        self._reached("attempt begun")
        self._statistics.running(plan)

    def _committed(self, record: Record) -> None:
        self._reached("record read")
        point = self._statistics.crash_point(record)
        crash.reached(point)
        if point == SEALED:
            self._reached("window sealed")
        view = self._machine.membership.view
        assert view is not None
        self._statistics.committed(record, view)
        if self._clock_watch is not None:
            self._clock_watch.committed(record)

    def _code(self, stop: e.Stop) -> int:
        """The code of what it ends for; whatever else went wrong before has no part in it."""
        for code in (e.STOP_CODES[stop.kind], stop.code):
            if code is not None:
                return code
        return self._exit_code
