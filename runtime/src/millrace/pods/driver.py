"""The driver's pod: ``python -m millrace.pods driver``, one life of a topology's driver.

With ``--standby`` it has Spark and the user's code up and waits until no driver before it is left
(``standby``); then it is a driver like any other.

A state server that the topology names itself is waited for before all else (``ownserver``), and
read by the command line through this pod (``reading``).
It claims its execution itself, so two of these pods at once are harmless. A topology that begins
with a snapshot is restored before that, and one that has lost its state and is to be restored
behind it, for the next pod to go on (``millrace.restoring.pods``). One that stood by goes on with a
restore that has begun before all else, too. SIGTERM ends it behind what is sealed. Its exit code
and its termination message say why it ended; whether another driver follows is the operator's to
decide.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from millrace import crash
from millrace.clock import SystemClock
from millrace.engine.driver.connectors import Connectors
from millrace.engine.driver.places import open_inbox, open_journal, open_marked_view
from millrace.engine.driver.process import DriverProcess, Start
from millrace.engine.driver.standby import Standby
from millrace.engine.driver.stores import Stores
from millrace.engine.jobs.session import request_executors
from millrace.engine.jobs.start import StartedSpark, start_spark
from millrace.errors import ExitCode, MillraceError, error_text
from millrace.health import Answer, Beat, serve
from millrace.homes import pods
from millrace.homes.documents import Status
from millrace.homes.passwords import PasswordOf, shared
from millrace.homes.pods import Role
from millrace.homes.settings import DriverSettings
from millrace.homes.stores import Inbox
from millrace.homes.told import read_settings, read_topology
from millrace.kube.configmaps import own_api
from millrace.metrics import catalogue
from millrace.pods.identity import (
    Identity,
    own_passwords,
    password_of,
    private_files,
    private_scratch,
)
from millrace.pods.logs import start_logs
from millrace.pods.metrics import told
from millrace.pods.ownserver import OwnServer, OwnServerInbox
from millrace.pods.reading import OwnServerReading, Where, serve_readers
from millrace.pods.spark import cluster_conf, executor_size, new_nonce, share_secrets
from millrace.pods.standby import Outlook, Watchman, Whose
from millrace.pods.termination import tell_end
from millrace.protocol.events import StopKind
from millrace.protocol.types import Phase
from millrace.restoring.pods import PodRestore, RestoreStoppedError, Surroundings
from millrace.sinks import Sink
from millrace.topology.model import OnStateLoss, StandbyExecutors, StreamTopology

log = logging.getLogger("millrace.driver")

LIVE_S = 60.0

BEGINNING_S = 300.0
"""The user's code is imported, sources are opened and sinks prepared: theirs to say how long."""


def readiness(status: Status) -> Answer:
    """Whether windows can be run, by the driver's own figures."""
    if status.execution is None:
        return Answer(False, "holds no execution yet")
    held = f"execution {status.execution}"
    if status.state != "running":
        return Answer(False, f"{held}, {status.state}: {status.reason or 'no reason given'}")
    if status.phase != Phase.OPEN.value:
        return Answer(False, f"{held}, the view is {status.phase}")
    if status.spark != "running":
        return Answer(False, f"{held}, Spark is {status.spark}")
    return Answer(True, f"{held}, window {status.sealed} is sealed")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the pod's container to its end; returns an exit code."""
    parser = argparse.ArgumentParser(prog="millrace.pods driver", description=__doc__)
    parser.add_argument("--config", type=Path, default=Path(pods.CONFIG_FOLDER))
    parser.add_argument("--secret", type=Path, default=Path(pods.SECRET_FOLDER))
    parser.add_argument("--scratch", type=Path, default=Path(pods.SCRATCH_FOLDER))
    parser.add_argument("--health-port", type=int, default=pods.HEALTH_PORT)
    parser.add_argument("--reading-port", type=int, default=pods.READING_PORT)
    parser.add_argument(
        "--standby",
        type=StandbyExecutors,
        choices=list(StandbyExecutors),
        help="stand by; whether executors do so too",
    )
    options = parser.parse_args(arguments)
    try:
        return _run(options)
    except MillraceError as error:
        tell_end(str(error))
        log.critical("%s", error)
        return error.exit_code
    except BaseException as error:
        # The boundary of the process: the operator decides what follows from the exit code. That of
        # code which asks the process to exit would say that all is done.
        tell_end(error_text(error))
        log.exception("the driver failed: %s", error_text(error))
        return ExitCode.FAILED


