"""Errors on their way from a task to the driver.

Spark hands an exception of a Python task to the driver as the text of a traceback. A deliberate
error is therefore written into its own text, and read out of it again at the other end.
"""

from __future__ import annotations

import base64
import pickle
import re

from millrace.errors import MillraceError

_MARK = "MILLRACE-ERROR"
_ERROR = re.compile(_MARK + r"\[([A-Za-z0-9+/=]+)\]")
_PYTHON_ERROR = re.compile(r"^[\w.]*(Error|Exception|Interrupt|Exit)\b.*")
_SPARK_ERROR = re.compile(r"\[[A-Z][A-Z0-9_]{5,}(\.[A-Z0-9_]+)*\] .*")
_CAUSE = re.compile(r"^Caused by: .*")
_SPARK_NOISE = re.compile(r"^(org\.apache\.spark|java\.|scala\.|py4j\.)")
_LONGEST = 500


class TaskError(Exception):
    """Carries a deliberate error out of a task."""

    def __init__(self, error: MillraceError) -> None:
        packed = base64.b64encode(pickle.dumps(error)).decode()
        super().__init__(f"{error} {_MARK}[{packed}]")


def find_error(text: str) -> MillraceError | None:
    """The deliberate error in the text of a failed job, if there is one."""
    found = _ERROR.search(text)
    if found is None:
        return None
    error = pickle.loads(base64.b64decode(found[1]))
    return error if isinstance(error, MillraceError) else None


def short_reason(text: str) -> str:
    """The line of a failed job's text that says most, for people.

    That is the exception a Python task ended with, else Spark's own error class and message, else
    the innermost cause.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for wanted in (_PYTHON_ERROR, _SPARK_ERROR, _CAUSE):
        for line in reversed(lines):
            found = wanted.search(line)
            if found is not None and not _SPARK_NOISE.match(found[0]):
                return found[0].removeprefix("Caused by: ")[:_LONGEST]
    return lines[0][:_LONGEST] if lines else "the job failed without a reason"
