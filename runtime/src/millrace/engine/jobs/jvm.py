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
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from millrace.engine.program import signing

_SECRET_BYTES = 32

_UI_FILTER = "org.apache.spark.ui.JWSFilter"

GUARDED = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.saslFallback": "false",
}
"""Spark's processes prove to each other that they know the secret, and encrypt."""


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
        "spark.ui.filters": _UI_FILTER,
        "spark.ui.killEnabled": "false",
    }


def start_jvm(folder: Path, conf: Mapping[str, str]) -> None:
    """Start the JVM of this process under a configuration, unless it has one already."""
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:
        return
    file = folder / "spark.properties"
    secret = {
        **_spark_secret(conf),
        f"spark.{_UI_FILTER}.param.secretKey": _url_safe(secrets.token_bytes(_SECRET_BYTES)),
    }
    file.unlink(missing_ok=True)
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as writer:
        writer.write(properties({**conf, **secret}))
    submit = os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
    changes = {
        "PYSPARK_SUBMIT_ARGS": (
            f"--load-spark-defaults --properties-file {shlex.quote(str(file))} {submit}"
        ),
        "SPARK_LOCAL_IP": conf.get("spark.driver.bindAddress", "127.0.0.1"),
        "SPARK_LAUNCHER_OPTS": "-XX:-UsePerfData",
    }
    try:
        with environment(changes), signing.handed_down():
            SparkContext._ensure_initialized(gateway=launch_gateway())
    finally:
        file.unlink(missing_ok=True)


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
def environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Variables for processes that are started inside."""
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
