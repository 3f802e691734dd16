"""What is read out of the text of a failed job."""

from __future__ import annotations

import pytest

from millrace.engine.jobs import evidence
from millrace.engine.jobs.evidence import Thrown, blames_a_row, sql_states, worker_gone
from millrace.engine.task.faults import TaskError, find_error, short_reason
from millrace.errors import SourceError
from millrace.protocol.types import AttemptId

ATTEMPT = AttemptId(1, 2, 3)

PYTHON = """An error occurred while calling o1.get.
: java.util.concurrent.ExecutionException: Exception thrown by job
\tat org.apache.spark.JavaFutureActionWrapper.getImpl(FutureAction.scala:297)
Caused by: org.apache.spark.SparkException: Job aborted due to stage failure
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 4327, in invoke_udf
    run_process()
KeyError: 'word'
 SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner
"""

SQL = """An error occurred while calling o1.get.
: java.util.concurrent.ExecutionException: Exception thrown by job
Caused by: org.apache.spark.SparkException: Job aborted due to stage failure
Caused by: org.apache.spark.SparkNumberFormatException: [CAST_INVALID_INPUT] 'x' is no INT.
\tat org.apache.spark.sql.errors.QueryExecutionErrors$
"""

OTHER = """An error occurred while calling o1.get.
: java.lang.IllegalStateException: outer
Caused by: java.lang.OutOfMemoryError: Java heap space
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (PYTHON, "KeyError: 'word'"),
        (SQL, "[CAST_INVALID_INPUT] 'x' is no INT."),
        (OTHER, "java.lang.OutOfMemoryError: Java heap space"),
        ("", "without a reason"),
    ],
)
def test_the_line_that_says_most(text, told):
    assert told in short_reason(text)


def test_a_deliberate_error_comes_through_the_text_of_a_traceback():
    carrier = TaskError(SourceError("file a.txt shrank"), ATTEMPT)
    error = find_error(PYTHON.replace("'word'", str(carrier)), ATTEMPT)
    assert isinstance(error, SourceError)
    assert str(error) == "file a.txt shrank"
    assert find_error(PYTHON, ATTEMPT) is None


ABORTED = [
    Thrown("java.util.concurrent.ExecutionException"),
    Thrown("org.apache.spark.SparkException", state=""),
]
CRASHED = [*ABORTED, Thrown("org.apache.spark.SparkException", state="")]
EOF = Thrown("java.io.EOFException", ended=True)
PYTHON_RAISED = Thrown("org.apache.spark.api.python.PythonException", state="38000")


def test_a_worker_is_gone_only_where_no_exception_ended_the_task():
    assert worker_gone([*CRASHED, EOF])
    assert not worker_gone([*ABORTED, PYTHON_RAISED])
    assert not worker_gone([*ABORTED, PYTHON_RAISED, EOF])
    assert not worker_gone(ABORTED)
    assert not worker_gone([])


@pytest.mark.parametrize(
    ("kind", "text", "ended"),
    [
        ("java.io.IOException", "Broken pipe", True),
        ("java.io.IOException", "Connection reset by peer", True),
        ("java.io.IOException", "No space left on device", False),
        ("java.io.IOException", None, False),
        ("java.io.FileNotFoundException", "Connection reset by peer (No such file)", False),
        ("java.lang.IllegalStateException", "Broken pipe", False),
    ],
)
def test_a_full_disk_is_no_end_of_a_connection(kind, text, ended):
    assert evidence._says_ended(kind, text) is ended


def test_sqlstates_are_those_of_sparks_own_exceptions():
    assert sql_states([*CRASHED, EOF]) == ["", ""]
    assert sql_states([*ABORTED, PYTHON_RAISED]) == ["", "38000"]


@pytest.mark.parametrize("states", [["22018"], ["", "22012", ""], ["22P02"], ["P0001"]])
def test_sqlstates_of_values_blame_a_row(states):
    assert blames_a_row(states)


@pytest.mark.parametrize(
    "states", [[], [""], ["38000"], ["XX000"], ["22022"], ["22KD3"], ["42846"]]
)
def test_other_sqlstates_blame_no_row(states):
    assert not blames_a_row(states)
