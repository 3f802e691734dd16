"""The kind ``sql`` of processors: Spark SQL expressions."""

from __future__ import annotations

import re
from collections.abc import Iterator
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

_PLAIN = re.compile(r"^`?([A-Za-z_]\w*)`?$")
_RENAMED = re.compile(r"^.+\sas\s+`?([A-Za-z_]\w*)`?$", re.IGNORECASE | re.DOTALL)


class Sql(Part):
    """Spark SQL expressions; only directly behind a source or another SQL step."""

    select: tuple[Text, ...] = Field(
        ("*",), min_length=1, description='Expressions, e.g. "upper(value) AS value".'
    )
    where: Text | None = Field(None, description="Condition that tuples must meet.")


class SqlProcessorKind(ProcessorKind[Sql]):
    """Expressions that the JVM evaluates while it reads the source in front of them."""

    name = "sql"
    meaning = "Spark SQL expressions."
    settings = Sql
    compiler = "millrace.engine.program.kinds:sql"
    step = "millrace.engine.task.steps.making:sql"
    in_jvm = True
    expressions = "select"

    def summary(self, settings: Sql) -> str:
        where = f" WHERE {settings.where}" if settings.where else ""
        selected = f"SELECT {', '.join(settings.select)}{where}"
        return f"sql, in the JVM while its source is read: {selected}"

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
        """It stands directly behind a source, or SQL, on one plain edge."""
        edges = facts.edges_of(component)
        if len(edges) > 1:
            yield Problem(
                format_path((*component.path, "inputs")),
                NOTHING,
                f"are {len(edges)}, and SQL runs while one source is read",
                "give each source its own SQL step and merge behind them",
            )
        for edge in edges:
            producer = facts.graph.by_name.get(edge.producer)
            if edge.columns:
                yield Problem(
                    input_path(component, edge, "columns"),
                    dict(edge.columns),
                    "does not go with SQL, which selects and names columns itself",
                    'write it into select, e.g. "uid AS user"',
                )
            if edge.exchanged:
                field = "key" if edge.key else "broadcast"
                yield Problem(
                    input_path(component, edge, field),
                    ", ".join(edge.key) or True,
                    "does not go with SQL, which runs in the JVM before any exchange",
                    "put it on an edge behind the SQL step",
                )
            # Another kind that runs in the JVM may stand in front.
            if producer is not None and facts.in_python(producer):
                yield Problem(
                    input_path(component, edge, "from"),
                    edge.producer,
                    "runs in Python, and SQL runs in the JVM while the source is read; it stands "
                    "only directly behind a source or another SQL step",
                    "move the SQL step there, or write it as a function",
                )


SQL = SqlProcessorKind()
