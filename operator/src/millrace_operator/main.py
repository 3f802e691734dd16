"""The operator's process: waits until it leads, watches and reconciles until it is told to end.

::

    start --> stands by --(Lease)--> leads: workers, then watches --(SIGTERM)--> ends, code 0
                  |                     |
                  |                     +--(Lease lost, or watches end)--> ends, code 1
                  +--(SIGTERM)--> ends, code 0

Whoever loses the Lease ends, and is started again by the kubelet: nothing of a life that led is
carried into one that stands by. SIGTERM lets the actions under way come to their end and gives the
Lease back, so that another operator leads within two seconds. SIGKILL at any point leaves a cluster
from which the next plan goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import kopf

import millrace_operator
from millrace.clock import SystemClock
from millrace.errors import ExitCode, MillraceError
from millrace.health import serve
from millrace.homes import pods
from millrace.kube.configmaps import Api, own_api
from millrace.logs import stacks
from millrace_operator import handlers
from millrace_operator.api.settings import OperatorSettings
from millrace_operator.control.health import Health
from millrace_operator.control.logs import start_logs
from millrace_operator.control.metrics import Metrics
from millrace_operator.control.queue import WorkQueue
from millrace_operator.control.reconciler import Reconciler
from millrace_operator.control.workers import Queue, Workers
from millrace_operator.kube.account import mounted_account
from millrace_operator.kube.incarnations import Incarnations
from millrace_operator.kube.lease import Lease, identity, keep
from millrace_operator.kube.objects import Objects

log = logging.getLogger("millrace.operator")

LEASE = "millrace-operator"
_LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class Options:
    """``namespaces``: whose topologies are seen to; all where none is named."""

    settings: OperatorSettings
    namespaces: tuple[str, ...]
    health_port: int
    elects: bool


class Operator:
    """One life of the process. ``run`` from the main thread."""

    def __init__(self, options: Options, api: Api) -> None:
        self._options = options
        clock = SystemClock()
        objects = Objects(api, lambda: self._workers.beat())
        self._queue: Queue = WorkQueue(clock)
        me, space = identity(socket.gethostname()), options.settings.namespace
        self._lease = Lease(objects, space, LEASE, me, clock, mounted_account(space))
        reconciler = Reconciler(
            objects,
            Incarnations(),
            options.settings,
            clock,
            lambda: secrets.token_hex(24),
            self._leads,
        )
        self._workers = Workers(self._queue, reconciler, objects, options.namespaces, clock)
        turns, standings = self._workers.turns, self._workers.standings
        self._metrics = Metrics(turns, standings, self._queue, self._leads)
        self._stopped = threading.Event()
        self._ended = threading.Event()
        self._watching = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="lease", daemon=True)
        self._lost = False

    def run(self) -> int:
        """The exit code."""
        lease = self._lease if self._options.elects else None
        health = Health(lease, self._queue, self._workers, self._watching.is_set)
        questions = {**health.questions(), pods.METRICS_PATH: self._metrics.answer}
        # Before anybody hears of this process, and tells it to end.
        self._heed_signals()
        server = serve(questions, self._options.health_port)
        if self._options.elects:
            self._keeper.start()
        try:
            if self._await(self._leads):
                self._workers.start()
                if self._await(lambda: self._workers.listed_ago_s() < math.inf):
                    asyncio.run(self._watch())
            return ExitCode.FAILED if self._lost else ExitCode.OK
        except Exception:
            # The boundary of the process: whatever ended the watches, a new life begins them again.
            log.exception("the watches ended")
            return ExitCode.FAILED
        finally:
            self._end()
            server.shutdown()
            server.server_close()

    def _leads(self) -> bool:
        return not self._options.elects or self._lease.leads()

    def _await(self, true: Callable[[], bool]) -> bool:
        """Wait for it; False where the process is to end before."""
        while not true():
            if self._stopped.wait(_LOOK_S):
                return False
        return not self._stopped.is_set()

    async def _watch(self) -> None:
        """kopf, until SIGTERM, which it takes over, or until this operator leads no more."""
        spaces = self._options.namespaces
        try:
            await kopf.operator(
                registry=handlers.registry(handlers.Hints(self._queue)),
                settings=handlers.settings(),
                standalone=True,
                clusterwide=not spaces,
                namespaces=spaces,
                stop_flag=self._stopped,
                ready_flag=self._watching,
            )
        finally:
            # A thread of the loop waits for it, too.
            self._stopped.set()

    def _keep(self) -> None:
        def changed(leads: bool) -> None:
            log.info("this operator %s", "leads" if leads else "leads no more")
            if not leads:
                self._lost = True
                self._stopped.set()

        try:
            keep(self._lease, self._ended, changed)
        except Exception:
            # The boundary of a thread: nobody leads without one who renews.
            log.exception("the Lease is not kept any more")
            changed(False)

    def _heed_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stopped.set())

    def _end(self) -> None:
        """Let the actions under way come to their end, then let another operator lead."""
        self._heed_signals()
        if not self._workers.stop():
            log.warning("work is under way still; it ends with the process")
            return
        self._ended.set()
        if self._options.elects and not self._lost:
            # One who still renews would take it back.
            self._keeper.join()
            try:
                self._lease.give_back()
            except MillraceError as error:
                log.info("the Lease runs out by itself: %s", error)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the operator to its end; an exit code."""
    options = _options(arguments)
    stacks.write_on_request()
    try:
        return Operator(options, own_api()).run()
    except MillraceError as error:
        log.critical("%s", error)
        return error.exit_code


def _options(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(prog="python -m millrace_operator", description=__doc__)
    told = parser.add_argument
    told("--runtime-image", required=True, help="image of drivers, ackers and executors")
    told("--state-image", required=True, help="image of state servers")
    told("--pull-policy", default="IfNotPresent", help="of these images")
    told("--pull-secret", action="append", default=[], help="Secret of a registry; repeatable")
    told(
        "--namespace",
        action="append",
        default=[],
        help="whose topologies are seen to; repeatable. Default: all namespaces",
    )
    told(
        "--own-namespace",
        default=os.environ.get(pods.POD_NAMESPACE, ""),
        help=f"the operator's own. Default: ${pods.POD_NAMESPACE}",
    )
    told(
        "--no-leader-election",
        action="store_true",
        help="only where no second operator can run, not even while one is replaced",
    )
    told("--health-port", type=int, default=pods.HEALTH_PORT, help="of /live, /ready, /metrics")
    told("--metrics", action="store_true", help="let /metrics of topologies' pods be asked for")
    told(
        "--metrics-from",
        action="append",
        default=[],
        help="by pods of this namespace alone; repeatable. Default: all namespaces",
    )
    told("--log-level", default=os.environ.get(pods.LOG_LEVEL, "INFO").upper(), choices=_LEVELS)
    told("--log-text", action="store_true", help="lines for people rather than JSON")
    read = parser.parse_args(arguments)
    if not read.own_namespace:
        parser.error(f"say the operator's namespace by --own-namespace or {pods.POD_NAMESPACE}")
    if read.metrics_from and not read.metrics:
        parser.error("--metrics-from narrows --metrics; give both, or none")
    start_logs(read.log_level, read.log_text)
    settings = OperatorSettings(
        read.runtime_image,
        read.state_image,
        read.own_namespace,
        millrace_operator.__version__,
        read.pull_policy,
        tuple(read.pull_secret),
        tuple(read.metrics_from) if read.metrics else None,
    )
    return Options(settings, tuple(read.namespace), read.health_port, not read.no_leader_election)


_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
