"""Errors on their way from a task to the driver.

Spark hands an exception of a Python task to the driver as the text of a traceback, which also
shows what user code, records and file names say. A deliberate error is therefore written into
its own text as JSON, signed by the run and for its window attempt, and read out of it again at
the other end. Whatever only looks like one is text.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator

from millrace import errors
from millrace.engine.program import signing
from millrace.engine.program.schema import OutputError
from millrace.engine.task.context import UnavailableError
from millrace.engine.task.exchange import EnvelopeError
from millrace.errors import MillraceError
from millrace.protocol.types import AttemptId
from millrace.sinks.base import RowsRefusedError, SinkFullError, SinkUnavailableError
from millrace.state import errors as state
from millrace.state.keyed.aggregates import AggregateOverflowError
from millrace.state.keyed.dictstate import StateValueError
from millrace.tracking.log import AckLogAwayError, AckLogFullError, AckLogLostError

_MARK = "MILLRACE-ERROR"
_ERROR = re.compile(_MARK + r"\[([A-Za-z0-9+/=]+)\.([0-9a-f]{64})\]")
_PURPOSE = "error"
_PYTHON_ERROR = re.compile(r"^[\w.]*(Error|Exception|Interrupt|Exit)\b.*")
_SPARK_ERROR = re.compile(r"\[[A-Z][A-Z0-9_]{5,}(\.[A-Z0-9_]+)*\] .*")
_CAUSE = re.compile(r"^Caused by: .*")
_SPARK_NOISE = re.compile(r"^(org\.apache\.spark|java\.|scala\.|py4j\.)")
_LONGEST = 500

_CLASSES: dict[str, type[MillraceError]] = {
    kind.__name__: kind
    for kind in (
        MillraceError,
        errors.TopologyError,
        errors.WorkFolderError,
        errors.StateServerError,
        errors.SinkError,
        errors.SourceError,
        errors.FencedError,
        errors.NewerFormatError,
        errors.ProtocolError,
        errors.EngineError,
        errors.UserCodeError,
        state.UnreachableError,
        state.OutOfMemoryError,
        state.NotOwnerError,
        state.ObjectMissingError,
        state.ObjectTooLargeError,
        state.BlobError,
        state.KeyTypeError,
        state.StateSchemaError,
        state.StateMigrationError,
        AckLogLostError,
        AckLogAwayError,
        AckLogFullError,
        errors.SourceAwayError,
        SinkFullError,
        SinkUnavailableError,
        RowsRefusedError,
        AggregateOverflowError,
        StateValueError,
        EnvelopeError,
        OutputError,
        UnavailableError,
        signing.UnsignedError,
    )
}

_NAMING = (state.OutOfMemoryError, state.UnreachableError)
"""What an error may be at the driver; another class comes as the nearest one that it extends."""


class TaskError(Exception):
    """Carries a deliberate error out of a task of a window attempt."""

    def __init__(self, error: MillraceError, attempt: AttemptId) -> None:
        super().__init__(f"{error} {_marked(error, attempt)}")


def find_error(text: str, attempt: AttemptId) -> MillraceError | None:
    """The deliberate error of this attempt in the text of its failed job, if there is one.

    It has its class and its message, ``retryable`` where it had that, and the name of a state
    server that is full or was not reached; nothing else.
    """
    for data in _genuine(text):
        document = json.loads(data)
        if document["attempt"] == _numbers(attempt):
            kind = _CLASSES[document["class"]]
            error = kind.__new__(kind)  # its own arguments stayed behind, its message did not
            error.args = (document["message"],)
            if document["retryable"] != error.retryable:
                error.retryable = document["retryable"]
            if isinstance(error, _NAMING):
                error.server = document["server"]
            return error
    return None


def _marked(error: MillraceError, attempt: AttemptId) -> str:
    known = next(kind for kind in type(error).__mro__ if kind in _CLASSES.values())
    document = {
        "attempt": _numbers(attempt),
        "class": known.__name__,
        "message": str(error),
        "retryable": error.retryable,
        "server": error.server if isinstance(error, _NAMING) else "",
    }
    data = json.dumps(document).encode()
    tag = signing.tag_of(_PURPOSE, data).hex()
    return f"{_MARK}[{base64.b64encode(data).decode()}.{tag}]"


def _genuine(text: str) -> Iterator[bytes]:
    for found in _ERROR.finditer(text):
        try:
            data = base64.b64decode(found[1])
        except ValueError:
            continue
        if signing.is_tag_of(bytes.fromhex(found[2]), _PURPOSE, data):
            yield data


def _numbers(attempt: AttemptId) -> list[int]:
    return [attempt.execution, attempt.window, attempt.attempt]


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
