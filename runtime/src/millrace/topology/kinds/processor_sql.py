"""The kind ``sql`` of processors: expressions of Spark SQL, or of DuckDB."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING

from pydantic import Field

from millrace.topology.edges import input_path
from millrace.topology.kinds.base import Columns, Evaluated, Incoming, ProcessorKind
from millrace.topology.parts import Part
from millrace.topology.problems import NOTHING, Problem, format_path
from millrace.topology.scalars import Text

if TYPE_CHECKING:
    from millrace.topology.checks.facts import Facts
    from millrace.topology.graph import Component

_HERE = "set engine: duckdb"
_PLAIN = re.compile(r"^`?([A-Za-z_]\w*)`?$")
_RENAMED = re.compile(r"^.+\sas\s+`?([A-Za-z_]\w*)`?$", re.IGNORECASE | re.DOTALL)


class SqlEngine(str, Enum):
    """What evaluates the expressions of an SQL step."""

    SPARK = "spark"
    DUCKDB = "duckdb"


class Sql(Part):
    """SQL expressions over one row at a time."""

    select: tuple[Text, ...] = Field(
        ("*",), min_length=1, description='Expressions, e.g. "upper(value) AS value".'
    )
    where: Text | None = Field(None, description="Condition that tuples must meet.")
    engine: SqlEngine = Field(
        SqlEngine.SPARK,
        description="spark: in the JVM while a source is read, directly behind it or behind such "
        "a step. duckdb: in the worker, behind any step, in DuckDB's dialect.",
    )


class SqlProcessorKind(ProcessorKind[Sql]):
    """Expressions that the JVM evaluates while it reads the source in front of them, or that
    DuckDB evaluates in the worker."""

    name = "sql"
    meaning = "SQL expressions over one row at a time."
    settings = Sql
    compiler = "millrace.engine.program.kinds:sql"
    step = "millrace.engine.task.steps.making:sql"
    in_jvm = True
    expressions = "select"

    def runs_in_jvm(self, settings: Sql) -> bool:
        return settings.engine is SqlEngine.SPARK

    def summary(self, settings: Sql) -> str:
        where = f" WHERE {settings.where}" if settings.where else ""
        selected = f"SELECT {', '.join(settings.select)}{where}"
        jvm = self.runs_in_jvm(settings)
        place = "in the JVM while its source is read" if jvm else "in the worker, by DuckDB"
        return f"sql, {place}: {selected}"

    def evaluated(self, settings: Sql) -> Evaluated:
        return Evaluated(settings.select, settings.where)

    def columns(self, settings: Sql, incoming: Incoming) -> Columns | None:
        """Names where every expression shows its own; types only of columns taken over."""
        types = dict(incoming.columns or ())
        columns: list[tuple[str, str | None]] = []
        for expression in settings.select:
            text = expression.strip()
            if text == "*":
                if incoming.columns is None:
                    return None
                columns += incoming.columns
            elif plain := _PLAIN.match(text):
                columns.append((plain[1], types.get(plain[1])))
            elif renamed := _RENAMED.match(text):
                columns.append((renamed[1], None))
            else:
                return None
        return tuple(columns)

    def check(self, settings: Sql, component: Component, facts: Facts) -> Iterator[Problem]:
        """In the JVM it stands directly behind a source, or such SQL, on one plain edge."""
        if not self.runs_in_jvm(settings):
            if settings.select == ("*",) and settings.where is None:
                message = "has neither select nor where: every row would come out as it went in"
                remedy = "write one of them, or leave the step out"
                yield Problem(format_path((*component.path, "sql")), NOTHING, message, remedy)
            return
        edges = facts.edges_of(component)
        if len(edges) > 1:
            yield Problem(
                format_path((*component.path, "inputs")),
                NOTHING,
                f"are {len(edges)}, and SQL runs while one source is read",
                f"give each source its own SQL step and merge behind them, or {_HERE}",
            )
        for edge in edges:
            producer = facts.graph.by_name.get(edge.producer)
            if edge.columns:
                yield Problem(
                    input_path(component, edge, "columns"),
                    dict(edge.columns),
                    "does not go with SQL, which selects and names columns itself",
                    f'write it into select, e.g. "uid AS user", or {_HERE}',
                )
            if edge.exchanged:
                field = "key" if edge.key else "broadcast"
                yield Problem(
                    input_path(component, edge, field),
                    ", ".join(edge.key) or True,
                    "does not go with SQL, which runs in the JVM before any exchange",
                    f"put it on an edge behind the SQL step, or {_HERE}",
                )
            # Another kind that runs in the JVM may stand in front.
            if producer is not None and facts.in_python(producer):
                yield Problem(
                    input_path(component, edge, "from"),
                    edge.producer,
                    "runs in Python, and SQL runs in the JVM while the source is read; it stands "
                    "only directly behind a source or another step of Spark's SQL",
                    f"move the SQL step there, or {_HERE}",
                )


SQL = SqlProcessorKind()
