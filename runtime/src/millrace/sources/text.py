"""Text lines: one column, ``value string``."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.sources.base import ReadBatch
from millrace.sources.decode import Decoder, Errors, mask_of
from millrace.sources.lines import Lines

TEXT_SCHEMA = pa.schema([("value", pa.string())])


class TextDecoder(Decoder):
    """Every line is a record, an empty one too; a carriage return before the newline is dropped."""

    blanks = True
    schema = TEXT_SCHEMA

    def decode(self, lines: Lines, kept: Any) -> ReadBatch:
        offsets, packed = _pack(lines)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(packed)]
        text = pa.Array.from_buffers(pa.string(), len(lines), buffers)
        errors: Errors = {}
        if not packed.isascii():
            text, errors = _checked(lines, text)
        batch = pa.RecordBatch.from_arrays([text], schema=self.schema)
        return ReadBatch(batch, tuple(errors.items()))

    def decode_plain(self, data: bytes, records: int) -> pa.RecordBatch | None:
        """Lines are cut by one compiled loop where all end with a bare newline."""
        from millrace.compiled.newlines import cut  # of no use to who does not read

        found = cut(data, records)
        if found.returns:
            return None
        buffers = [None, pa.py_buffer(found.offsets), pa.py_buffer(found.packed)]
        lines = pa.Array.from_buffers(pa.string(), len(found.offsets) - 1, buffers)
        if not found.ascii:
            try:
                lines.validate(full=True)
            except pa.ArrowInvalid:
                return None
        return pa.RecordBatch.from_arrays([lines], schema=self.schema)


def _pack(lines: Lines) -> tuple[npt.NDArray[np.int32], bytes]:
    """The records one behind the other without their line ends, and where each begins."""
    offsets = np.zeros(len(lines) + 1, np.int32)
    if not len(lines):
        return offsets, b""
    np.cumsum(lines.ends - lines.starts, out=offsets[1:])
    first, last = int(lines.starts[0]), int(lines.ends[-1])
    data = lines.data[first:last]
    if int(offsets[-1]) + len(lines) - 1 == last - first:
        # Nothing lies between the records but one newline each.
        return offsets, data.replace(b"\n", b"")
    steps = np.zeros(len(data) + 1, np.int8)
    np.add.at(steps, lines.starts - first, 1)
    np.add.at(steps, lines.ends - first, -1)
    inside = np.cumsum(steps[:-1], dtype=np.int8).astype(bool)
    return offsets, np.frombuffer(data, np.uint8)[inside].tobytes()


def _checked(lines: Lines, text: pa.Array) -> tuple[pa.Array, Errors]:
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        errors: Errors = {}
        for row in range(len(lines)):
            try:
                lines.record(row).decode()
            except UnicodeDecodeError as error:
                errors[row] = (
                    f"the line is not valid UTF-8: {error.reason} at its byte {error.start + 1}"
                )
        nothing = pa.scalar(None, pa.binary())
        clean = pc.if_else(mask_of(len(lines), errors), nothing, text.view(pa.binary()))
        return clean.cast(pa.string()), errors
    return text, {}
