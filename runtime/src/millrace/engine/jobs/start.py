"""Starts Spark and compiles the topology: the slow part of a driver's start."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from millrace.engine.jobs.session import SessionSettings, build_session
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
    """A session and the program that was compiled for it."""

    spark: SparkSession
    program: Program


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
    settings = session_settings(topology, workdir, cluster)
    # What a Spark that was killed left behind serves nobody.
    shutil.rmtree(workdir / "spark", ignore_errors=True)
    try:
        spark = build_session(settings)
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
    return StartedSpark(spark, compile_topology(topology, options))


def _java_reason(text: str) -> str:
    """The Java exception in the text of a failed call, without its stack; else the first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in lines:
        if line.startswith(": "):
            return line.removeprefix(": ").removesuffix(".")[:500]
    return lines[0][:500] if lines else "without a reason"
