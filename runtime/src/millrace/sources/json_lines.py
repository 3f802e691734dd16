"""JSON lines: each line is one object, read into the declared columns.

A field that is missing or null is null, fields that are not declared are ignored. Dates and
timestamps are ISO 8601 strings (without a zone: UTC), binary is base64. Empty lines are skipped.
"""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from millrace.sources.arrow_types import type_name
from millrace.sources.base import ReadBatch
from millrace.sources.decode import Decoder, Errors, batch_with_errors, convert, shown
from millrace.sources.lines import Lines, find_lines


class JsonDecoder(Decoder):
    """Parses with Arrow; the lines that it refuses are found by halving."""

    blanks = False

    def __init__(self, schema: pa.Schema, unexpected: str = "ignore") -> None:
        self.schema = schema
        self._parsed = pa.schema([pa.field(f.name, _parsed_type(f.type)) for f in schema])
        self._options = pj.ParseOptions(
            explicit_schema=self._parsed, unexpected_field_behavior=unexpected
        )

    def decode(self, lines: Lines, kept: Any) -> ReadBatch:
        errors: Errors = {}
        parts = self._parts(lines, 0, errors)
        table = pa.concat_tables(parts).combine_chunks() if parts else self._parsed.empty_table()
        columns = []
        for field in self.schema:
            column = table.column(field.name)
            array = column.chunk(0) if column.num_chunks else pa.array([], column.type)
            if array.type != field.type:
                array, bad = _finish(array, field)
                errors = {**bad, **errors}
            columns.append(array)
        return batch_with_errors(self.schema, columns, errors)

    def _parts(self, lines: Lines, first: int, errors: Errors) -> list[pa.Table]:
        """Parsed runs of lines; a bad line is a row of nulls and an entry in ``errors``."""
        if not len(lines):
            return []
        message = _not_an_object(lines)
        if message is None:
            try:
                table = self.parse(lines)
                if table.num_rows == len(lines):
                    return [table]
                message = "the line holds more than one JSON value"
            except pa.ArrowInvalid as error:
                message = str(error).removeprefix("JSON parse error: ").split(" in row ")[0]
            except UnicodeDecodeError as error:
                message = f"the line is not valid UTF-8: {error.reason}"
        if len(lines) == 1:
            message = self._misfit(lines) or message
            errors[first] = f"{message}; the line is {shown(lines.record(0))}"
            return [pa.table([pa.nulls(1, f.type) for f in self._parsed], schema=self._parsed)]
        half = len(lines) // 2
        return [
            *self._parts(lines.take(0, half), first, errors),
            *self._parts(lines.take(half, len(lines)), first + half, errors),
        ]

    def _misfit(self, lines: Lines) -> str | None:
        """The column of one line that is not of its type, in the words of the topology file."""
        try:
            found = json.loads(lines.record(0))
        except (ValueError, RecursionError):
            return None
        for field in self.schema if isinstance(found, dict) else ():
            try:
                JsonDecoder(pa.schema([field])).parse(lines)
            except pa.ArrowInvalid as error:
                if "was specified twice" in str(error):
                    return f"column {field.name!r} stands twice in it"
                value = found.get(field.name)
                if value is not None:
                    return f"column {field.name!r}: {shown(value)} is no {type_name(field.type)}"
        return None

    def parse(self, lines: Lines) -> pa.Table:
        """The lines as Arrow reads them. Raises ``ValueError`` if it refuses one of them."""
        data = lines.joined()
        if not data.isascii():
            data.decode()  # Arrow's parser takes any bytes for a string.
        options = pj.ReadOptions(use_threads=False, block_size=len(data) + 1)
        return pj.read_json(
            io.BytesIO(data), read_options=options, parse_options=self._options
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
    return column if column.type == to else _from_strings(column, to)


def _not_an_object(lines: Lines) -> str | None:
    """What keeps lines from being one object each, as far as their first and last bytes say.

    With this check a run of lines that parses into as many rows has one object on each line.
    """
    array = np.frombuffer(lines.data, np.uint8)
    if (array[lines.starts] == ord("{")).all() and (array[lines.ends - 1] == ord("}")).all():
        return None
    return "the line is no JSON object {...}"


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
