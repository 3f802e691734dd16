"""The kind ``json`` of processors: texts of JSON read into typed columns, without code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import Field

from millrace.ddl import parse_type
from millrace.errors import TopologyError
from millrace.topology.declared import unfit_name
from millrace.topology.edges import missing_columns
from millrace.topology.kinds.base import Columns, Incoming, ProcessorKind
from millrace.topology.parts import Part
from millrace.topology.problems import Problem, format_path
from millrace.topology.scalars import Flag, Text

if TYPE_CHECKING:
    from millrace.topology.checks.facts import Facts
    from millrace.topology.graph import Component, Edge

_ELEMENT = re.compile(r"\[[^\[\]]*\]$")
"""The end of a name as other languages of paths write an element: ``[0]``, ``[*]``."""

READ_FROM = ("string", "binary")
"""Types of the column that may hold JSON."""


class JsonColumn(Part):
    """A column that is read from each object."""

    name: Text = Field(description="Name of the column.")
    type: Text = Field(
        description="string, long, int, double, float, boolean, binary, timestamp, date, "
        "array<type>."
    )
    path: Text | None = Field(
        None,
        description="Where its field stands: names with dots between them that lead through "
        'objects, e.g. "user.id". Default: the field of the column\'s name.',
    )
    required: Flag = Field(
        False,
        description="Whether a tuple whose object does not have a value for it fails.",
    )

    @property
    def names(self) -> tuple[str, ...]:
        """The names that lead to the field."""
        return (self.name,) if self.path is None else tuple(self.path.split("."))


class JsonSettings(Part):
    """Objects of JSON, read into columns; a text that is none fails its tuple for good."""

    column: Text = Field(
        description="Column of type string or binary that holds one object in each tuple."
    )
    columns: tuple[JsonColumn, ...] = Field(
        min_length=1, description="What is read. Fields that are not named are left out."
    )
    keep: tuple[Text, ...] = Field((), description="Columns of the tuple that come out, too.")


class JsonProcessorKind(ProcessorKind[JsonSettings]):
    """Objects of JSON, parsed in the worker by compiled code."""

    name = "json"
    meaning = "Texts of JSON, an object each, read into columns with types."
    settings = JsonSettings
    fillers = {
        "column": "value",
        "columns": [{"name": "unnamed", "type": "string"}],
        "name": "unnamed",
        "type": "string",
    }
    compiler = "millrace.engine.program.kinds:json"
    step = "millrace.engine.task.steps.making:json"
    beside = True

    def summary(self, settings: JsonSettings) -> str:
        return f"json {settings.column} into {', '.join(c.name for c in settings.columns)}"

    def columns(self, settings: JsonSettings, incoming: Incoming) -> Columns | None:
        types = dict(incoming.columns or ())
        return (
            *((c.name, _type_of(c)) for c in settings.columns),
            *((name, types.get(name)) for name in settings.keep),
        )

    def check(
        self, settings: JsonSettings, component: Component, facts: Facts
    ) -> Iterator[Problem]:
        """Known types, distinct columns of fields that are no part of each other, and columns of
        the input that there are."""
        path = format_path((*component.path, "json"))
        taken: set[str] = set()
        for i, column in enumerate(settings.columns):
            here = f"{path}.columns[{i}]"
            yield from unfit_name(f"{here}.name", column.name, taken, "path to say where it is")
            yield from _fit_type(f"{here}.type", column)
            yield from _fit_path(here, column, settings.columns[:i])
        for i, name in enumerate(settings.keep):
            if name in taken:
                message = "is a column of the output already"
                remedy = "rename the column that is read or keep it once"
                yield Problem(f"{path}.keep[{i}]", name, message, remedy)
            taken.add(name)
        for edge in facts.edges_of(component):
            yield from _columns_there(facts, edge, path, settings)


def _type_of(column: JsonColumn) -> str | None:
    try:
        return parse_type(column.type)
    except TopologyError:
        return None


def _fit_type(path: str, column: JsonColumn) -> Iterator[Problem]:
    try:
        parse_type(column.type)
    except TopologyError as error:
        message, _, remedy = str(error).partition("; ")
        message = message.removeprefix(f"type {column.type.strip()!r} ")
        yield Problem(path, column.type, message, remedy)


def _fit_path(here: str, column: JsonColumn, before: tuple[JsonColumn, ...]) -> Iterator[Problem]:
    if column.path is not None and "" in column.names:
        message = "has an empty name in it"
        yield Problem(f"{here}.path", column.path, message, 'write names with a dot between: "a.b"')
        return
    if column.path is not None and column.names[0] == "$":
        rest = ".".join(column.names[1:])
        remedy = f'write "{rest}"' if rest else "write the names that lead to a field"
        message = "begins with $, and names lead from the object itself"
        yield Problem(f"{here}.path", column.path, message, remedy)
        return
    if column.path is not None and any(map(_ELEMENT.search, column.names)):
        message = "names an element of an array, which no path reaches"
        remedy = "read the array, as array<type>, or use a function"
        yield Problem(f"{here}.path", column.path, message, remedy)
        return
    field = f"{here}.path" if column.path is not None else f"{here}.name"
    for other in before:
        if other.name == column.name:
            continue  # which is said already
        mine, others = column.names, other.names
        shared = min(len(mine), len(others))
        if mine[:shared] == others[:shared]:
            if len(mine) == len(others):
                message = f"is read into the column {other.name!r} already"
                remedy = "read each field once, or name another"
            else:
                message = f"and the field of {other.name!r} are one inside the other"
                remedy = "name fields of which none lies inside another"
            yield Problem(field, ".".join(mine), message, remedy)


def _columns_there(
    facts: Facts, edge: Edge, path: str, settings: JsonSettings
) -> Iterator[Problem]:
    yield from missing_columns(facts, edge, path, settings.column, settings.keep)
    found = dict(facts.columns_on(edge) or ()).get(settings.column)
    if found is not None and found not in READ_FROM:
        message = f"has the type {found}, and JSON is read from text or bytes"
        yield Problem(
            f"{path}.column", settings.column, message, "name one of type string or binary"
        )


JSON = JsonProcessorKind()
