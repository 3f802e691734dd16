"""How executors come and go while a driver runs.

An executor goes while no attempt runs, so that hardly a task is lost with it, and no root can be
blamed. Of the next attempt it may have the first pass, which is run ahead where it only reads:
Spark runs that again elsewhere, as after any loss of an executor. State that its workers kept is
read from the state servers again. Spark gives it no task from the moment that it is to go, and one
that dies by itself is replaced up to the number.
"""

from __future__ import annotations

from pyspark import SparkContext

from millrace.engine.jobs.session import request_executors


def executors(context: SparkContext) -> frozenset[str]:
    """Ids of those that are there and take tasks."""
    ids = context._jsc.sc().getExecutorIds()
    return frozenset(ids.apply(at) for at in range(ids.size()))


def have_executors(context: SparkContext, count: int) -> None:
    """Have the cluster manager keep so many, and end the newest of those above; to be called while
    no attempt runs. To do it twice does no harm."""
    spark = context._jsc.sc()
    for one in sorted(executors(context), key=_number)[count:]:
        spark.killExecutor(one)
    # Each of these lowers the number by one, whatever it was: this is what it is to be.
    request_executors(context, count)


def _number(executor: str) -> int:
    return int(executor) if executor.isdigit() else 0
