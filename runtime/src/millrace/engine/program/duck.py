"""Expressions that DuckDB evaluates inside a worker: what they may be, and what they put out.

A step is one query over one batch. Beside what it selects it gives the number of each row, so that
what comes out is known to be of the tuple that went in: nothing that needs several rows at a time,
or that is another thing another time, is an expression of a step: functions are those of
``duckfunctions``. The connection reads no files, writes none where memory ends, loads nothing, has
one thread and ``MEMORY`` for itself, counts in UTC, and its settings are locked.
"""

from __future__ import annotations

import atexit
import json
import os
import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from millrace.ddl import RESERVED_PREFIX
from millrace.engine.program.duckfunctions import (
    BY_NAME,
    CLOCKS,
    FUNCTIONS,
    OF_ELEMENTS,
    OPERATORS,
    SESSION,
    UNCALLED,
)
from millrace.engine.program.plainrows import plain_rows
from millrace.engine.program.program import SqlExpressions
from millrace.engine.program.sql import SqlFault
from millrace.errors import TopologyError
from millrace.topology.problems import shorten

INPUT, ROW = f"{RESERVED_PREFIX}input", f"{RESERVED_PREFIX}row"
"""The table that a query is over, and its column with the number of each row."""

ROW_ERRORS = (duckdb.DataError, duckdb.InvalidInputException, duckdb.NotSupportedError)
"""What an expression raises on a value that it cannot take, where ``blames_row`` says so; anything
else is DuckDB's own."""

MEMORY = "256MiB"
"""What DuckDB may hold in one process of Python; a step streams, and needs little."""

_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "threads": 1,
    "memory_limit": MEMORY,
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
}

_SEVERAL = "needs more than one row at a time"

_PARTS = """
BETWEEN CASE CAST COLLATE COLUMN_REF COMPARISON CONJUNCTION CONSTANT FUNCTION LAMBDA OPERATOR TYPE
"""
_CLASSES = frozenset(_PARTS.split())
"""What an expression is made of, in DuckDB's words; anything else is refused."""

_STEADY = frozenset({"error"})
"""What DuckDB calls volatile so that it is not left out: it raises whenever it is reached."""


def connection() -> duckdb.DuckDBPyConnection:
    """The connection of this process, made on first use. It is not shared between threads."""
    found = _connections.get(os.getpid())  # a child that was forked has one of its own
    if found is None:
        found = _connections[os.getpid()] = duckdb.connect(":memory:", config=_SETTINGS)
        found.execute("SET TimeZone = 'UTC'")
        found.execute("SET lock_configuration = true")
    return found


def renew() -> None:
    """Have the next use connect anew: DuckDB takes nothing more after some of its own errors."""
    _connections.pop(os.getpid(), None)


_connections: dict[int, duckdb.DuckDBPyConnection] = {}
atexit.register(renew)


def query_of(step: SqlExpressions, names: Sequence[str]) -> str:
    """The query of a step over a table with these columns and the number of each row."""
    star = ", ".join(map(quoted, names))
    chosen = [star if e.strip() == "*" else e for e in step.select]
    # Each on a line of its own, where a comment ends with it.
    where = "" if step.where is None else f"WHERE ({step.where}\n)"
    lines = "\n, ".join([*chosen, ROW])
    return f"SELECT {lines} FROM {INPUT} {where}"


def quoted(name: str) -> str:
    """A name that is taken as it is written."""
    return '"' + name.replace('"', '""') + '"'


def numbered(data: pa.RecordBatch) -> pa.RecordBatch:
    """A batch with the number of each row behind its columns."""
    rows = pa.array(np.arange(data.num_rows, dtype=np.int64))
    columns = map(_from_its_beginning, data.columns)
    return pa.RecordBatch.from_arrays([*columns, rows], names=[*data.schema.names, ROW])


def _from_its_beginning(column: pa.Array) -> pa.Array:
    """DuckDB refuses structs within structs that are part of a larger array."""
    kind = column.type
    deep = pa.types.is_struct(kind) and any(pa.types.is_nested(field.type) for field in kind)
    return pa.concat_arrays([column]) if deep else column


