"""Columns that fields of several kinds declare, and what is said where they are wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from millrace.ddl import RESERVED_PREFIX, SIMPLE_TYPES, parse_schema
from millrace.errors import TopologyError
from millrace.topology.problems import Problem

if TYPE_CHECKING:
    from millrace.topology.kinds.base import Columns


def declared_columns(schema: str | None) -> Columns | None:
    """The columns of a schema; None where there is none, or it is wrong."""
    if schema is None:
        return None
    try:
        return tuple(parse_schema(schema))
    except TopologyError:
        return None


def unsound_schema(path: str, schema: str) -> Iterator[Problem]:
    """What is wrong with a text that should be a schema."""
    try:
        parse_schema(schema)
    except TopologyError as error:
        fault = str(error).removeprefix(f"schema {schema!r}").lstrip(",: ")
        message, _, remedy = fault.rpartition("; ")
        yield Problem(path, schema, f"is no schema: {message or remedy}", remedy)


def unfit_name(path: str, name: str, taken: set[str], otherwise: str) -> Iterator[Problem]:
    """What is wrong with the name of a new column, which counts as taken from here on;
    ``otherwise`` says where it may have a reserved one."""
    if name in taken:
        yield Problem(path, name, "is a column of the output already", "rename it")
    if name.startswith(RESERVED_PREFIX):
        message = f"begins with {RESERVED_PREFIX!r}, which is reserved"
        yield Problem(path, name, message, f"use another name, and {otherwise}")
    taken.add(name)


def unfit_key(path: str, name: str, kind: str | None) -> Iterator[Problem]:
    """A column whose type, where it is known, cannot be that of a key."""
    if kind not in (None, *SIMPLE_TYPES):
        message = f"is of the type {kind}, which cannot be a key"
        yield Problem(path, name, message, "use a column of a simple type")
