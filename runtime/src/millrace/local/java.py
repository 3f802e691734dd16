"""The Java that Spark will run on: what it is, and the archive of classes that it starts with."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from millrace.engine.jobs.classes import ClassArchiveError, archive, java_program, options
from millrace.errors import JavaError
from millrace.startup import SAFE_PATH

OLDEST = 17
"""The first Java release that this Spark runs on."""

_ANSWER_S = 60.0
_ARCHIVE_S = 600.0
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_REMEDY = (
    f"Spark needs Java {OLDEST} or later: install a JRE (Debian: apt install default-jre-headless) "
    "or set JAVA_HOME to one"
)


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that answered. ``release`` is its feature release, such as 17."""

    program: str
    release: int


def find_java() -> Java:
    """The Java that Spark takes: that of ``JAVA_HOME``, else the first one on ``PATH``.

    Raises ``JavaError`` where there is none, it does not run, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    program = java_program()
    where = f"JAVA_HOME is {home}, but {program}" if home else "java"
    if program is None:
        raise JavaError(f"java is not on PATH and JAVA_HOME is not set; {_REMEDY}")
    if not os.path.isfile(program):
        raise JavaError(f"{where} does not exist; {_REMEDY}")
    try:
        answer = subprocess.run(
            [program, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_ANSWER_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaError(f"{program} cannot be run ({error}); {_REMEDY}") from error
    release = release_in(answer.stderr + answer.stdout)
    if answer.returncode or release is None:
        said = (answer.stderr + answer.stdout).strip().splitlines()
        raise JavaError(
            f"{program} -version ended with exit code {answer.returncode} and names no version"
            f"{f' ({said[0][:200]})' if said else ''}; {_REMEDY}"
        )
    if release < OLDEST:
        raise JavaError(f"{program} is Java {release}; {_REMEDY}")
    return Java(program, release)


def release_in(text: str) -> int | None:
    """The feature release in what ``java -version`` prints; 8 for ``1.8.0_292``."""
    match = _VERSION.search(text)
    if match is None:
        return None
    first = int(match[1])
    return int(match[2]) if first == 1 and match[2] else first


def archive_path() -> Path:
    """Where the archive of classes lies, made or not. Raises ``JavaError``."""
    return archive()


def archive_is_used() -> bool:
    """Whether runs start with it: it is there, whole, and nobody else could have written it."""
    return options() != ""


def make_archive() -> None:
    """Make it, in a process of its own whose JVM ends with it. Raises ``ClassArchiveError``."""
    command = [sys.executable, "-P", "-m", "millrace.engine.jobs.classes"]
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                check=False,
                timeout=_ARCHIVE_S,
                env={**os.environ, **SAFE_PATH},
            )
        except subprocess.TimeoutExpired:
            raise ClassArchiveError(
                f"Spark has not ended within {_ARCHIVE_S:g} s; try again when the machine has less "
                "to do"
            ) from None
        said.seek(0)
        lines = said.read().splitlines()
    if done.returncode:
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        last = (errors or lines or ["nothing"])[-1]
        raise ClassArchiveError(f"the archive of classes could not be made: {last}")
    path = archive_path()
    if not path.is_file():
        last = (lines or ["nothing"])[-1]
        raise ClassArchiveError(
            f"{path}: the archive of classes is not there; what was said: {last}"
        )
