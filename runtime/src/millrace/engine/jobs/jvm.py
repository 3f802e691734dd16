"""Starts Spark's JVM so that other users of the machine find nothing in it.

Settings go through a file that is deleted once the JVM has read it, never through the command
line, which everybody can read. What listens does so on loopback alone and asks for a secret of
the run; Unix sockets and files lie in a folder that is closed to others.
"""

from __future__ import annotations

import atexit
import base64
import os
import secrets
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from millrace.engine.jobs import classes
from millrace.engine.program import signing

_SECRET_BYTES = 32

UI_FILTER = "org.apache.spark.ui.JWSFilter"

GUARDED = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.saslFallback": "false",
}
"""Spark's processes prove to each other that they know the secret, and encrypt."""


_SUBMIT = "org.apache.spark.deploy.SparkSubmit"

_DRIVER_OPTIONS = ("spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions")

_FOR_SCRIPTS = frozenset(
    {
        "HADOOP_CONF_DIR",
        "PYSPARK_SUBMIT_ARGS",
        "SPARK_CONF_DIR",
        "SPARK_DIST_CLASSPATH",
        "SPARK_PREPEND_CLASSES",
        "SPARK_SUBMIT_OPTS",
        "SPARK_TESTING",
        "YARN_CONF_DIR",
        "spark.driver.defaultExtraClassPath",
        "spark.driver.extraClassPath",
        "spark.driver.extraLibraryPath",
    }
)
"""Variables and settings that Spark's scripts make options of Java of."""

_LOOK_S = 0.01

JAVA_OPTIONS = ("spark.driver.defaultJavaOptions", "spark.executor.defaultJavaOptions")
"""Settings of ours that those of a user are added to."""


@lru_cache(maxsize=1)
def private_folder() -> Path:
    """A folder for sockets and scratch, closed to other users.

    The temporary folder of this process where that is one, as the supervisor makes it; else one
    of its own in there, deleted at the end of the process.
    """
    folder = Path(tempfile.gettempdir()).absolute()
    found = folder.stat()
    if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) & 0o077 == 0:
        return folder
    own = Path(tempfile.mkdtemp(prefix="millrace-"))
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    return own


def private_conf() -> dict[str, str]:
    """Settings under which nothing is left in the machine's own temporary folder."""
    folder = private_folder()
    # The files of -XX:+UsePerfData would be readable for everybody, outside of the folder.
    options = f'"-Djava.io.tmpdir={folder}" -XX:-UsePerfData'
    return {
        **dict.fromkeys(JAVA_OPTIONS, options),
        "spark.python.unix.domain.socket.dir": str(folder),
        # The pages of a local cluster's master and workers cannot be switched off.
        "spark.ui.filters": UI_FILTER,
        "spark.ui.killEnabled": "false",
    }


@dataclass(frozen=True, slots=True)
class Starting:
    """A JVM on its way up. ``told`` is the file in which it will say where it listens."""

    process: subprocess.Popen[bytes]
    settings: Path
    told: Path


def is_up() -> bool:
    """Whether this process has a JVM already, of a session before."""
    context = sys.modules.get("pyspark.core.context")
    return context is not None and context.SparkContext._gateway is not None