def evaluate(query: str, data: pa.RecordBatch) -> pa.Table:
    """What a query makes of a batch that is numbered. Raises what DuckDB raises."""
    duck = connection()
    duck.register(INPUT, data)
    try:
        return duck.sql(query).to_arrow_table()
    finally:
        duck.unregister(INPUT)


def blames_row(error: Exception) -> bool:
    """Whether DuckDB raises this for the values of a row, not for their types."""
    return isinstance(error, ROW_ERRORS) and "Unimplemented type for cast" not in str(error)


def can_evaluate(query: str, data: pa.RecordBatch) -> bool:
    """Whether DuckDB can evaluate a query over batches such as this one, whatever their values."""
    try:
        evaluate(query, numbered(data.slice(0, 0)))
    except duckdb.Error:
        return False
    return True


def reason(error: Exception) -> str:
    """What DuckDB says, without the query that it shows beside it."""
    said = str(error).split("\n\nLINE")[0].split(" Use TRY(")[0]
    return " ".join(said.split()).rstrip(".")[:400]


class DuckAnalyser:
    """Finds out what steps put out, by asking DuckDB; as ``program.sql.SqlAnalyser`` does Spark."""

    def faults(self, step: SqlExpressions, incoming: pa.Schema) -> list[SqlFault]:
        """What is refused of a step."""
        found = []
        for index, text in enumerate(step.select):
            refused = "" if text.strip() == "*" else _refused(text, incoming)
            if refused:
                found.append(SqlFault(f"select[{index}]", text, refused))
        if step.where is not None:
            refused = _refused(step.where, incoming, condition=True)
            if refused:
                found.append(SqlFault("where", step.where, refused))
        return found

    def __call__(self, name: str, step: SqlExpressions, incoming: pa.Schema) -> pa.Schema:
        """Output schema of a step, as DuckDB types it. Raises ``TopologyError``."""
        alike = [
            n for n in incoming.names if [o.lower() for o in incoming.names].count(n.lower()) > 1
        ]
        if alike:
            raise TopologyError(
                f"SQL step {name!r} has the columns {', '.join(alike)}, which DuckDB cannot tell "
                "apart; take them under other names, by columns of the input"
            )
        for fault in self.faults(step, incoming):
            raise TopologyError(
                f"SQL step {name!r}: sql.{fault.field} {shorten(fault.text)}: {fault.message} "
                f"(its input has {', '.join(incoming.names)})"
            )
        try:
            found = evaluate(query_of(step, incoming.names), numbered(_nothing(incoming))).schema
        except (duckdb.Error, pa.ArrowException) as error:
            raise TopologyError(
                f"SQL step {name!r}: DuckDB refuses it: {reason(error)}; write each expression "
                "as an element of select of its own"
            ) from error
        names = found.names[:-1]
        if len({n.lower() for n in names}) < len(names):
            raise TopologyError(
                f"SQL step {name!r} selects a column twice: {', '.join(names)}; rename one with AS"
            )
        return pa.schema([found.field(n) for n in names])


def _nothing(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)


def _refused(text: str, incoming: pa.Schema, condition: bool = False) -> str:
    """Why an expression is none of a step over these columns; empty where it is one."""
    duck = connection()
    # In brackets a condition is one expression, as which it stands in the query.
    alone = f"({text}\n)" if condition else f"{text}\n"
    (answer,) = duck.execute("SELECT json_serialize_sql(?)", [f"SELECT {alone}"]).fetchall()
    parsed = json.loads(answer[0])
    if parsed["error"]:
        return f"DuckDB refuses it: {parsed['error_message']}{_word_in_the_way(text, incoming)}"
    nodes = [statement["node"] for statement in parsed["statements"]]
    if len(nodes) != 1 or not _is_list(nodes[0]):
        return "is more than expressions; write what stands between SELECT and FROM"
    chosen = nodes[0]["select_list"]
    columns = {name.lower() for name in incoming.names}
    known = columns | _named_inside(chosen)
    for part in _parts(chosen):
        why = _forbidden(part, columns, known)
        if why:
            return why
    try:
        data = numbered(_nothing(incoming))
        kinds = evaluate(f"SELECT {alone}, {ROW} FROM {INPUT}", data).schema.types[:-1]
    except (duckdb.Error, pa.ArrowException) as error:
        if ROW in str(error):
            return f"{_SEVERAL}; use an aggregate or a function"  # a macro did it
        return f"DuckDB refuses it: {reason(error)}"
    if condition and (len(kinds) != 1 or kinds[0] not in (pa.bool_(), pa.null())):
        return f"is no condition but a value of type {kinds[0]}; write a comparison"
    return ("" if condition else _too_wide(alone, data)) or _fails_always(alone, chosen, incoming)


