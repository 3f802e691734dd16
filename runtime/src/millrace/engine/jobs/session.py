"""The Spark that a driver works with, under settings measured for short windows.

User settings win over ours, except for those that a window's layout depends on.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.engine.jobs import classes, daemonahead, jvm
from millrace.errors import EngineError, TopologyError

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

MAX_TASK_FAILURES = 2
"""Runs of one task before its job is given up; more only delays the split of a window."""

JVM_UP = "JVM up"
"""The step of a start behind which nothing of it stands in the environment any more."""

_FIXED = {
    # A retry must find the partitions that the first run had.
    "spark.sql.adaptive.enabled": "false",
    "spark.python.worker.reuse": "true",
    "spark.python.daemon.module": "millrace.engine.task.daemon",
    "spark.task.maxFailures": str(MAX_TASK_FAILURES),
    "spark.authenticate": "true",
}

FOLDER = "spark.millrace.folder"
"""Setting that names the folder for files of the session that tasks read."""

SHIPPED = "spark.millrace.shipped"
"""Setting that says that tasks cannot read that folder: Spark brings them its files."""

_INSTANCES = "spark.executor.instances"

_REGIONS = "-XX:G1HeapRegionSize=4m"
"""Task results are serialised into buffers of 1 MiB, too large for the regions of a small heap."""

_QUICK = "-XX:TieredStopAtLevel=1"
"""A JVM that only hands on what Python workers make spends half of its start, and a sixth of the
CPU of a large window, on compiling what it runs a second time. Whose rows it works on itself, or
ciphers on their way, is better off for that."""

_MALLOC = {
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(64 << 20),
}
"""glibc gives the memory of large arrays back at once, and each batch pays for its pages again."""

_DEFAULTS = {
    **_MALLOC,
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.shuffle.partitions": "2",
    # Envelopes are many small immutable blocks: compressing them costs more than it saves.
    "spark.shuffle.compress": "false",
    "spark.shuffle.spill.compress": "false",
    "spark.broadcast.compress": "false",
    # The binary of each stage is broadcast, in a buffer of this size: 4 MiB by default, which G1
    # cannot place without collecting.
    "spark.broadcast.blockSize": "128k",
    # What is larger goes through a file for each pass, which stays until Spark ends.
    "spark.broadcast.UDFCompressionThreshold": "64m",
    "spark.driver.extraJavaOptions": _REGIONS,
    "spark.executor.extraJavaOptions": _REGIONS,
    "spark.eventLog.enabled": "false",
    "spark.executor.logs.rolling.strategy": "size",
    "spark.executor.logs.rolling.maxSize": "2000000",
    "spark.executor.logs.rolling.maxRetainedFiles": "2",
    "spark.cleaner.periodicGC.interval": "10min",
    # Every record of Spark's own history of jobs is heap that grows with the windows.
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "200",
    "spark.sql.ui.retainedExecutions": "5",
}


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """What a session is made of. ``instances`` 0 means one process with ``threads`` threads.

    ``memory`` sizes are Spark's texts such as ``1g``; ``worker_memory`` limits one Python worker
    (address space), ``None`` leaves it unlimited. ``cluster`` is what reaches a cluster manager,
    where executors are elsewhere and share no folder with the driver. ``scratch`` is the name of
    the session's own folder in ``folder``. With ``daemon_ahead`` Spark's daemon of Python workers
    is started beside it, for a session that will run tasks in this process's JVM. ``rows_in_jvm``
    says that tasks evaluate rows there, as SQL does, and not in Python workers alone.
    """

    name: str
    folder: Path
    threads: int = 2
    instances: int = 0
    cores: int = 1
    driver_memory: str = "1g"
    executor_memory: str = "1g"
    worker_memory: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    cluster: Mapping[str, str] | None = None
    log_level: str = "ERROR"
    scratch: str = "spark"
    daemon_ahead: bool = False
    rows_in_jvm: bool = False

    @property
    def own_folder(self) -> Path:
        return self.folder / self.scratch


def session_conf(settings: SessionSettings) -> dict[str, str]:
    """The complete Spark configuration.

    Raises ``TopologyError`` where the user's ``spark.conf`` sets what must stay as it is.
    """
    for key, value in settings.conf.items():
        if key in _FIXED and _FIXED[key] != str(value):
            raise TopologyError(
                f"spec.spark.conf[{key}]: {value!r} cannot be used, windows need {_FIXED[key]!r}; "
                "remove it"
            )
    source_folder = str(Path(__file__).resolve().parents[2])
    paths = [source_folder, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    conf = {
        **_DEFAULTS,
        **_local_addresses(),
        **jvm.GUARDED,
        **jvm.private_conf(),
        FOLDER: str(settings.own_folder),
        "spark.app.name": settings.name,
        "spark.master": _master(settings),
        "spark.driver.memory": settings.driver_memory,
        "spark.executor.memory": settings.executor_memory,
        "spark.local.dir": str(settings.own_folder),
        "spark.sql.warehouse.dir": str(settings.folder / "warehouse"),
        "spark.pyspark.python": sys.executable,
        "spark.pyspark.driver.python": sys.executable,
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        **_elsewhere(settings),
    }
    shared = classes.options()
    java = [shared]
    if settings.instances or not settings.rows_in_jvm:
        java.append(_QUICK)
    _add_java(conf, "driver", *java)
    if settings.cluster is None:
        # Executors that a cluster manager starts take the archive that they find where they are.
        _add_java(conf, "executor", shared)
    if settings.worker_memory is not None:
        conf["spark.executor.pyspark.memory"] = settings.worker_memory
    own_java = {key: conf[key] for key in jvm.JAVA_OPTIONS}
    conf.update({key: str(value) for key, value in settings.conf.items()})
    conf.update(_FIXED)
    for key, options in own_java.items():
        if conf[key] != options:
            conf[key] = f"{options} {conf[key]}"
    if conf["spark.ui.enabled"] == "true" and "spark.ui.filters" not in settings.conf:
        del conf["spark.ui.filters"]  # who switches the pages on wants to see them
    return conf


def _add_java(conf: dict[str, str], side: str, *options: str) -> None:
    key = f"spark.{side}.defaultJavaOptions"
    conf[key] = " ".join(filter(None, [conf[key], *options]))


def build_session(settings: SessionSettings) -> SparkSession:
    """Start Spark with what SQL takes in this process; there can be only one at a time."""
    return sql_session(build_context(settings))


def sql_session(context: SparkContext) -> SparkSession:
    """What SQL takes of a Spark that runs. The first time takes a second, so that only who needs it
    asks."""
    from pyspark.sql import SparkSession

    session: SparkSession = SparkSession.builder.getOrCreate()
    assert session.sparkContext is context
    return session


def build_context(
    settings: SessionSettings, reached: Callable[[str], None] = lambda _: None
) -> SparkContext:
    """Start Spark in this process; there can be only one at a time. ``reached`` is told each step
    that is done."""
    home = classes.spark_home()
    if settings.instances and settings.cluster is None:
        home = _own_home(home, settings)
    os.environ["SPARK_HOME"] = str(home)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings.own_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    conf = session_conf(settings)
    # spark-submit refuses none; the context that follows does not.
    none = {_INSTANCES} if conf.get(_INSTANCES) == "0" else set()
    starting = None
    if not jvm.is_up():
        given = {key: value for key, value in conf.items() if key not in none}
        environment = daemonahead.place() if settings.daemon_ahead else {}
        starting = jvm.launch_jvm(home, settings.own_folder, given, environment)
        reached("Java launched")
        if settings.daemon_ahead:
            daemonahead.start(conf)
    from pyspark import SparkConf, SparkContext

    reached("PySpark imported")
    if starting is not None:
        jvm.connect_jvm(starting, lambda: reached("JVM listens"))
    reached(JVM_UP)
    context = SparkContext.getOrCreate(SparkConf().setAll(list(conf.items())))
    reached("SparkContext made")
    context.setLogLevel(settings.log_level)
    _quieten(context)
    _remember_classes(context)
    reached("Spark up")
    return context


def request_executors(context: SparkContext, count: int) -> None:
    """Have the cluster manager keep so many executors, whatever the session began with. Raises
    ``EngineError`` where it does not take the number."""
    assert context._jvm is not None
    none = context._jvm.scala.collection.immutable.HashMap()
    if not context._jsc.sc().requestTotalExecutors(count, 0, none):
        raise EngineError(
            f"the cluster manager does not take {count} executors; it is asked again, and the "
            "driver's log says what it answers"
        )


_NOISY = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.util.Utils",
)
"""Loggers that print the whole traceback of every failed task; the runner tells the cause."""


def _quieten(context: SparkContext) -> None:
    java = context._jvm
    assert java is not None
    log4j = java.org.apache.logging.log4j
    for name in _NOISY:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)


def _own_home(home: Path, settings: SessionSettings) -> Path:
    """A Spark home of links: local-cluster keeps its executors' files in ``work`` under it."""
    own = settings.own_folder / "home"
    own.mkdir(parents=True, exist_ok=True)
    for part in home.iterdir():
        link = own / part.name
        if part.name != "work" and not link.is_symlink():
            link.symlink_to(part)
    return own