def launch_jvm(
    home: Path, folder: Path, conf: Mapping[str, str], environment: Mapping[str, str]
) -> Starting:
    """Start a JVM with Spark's jars from ``home``, under a configuration and with variables beside
    those of this process. It lives as long as this process holds its standard input. Nothing of
    PySpark is imported for that.

    Raises ``OSError``.
    """
    settings, told = folder / "spark.properties", folder / "listening"
    told.unlink(missing_ok=True)
    settings.unlink(missing_ok=True)
    handle = os.open(settings, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    secret = {
        **_spark_secret(conf),
        f"spark.{UI_FILTER}.param.secretKey": _url_safe(secrets.token_bytes(_SECRET_BYTES)),
    }
    with os.fdopen(handle, "w", encoding="utf-8") as writer:
        writer.write(properties({**conf, **secret}))
    submit = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
    options = ["--load-spark-defaults", "--properties-file", str(settings), *submit]
    environment = {
        **os.environ,
        **environment,
        **signing.handed_down(),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": conf.get("spark.driver.bindAddress", "127.0.0.1"),
        "SPARK_CONNECT_MODE": "0",
        "SPARK_LAUNCHER_OPTS": "-XX:-UsePerfData",
        "PYTHONHASHSEED": "0",
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(told),
    }
    try:
        process = subprocess.Popen(
            [*_program(home, conf, environment), *options],
            stdin=subprocess.PIPE,
            env=environment,
            preexec_fn=_heed_no_interrupt,
        )
    except BaseException:
        settings.unlink(missing_ok=True)
        raise
    return Starting(process, settings, told)


def connect_jvm(starting: Starting, listens: Callable[[], None] = lambda: None) -> None:
    """Wait until a JVM is up, and make it the one of this process's PySpark; ``listens`` is called
    once it has said where it is to be spoken with.

    Raises ``PySparkRuntimeError`` where it ended instead.
    """
    from pyspark import SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway
    from pyspark.serializers import UTF8Deserializer, read_int

    try:
        # It is written under another name first, so that it is whole when it is there.
        while not starting.told.exists():
            if starting.process.poll() is not None:
                raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})
            time.sleep(_LOOK_S)
        with open(starting.told, "rb") as told:
            port, secret = read_int(told), UTF8Deserializer().loads(told)
        listens()
    finally:
        starting.settings.unlink(missing_ok=True)
        starting.told.unlink(missing_ok=True)
    _give_java_no_arrays()
    ours = {
        "PYSPARK_GATEWAY_PORT": str(port),
        "PYSPARK_GATEWAY_SECRET": secret,
        # Jobs of two windows are told apart by what each thread has said of them.
        "PYSPARK_PIN_THREAD": "true",
    }
    with _environment(ours):
        gateway = launch_gateway()
    gateway.proc = starting.process
    SparkContext._ensure_initialized(gateway=gateway)


def _give_java_no_arrays() -> None:
    """Take PySpark's converters for arguments of numpy away: nothing here gives Java one, and they
    load all of ``pyspark.testing`` and pandas to see whether the first argument is such."""
    from py4j.protocol import INPUT_CONVERTER
    from pyspark.sql.types import NumpyArrayConverter, NumpyScalarConverter

    ours = (NumpyArrayConverter, NumpyScalarConverter)
    INPUT_CONVERTER[:] = [one for one in INPUT_CONVERTER if not isinstance(one, ours)]


def _heed_no_interrupt() -> None:
    """One at the terminal is for the process that the JVM belongs to."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _program(home: Path, conf: Mapping[str, str], environment: dict[str, str]) -> list[str]:
    """What starts Spark's program for submitting: Java itself, where nobody configured what only
    Spark's scripts know, since these start a JVM of their own to find out the options. What they
    make of the environment it adds to it."""
    java = classes.java_program()
    launch = classes.launch()
    options = [word for key in _DRIVER_OPTIONS for word in shlex.split(conf.get(key, ""))]
    configured = (
        (home / "jars").resolve() != (classes.spark_home() / "jars").resolve()
        or (home / "conf").exists()
        or not _FOR_SCRIPTS.isdisjoint(environment)
        or not _FOR_SCRIPTS.isdisjoint(conf)
        or any(option.startswith("-Xmx") for option in options)
    )
    if java is None or launch is None or configured:
        return [str(home / "bin" / "spark-submit")]
    environment[classes.SCALA_VARIABLE] = launch.scala
    memory = f"-Xmx{conf['spark.driver.memory']}"
    return [java, "-cp", launch.class_path, memory, *options, *launch.modules, _SUBMIT]


def _spark_secret(conf: Mapping[str, str]) -> dict[str, str]:
    """A new secret, unless both sides have one in a file."""
    if "spark.authenticate.secret.file" in conf:
        return {}
    return {"spark.authenticate.secret": secrets.token_hex(_SECRET_BYTES)}


def properties(conf: Mapping[str, str]) -> str:
    """A Java properties file of settings."""
    return "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in conf.items())


def _escaped(text: str) -> str:
    special = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
    return "".join(special.get(c) or (f"\\{c}" if c in "\\ =:#!" else c) for c in text)


def _url_safe(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Variables that are set inside."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
