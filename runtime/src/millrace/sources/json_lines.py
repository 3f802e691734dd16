"""JSON lines: each line is one object, read into the declared columns.

A field that is missing or null is null, fields that are not declared are ignored. Dates and
timestamps are ISO 8601 strings (without a zone: UTC), binary is base64. No number is infinite,
however it is written. Empty lines are skipped.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from millrace.sources.arrow_types import type_name
from millrace.sources.base import ReadBatch
from millrace.sources.decode import Decoder, Errors, batch_with_errors, convert, shown
from millrace.sources.lines import Ints, Lines, find_lines


class JsonDecoder(Decoder):
    """Parses with Arrow; the lines that it refuses are found by halving.

    ``paths`` are the names that lead to a column's field through objects in objects; a column
    that is not among them is a field of the line's own object, of its name. ``record`` is what
    messages call a line, ``progress`` is called before each parse. Bad lines cost two parses of all
    columns each, and at least two of the one that is bad.
    """

    blanks = False

    def __init__(
        self,
        schema: pa.Schema,
        unexpected: str = "ignore",
        paths: Mapping[str, Sequence[str]] | None = None,
        record: str = "line",
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        self._record = record
        self._progress = progress
        self.schema = schema
        self._paths = {f.name: tuple((paths or {}).get(f.name, (f.name,))) for f in schema}
        self._parsed = _nested([(self._paths[f.name], _parsed_type(f.type)) for f in schema])
        self._options = pj.ParseOptions(
            explicit_schema=self._parsed, unexpected_field_behavior=unexpected
        )

    def decode(self, lines: Lines, kept: Any) -> ReadBatch:
        errors: Errors = {}
        refused: list[int] = []
        parts = self._parts(lines, 0, errors, refused)
        if refused:
            self._name_misfits(lines, refused, errors)
        table = pa.concat_tables(parts).combine_chunks() if parts else self._parsed.empty_table()
        columns = []
        for field in self.schema:
            first, *inner = self._paths[field.name]
            column = table.column(first)
            array = column.chunk(0) if column.num_chunks else pa.array([], column.type)
            if inner:
                array = pc.struct_field(array, inner)
            if array.type != field.type:
                array, bad = _finish(array, field)
                errors = {**bad, **errors}
            for index in _infinite(array):
                errors.setdefault(index, self._shown(_told(field, array[index]), lines, index))
            columns.append(array)
        return batch_with_errors(self.schema, columns, errors)

    def _parts(
        self, lines: Lines, first: int, errors: Errors, refused: list[int]
    ) -> list[pa.Table]:
        """Parsed runs of lines; a bad line is a row of nulls and an entry in ``errors``, and in
        ``refused`` too where Arrow says that it cannot be read."""
        if not len(lines):
            return []
        message = f"the {self._record} is no JSON object {{...}}"
        if _are_objects(lines):
            try:
                table = self.parse(lines)
                if table.num_rows == len(lines):
                    return [table]
                message = f"the {self._record} holds more than one JSON value"
            except pa.ArrowInvalid as error:
                if len(lines) == 1:
                    refused.append(first)
                message = str(error).removeprefix("JSON parse error: ").split(" in row ")[0]
            except UnicodeDecodeError as error:
                message = f"the {self._record} is not valid UTF-8: {error.reason}"
        if len(lines) == 1:
            errors[first] = self._shown(message, lines, 0)
            return [pa.table([pa.nulls(1, f.type) for f in self._parsed], schema=self._parsed)]
        half = len(lines) // 2
        return [
            *self._parts(lines.take(0, half), first, errors, refused),
            *self._parts(lines.take(half, len(lines) - half), first + half, errors, refused),
        ]

    def _name_misfits(self, lines: Lines, rows: list[int], errors: Errors) -> None:
        """Say of lines that Arrow refused which is the first column that is not of its type, in
        the words of the topology file. Each column is read of all of them together."""
        waiting = np.array([r for r in rows if _object_of(lines, r) is not None], np.int64)
        for alone in self._alone:
            refused: dict[int, str] = {}
            alone.refusals(lines, waiting, refused)
            for row, why in refused.items():
                told = self._misfit(alone.schema, _object_of(lines, row), why)
                if told is not None:
                    errors[row] = self._shown(told, lines, row)
            waiting = np.setdiff1d(waiting, np.fromiter(refused, np.int64))

    def _misfit(self, columns: pa.Schema, found: Any, why: str) -> str | None:
        """What is wrong in an object of which these columns, one or none, are refused."""
        if not len(columns):  # also where a number is too large, of a field that nobody reads
            values = [(f, _value_at(found, self._paths[f.name])) for f in self.schema]
            return next((_told(f, v) for f, v in values if v in (math.inf, -math.inf)), None)
        field = columns.field(0)
        if "was specified twice" in why:
            return f"column {field.name!r} stands twice in it"
        value = _value_at(found, self._paths[field.name])
        return None if value is None else _told(field, value)

    @cached_property
    def _alone(self) -> list[JsonDecoder]:
        """One that reads no column, and one for each column."""
        schemas = [pa.schema([]), *(pa.schema([field]) for field in self.schema)]
        return [JsonDecoder(s, paths=self._paths, progress=self._progress) for s in schemas]

    def refusals(self, lines: Lines, rows: Ints, found: dict[int, str]) -> None:
        """Add those of the rows that Arrow refuses, and what it says of them."""
        if not rows.size:
            return
        try:
            self.parse(Lines(lines.data, lines.starts[rows], lines.ends[rows]))
        except pa.ArrowInvalid as error:
            if rows.size == 1:
                found[int(rows[0])] = str(error)
                return
            half = rows.size // 2
            self.refusals(lines, rows[:half], found)
            self.refusals(lines, rows[half:], found)

    def _shown(self, told: str, lines: Lines, row: int) -> str:
        return f"{told}; the {self._record} is {shown(lines.record(row))}"

    def parse(self, lines: Lines) -> pa.Table:
        """The lines as Arrow reads them. Raises ``ValueError`` if it refuses one of them."""
        self._progress()
        data = lines.joined()
        if not data.isascii():
            data.decode()  # Arrow's parser takes any bytes for a string.
        options = pj.ReadOptions(use_threads=False, block_size=len(data) + 1)
        return pj.read_json(
            pa.BufferReader(data), read_options=options, parse_options=self._options
        ).select(self._parsed.names)


def arrays_from_text(values: pa.Array, to: pa.DataType) -> pa.Array:
    """Arrays that strings hold as JSON. Raises ``ValueError`` if one of them holds none."""
    texts = ["null" if text is None else text for text in values.to_pylist()]
    # A text that closes the object early or names a second field in it is refused.
    lines = find_lines("".join(f'{{"":{text}}}\n' for text in texts).encode(), blanks=False)
    table = JsonDecoder(pa.schema([pa.field("", to)]), "error").parse(lines)
    if table.num_rows != len(texts):
        raise ValueError("a text holds more than one array")
    column = table.column(0).combine_chunks()
    if _infinite(column):
        raise ValueError("a text holds a number that is infinite")
    return column if column.type == to else _from_strings(column, to)


def _are_objects(lines: Lines) -> bool:
    """Whether lines are one object each, as far as their first and last bytes say.

    With this check a run of lines that parses into as many rows has one object on each line. It
    also keeps a line that is ``null`` from Arrow's parser, which ends the process on one.
    """
    array = np.frombuffer(lines.data, np.uint8)
    begin, end = array[lines.starts] == ord("{"), array[lines.ends - 1] == ord("}")
    return bool(begin.all() and end.all())


def _nested(fields: Sequence[tuple[Sequence[str], pa.DataType]]) -> pa.Schema:
    """The columns that hold fields at paths, none of which begins another: objects as structs."""
    inside: dict[str, list[tuple[Sequence[str], pa.DataType]]] = {}
    for path, kind in fields:
        inside.setdefault(path[0], []).append((path[1:], kind))
    columns = []
    for name, below in inside.items():
        path, kind = below[0]
        columns.append(pa.field(name, pa.struct(_nested(below)) if path else kind))
    return pa.schema(columns)


def _object_of(lines: Lines, row: int) -> dict[str, Any] | None:
    """The object that Python reads of a line; None where it is none."""
    try:
        found = json.loads(lines.record(row))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _value_at(found: Any, path: Sequence[str]) -> Any:
    """What stands at a path, or where no object does on the way to it; None if nothing does."""
    for name in path:
        if not isinstance(found, dict):
            break
        found = found.get(name)
    return found


def _told(field: pa.Field, value: Any) -> str:
    return f"column {field.name!r}: {shown(value)} is no {type_name(field.type)}"


def _infinite(values: pa.Array) -> list[int]:
    """The rows with numbers that are infinite, in lists too. Arrow makes such of numbers that are
    too large, of some ways to write them."""
    if pa.types.is_list(values.type):
        inside = _infinite(pc.list_flatten(values))
        rows = pc.list_parent_indices(values).to_numpy() if inside else np.array([], np.int64)
        return [int(row) for row in np.unique(rows[inside])]
    if not pa.types.is_floating(values.type) or not pc.any(pc.is_inf(values)).as_py():
        return []
    return [int(row) for row in np.flatnonzero(pc.is_inf(values).fill_null(False))]


def _parsed_type(wanted: pa.DataType) -> pa.DataType:
    """The type that Arrow's parser reads; what it cannot read as wanted it reads as a string."""
    if pa.types.is_date(wanted) or pa.types.is_binary(wanted):
        return pa.string()
    if pa.types.is_list(wanted):
        return pa.list_(_parsed_type(wanted.value_type))
    return wanted


def _finish(values: pa.Array, field: pa.Field) -> tuple[pa.Array, Errors]:
    def convert_all(part: pa.Array) -> pa.Array:
        return _from_strings(part, field.type)

    return convert(values, field.type, convert_all, field.name)


def _from_strings(values: pa.Array, to: pa.DataType) -> pa.Array:
    if pa.types.is_list(to):
        items = _from_strings(values.flatten(), to.value_type)
        offsets = pc.subtract(values.offsets, values.offsets[0])
        return pa.ListArray.from_arrays(offsets, items, type=to, mask=values.is_null())
    if pa.types.is_binary(to):
        return pa.array([_from_base64(v) for v in values.to_pylist()], to)
    return values.cast(to)


def _from_base64(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)
