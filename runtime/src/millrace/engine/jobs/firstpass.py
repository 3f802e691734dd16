"""The first pass of an attempt that is begun while another attempt runs or is judged.

Of an attempt that is several tasks it is a stage of Spark's; of one that is one task it runs in the
worker of the task that stays, on threads of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millrace.engine.program.program import Program
from millrace.topology.parts import Role

if TYPE_CHECKING:
    from pyspark.core.rdd import RDD


@dataclass(frozen=True, slots=True)
class FirstPassRun:
    """The first pass of an attempt, under way or over: by which program, what waits for it, and
    the envelopes that come of it."""

    program: Program
    end: Any
    moved: RDD[Any]


@dataclass(frozen=True, slots=True)
class AheadRun:
    """The first pass of an attempt in the task that stays, which knows itself what came of it: to
    the driver it says that there is one, and no more."""


Prepared = FirstPassRun | AheadRun

MOST_LANES = 4
"""More threads of one process would wait for each other: between two steps one at a time runs."""


def reads_only(program: Program) -> bool:
    """Whether the first of several passes keeps no state, shows nothing, runs in Python alone."""
    first = [program.components[name] for name in program.passes[0].components]
    plain = all(c.role is not Role.SINK and c.state is None and not c.columns for c in first)
    return plain and len(program.passes) > 1 and not program.sql_steps


def runs_beside(program: Program) -> bool:
    """Whether the first pass may run on other threads of a worker.

    A worker that ends meanwhile must not be taken for one that code of the user's has ended, so
    that there is none of it in the program; but for sinks, which get no tuple that could be blamed.
    """
    parts = (c for c in program.components.values() if c.role is not Role.SINK)
    return reads_only(program) and all(component.beside for component in parts)


def lanes_of(program: Program, cores: int) -> int:
    """On how many threads the first pass of a larger window may run beside another window, in an
    executor with so many cores; 0 where it runs beside none."""
    return min(program.parallelism, cores, MOST_LANES) if runs_beside(program) else 0