def _run(options: argparse.Namespace) -> int:
    identity = Identity.of(os.environ)
    start_logs(Role.DRIVER, identity)
    private_files()
    scratch = private_scratch(options.scratch)
    nonce = new_nonce()
    share_secrets(options.secret, scratch, nonce)
    settings = read_settings(options.config / pods.DRIVER_KEY)
    template = options.config / pods.EXECUTOR_KEY

    later = options.standby is StandbyExecutors.ON_TAKE_OVER

    def start(topology: StreamTopology, uid: str, folder: Path, workdir: Path) -> StartedSpark:
        executors = topology.spec.spark.executors.instances
        cluster = None
        if executors:
            cluster = cluster_conf(identity, os.environ, template, scratch, nonce)
            asked = topology.spec.pods.executors.resources
            cluster |= executor_size(topology.spec.spark.executors, asked)
            if later:
                cluster["spark.executor.instances"] = "0"
        return start_spark(topology, uid, folder, workdir, cluster)

    def with_executors(*what: Any) -> StartedSpark:
        started = standing.start(*what)
        if later and executors:
            request_executors(started.spark, executors)
        return started

    beat = Beat(LIVE_S, first_s=BEGINNING_S)

    def read_by(where: Where) -> None:
        known = partial(own_passwords, options.secret, settings.uid, identity.pod)
        serve_readers(OwnServerReading(settings.uid, where, known), options.reading_port)

    life = Life(settings, password_of(options.secret, settings.uid), beat, read_by)
    waits, ready = threading.Event(), scratch / "standby"
    ready.unlink(missing_ok=True)
    asked = questions(lambda: life.process, beat, lambda: waits.is_set() and ready.exists())
    serve(asked, options.health_port)
    signal.signal(signal.SIGTERM, lambda *_: life.ask_to_stop())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if options.standby is None:
        return life.run(start)
    executors = read_topology(Path(settings.topology)).spec.spark.executors.instances
    file = options.config / pods.DRIVER_KEY
    standing = Standby(file, ready, SystemClock(), start, rehearses=not (later and executors))
    waits.set()
    outlook = _stand_by(standing, life, identity, settings.uid, beat)
    # What follows may be the rest of a restore, which is long: meanwhile it is not ready.
    waits.clear()
    if outlook.whose is not Whose.OURS:
        tell_end(f"stood by: {outlook.why}")
        return outlook.code
    return life.run(with_executors)


