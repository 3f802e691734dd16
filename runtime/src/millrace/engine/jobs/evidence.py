"""What the failure of a job says about the rows that it worked on.

A root is blamed only on evidence about it, so a failure counts as the engine's unless it says
otherwise: that a worker is gone (``notices`` has what it did), or that Spark could not evaluate
an expression for some row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JError
from pyspark import SparkContext

_DATA_EXCEPTION = "22"
"""Class of SQLSTATEs for values that an expression cannot take: casts, overflows, divisions."""

_NO_VALUES = ("22002", "22022", "22024", "22KD1", "22KD3")
"""Those of that class that Spark gives to settings, options and missing modules."""

_RAISED_IN_SQL = "P0001"
"""``raise_error`` and ``assert_true``."""

_LONGEST_CHAIN = 30

_RAISED = "org.apache.spark.api.python.PythonException"
"""An exception in a Python task, whose worker lived to tell it."""

_IO = "java.io.IOException"
_ENDED = (
    "java.io.EOFException",
    "java.net.SocketException",
    "java.nio.channels.ClosedChannelException",
)
_ENDED_TEXTS = ("broken pipe", "connection reset", "socket closed", "stream closed")
"""What Spark meets at the other end of a connection to a worker that is gone: these classes, and
how the texts of a plain ``IOException`` begin, which a full disk is too."""


@dataclass(frozen=True, slots=True)
class Thrown:
    """One exception of Java: its class, whether it says that a connection has ended, and its
    SQLSTATE if it is one of Spark's own."""

    kind: str
    ended: bool = False
    state: str | None = None


def worker_gone(chain: Sequence[Thrown]) -> bool:
    """Whether a job may have failed since a Python worker ended, and not by an exception in one."""
    raised = any(thrown.kind == _RAISED for thrown in chain)
    return not raised and any(thrown.ended for thrown in chain)


def _says_ended(kind: str, text: str | None) -> bool:
    return kind == _IO and (text or "").lower().startswith(_ENDED_TEXTS)


def blames_a_row(states: Iterable[str]) -> bool:
    """Whether one of these SQLSTATEs is about a value in a row."""
    return any(
        state == _RAISED_IN_SQL or (state.startswith(_DATA_EXCEPTION) and state not in _NO_VALUES)
        for state in states
    )


def sql_states(chain: Sequence[Thrown]) -> list[str]:
    """SQLSTATEs of Spark's own exceptions."""
    return [thrown.state for thrown in chain if thrown.state is not None]


def thrown_by(failure: Exception) -> list[Thrown]:
    """The chain of causes of a failed call into the JVM, the outermost first.

    The exceptions themselves are asked: the text of a failure shows what user code and the values
    of rows say, too. Empty where the JVM says nothing.
    """
    chain: list[Thrown] = []
    thrown: Any = getattr(failure, "java_exception", None) or getattr(failure, "_origin", None)
    context = SparkContext._active_spark_context
    if thrown is None or context is None or context._gateway is None:
        return chain
    try:
        for _ in range(_LONGEST_CHAIN):
            if thrown is None:
                break
            own = is_instance_of(context._gateway, thrown, "org.apache.spark.SparkThrowable")
            state = thrown.getSqlState() or "" if own else None
            kind = str(thrown.getClass().getName())
            ended = any(is_instance_of(context._gateway, thrown, one) for one in _ENDED)
            chain.append(Thrown(kind, ended or _says_ended(kind, thrown.getMessage()), state))
            thrown = thrown.getCause()
    except (Py4JError, OSError):
        # The JVM is on its way down; what it said so far counts.
        return chain
    return chain
