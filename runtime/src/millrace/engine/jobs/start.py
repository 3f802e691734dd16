"""Starts Spark and compiles the topology: the slow part of a driver's start."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from millrace.engine.jobs.session import SessionSettings, build_session
from millrace.engine.jobs.starttimes import StartTimes
from millrace.engine.program.compile import compile_topology
from millrace.engine.program.draft import CompileOptions
from millrace.engine.program.program import Program
from millrace.engine.program.sql import SqlAnalyser
from millrace.errors import MillraceError
from millrace.topology.model import StreamTopology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class StartedSpark:
    """A session and the program that was compiled for it, and when each was there."""

    spark: SparkSession
    program: Program
    times: StartTimes = field(default_factory=StartTimes)


class SparkStartError(MillraceError):
    """Spark does not come up under the settings of the topology."""


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
    )


def code_path(topology: StreamTopology, folder: Path) -> Path:
    """Folder of the user's code."""
    return (folder / (topology.spec.code.path or ".")).resolve()


def start_spark(
    topology: StreamTopology,
    uid: str,
    folder: Path,
    workdir: Path,
    cluster: Mapping[str, str] | None = None,
) -> StartedSpark:
    """Build the session, then compile. Raises ``SparkStartError``, ``TopologyError``."""
    times = StartTimes()
    try:
        settings = session_settings(topology, workdir, cluster)
        settings = replace(settings, scratch=own_scratch(workdir))
        spark = build_session(settings, times.reached)
    except (Py4JError, PySparkException, OSError) as error:
        raise SparkStartError(
            f"Spark could not be started: {_java_reason(str(error))}; correct spec.spark.conf, or "
            f"free what it asks for; {workdir / 'logs' / 'driver.log'} has the details"
        ) from error
    options = CompileOptions(
        uid=uid,
        base_path=folder,
        code_path=code_path(topology, folder),
        sql_schema=SqlAnalyser(spark),
    )
    program = compile_topology(topology, options)
    times.reached("topology compiled")
    return StartedSpark(spark, program, times)


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