class Life:
    """What a driver's pod does in its life. ``run`` once; the rest from anywhere. ``read_by`` has
    readers answered of a state server of the user's own."""

    def __init__(
        self,
        settings: DriverSettings,
        password_of: PasswordOf,
        beat: Beat,
        read_by: Callable[[Where], None],
    ) -> None:
        self._settings = settings
        self._password_of = password_of
        self._beat = beat
        self._read_by = read_by
        self._stopped = threading.Event()
        self._process: DriverProcess | None = None
        self._own: OwnServer | None = None
        self._topology = read_topology(Path(settings.topology))

    def run(self, start: Start) -> int:
        """The exit code. Raises ``MillraceError``."""
        try:
            self._reach_own_server()
            with self._restore() as restore:
                restore.prepare()
            self._beat.begin()
            process = DriverProcess(
                self._settings,
                self._password_of,
                start=start,
                beat=self._beat,
                inbox=self._inbox(),
            )
            self._process = process
            if self._stopped.is_set():
                process.ask_to_stop()
            code = process.run()
            status = process.status
            restores = self._topology.spec.on_state_loss is OnStateLoss.RESTORE
            if status.state == StopKind.LOST.value and restores:
                with self._restore() as restore:
                    tell_end(f"restored: {restore.lost(process.execution)}")
                return ExitCode.INTERRUPTED
        except RestoreStoppedError as error:
            tell_end(str(error))
            return ExitCode.INTERRUPTED
        tell_end(f"{status.state}: {status.reason}" if status.reason else str(status.state))
        return code

    def _reach_own_server(self) -> None:
        """Where the topology names one: the password of the others is none of its."""
        wanted = self._topology.spec.state_servers
        if wanted.url is None:
            return
        journal = open_journal(self._settings.journal)
        own = OwnServer(wanted, self._settings.uid, journal, SystemClock())
        self._read_by(lambda: own.address)
        try:
            own.reach(self._pause)
        finally:
            journal.flush()
        self._own, self._password_of = own, shared(own.password)

    def _inbox(self) -> Inbox:
        inbox = open_inbox(self._settings.inbox)
        return inbox if self._own is None else OwnServerInbox(inbox, self._own)

    def ask_to_stop(self) -> None:
        self._stopped.set()
        if self._process is not None:
            self._process.ask_to_stop()

    @property
    def process(self) -> DriverProcess | None:
        """The driver; None before there is one."""
        return self._process

    def _pause(self, seconds: float) -> None:
        self._beat()
        if self._stopped.wait(seconds):
            raise RestoreStoppedError(
                "asked to stop while a snapshot is restored, or a state server waited for"
            )

    @contextmanager
    def _restore(self) -> Iterator[PodRestore]:
        settings, topology = self._settings, self._topology
        stores = Stores(settings.uid, self._password_of)
        connectors = Connectors(Path(settings.folder), stores)

        def sinks() -> list[Sink]:
            connectors.close()
            self._beat.begin()
            return connectors.sinks(topology)

        journal = open_journal(settings.journal)
        around = Surroundings(
            open_marked_view(settings.view),
            self._inbox(),
            journal,
            sinks,
            connectors.retired,
            stores.client,
            self._pause,
            SystemClock(),
        )
        try:
            yield PodRestore(settings, topology, around)
        finally:
            connectors.close()
            journal.flush()


def questions(
    process: Callable[[], DriverProcess | None],
    beat: Beat,
    stands_by: Callable[[], bool] = lambda: False,
) -> dict[str, Callable[[], Answer]]:
    """What a driver's pod is asked; there may be no driver yet. ``stands_by``: it has all up that a
    driver needs, and waits."""

    def ready() -> Answer:
        driver = process()
        if driver is None and stands_by():
            return Answer(True, "stands by")
        return readiness(Status() if driver is None else driver.status)

    def metrics() -> Answer:
        driver = process()
        # Before a driver runs it begins, stands by, or restores: only the process has figures.
        return told(catalogue.DRIVER, tuple if driver is None else driver.samples)()

    return {
        pods.LIVE_PATH: beat.answer,
        pods.READY_PATH: ready,
        pods.METRICS_PATH: metrics,
    }


def _stand_by(standing: Standby, life: Life, identity: Identity, uid: str, beat: Beat) -> Outlook:
    """Wait with all up; what came of it. Raises what keeps it from getting ready."""
    who = (identity.namespace, identity.topology, uid, identity.pod)
    watchman = Watchman(own_api(), *who, beat=beat)

    def end(*_: object) -> None:
        # At its turn just now it is a driver that is asked to end.
        life.ask_to_stop()
        watchman.stop("asked to end")

    signal.signal(signal.SIGTERM, end)
    standing.keep_ready(watchman.over)
    outlook = watchman.outlook
    log.info("%s: %s", outlook.whose.value, outlook.why)
    if outlook.whose is Whose.OURS:
        crash.reached("standby.told")
    return outlook


if __name__ == "__main__":
    # The JVM has threads that would hold the interpreter at its end.
    code = main()
    logging.shutdown()
    os._exit(code)
