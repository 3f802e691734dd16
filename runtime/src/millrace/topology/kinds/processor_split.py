"""The kind ``split`` of processors: text cut into pieces, without code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import Field

from millrace.topology.edges import missing_columns
from millrace.topology.kinds.base import Columns, Incoming, ProcessorKind
from millrace.topology.parts import Part
from millrace.topology.problems import Problem, format_path
from millrace.topology.scalars import Flag, Text

if TYPE_CHECKING:
    from millrace.topology.checks.facts import Facts
    from millrace.topology.graph import Component, Edge


class SplitSettings(Part):
    """Text cut into pieces, each a tuple of its own; at white space, as Python's ``str.split()``
    does it, where neither a delimiter nor a pattern is given."""

    column: Text = Field(description="Text column that is cut.")
    into: Text = Field(description="Name of the column that holds a piece.")
    delimiter: Text | None = Field(
        None, description='Text between pieces, e.g. ",". Pieces may be empty.'
    )
    pattern: Text | None = Field(
        None,
        description="Regular expression (RE2) of what is between pieces, at least one character, "
        'e.g. "[^a-z]+". Pieces may be empty.',
    )
    drop_empty: Flag = Field(
        False, description="Leave empty pieces out. At white space there are none."
    )
    keep: tuple[Text, ...] = Field(
        (), description="Columns of the tuple that each of its pieces gets, too."
    )


class SplitProcessorKind(ProcessorKind[SplitSettings]):
    """Pieces of text, cut in the worker by compiled code."""

    name = "split"
    meaning = (
        "Text cut into pieces, each a tuple of its own: at white space as Python's str.split() "
        "sees it, or at a delimiter or a pattern."
    )
    settings = SplitSettings
    fillers = {"column": "value", "into": "piece"}
    compiler = "millrace.engine.program.kinds:split"
    step = "millrace.engine.task.steps.making:split"

    def summary(self, settings: SplitSettings) -> str:
        at = "white space"
        if settings.delimiter is not None:
            at = f"{settings.delimiter!r}"
        elif settings.pattern is not None:
            at = f"the pattern {settings.pattern!r}"
        return f"split {settings.column} at {at} into {settings.into}"

    def columns(self, settings: SplitSettings, incoming: Incoming) -> Columns | None:
        types = dict(incoming.columns or ())
        return ((settings.into, "string"), *((name, types.get(name)) for name in settings.keep))

    def check(
        self, settings: SplitSettings, component: Component, facts: Facts
    ) -> Iterator[Problem]:
        """One way to cut, a column of text, and distinct columns that there are."""
        path = format_path((*component.path, "split"))
        if settings.pattern is not None and settings.delimiter is not None:
            message = "does not go with a delimiter"
            yield Problem(f"{path}.pattern", settings.pattern, message, "remove one of the two")
        if settings.drop_empty and settings.pattern is None and settings.delimiter is None:
            message = "does not apply: at white space no piece is empty"
            yield Problem(f"{path}.dropEmpty", True, message, "remove it")
        taken = {settings.into}
        for i, name in enumerate(settings.keep):
            if name in taken:
                message = "is a column of the output already"
                remedy = "rename the pieces or keep it once"
                yield Problem(f"{path}.keep[{i}]", name, message, remedy)
            taken.add(name)
        for edge in facts.edges_of(component):
            yield from _columns_there(facts, edge, path, settings)


def _columns_there(
    facts: Facts, edge: Edge, path: str, settings: SplitSettings
) -> Iterator[Problem]:
    yield from missing_columns(facts, edge, path, settings.column, settings.keep)
    found = dict(facts.columns_on(edge) or ()).get(settings.column)
    if found not in (None, "string"):
        message = f"has the type {found}, and only text is cut"
        remedy = "name a column of type string, or make one in front"
        yield Problem(f"{path}.column", settings.column, message, remedy)


SPLIT = SplitProcessorKind()
