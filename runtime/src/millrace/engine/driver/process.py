"""Puts a driver together: the state machine, its loop, and the real parts around it."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from millrace import checked, crash
from millrace.clock import Clock, SystemClock
from millrace.engine.driver.callbacks import Callbacks
from millrace.engine.driver.connectors import build_retired, build_sinks, build_sources
from millrace.engine.driver.effects import Equipment, RealPerformer
from millrace.engine.driver.inbox import Mailbox
from millrace.engine.driver.journal import EventFile, StatusFile
from millrace.engine.driver.loop import Loop
from millrace.engine.driver.planner import Planner
from millrace.engine.driver.publisher import Publisher
from millrace.engine.driver.retired import RetiredSinks
from millrace.engine.driver.statistics import Statistics
from millrace.engine.driver.stores import Stores
from millrace.engine.driver.verdicts import Verdicts
from millrace.engine.jobs.runner import AttemptRunner
from millrace.engine.jobs.start import StartedSpark, start_spark
from millrace.engine.task.state import Services
from millrace.errors import ExitCode, MillraceError, SinkError, WorkFolderError
from millrace.protocol import events as e
from millrace.protocol.cohorts import DeadLimit
from millrace.protocol.driver import Driver
from millrace.protocol.record import Backoff
from millrace.protocol.settings import Settings
from millrace.protocol.types import Components, Guarantee, Json, Record, RootRange
from millrace.ring import owners
from millrace.sinks.base import Sink
from millrace.sources.base import Source
from millrace.state.viewfile import ViewFile
from millrace.topology.model import StreamTopology

log = logging.getLogger("millrace.driver")

RETRY_S = 1.0
"""Pause before a sink that was away is looked at again."""

Start = Callable[[StreamTopology, str, Path, Path], StartedSpark]
"""Gives (topology, uid, folder of its file, work folder) a session and the program."""


@dataclass(frozen=True, slots=True)
class DriverConfig:
    """What a driver process is told: its work folder and ``driver.json`` in it.

    ``folder`` is where the topology file lies: relative paths start there. ``retired`` are sinks
    that were removed, declared by name and number, for what they have still to show.
    """

    workdir: Path
    uid: str
    folder: Path
    topology: StreamTopology
    password: str | None
    fresh: bool
    overwrite: bool
    components: Components | None = None
    retired: Mapping[tuple[str, int], Mapping[str, Any]] = field(default_factory=dict)
    drop_removed: bool = False
    drop_gone: bool = False

    @classmethod
    def load(cls, workdir: Path, document: Mapping[str, Any]) -> DriverConfig:
        """Raises ``WorkFolderError`` where the document lacks something."""
        try:
            topology = checked.decode(Path(document["topology"]).read_bytes())
            return cls(
                workdir,
                document["uid"],
                Path(document["folder"]),
                StreamTopology.model_validate(topology),
                os.environ.get("MILLRACE_STATE_PASSWORD"),
                bool(document.get("fresh")),
                bool(document.get("overwrite")),
                Components(**document["components"]),
                {(one["name"], one["number"]): one["sink"] for one in document["retired"]},
                bool(document.get("dropRemoved")),
                bool(document.get("dropGone")),
            )
        except ValidationError as error:
            raise WorkFolderError(
                f"{workdir / 'driver.json'}: its topology has {error.error_count()} problems; "
                "start the run again with `millrace run`"
            ) from None
        except (KeyError, TypeError, OSError, ValueError, RecursionError) as error:
            raise WorkFolderError(
                f"{workdir / 'driver.json'}: {error}; start the run again with `millrace run`"
            ) from error


def read_driver_file(workdir: Path) -> dict[str, Any]:
    """What the supervisor wrote into ``driver.json``. Raises ``WorkFolderError``."""
    try:
        return checked.decode((workdir / "driver.json").read_bytes())
    except (OSError, checked.DamagedError) as error:
        raise WorkFolderError(
            f"{workdir / 'driver.json'}: {error}; start the run again with `millrace run`"
        ) from error


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
        key_groups=spec.key_groups,
        dead_limit=DeadLimit(spec.dead_letters.max_percent),
        emits_final=any(p.kind.at_end(p.settings) for p in spec.processors),
    )


class DriverProcess:
    """One life of a driver. ``run`` from any one thread; ``ask_to_stop`` from anywhere.

    ``start`` gives the session and the compiled topology; it is called once, on another thread.
    """

    def __init__(
        self, config: DriverConfig, clock: Clock | None = None, start: Start = start_spark
    ) -> None:
        self.config = config
        self._clock = clock or SystemClock()
        self._start = start
        self._sources = build_sources(config.topology, config.folder)
        self._callbacks = Callbacks(self._sources)
        settings = settings_of(config.topology, config.uid)
        self._settings = replace(
            settings,
            callbacks=self._callbacks.wanted,
            components=config.components,
            drop_removed=config.drop_removed,
        )
        self._stores = Stores(config.uid, config.password)
        self._sinks = build_sinks(config.topology, config.folder, self._stores)
        self._view = ViewFile(config.workdir / "view.json")
        self._machine = Driver(self._settings, self._owners, self._locate)
        self._machine.windows.on_bug = lambda text: log.error("unexpected: %s", text)
        self._loop = Loop(self._machine, self._clock)
        self._events = EventFile(config.workdir / "events.jsonl", self._clock)
        self._stop_asked = threading.Event()
        self._exit_code = ExitCode.FAILED
        self._spark: Future[StartedSpark] | None = None
        self._runner: AttemptRunner | None = None
        self._statistics = Statistics(
            StatusFile(config.workdir / "status.json", self._clock), self._clock
        )

    def ask_to_stop(self) -> None:
        self._stop_asked.set()
        self._loop.post(e.StopAsked())

    def run(self) -> int:
        """Run until drained, asked, fenced or failed; the exit code says which."""
        for sink in self._sinks:
            self._prepare(sink)
        starter = ThreadPoolExecutor(1, thread_name_prefix="spark-start")
        config = self.config
        self._spark = starter.submit(
            self._start, config.topology, config.uid, config.folder, config.workdir
        )
        self._statistics.spark_runs = self._spark.done
        effects = self._effects()
        try:
            stop = self._loop.run(effects, self._observe)
        finally:
            effects.close()
            starter.shutdown(wait=False, cancel_futures=True)
            self._close_connectors()
        self._statistics.stopped(stop)
        return self._code(stop)

    def _prepare(self, sink: Sink) -> None:
        """Wait for a sink that is away or full. Raises ``SinkError`` where waiting cannot help."""
        while True:
            try:
                sink.prepare(self.config.uid, self.config.fresh, self.config.overwrite)
                return
            except SinkError as error:
                if not error.retryable or self._stop_asked.is_set():
                    raise
                if self._events.add(e.Notify("SinkAway", str(error), warning=True)):
                    log.warning("%s", error)
            self._stop_asked.wait(RETRY_S)

    def _close_connectors(self) -> None:
        """Nothing runs any more that would use a source or sink."""
        connectors: list[Source | Sink] = [*self._sources, *self._sinks]
        for one in connectors:
            try:
                one.close()
            except Exception:
                # The boundary of a connector's code: the run has ended as it has.
                log.exception("closing %r", one.name)

    # -- parts

    def _effects(self) -> RealPerformer:
        config, spec, post = self.config, self.config.topology.spec, self._loop.post
        verdicts = Verdicts(
            self._stores,
            lambda: self._started().program.tracked_edges,
            post,
            spec.ackers.virtual_nodes,
        )
        planner = Planner(
            self._sources,
            spec.window.max_records,
            spec.window.max_interval.seconds,
            self._clock,
            post,
        )
        planner.start()
        self._statistics.lag = lambda: planner.lag_records
        self._statistics.taken = planner.taken
        parts = Equipment(
            view=self._view,
            stores=self._stores,
            verdicts=verdicts,
            planner=planner,
            publisher=Publisher(self._sinks, self._callbacks, post, self._retired()),
            mailbox=Mailbox(config.workdir, self._stores.fetch, verdicts.members),
            events=self._events,
            sources={source.name: source for source in self._sources},
            runner=self._attempt_runner,
            committed=self._committed,
            running=self._statistics.running,
            failed=self._failed,
            settle=self._statistics.settle,
        )
        return RealPerformer(parts, post)

    def _retired(self) -> RetiredSinks:
        config = self.config

        def make(name: str, number: int) -> Sink:
            declared = config.retired.get((name, number))
            if declared is None:
                raise SinkError(f"sink {name!r} was removed, and nothing is known of it any more")
            sink = build_retired(declared, config.folder, self._stores)
            sink.prepare(config.uid)
            return sink

        return RetiredSinks(config.components, config.drop_removed, make)

    def _started(self) -> StartedSpark:
        assert self._spark is not None
        return self._spark.result()

    def _attempt_runner(self) -> AttemptRunner:
        if self._runner is None:
            started = self._started()
            named = {source.name: source for source in self._sources}
            program = replace(started.program, drop_gone=self.config.drop_gone)
            self._runner = AttemptRunner(started.spark, program, named, self._services)
        return self._runner

    def _services(self) -> Services:
        view = self._machine.membership.view
        assert view is not None
        return Services(self._stores.access(view), self._stores.log_address())

    # -- what the machine asks for

    def _owners(
        self, members: tuple[Any, ...], previous: tuple[tuple[str, ...], ...]
    ) -> tuple[tuple[str, ...], ...]:
        names = [member.name for member in members]
        return owners(self._settings.key_groups, names, self._settings.copies, None, previous)

    def _locate(self, piece: RootRange, index: int) -> Json:
        named = {source.name: source for source in self._sources}
        return named[piece.source].locate(piece, index)

    # -- watching

    def _observe(self, event: e.Event) -> None:
        if isinstance(event, e.CasDone):
            self._stores.use(event.view)
        if isinstance(event, e.SinkRefused):
            self._exit_code = ExitCode.SINK
        if isinstance(event, e.PlanFailed):
            self._exit_code = ExitCode.SOURCE
        self._statistics.observe(event)

    def _failed(self, error: MillraceError) -> None:
        self._exit_code = error.exit_code

    def _committed(self, record: Record) -> None:
        crash.reached(self._point(record))
        view = self._machine.membership.view
        assert view is not None
        self._statistics.committed(record, view)

    def _point(self, record: Record) -> str:
        return self._statistics.what_changed(record)

    def _code(self, stop: e.Stop) -> int:
        code = e.STOP_CODES[stop.kind]
        return self._exit_code if code is None else code
