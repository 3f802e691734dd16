"""What is asked of Spark for another number of executors, and what follows from its answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millrace.engine.jobs.executors import have_executors
from millrace.engine.jobs.session import request_executors
from millrace.errors import EngineError


class Spark:
    """A session over a cluster manager that answers ``takes``; ``here`` are ids of executors."""

    def __init__(self, *here: str, takes: bool = True) -> None:
        self.takes = takes
        self.here = list(here)
        self.asked: list[int] = []
        jvm = SimpleNamespace(
            scala=SimpleNamespace(
                collection=SimpleNamespace(immutable=SimpleNamespace(HashMap=dict))
            )
        )
        context = SimpleNamespace(_jvm=jvm, _jsc=SimpleNamespace(sc=lambda: self))
        self.session: Any = SimpleNamespace(sparkContext=context)

    def getExecutorIds(self) -> Any:  # noqa: N802
        return SimpleNamespace(size=lambda: len(self.here), apply=self.here.__getitem__)

    def killExecutor(self, one: str) -> bool:  # noqa: N802
        self.here.remove(one)
        return True

    def requestTotalExecutors(self, count: int, tasks: int, hosts: object) -> bool:  # noqa: N802
        self.asked.append(count)
        return self.takes


def test_the_newest_go_and_the_number_is_said_last() -> None:
    spark = Spark("2", "10", "1")
    have_executors(spark.session.sparkContext, 2)
    assert (spark.here, spark.asked) == (["2", "1"], [2])


@pytest.mark.parametrize("have", [have_executors, request_executors])
def test_a_number_that_is_not_taken_is_an_error(have: Any) -> None:
    """Else it would count as there, and nobody would ask again."""
    spark = Spark("1", takes=False)
    with pytest.raises(EngineError, match="does not take 3 executors"):
        have(spark.session.sparkContext, 3)