def _remember_classes(context: SparkContext) -> None:
    """Look JVM classes up once: each look-up searches every jar for several packages."""
    java = context._jvm
    assert java is not None
    for name in _JVM_CLASSES:
        setattr(java, name, getattr(java, name))


_LOCAL = re.compile(r"local\[(?P<cores>\d+),\d+\]|local-cluster\[\d+,(?P<each>\d+),\d+\]")

_JVM_CLASSES = (
    "PairwiseRDD",
    "PythonPartitioner",
    "PythonRDD",
    "PythonUtils",
    "SimplePythonFunction",
)


def cores_each(conf: SparkConf) -> int:
    """How many cores one executor of a session has."""
    master = str(conf.get("spark.master"))
    if (found := _LOCAL.fullmatch(master)) is not None:
        return int(found["cores"] or found["each"])
    return int(str(conf.get("spark.executor.cores", "1")))


def _master(settings: SessionSettings) -> str:
    if settings.instances:
        megabytes = _megabytes(settings.executor_memory)
        return f"local-cluster[{settings.instances},{settings.cores},{megabytes}]"
    return f"local[{settings.threads},{MAX_TASK_FAILURES}]"


def _elsewhere(settings: SessionSettings) -> dict[str, str]:
    """Settings for executors that a cluster manager starts."""
    if settings.cluster is None:
        return {}
    return {
        _INSTANCES: str(settings.instances),
        "spark.executor.cores": str(settings.cores),
        SHIPPED: "true",
        **settings.cluster,
    }


def _local_addresses() -> dict[str, str]:
    return {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def _megabytes(size: str) -> int:
    units = {"k": 1 / 1024, "m": 1, "g": 1024, "t": 1024 * 1024}
    text = size.strip().lower().removesuffix("b")
    number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "m")
    try:
        return max(1, int(float(number) * units[unit]))
    except ValueError:
        raise TopologyError(
            f"spec.spark.executors.memory: {size!r} is no size; write e.g. '1g' or '512m'"
        ) from None
