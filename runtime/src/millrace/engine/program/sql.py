"""SQL steps: Spark evaluates their expressions in the JVM while a source is read.

The reading pass gives the JVM one row for each root: its sequence number, its tracking id and the
source's columns. Every SQL step adds two columns, a struct of what it selects and a flag that
says whether the row passes its ``where``; no row is taken out, so a row that the JVM loses is
missed when the Python pass behind it accounts for what it got.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from millrace.engine.program.program import Component, Program, SqlExpressions
from millrace.errors import TopologyError
from millrace.topology.parts import Role
from millrace.topology.problems import shorten

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SOURCE, SEQUENCE, TRACKING = "__mr_source", "__mr_root", "__mr_id"
"""Which source a row is from (its component number), its root and its tracking id."""

ERROR, GONE = "__mr_error", "__mr_gone"
"""Why a record could not be read, or null; and whether it is not there rather than wrong."""

_ROW_BY_ROW = ("Generate", "Window", "Aggregate", "Sort", "Join", "Expand", "Distinct")


def column_of(component: Component) -> str:
    """Column that holds what a source or SQL step emits, as a struct."""
    return f"__mr_c{component.number}"


def holes_of(source: Component) -> int:
    """What stands for ``SOURCE`` in rows that are no records of a source but offsets without one:
    how many in ``TRACKING``, from ``SEQUENCE`` on. No step looks at them."""
    return -1 - source.number


def keep_of(component: Component) -> str:
    """Column that says whether a row passes a step's ``where``, and all before it."""
    return f"__mr_k{component.number}"


def add_step(frame: DataFrame, before: Component, step: Component) -> DataFrame:
    """A frame with the two columns of one more SQL step."""
    assert step.sql is not None
    kept = [_quoted(c) for c in frame.columns]
    flat = frame.selectExpr(*kept, f"{column_of(before)}.*")
    passed = keep_of(before)
    if before.role is Role.SOURCE:
        # Other rows hold nulls here, on which an expression might fail.
        passed = f"{SOURCE} = {before.number}" if SOURCE in frame.columns else "true"
    condition = passed
    if step.sql.where is not None:
        # Short-circuits: a row that did not pass before is not looked at again.
        condition = f"CASE WHEN {passed} THEN coalesce(({step.sql.where}), false) ELSE false END"
    flagged = flat.selectExpr("*", f"{condition} AS {keep_of(step)}")
    star = f"{column_of(before)}.*"
    chosen = ", ".join(star if e.strip() == "*" else e for e in step.sql.select)
    value = f"CASE WHEN {keep_of(step)} THEN struct({chosen}) END AS {column_of(step)}"
    return flagged.selectExpr(*kept, keep_of(step), value)


@dataclass(frozen=True, slots=True)
class SqlFault:
    """What Spark refuses: ``field`` is ``select[0]`` or ``where``, ``text`` what stands there."""

    field: str
    text: str
    message: str


class SqlAnalyser:
    """Finds out what SQL steps put out, by asking Spark to analyse them."""

    def __init__(self, session: Callable[[], SparkSession]) -> None:
        self._session = session

    def faults(self, step: SqlExpressions, incoming: pa.Schema) -> list[SqlFault]:
        """What Spark refuses of a step, in terms of the columns that come in alone."""
        from pyspark.sql.pandas.types import from_arrow_schema

        plain = self._session().createDataFrame([], from_arrow_schema(incoming))
        found = []
        for index, text in enumerate(step.select):
            reason = _refused(plain, text)
            if reason and not _refused(plain, f"struct({text})"):
                continue  # several expressions with commas between them
            if reason:
                found.append(SqlFault(f"select[{index}]", text, reason))
        if step.where is not None:
            reason = _refused(plain, step.where, condition=True)
            if reason:
                found.append(SqlFault("where", step.where, reason))
        return found

    def __call__(self, name: str, step: SqlExpressions, incoming: pa.Schema) -> pa.Schema:
        """Output schema of a step. Raises ``TopologyError`` where Spark refuses it."""
        from pyspark.errors import PySparkException
        from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
        from pyspark.sql.types import StructField, StructType

        for fault in self.faults(step, incoming):
            raise TopologyError(
                f"SQL step {name!r}: sql.{fault.field} {shorten(fault.text)}: {fault.message}"
            )
        before = Component(name="(input)", role=Role.SOURCE, pass_no=0, number=0)
        after = Component(name=name, role=Role.PROCESSOR, pass_no=0, number=1, sql=step)
        columns = from_arrow_schema(incoming)
        empty = self._session().createDataFrame(
            [], StructType([StructField(column_of(before), columns, True)])
        )
        try:
            found = add_step(empty, before, after).schema[column_of(after)].dataType
        except PySparkException as error:
            raise TopologyError(f"SQL step {name!r}: Spark refuses it: {_reason(error)}") from error
        assert isinstance(found, StructType)
        names = [f.name for f in found.fields]
        if len(set(names)) < len(names):
            raise TopologyError(
                f"SQL step {name!r} selects a column twice: {', '.join(names)}; rename one with AS"
            )
        arrow = to_arrow_schema(found, timezone="UTC")
        return pa.schema([pa.field(f.name, f.type) for f in arrow])


def _refused(frame: DataFrame, expression: str, condition: bool = False) -> str:
    """Why Spark refuses an expression over a frame; empty where it does not."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import BooleanType, NullType

    try:
        analysed = frame.selectExpr(expression)
        plan = analysed._jdf.queryExecution().analyzed().toString()
    except PySparkException as error:
        return f"Spark refuses it: {_reason(error)}"
    for node in _ROW_BY_ROW:
        if any(line.strip(" :+-").startswith(node) for line in plan.splitlines()):
            return (
                f"needs more than one row at a time ({node}); use an aggregate or a function for it"
            )
    kind = analysed.schema[0].dataType
    if condition and not isinstance(kind, BooleanType | NullType):
        return f"is no condition but a value of type {kind.simpleString()}; write a comparison"
    return ""


_WORDS = re.compile(
    r"\[[A-Z_.]+\]\s*(?P<words>.*?)\s*(SQLSTATE|== SQL|JVM stacktrace|$)", re.DOTALL
)


def _reason(error: Exception) -> str:
    """What Spark says, without its codes, its plan and the text that the expression was put in."""
    found = _WORDS.search(str(error))
    words = found["words"] if found is not None else str(error).split("JVM stacktrace")[0]
    return " ".join(words.split()).rstrip(".")[:400]


def jvm_chain(program: Program) -> list[tuple[Component, Component]]:
    """(component before, SQL step) in an order in which they can be added."""
    steps: Sequence[Component] = program.sql_steps
    return [(program.components[s.inputs[0].producer], s) for s in steps]


def jvm_sources(program: Program) -> list[Component]:
    """Sources that are read into the JVM: those with an SQL step directly behind them."""
    names = {before.name for before, _ in jvm_chain(program) if before.role is Role.SOURCE}
    return [s for s in program.sources if s.name in names]


def frame_schema(program: Program) -> str:
    """Spark schema of what the reading pass gives the JVM."""
    from pyspark.sql.pandas.types import from_arrow_schema

    columns = [f"{SOURCE} int", f"{SEQUENCE} long", f"{TRACKING} long", f"{ERROR} string"]
    columns.append(f"{GONE} boolean")
    for source in jvm_sources(program):
        assert source.output is not None
        struct = from_arrow_schema(source.output).simpleString()
        columns.append(f"{column_of(source)} {struct}")
    return ", ".join(columns)


def _quoted(name: str) -> str:
    return f"`{name}`"
