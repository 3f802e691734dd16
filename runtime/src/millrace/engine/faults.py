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
_SPARK_NOISE = re.compile(r"^(org\.apache\.spark|java\.|scala\.|\s+at |Driver stacktrace|File )")


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
    """The line of a failed job's text that says most, for people."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        named = re.match(r"^[\w.]*(Error|Exception|Interrupt|Exit)\b.*", line)
        if named and not _SPARK_NOISE.match(line):
            return line[:500]
    for line in lines:
        if "Exception" in line or "Error" in line or "Reason" in line:
            return line[:500]
    return lines[0][:500] if lines else "the job failed without a reason"


def java_reason(text: str) -> str:
    """The Java exception in the text of a failed call, without its stack; else the first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in lines:
        if line.startswith(": "):
            return line.removeprefix(": ").removesuffix(".")[:500]
    return lines[0][:500] if lines else "without a reason"
