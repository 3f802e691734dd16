"""Starts Spark and compiles the topology: the slow part of a driver's start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.engine.jobs.ahead import SparkAhead
from millrace.engine.jobs.session import sql_session
from millrace.engine.jobs.starttimes import StartTimes
from millrace.engine.program.compile import compile_topology
from millrace.engine.program.draft import CompileOptions
from millrace.engine.program.program import Program
from millrace.engine.program.sql import SqlAnalyser
from millrace.topology.model import StreamTopology

if TYPE_CHECKING:
    from pyspark import SparkContext


@dataclass(frozen=True, slots=True)
class StartedSpark:
    """A Spark that is up and the program that was compiled for it, and when each was there."""

    spark: SparkContext
    program: Program
    times: StartTimes = field(default_factory=StartTimes)


def code_path(topology: StreamTopology, folder: Path) -> Path:
    """Folder of the user's code."""
    return (folder / (topology.spec.code.path or ".")).resolve()


def start_spark(
    topology: StreamTopology,
    uid: str,
    folder: Path,
    workdir: Path,
    cluster: Mapping[str, str] | None = None,
    session: SparkAhead | None = None,
) -> StartedSpark:
    """Have the session, which ``session`` has begun where it is given, then compile.

    Raises ``SparkStartError``, ``TopologyError``.
    """
    session = session or SparkAhead(topology, workdir, cluster)
    spark, times = session.result(), session.times
    options = CompileOptions(
        uid=uid,
        base_path=folder,
        code_path=code_path(topology, folder),
        sql_schema=SqlAnalyser(lambda: sql_session(spark)),
    )
    program = compile_topology(topology, options)
    times.reached("topology compiled")
    return StartedSpark(spark, program, times)