_DIGITS = {"UBIGINT": 20, "HUGEINT": 38, "UHUGEINT": 38}
"""Whole numbers that no column holds all of, and the digits of a decimal that is one."""


def _too_wide(text: str, data: pa.RecordBatch) -> str:
    """The remedy where an expression makes whole numbers of a type that columns do not have."""
    described = evaluate(f"DESCRIBE SELECT {text} FROM {INPUT}", data)
    for kind in described.column("column_type").to_pylist():
        # Behind the name of a field stands its type, behind a type what ends it.
        found = re.search(r"\b(UBIGINT|U?HUGEINT)(?=[],)[]|$)", re.sub(r'"[^"]*"', "", kind))
        if found:
            return (
                f"has the type {kind}, and no column holds every {found[0]}; CAST it AS VARCHAR "
                f"or AS DECIMAL({_DIGITS[found[0]]}, 0)"
            )
    return ""


def _fails_always(text: str, chosen: Any, incoming: pa.Schema) -> str:
    """Why no row can be evaluated, where DuckDB says so by a row alone.

    It takes some faults of an expression for faults of values. What depends on these raises one
    thing on one value and nothing, or another, on others; what raises the same on plain values of
    every kind is a mistake, unless it raises on purpose or for some rows alone.
    """
    query = f"SELECT {text}, {ROW} FROM {INPUT}"
    told = []
    for row in plain_rows(incoming):
        try:
            evaluate(query, numbered(row))
            told.append("")
        except (duckdb.OutOfMemoryException, pa.ArrowException, MemoryError):
            told.append("")
        except duckdb.Error as error:
            if not blames_row(error):
                renew()
                return f"DuckDB refuses it: {reason(error)}"
            told.append(reason(error))
    chooses = any(
        part["class"] == "CASE" or part.get("function_name", "").lower() in {"error", "if"}
        for part in _parts(chosen)
    )
    if chooses or len(set(told)) > 1 or not told[0]:
        return ""
    return f"fails on every row: {told[0]}"


def _is_list(node: dict[str, Any]) -> bool:
    """Whether a query is a list of expressions and nothing else."""
    empty = ("modifiers", "where_clause", "group_expressions", "having", "sample", "qualify")
    return (
        node["type"] == "SELECT_NODE"
        and node["from_table"]["type"] == "EMPTY"
        and not node["cte_map"]["map"]
        and not any(node[name] for name in empty)
    )


def _parts(tree: Any) -> Iterator[dict[str, Any]]:
    """Every expression inside an expression."""
    waiting = [tree]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            if "class" in found:
                yield found
            waiting += found.values()
        elif isinstance(found, list):
            waiting += found


def _named_inside(chosen: list[dict[str, Any]]) -> set[str]:
    """Names that an expression itself gives: those behind AS, and parameters of its lambdas."""
    found = {part["alias"].lower() for part in chosen if part["alias"]}
    for part in _parts(chosen):
        if part["class"] == "LAMBDA":
            for parameter in _parts(part["lhs"]):
                if parameter["class"] == "COLUMN_REF":
                    found.add(parameter["column_names"][0].lower())
    return found


def _word_in_the_way(text: str, incoming: pa.Schema) -> str:
    """The remedy where a column has the name of a word that DuckDB takes as its own."""
    words = set(re.findall(r"\w+", text.lower())) & {name.lower() for name in incoming.names}
    duck = connection()
    for word in sorted(words):
        (answer,) = duck.execute("SELECT json_serialize_sql(?)", [f"SELECT {word}"]).fetchall()
        if json.loads(answer[0])["error"]:
            return f"; {word} is a word of SQL: in double quotes it names the column"
    return ""


