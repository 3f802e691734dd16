"""What is read out of the text of a failed job."""

from __future__ import annotations

import pytest

from millrace.engine.faults import TaskError, find_error, short_reason
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
