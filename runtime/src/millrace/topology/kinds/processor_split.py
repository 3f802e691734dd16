"""The kind ``split`` of processors: text cut into pieces, without code."""

from __future__ import annotations

import re
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

_PART = re.compile(
    r"""
    \\Q .*? (?: \\E | \Z )  # text that stands for itself
    | \\[pP]\{ [^}]* (?: \} | \Z )  # a character by the name of its kind
    | (?P<refused> \^ | \\[AbBC] )
    | \\.
    | \[ \^?+ \]?+  # one of several characters
      (?: \[:\^?\w+:\] | \\[pP]\{ [^}]* (?: \} | \Z ) | \\. | [^\]\\] )*+ (?: \] | \Z )
    | .
    """,
    re.VERBOSE | re.DOTALL,
)
"""The parts of a pattern of RE2. One that is not one may be parted anyhow."""


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
    beside = True

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
        yield from _misread(settings.pattern or "", f"{path}.pattern")
        taken = {settings.into}
        for i, name in enumerate(settings.keep):
            if name in taken:
                message = "is a column of the output already"
                remedy = "rename the pieces or keep it once"
                yield Problem(f"{path}.keep[{i}]", name, message, remedy)
            taken.add(name)
        for edge in facts.edges_of(component):
            yield from _columns_there(facts, edge, path, settings)


def _misread(pattern: str, path: str) -> Iterator[Problem]:
    """What a pattern asks for where no answer is right: each match is looked for in what is left
    of the text behind the one before, as if nothing stood in front of it."""
    refused = [part["refused"] for part in _PART.finditer(pattern) if part["refused"]]
    if not refused:
        return
    message = (
        f"asks what stands in front of a match ({refused[0]}), and to the next match nothing does: "
        "the text is cut there"
    )
    remedy = "leave it out, or cut in a function"
    if refused[0] == "^":
        remedy = r"write \^ for the character, or cut in a function"
    elif refused[0] == r"\C":
        message = r"asks for a byte (\C), and a character of several would be cut in two"
        remedy = "write . for a character"
    yield Problem(path, pattern, message, remedy)


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
