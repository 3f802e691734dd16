"""The executor's pod: ``python -m millrace.pods executor``, as Spark's scheduler starts it.

Spark says in environment variables what the JVM is to be; this process becomes it. Spark's package
from PyPI has no entry point for containers, and this one adds the secrets of the run, the archive
of classes that the image has, and the daemon of Python workers, which loads meanwhile.
"""

from __future__ import annotations

import argparse
import base64
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from millrace.engine.jobs import classes, daemonahead
from millrace.errors import MillraceError
from millrace.homes import pods
from millrace.pods.identity import (
    PodError,
    private_files,
    private_scratch,
    required,
)
from millrace.pods.spark import SPARK_SECRET, share_secrets
from millrace.pods.termination import tell_end

_AUTH = "_SPARK_AUTH_SECRET"
_BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"

_ARGUMENTS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
"""Arguments of the backend, and the variables that Spark's scheduler sets."""

_OPTION = re.compile(r"SPARK_JAVA_OPT_(\d+)")


def command(java: str, home: Path, environment: Mapping[str, str]) -> list[str]:
    """The JVM that Spark asks for. Raises ``PodError`` for a variable that is missing."""
    options = {int(m[1]): environment[m[0]] for m in map(_OPTION.fullmatch, environment) if m}
    memory = required(environment, "SPARK_EXECUTOR_MEMORY")
    shared, places = _started_with(home, environment.get("SPARK_CONF_DIR", ""))
    arguments = [
        part
        for name, variable in _ARGUMENTS.items()
        for part in (name, required(environment, variable))
    ]
    return [
        java,
        *shared,
        *(options[number] for number in sorted(options)),
        *(f"-Xms{memory}", f"-Xmx{memory}"),
        *("-cp", ":".join(places)),
        _BACKEND,
        *arguments,
    ]


def _started_with(home: Path, configured: str) -> tuple[list[str], list[str]]:
    """Options of Java and class path: an archive of classes fits the one that it was made with."""
    # Spark names this folder always, whether somebody has mounted one or not.
    launch = None if os.path.isdir(configured) else classes.launch()
    if launch is None:
        return [], [*filter(None, [configured]), str(home / "jars" / "*")]
    return shlex.split(classes.options()), [launch.class_path]


def main(arguments: Sequence[str] | None = None) -> int:
    """Become the executor's JVM; returns an exit code where that cannot be."""
    parser = argparse.ArgumentParser(prog="millrace.pods executor", description=__doc__)
    parser.add_argument("--secret", type=Path, default=Path(pods.SECRET_FOLDER))
    parser.add_argument("--scratch", type=Path, default=Path(pods.SCRATCH_FOLDER))
    options = parser.parse_args(arguments)
    try:
        private_files()
        scratch = private_scratch(options.scratch)
        share_secrets(options.secret, scratch, required(os.environ, pods.RUN_NONCE))
        # Spark's executors look for no file before they have asked the driver, who asks for this.
        # Settings and pod do not show it, and workers drop it before they run user code.
        os.environ[_AUTH] = base64.b64encode((scratch / SPARK_SECRET).read_bytes()).decode()
        os.environ["SPARK_HOME"] = str(spark_home())
        line = command(java_program(), spark_home(), os.environ)
        # Spark writes the files that it ships to tasks where it is started; the root is read-only.
        os.chdir(scratch)
        # Python loads while the JVM starts, instead of behind it with the first task.
        os.environ.update(daemonahead.start_for_executor(scratch))
    except MillraceError as error:
        tell_end(str(error))
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return _become(line)


def _become(line: list[str]) -> int:
    os.execv(line[0], line)


def java_program() -> str:
    """The Java of ``JAVA_HOME``, else the first one on ``PATH``. Raises ``PodError``."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None or not Path(found).is_file():
        raise PodError("there is no java in this image; use the runtime image or one built from it")
    return found


def spark_home() -> Path:
    """Where Spark's jars are. Raises ``PodError``."""
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise PodError("there is no pyspark in this image; use the runtime image")
    return Path(found.origin).parent


if __name__ == "__main__":
    sys.exit(main())
