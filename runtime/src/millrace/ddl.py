"""Schemas written as text: ``"word string, n long, tags array<string>"``.

Pure Python, so that a topology can be validated where no Arrow is installed; the engine turns the
types into Arrow's (``engine.schema``).
"""

from __future__ import annotations

import re

from millrace.errors import TopologyError

Column = tuple[str, str]
"""A column's name and its canonical type, such as ``("n", "long")`` or ``("t", "array<int>")``."""

SIMPLE_TYPES = (
    "string",
    "long",
    "int",
    "double",
    "float",
    "boolean",
    "binary",
    "timestamp",
    "date",
)
"""Canonical names of the types that are not arrays."""

_ALIASES = {"bigint": "long", "integer": "int", "bool": "boolean", "str": "string"}
_COLUMN = re.compile(
    r"^(?:`(?P<quoted>[^`]+)`|(?P<plain>[A-Za-z_][A-Za-z0-9_]*))\s*:?\s*(?P<type>.*)$"
)
_ARRAY = re.compile(r"^array\s*<(?P<item>.*)>$", re.DOTALL)
_MOST_NESTED = 16
RESERVED_PREFIX = "__mr_"
"""Column names with this prefix carry tracking through Spark and are refused."""


def parse_type(text: str) -> str:
    """Canonical name of a type.

    Raises ``TopologyError`` for a type that is not known.
    """
    if text.count("<") > _MOST_NESTED:
        raise TopologyError(f"a type nests more than {_MOST_NESTED} arrays; write it flatter")
    name = text.strip().lower()
    array = _ARRAY.match(name)
    if array:
        return f"array<{parse_type(array['item'])}>"
    name = _ALIASES.get(name, name)
    if name not in SIMPLE_TYPES:
        known = ", ".join(SIMPLE_TYPES)
        raise TopologyError(
            f"type {text.strip()!r} is not known; use one of {known} or array<type>"
        )
    return name


def parse_schema(text: str) -> list[Column]:
    """Columns of a schema such as ``"word string, n long"``, in order.

    A name that is no plain identifier is written between backquotes. Raises ``TopologyError``
    for an empty schema, an unknown type, a name that appears twice or that is reserved.
    """
    columns: list[Column] = []
    for part in _split_columns(text):
        match = _COLUMN.match(part)
        if match is None or not match["type"]:
            raise TopologyError(
                f"schema {text!r}: {part!r} is not a column; write 'name type', e.g. 'word string'"
            )
        name = match["quoted"] or match["plain"]
        try:
            columns.append((name, parse_type(match["type"])))
        except TopologyError as error:
            raise TopologyError(f"schema {text!r}, column {name!r}: {error}") from None
    if not columns:
        raise TopologyError(f"schema {text!r} has no column; write 'name type, …'")
    _check_names(text, [name for name, _ in columns])
    return columns


def _split_columns(text: str) -> list[str]:
    # Commas inside array<…> never occur (it has one argument), those inside backquotes may.
    parts = re.findall(r"(?:`[^`]*`|[^,`])+|,", text)
    columns, expected = [], True
    for part in (p.strip() for p in parts):
        if part == ",":
            if expected:
                raise TopologyError(f"schema {text!r} has an empty column; remove the extra comma")
            expected = True
        elif part:
            columns.append(part)
            expected = False
    if expected and columns:
        raise TopologyError(f"schema {text!r} ends with a comma; remove it")
    return columns


def _check_names(text: str, names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise TopologyError(f"schema {text!r} has the column {name!r} twice; rename one")
        if name.startswith(RESERVED_PREFIX):
            raise TopologyError(
                f"schema {text!r}: names that begin with {RESERVED_PREFIX!r} are reserved; "
                f"rename {name!r}"
            )
        seen.add(name)
