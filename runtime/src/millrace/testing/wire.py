"""What the kit and its processes tell each other: lines of JSON, rows as Arrow streams."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from typing import Any, BinaryIO

import pyarrow as pa

from millrace.protocol import codec


def write(file: BinaryIO, message: dict[str, Any]) -> None:
    """Send a message."""
    file.write(json.dumps(message).encode() + b"\n")
    file.flush()


def read(file: BinaryIO) -> dict[str, Any] | None:
    """The next message; ``None`` where the other side is gone."""
    line = file.readline()
    if not line.endswith(b"\n"):
        return None
    found: dict[str, Any] = json.loads(line)
    return found


def pack(value: object) -> str:
    """A value of ``protocol.types`` as text. Raises ``ProtocolError`` where it is no JSON."""
    return codec.encode(value).decode()


def unpack(kind: type[Any], text: str) -> Any:
    """What ``pack`` packed."""
    return codec.decode(kind, text.encode())


def pack_batches(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> str:
    """Batches of one schema as text."""
    data = pa.BufferOutputStream()
    with pa.ipc.new_stream(data, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return base64.b64encode(data.getvalue()).decode()


def unpack_batches(text: str) -> list[pa.RecordBatch]:
    """What ``pack_batches`` packed."""
    with pa.ipc.open_stream(base64.b64decode(text)) as reader:
        return list(reader)


def json_problem(value: Any, where: str) -> str | None:
    """What JSON would not give back as it is; ``None`` where there is nothing."""
    if value is None or isinstance(value, bool | int | str):
        return None if type(value) in (type(None), bool, int, str) else _no(value, where)
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{where} is {value}, which JSON cannot say"
    if type(value) is list:
        parts = [(item, f"{where}[{number}]") for number, item in enumerate(value)]
    elif type(value) is dict:
        bad = next((key for key in value if type(key) is not str), None)
        if bad is not None:
            return f"{where} has the key {bad!r}, which JSON would make a string"
        parts = [(item, f"{where}[{key!r}]") for key, item in value.items()]
    else:
        return _no(value, where)
    return next(filter(None, (json_problem(item, place) for item, place in parts)), None)


def _no(value: Any, where: str) -> str:
    return f"{where} is {value!r}, a {type(value).__name__}, which JSON would not give back"
