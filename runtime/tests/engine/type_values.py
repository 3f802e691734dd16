"""One row for each value that a type is easily got wrong with, and how files show it.

What is expected is written down here, by hand or with the standard library, and is the same in
every time zone: instants as ISO 8601 in UTC with a Z, dates as they are.
"""

from __future__ import annotations

import base64
import csv
import datetime as dt
import io
import json
import math
from typing import Any

import pyarrow as pa

ZONES = ("UTC", "Europe/Berlin", "America/St_Johns", "Asia/Kathmandu")

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("b", pa.bool_()),
        ("i", pa.int32()),
        ("l", pa.int64()),
        ("f", pa.float32()),
        ("d", pa.float64()),
        ("s", pa.string()),
        ("x", pa.binary()),
        ("t", pa.timestamp("us", "UTC")),
        ("y", pa.date32()),
        ("at", pa.list_(pa.timestamp("us", "UTC"))),
        ("ay", pa.list_(pa.date32())),
        ("ax", pa.list_(pa.binary())),
        ("ai", pa.list_(pa.int32())),
        ("nested", pa.list_(pa.list_(pa.string()))),
    ]
)

DECLARED = (
    "id long, b boolean, i int, l long, f float, d double, s string, x binary, t timestamp, "
    "y date, at array<timestamp>, ay array<date>, ax array<binary>, ai array<int>, "
    "nested array<array<string>>"
)

INSTANTS = (
    "2024-02-29T12:34:56.789012Z",
    "1970-01-01T00:00:00.000000Z",
    "1969-12-31T23:59:59.999999Z",
    "0001-01-01T00:00:00.000000Z",
    "0001-01-01T00:00:00.000001Z",
    "9999-12-31T23:59:59.999999Z",
    "1582-10-10T00:00:00.000000Z",  # between the calendars
    "1893-03-31T23:06:31.500000Z",  # Berlin leaves its mean solar time
    "2024-03-31T00:59:59.999999Z",  # Berlin: one hour is left out
    "2024-03-31T01:00:00.000000Z",
    "2024-10-27T00:30:00.000000Z",  # Berlin: this half hour comes twice
    "2024-10-27T01:30:00.000000Z",
    "2006-10-29T02:31:00.000000Z",  # St. John's: changed at one minute past midnight
    "2024-11-03T04:30:00.000000Z",
    "1985-12-31T18:30:00.000000Z",  # Kathmandu moved by a quarter of an hour
)

DATES = ("2024-02-29", "1970-01-01", "1969-12-31", "0001-01-01", "9999-12-31", "1582-10-10")

TEXTS = ("", "plain", 'quotes " and, commas', "tab\tand\\", "ä€𝄞", "NULL", "null", " spaces ")
BYTES = (b"", b"\x00", b"\xff\xfe", b"plain", bytes(range(256)))
INTS = (0, 1, -1, 2**31 - 1, -(2**31))
LONGS = (0, -1, 2**63 - 1, -(2**63), 2**53 + 1)
DOUBLES = (0.0, -0.0, 0.1, 1e308, 5e-324, -1.5, math.inf, -math.inf, math.nan)
FLOATS = (0.0, 0.5, -1.5, 1e38, math.inf, -math.inf, math.nan, 0.1)


def rows() -> list[dict[str, Any]]:
    """A row for each instant, with the other values in turn, one of nulls, one of empty lists."""
    found = [_row(n) for n in range(len(INSTANTS))]
    nothing = dict.fromkeys(SCHEMA.names)
    empty: dict[str, Any] = {"at": [], "ay": [], "ax": [], "ai": [], "nested": []}
    holes = {k: [None] for k in ("at", "ay", "ax", "ai")} | {"nested": [None, [None], []]}
    some = len(found)
    return [
        *found,
        {**nothing, "id": some},
        {**nothing, **empty, "id": some + 1},
        {**nothing, **holes, "id": some + 2},
    ]


def _row(n: int) -> dict[str, Any]:
    def pick(values: tuple[Any, ...], of: int = n) -> Any:
        return values[of % len(values)]

    t, y, x, i = instant(INSTANTS[n]), dt.date.fromisoformat(pick(DATES)), pick(BYTES), pick(INTS)
    return {
        "id": n,
        "b": bool(n % 2),
        "i": i,
        "l": pick(LONGS),
        "f": pick(FLOATS),
        "d": pick(DOUBLES),
        "s": pick(TEXTS),
        "x": x,
        "t": t,
        "y": y,
        "at": [t, None, instant(pick(INSTANTS, n + 1))],
        "ay": [y, None],
        "ax": [x, None, b""],
        "ai": [i, None, 0],
        "nested": [[pick(TEXTS)], [], [None, "z"]],
    }


def instant(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text)


def table() -> pa.Table:
    return pa.Table.from_pylist(rows(), schema=SCHEMA)


def as_json(values: dict[str, Any]) -> dict[str, Any]:
    """A row as a line of JSON shows it, read back by ``json.loads``."""
    return {name: _plain(value, SCHEMA.field(name).type) for name, value in values.items()}


def without_odd_floats(plain: dict[str, Any]) -> dict[str, Any]:
    """What is read back of a line of JSON, which has no word for numbers that are not finite."""
    odd = ("NaN", "Infinity", "-Infinity")
    return {name: None if value in odd else value for name, value in plain.items()}


def json_line(values: dict[str, Any]) -> str:
    """A row as an input file of JSON lines holds it."""
    return json.dumps(without_odd_floats(as_json(values)), ensure_ascii=False)


_IN_CSV = ("id", "b", "i", "l", "f", "d", "s", "t", "y", "ai", "nested")
DECLARED_CSV = ", ".join(column for column in DECLARED.split(", ") if column.split()[0] in _IN_CSV)


def csv_text() -> str:
    """The rows as an input file of CSV, every other instant without its Z."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, _IN_CSV, lineterminator="\n")
    writer.writeheader()
    for values in rows():
        plain = {name: _csv_value(value) for name, value in as_json(values).items()}
        if values["t"] is not None and values["id"] % 2:
            plain["t"] = plain["t"].removesuffix("Z")
        writer.writerow({name: plain[name] for name in _IN_CSV})
    return text.getvalue()


def as_csv(values: dict[str, Any]) -> dict[str, str]:
    """A row as a CSV file shows it, read back by ``csv``: all text, null is empty."""
    return {name: _csv_value(value) for name, value in as_json(values).items()}


def as_read_from_csv(values: dict[str, Any]) -> dict[str, Any]:
    """What becomes of a row of ``csv_text`` as JSON: a null text comes back as an empty one."""
    plain = as_json(values)
    return {name: plain[name] for name in _IN_CSV} | {"s": plain["s"] or ""}


def _csv_value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool | list):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return repr(value) if isinstance(value, float) else str(value)


def _plain(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if isinstance(value, list):
        return [_plain(one, kind.value_type) for one in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.datetime):
        assert value.utcoffset() == dt.timedelta(0)
        return value.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