def _forbidden(part: dict[str, Any], columns: set[str], known: set[str]) -> str:
    """Why one part of an expression cannot be evaluated for a row by itself, for ever alike."""
    match part["class"]:
        case "SUBQUERY":
            return f"{_SEVERAL} (subquery); use a function"
        case "WINDOW":
            return f"{_SEVERAL} (window); use an aggregate or a function"
        case "STAR":
            return 'names columns by a pattern; write "*" as an element of its own or name columns'
        case "PARAMETER":
            return "has a parameter, for which there is no value; write the value"
        case "POSITIONAL_REFERENCE":
            return "names a column by its place; write its name"
        case "COLUMN_REF":
            first = part["column_names"][0].lower()
            if any(n.lower().startswith(RESERVED_PREFIX) for n in part["column_names"]):
                return f"names what begins with {RESERVED_PREFIX!r}, which is reserved"
            if first in UNCALLED - columns:
                return _not_alike(first)
            if first == "rowid" and first not in known:
                return "asks for the place of a row (rowid), which is not kept; use a function"
            if first not in known:
                return f"names {part['column_names'][0]!r}, which is no column of its input"
        case "FUNCTION":
            return _uncallable(part)
        case kind if kind not in _CLASSES:
            return f"has what no step evaluates ({kind.lower()}); use a function"
    return ""


def _uncallable(part: dict[str, Any]) -> str:
    """Why a function cannot be called; empty where it can."""
    name = part["function_name"].lower().replace("count_star", "count")
    if name in _rows_of_one():
        return f"makes several rows of one ({name}); use a function"
    if name in _several_rows():
        return f"{_SEVERAL} ({name}); use an aggregate or a function"
    # Of one argument it is that from midnight of the day on which it is asked.
    if name not in allowed() or (name == "age" and len(part["arguments"]) == 1):
        return _not_alike(name)
    if name in BY_NAME:
        of = [argument["expression"] for argument in part["arguments"][1:2]]
        told = [e["literal"]["text"].lower() for e in of if e["class"] == "CONSTANT"]
        if not told or told[0] not in OF_ELEMENTS:
            return (
                f"does not say in letters what it computes over a list ({name}); name one of "
                f"{', '.join(sorted(OF_ELEMENTS))}"
            )
    return ""


def _not_alike(name: str) -> str:
    """Why a function that is not allowed is not."""
    if name in SESSION:
        return (
            f"asks for the session or its settings ({name}), which are not reachable here; write "
            "the value, or use a function"
        )
    if name in UNCALLED | CLOCKS or name in _unsteady():
        return (
            f"is another value each time it is asked ({name}), and a window that runs again must "
            "give the same; put the time or the number into the record, or use a function"
        )
    alike = get_close_matches(name, sorted(allowed()), 1)
    call = f"call {alike[0]}, or " if alike else ""
    return f"calls what is none of the functions of a step ({name}); {call}use a function"


@lru_cache(maxsize=1)
def allowed() -> frozenset[str]:
    """Functions, macros and operators that a step may call, in small letters."""
    return (FUNCTIONS | OPERATORS) - _unsteady()


@lru_cache(maxsize=1)
def _rows_of_one() -> frozenset[str]:
    """Functions that make several rows of one."""
    found = {n for n, kind, _, text in functions() if kind == "macro" and "unnest(" in text}
    return frozenset(found | {"unnest"})


@lru_cache(maxsize=1)
def _several_rows() -> frozenset[str]:
    """Functions of several rows."""
    rows = functions()
    single = {name for name, kind, _, _ in rows if kind == "scalar"}
    return frozenset({n for n, kind, _, _ in rows if kind in ("aggregate", "window")} - single)


@lru_cache(maxsize=1)
def _unsteady() -> frozenset[str]:
    """Functions of which DuckDB says that their value is not that of their arguments alone."""
    rows = functions()
    found = {n for n, kind, stability, _ in rows if kind == "scalar" and stability != "CONSISTENT"}
    return frozenset(found - _STEADY)


def functions() -> list[tuple[str, str, str, str]]:
    """Name, kind, stability and definition of all that DuckDB has, in small letters."""
    found: list[tuple[str, str, str, str]] = (
        connection()
        .execute(
            "SELECT lower(function_name), function_type, coalesce(stability, ''), "
            "coalesce(macro_definition, '') FROM duckdb_functions()"
        )
        .fetchall()
    )
    return found
