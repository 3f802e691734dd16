"""The driver's pod: ``python -m millrace.pods driver``, one life of a topology's driver.

It claims its execution itself, so two of these pods at once are harmless. SIGTERM ends it behind
what is sealed. Its exit code and its termination message say why it ended; whether another driver
follows is the operator's to decide.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from millrace.engine.driver.process import DriverProcess, read_settings
from millrace.engine.jobs.start import StartedSpark, start_spark
from millrace.errors import ExitCode, MillraceError, error_text
from millrace.health import Answer, Beat, serve
from millrace.homes import pods
from millrace.homes.documents import Status
from millrace.homes.pods import Role
from millrace.metrics import catalogue
from millrace.pods.identity import Identity, passwords, private_files, private_scratch
from millrace.pods.logs import start_logs
from millrace.pods.metrics import told
from millrace.pods.spark import cluster_conf, executor_size, new_nonce, share_secrets
from millrace.pods.termination import tell_end
from millrace.protocol.events import StopKind
from millrace.protocol.types import Phase
from millrace.topology.model import StreamTopology

log = logging.getLogger("millrace.driver")

LIVE_S = 60.0


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
    options = parser.parse_args(arguments)
    try:
        return _run(options)
    except MillraceError as error:
        tell_end(str(error))
        log.critical("%s", error)
        return error.exit_code
    except Exception as error:
        # The boundary of the process: the operator decides what follows from the exit code.
        tell_end(error_text(error))
        log.exception("the driver failed")
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

    def start(topology: StreamTopology, uid: str, folder: Path, workdir: Path) -> StartedSpark:
        executors = topology.spec.spark.executors.instances
        cluster = None
        if executors:
            cluster = cluster_conf(identity, os.environ, template, scratch, nonce)
            asked = topology.spec.pods.executors.resources
            cluster |= executor_size(topology.spec.spark.executors, asked)
        return start_spark(topology, uid, folder, workdir, cluster)

    beat = Beat(LIVE_S)
    process = DriverProcess(settings, passwords(options.secret)[0], start=start, beat=beat)
    serve(questions(process, beat), options.health_port)
    signal.signal(signal.SIGTERM, lambda *_: process.ask_to_stop())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    code = process.run()
    status = process.status
    tell_end(f"{status.state}: {status.reason}" if status.reason else str(status.state))
    return pod_code(code, status)


def pod_code(code: int, status: Status) -> int:
    """The exit code of the pod's container. 0 says that all input is drained: a driver that was
    asked to end, by whomever, has not done what it was started for, and another one follows."""
    return ExitCode.INTERRUPTED if status.state == StopKind.ASKED.value else code


def questions(process: DriverProcess, beat: Beat) -> dict[str, Callable[[], Answer]]:
    """What a driver's pod is asked."""
    return {
        pods.LIVE_PATH: beat.answer,
        pods.READY_PATH: lambda: readiness(process.status),
        pods.METRICS_PATH: told(catalogue.DRIVER, process.samples),
    }


if __name__ == "__main__":
    # The JVM has threads that would hold the interpreter at its end.
    code = main()
    logging.shutdown()
    os._exit(code)
