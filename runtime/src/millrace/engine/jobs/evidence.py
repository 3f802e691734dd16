"""What the failure of a job says about the rows that it worked on.

A root is blamed only on evidence about it, so a failure counts as the engine's unless it says
otherwise: that a worker is gone (``blackbox`` knows what it did), or that Spark could not evaluate
an expression for some row.
"""

from __future__ import annotations

from collections.abc import Iterable
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

_GONE = (
    "Python worker exited",
    "worker exited unexpectedly",
    "EOFException",
    "Connection reset",
    "Broken pipe",
)

_RAISED = "api.python.PythonException: "


def worker_gone(text: str) -> bool:
    """Whether a job failed since a Python worker ended, and not by an exception in one."""
    return _RAISED not in text and any(sign in text for sign in _GONE)


def blames_a_row(states: Iterable[str]) -> bool:
    """Whether one of these SQLSTATEs is about a value in a row."""
    return any(
        state == _RAISED_IN_SQL or (state.startswith(_DATA_EXCEPTION) and state not in _NO_VALUES)
        for state in states
    )


def sql_states(failure: Exception) -> list[str]:
    """SQLSTATEs of Spark's own exceptions in the chain of causes of a failed call into the JVM.

    They are asked of the exceptions themselves: the text of a failure shows values of rows, too.
    """
    states: list[str] = []
    thrown: Any = getattr(failure, "java_exception", None) or getattr(failure, "_origin", None)
    context = SparkContext._active_spark_context
    if thrown is None or context is None or context._gateway is None:
        return states
    try:
        for _ in range(_LONGEST_CHAIN):
            if thrown is None:
                break
            if is_instance_of(context._gateway, thrown, "org.apache.spark.SparkThrowable"):
                states.append(thrown.getSqlState() or "")
            thrown = thrown.getCause()
    except (Py4JError, OSError):
        # The JVM is on its way down; what it said so far counts.
        return states
    return states
