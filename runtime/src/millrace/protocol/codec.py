"""JSON form of the protocol's values, one line of text for each.

A document is ``{"format": 2, "kind": "Record", "crc": "8 hex digits", "value": {...}}``. The kind
is the name of the class or its ``DOCUMENT``, a key the name of the field or its alias. The CRC-32
is over the bytes of ``value`` as written, so that a damaged document never passes for another
truth. Fields that hold their default are left out, bit masks of key groups are hex strings, and
what a source or a sink calls ``Json`` is kept as it is (it must consist of JSON's own types).
Pydantic reads the form from the annotations of ``protocol.types``; what an older release wrote is
brought up to date first (``protocol.upgrades``).
"""

from __future__ import annotations

import json
import zlib
from functools import cache
from typing import Any, NewType, TypeVar, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError

from millrace.errors import NewerFormatError, ProtocolError
from millrace.protocol.types import FORMAT, Json, Record, View
from millrace.protocol.upgrades import STEPS, Steps, upgraded

T = TypeVar("T")

_ENCODE_JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False).encode

_CONFIG = ConfigDict(strict=True, extra="forbid")

_UNKNOWN = "unexpected_keyword_argument"
_MISSING = "missing"
_NO_JSON = "json_invalid"

_OWN_TYPES = (
    "offsets and locators must consist of null, booleans, finite numbers, strings, lists and "
    "string-keyed objects"
)

_SHOWN = 60
"""Characters of a wrong value that an error shows."""


def encode(value: object) -> bytes:
    """Write any dataclass of ``protocol.types`` as one JSON document.

    Raises ``ProtocolError`` when a part is not of its declared type, or a ``Json`` part holds
    something that JSON cannot say.
    """
    kind: Any = type(value)
    try:
        plain = _adapter(kind).dump_python(
            value, by_alias=True, exclude_defaults=True, warnings="error"
        )
        body = _ENCODE_JSON(plain).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(
            f"{kind.__name__}: cannot be written as JSON ({error}); {_OWN_TYPES}"
        ) from error
    return b"%b%08x%b%b}" % (_head(kind), zlib.crc32(body), _VALUE, body)


def as_read(value: Json) -> Json:
    """What is read where ``value`` is written: a list for a tuple, say. Raises ``ProtocolError``
    where JSON cannot say it."""
    try:
        return json.loads(_ENCODE_JSON(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(
            f"{value!r:.{_SHOWN}} cannot be written as JSON ({error}); {_OWN_TYPES}"
        ) from error


def decode(kind: type[T], data: bytes, steps: Steps = STEPS) -> T:
    """Read what ``encode`` wrote, in this release or, through ``steps``, in an older one.

    The result equals what was written. Raises ``NewerFormatError`` for a document of a newer
    release and ``ProtocolError`` for one that is truncated, damaged or of another kind.
    """
    name = kind.__name__
    target: Any = kind
    number, body = _opened(target, data)
    try:
        if number < FORMAT:
            body = _ENCODE_JSON(upgraded(_name(target), number, json.loads(body), steps)).encode()
        return cast("T", _read(_adapter(target), body))
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)
        unknown = [one["loc"] for one in problems if one["type"] == _UNKNOWN]
        if unknown:
            # Its checksum is right, so that it was written as it is.
            raise NewerFormatError(
                f"{name} has the field {_path(unknown[0])!r}, which this release of millrace does "
                "not know: install the release that wrote it, or a later one"
            ) from error
        raise _damaged(name, data, _complaint(name, problems)) from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(name, data, repr(error)) from error


def encode_record(record: Record) -> bytes:
    """JSON of a record."""
    return encode(record)


def decode_record(data: bytes) -> Record:
    """A record from its JSON; errors as ``decode``."""
    return decode(Record, data)


def encode_view(view: View) -> bytes:
    """JSON of a view."""
    return encode(view)


def decode_view(data: bytes) -> View:
    """A view from its JSON; errors as ``decode``."""
    return decode(View, data)


# --- documents -------------------------------------------------------------------------------

_VALUE = b'","value":'


@cache
def _head(kind: type[Any], number: int = FORMAT) -> bytes:
    return f'{{"format":{number},"kind":"{_name(kind)}","crc":"'.encode()


def _name(kind: type[Any]) -> str:
    """What a document calls its kind: the name of the class, or its first one."""
    return str(getattr(kind, "DOCUMENT", kind.__name__))


def _opened(kind: Any, data: bytes) -> tuple[int, bytes]:
    """Format and value of a document whose checksum fits."""
    name = kind.__name__
    # An undamaged document is not parsed for its number: this is read at every start and split.
    number = FORMAT if data.startswith(_head(kind)) else _number(name, data)
    if number > FORMAT:
        raise NewerFormatError(
            f"{name} has format {number}, this release of millrace reads up to "
            f"format {FORMAT}: install the release that wrote it, or a later one"
        )
    head = _head(kind, number)
    value_at = len(head) + 8 + len(_VALUE)
    if not data.startswith(head) or data[len(head) + 8 : value_at] != _VALUE:
        raise _damaged(name, data, f"its head is not that of a {name} of format {number}")
    body = data[value_at:-1]
    if b"%08x" % zlib.crc32(body) != data[len(head) : len(head) + 8] or data[-1:] != b"}":
        raise _damaged(name, data, "its checksum differs from its content")
    return number, body


def _number(name: str, data: bytes) -> int:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _damaged(name, data, f"it is not JSON ({error})") from error
    if not isinstance(document, dict) or type(document.get("format")) is not int:
        raise _damaged(name, data, "it has no format number")
    return int(document["format"])


def _read(adapter: TypeAdapter[Any], body: bytes) -> Any:
    try:
        return adapter.validate_json(body)
    except ValidationError as error:
        if error.errors(include_url=False, include_input=False)[0]["type"] != _NO_JSON:
            raise
    # Pydantic's own reader of JSON takes neither names of files that are no UTF-8 (lone
    # surrogates) nor deep nesting, both of which json writes.
    return adapter.validate_python(json.loads(body), strict=False)


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    # A dataclass takes the configuration of what holds it, here of a name for it.
    return TypeAdapter(cast("Any", NewType)("Document", kind), config=_CONFIG)


def _complaint(name: str, problems: Any) -> str:
    """The first thing that is wrong, with all that is missing beside it."""
    first = problems[0]
    where = first["loc"][:-1] if first["type"] == _MISSING else first["loc"]
    if first["type"] != _MISSING:
        return f"{_path(where) or name}: {first['msg']}, not {first['input']!r:.{_SHOWN}}"
    beside = (one["loc"] for one in problems if one["type"] == _MISSING)
    missing = ", ".join(sorted(str(loc[-1]) for loc in beside if loc[:-1] == where))
    return f"{_path(where) or f'a {name}'} lacks {missing}"


def _path(loc: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in loc)


def _damaged(name: str, data: bytes, why: str) -> ProtocolError:
    return ProtocolError(
        f"{name} of {len(data)} bytes cannot be read: {why}; it was damaged or truncated where "
        "it is kept, or something else was written there"
    )
