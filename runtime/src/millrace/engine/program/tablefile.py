"""What a table that tuples are looked up in holds, as a file beside the program: in Arrow's IPC
format, under a name that is the digest of its content.

So whoever has the program has the names of its tables, and can tell that a file is the one that was
meant. It is mapped into memory: the workers of a machine share it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pyarrow as pa

from millrace.errors import EngineError, error_text

_KEY = b"millrace.key"
"""Metadata with the names of the key's columns."""


def written(rows: pa.RecordBatch, key: list[str]) -> bytes:
    """The content of a file with these rows; ``key`` names the columns of the key."""
    marked = rows.replace_schema_metadata({_KEY: json.dumps(key)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, marked.schema) as writer:
        writer.write_batch(marked)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def opened(file: Path) -> tuple[pa.RecordBatch, tuple[str, ...]]:
    """The rows of such a file, mapped into memory, and the names of the key's columns. Raises
    ``EngineError`` for one that is not there or not what its name says."""
    try:
        content = pa.memory_map(str(file)).read_buffer()
        if name_of(memoryview(content)) != file.name:
            raise EngineError(f"{file}: is not what its name says; it was damaged on its way")
        rows = pa.ipc.open_file(content).get_batch(0)
    except (pa.ArrowException, OSError) as error:
        raise EngineError(f"{file}: a table cannot be read ({error_text(error)})") from error
    return rows, tuple(json.loads(rows.schema.metadata[_KEY]))


def name_of(content: bytes | memoryview) -> str:
    """The name of the file of a content."""
    return f"table-{hashlib.blake2b(content, digest_size=16).hexdigest()}"
