"""Spark, which is begun before the rest of a driver's code is even imported: nothing else takes as
long. What is imported here is what its settings take, and no more."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.engine.jobs.session import JVM_UP, SessionSettings, build_context
from millrace.engine.jobs.starttimes import StartTimes
from millrace.errors import MillraceError
from millrace.topology.model import StreamTopology

if TYPE_CHECKING:
    from pyspark import SparkContext


class SparkAhead:
    """The Spark that a topology asks for, begun now, on a thread of its own.

    ``cluster``: settings of Spark that have executors started elsewhere. ``times`` goes on with the
    steps of Spark.
    """

    def __init__(
        self,
        topology: StreamTopology,
        workdir: Path,
        cluster: Mapping[str, str] | None = None,
        times: StartTimes | None = None,
    ) -> None:
        self.times = times or StartTimes()
        self.times.reached("Spark begun")
        self._jvm = threading.Event()
        starter = ThreadPoolExecutor(1, thread_name_prefix="spark-ahead")
        self._context = starter.submit(open_context, topology, workdir, cluster, self._reached)
        self._context.add_done_callback(lambda _: self._jvm.set())
        starter.shutdown(wait=False)

    def await_jvm(self) -> None:
        """Wait until the JVM is up, or cannot be had: the environment is as it was before."""
        self._jvm.wait()

    def result(self) -> SparkContext:
        """Waits for it. Raises ``SparkStartError``, ``TopologyError``."""
        return self._context.result()

    def _reached(self, step: str) -> None:
        self.times.reached(step)
        if step == JVM_UP:
            self._jvm.set()


class SparkStartError(MillraceError):
    """Spark does not come up under the settings of the topology."""


def open_context(
    topology: StreamTopology,
    workdir: Path,
    cluster: Mapping[str, str] | None,
    reached: Callable[[str], None],
) -> SparkContext:
    """Start Spark; ``reached`` is told each step. Raises ``SparkStartError``, ``TopologyError``."""
    try:
        settings = session_settings(topology, workdir, cluster)
        scratch, here = own_scratch(workdir), not settings.instances
        settings = replace(settings, scratch=scratch, daemon_ahead=here)
        return build_context(settings, reached)
    except _faults() as error:
        raise SparkStartError(
            f"Spark could not be started: {_java_reason(str(error))}; correct spec.spark.conf, or "
            f"free what it asks for; {workdir / 'logs' / 'driver.log'} has the details"
        ) from error


def _faults() -> tuple[type[Exception], ...]:
    """What a start that fails raises. It is asked then: who imports PySpark before Java is launched
    holds up what takes the longest."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return Py4JError, PySparkException, OSError


def session_settings(
    topology: StreamTopology, workdir: Path, cluster: Mapping[str, str] | None = None
) -> SessionSettings:
    """The session that a topology asks for; without executors, threads of this process.

    ``cluster``: settings of Spark that have executors started elsewhere.
    """
    spec = topology.spec
    executors = spec.spark.executors
    return SessionSettings(
        name=topology.metadata.name,
        folder=workdir,
        threads=min(spec.parallelism, os.cpu_count() or 1),
        instances=executors.instances,
        cores=executors.cores,
        driver_memory=spec.spark.driver.memory,
        executor_memory=executors.memory,
        conf=spec.spark.conf,
        cluster=cluster if executors.instances else None,
        rows_in_jvm=any(one.kind.runs_in_jvm(one.settings) for one in spec.processors),
    )


MOST_SCRATCH = 8
"""More drivers than that never live at once in one folder."""

_held: list[int] = []
"""Locks that end with this process."""


def own_scratch(workdir: Path) -> str:
    """The name of a folder in ``workdir`` that is this process's own until it ends, and empty.

    A driver and the one that stands by have one each; what a driver that was killed left in its
    own serves nobody. Raises ``OSError``.
    """
    for number in range(1, MOST_SCRATCH + 1):
        name = "spark" if number == 1 else f"spark-{number}"
        folder = workdir / name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            continue
        _held.append(handle)
        for left in folder.iterdir():
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
        return name
    raise OSError(f"{workdir}: {MOST_SCRATCH} drivers work in it already")


def _java_reason(text: str) -> str:
    """The Java exception in the text of a failed call, without its stack; else the first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in lines:
        if line.startswith(": "):
            return line.removeprefix(": ").removesuffix(".")[:500]
    return lines[0][:500] if lines else "without a reason"
