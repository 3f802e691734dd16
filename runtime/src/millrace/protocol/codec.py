"""JSON form of the protocol's values, one line of text for each.

A document is ``{"format": 2, "kind": "Record", "crc": "8 hex digits", "value": {...}}``. The kind
is the name of the class or its ``DOCUMENT``, a key the name of the field or its ``key``. The CRC-32
is over the bytes of ``value`` as written, so that a damaged document never passes for another
truth. Fields that hold their default are left out, bit masks of key groups are hex strings, and
what a source or a sink calls ``Json`` is kept as it is (it must consist of JSON's own types).
Encoders and decoders are built once for each class from its annotations.
"""

from __future__ import annotations

import dataclasses
import json
import types
import zlib
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from millrace.errors import NewerFormatError, ProtocolError
from millrace.protocol.types import (
    FORMAT,
    AttemptPlan,
    CloseMarker,
    Intent,
    Record,
    Replay,
    Segment,
    TaskReport,
    Verdict,
    View,
)

T = TypeVar("T")

_Transform = Callable[[Any], Any]

_MASKS = {(Segment, "groups"), (AttemptPlan, "uncombined")}
"""Fields whose integers are bit masks of key groups."""

_ENCODE_JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False).encode


class _UnknownFieldError(Exception):
    """A part of an undamaged document says more than this release knows of."""


class _GarbledError(Exception):
    """A part of a document does not have its declared type; becomes a ``ProtocolError``."""


def encode(value: object) -> bytes:
    """Write any dataclass of ``protocol.types`` as one JSON document.

    Raises ``ProtocolError`` when a ``Json`` part holds something that JSON cannot say.
    """
    kind: Any = type(value)
    plain = _encoder(kind)(value)
    try:
        body = _ENCODE_JSON(plain).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(
            f"{kind.__name__}: cannot be written as JSON ({error}); offsets and locators must "
            "consist of null, booleans, finite numbers, strings, lists and string-keyed objects"
        ) from error
    return b"%b%08x%b%b}" % (_head(kind), zlib.crc32(body), _VALUE, body)


def decode(kind: type[T], data: bytes) -> T:
    """Read what ``encode`` wrote; the result equals what was written.

    Raises ``NewerFormatError`` for a document of a newer release and ``ProtocolError`` for one
    that is truncated, damaged or of another kind.
    """
    name = kind.__name__
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _damaged(name, data, f"it is not JSON ({error})") from error
    if not isinstance(document, dict) or type(document.get("format")) is not int:
        raise _damaged(name, data, "it has no format number")
    if document["format"] > FORMAT:
        raise NewerFormatError(
            f"{name} has format {document['format']}, this release of millrace reads up to "
            f"format {FORMAT}: install the release that wrote it, or a later one"
        )
    target: Any = kind
    number = document["format"]
    head = _head(target, number)
    value_at = len(head) + 8 + len(_VALUE)
    if not data.startswith(head) or data[len(head) + 8 : value_at] != _VALUE:
        raise _damaged(name, data, f"its head is not that of a {name} of format {number}")
    if b"%08x" % zlib.crc32(data[value_at:-1]) != data[len(head) : len(head) + 8]:
        raise _damaged(name, data, "its checksum differs from its content")
    try:
        return cast("T", _decoder(target)(document["value"]))
    except _UnknownFieldError as error:
        # Its checksum is right, so that it was written as it is.
        raise NewerFormatError(
            f"{name} has {error}, which this release of millrace does not know: install the "
            "release that wrote it, or a later one"
        ) from error
    except (_GarbledError, RecursionError) as error:
        raise _damaged(name, data, str(error)) from error


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


def encode_intent(intent: Intent) -> bytes:
    """JSON of an intent that stands alone."""
    return encode(intent)


def decode_intent(data: bytes) -> Intent:
    """An intent from its JSON; errors as ``decode``."""
    return decode(Intent, data)


def encode_close(marker: CloseMarker) -> bytes:
    """JSON of a close marker."""
    return encode(marker)


def decode_close(data: bytes) -> CloseMarker:
    """A close marker from its JSON; errors as ``decode``."""
    return decode(CloseMarker, data)


def encode_verdict(verdict: Verdict) -> bytes:
    """JSON of a verdict."""
    return encode(verdict)


def decode_verdict(data: bytes) -> Verdict:
    """A verdict from its JSON; errors as ``decode``."""
    return decode(Verdict, data)


def encode_plan(plan: AttemptPlan) -> bytes:
    """JSON of an attempt's plan."""
    return encode(plan)


def decode_plan(data: bytes) -> AttemptPlan:
    """An attempt's plan from its JSON; errors as ``decode``."""
    return decode(AttemptPlan, data)


def encode_report(report: TaskReport) -> bytes:
    """JSON of a task's report."""
    return encode(report)


def decode_report(data: bytes) -> TaskReport:
    """A task's report from its JSON; errors as ``decode``."""
    return decode(TaskReport, data)


# --- documents -------------------------------------------------------------------------------

_VALUE = b'","value":'


@cache
def _head(kind: type[Any], number: int = FORMAT) -> bytes:
    name = getattr(kind, "DOCUMENT", kind.__name__)
    return f'{{"format":{number},"kind":"{name}","crc":"'.encode()


def _damaged(name: str, data: bytes, why: str) -> ProtocolError:
    return ProtocolError(
        f"{name} of {len(data)} bytes cannot be read: {why}; it was damaged or truncated where "
        "it is kept, or something else was written there"
    )


# --- encoders --------------------------------------------------------------------------------


@cache
def _encoder(kind: type[Any]) -> _Transform:
    """Function from an instance of a dataclass to plain JSON types."""
    plan = []
    for field, hint in _fields(kind):
        transform = _hex_encoder(hint) if (kind, field.name) in _MASKS else _encode_as(hint)
        plan.append((field.name, _key(field), transform, _default(field)))

    def run(value: Any) -> dict[str, Any]:
        plain = {}
        for name, key, transform, default in plan:
            part = getattr(value, name)
            if part is default or (part == default and type(part) is type(default)):
                continue
            plain[key] = part if transform is None else transform(part)
        return plain

    return run


def _encode_as(hint: Any) -> _Transform | None:
    """Encoder for one annotation; ``None`` where the value already is plain JSON."""
    if dataclasses.is_dataclass(hint):
        return _encoder(hint)  # type: ignore[arg-type]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return lambda member: member.value
    if (inner := _optional(hint)) is not None:
        item = _encode_as(inner)
        return None if item is None else _unless_none(item)
    origin, parts = get_origin(hint), get_args(hint)
    if origin is tuple and parts[-1] is Ellipsis:
        item = _encode_as(parts[0])
        return list if item is None else _each(item)
    if origin is tuple:
        items = [_encode_as(part) for part in parts]
        return lambda many: [
            one if item is None else item(one) for item, one in zip(items, many, strict=True)
        ]
    if origin is frozenset:
        return sorted
    if origin is not None and issubclass(origin, Mapping):
        item = _encode_as(parts[1])
        return dict if item is None else (lambda many: {k: item(v) for k, v in many.items()})
    return None


def _unless_none(item: _Transform) -> _Transform:
    return lambda one: None if one is None else item(one)


def _each(item: _Transform) -> _Transform:
    return lambda many: [item(one) for one in many]


def _hex_encoder(hint: Any) -> _Transform:
    if hint is int:
        return lambda mask: f"{mask:x}"
    return lambda masks: {name: f"{mask:x}" for name, mask in masks.items()}


# --- decoders --------------------------------------------------------------------------------


@cache
def _decoder(kind: type[Any]) -> _Transform:
    """Function from plain JSON types to an instance of a dataclass."""
    plan = {}
    required = set()
    for field, hint in _fields(kind):
        decode = _hex_decoder(hint) if (kind, field.name) in _MASKS else _decode_as(hint)
        plan[_key(field)] = field.name, decode
        if _default(field) is dataclasses.MISSING:
            required.add(field.name)

    def run(plain: Any) -> Any:
        if type(plain) is not dict:
            raise _GarbledError(f"a {kind.__name__} is {type(plain).__name__}, not an object")
        if kind is Replay and "due_s" in plain:
            # Format 1 said until when, by a clock that may have jumped since: due at once.
            plain = {**{k: v for k, v in plain.items() if k != "due_s"}, "delay_s": 0.0}
        try:
            known = [(*plan[key], part) for key, part in plain.items()]
        except KeyError as error:
            raise _UnknownFieldError(f"the field {error} in a {kind.__name__}") from error
        parts = {name: decode(part) for name, decode, part in known}
        if not required <= parts.keys():
            missing = ", ".join(sorted(required - parts.keys()))
            raise _GarbledError(f"a {kind.__name__} lacks {missing}")
        return kind(**parts)

    return run


def _decode_as(hint: Any) -> _Transform:
    if dataclasses.is_dataclass(hint):
        return _decoder(hint)  # type: ignore[arg-type]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum_decoder(hint)
    if hint in _EXACT:
        return _exact_decoder(hint)
    if (inner := _optional(hint)) is not None:
        item = _decode_as(inner)
        return _unless_none(item)
    origin, parts = get_origin(hint), get_args(hint)
    if origin is tuple and parts[-1] is Ellipsis:
        item = _decode_as(parts[0])
        return lambda plain: tuple([item(one) for one in _listed(plain)])
    if origin is tuple:
        items = [_decode_as(part) for part in parts]
        return lambda plain: tuple(
            [item(one) for item, one in zip(items, _listed(plain, len(items)), strict=True)]
        )
    if origin is frozenset:
        item = _decode_as(parts[0])
        return lambda plain: frozenset(item(one) for one in _listed(plain))
    if origin is not None and issubclass(origin, Mapping):
        item = _decode_as(parts[1])
        return lambda plain: {name: item(one) for name, one in _mapped(plain).items()}
    return lambda plain: plain


_EXACT = (int, str, bool, float)


def _exact_decoder(expected: type) -> _Transform:
    accepted = (int, float) if expected is float else (expected,)

    def run(plain: Any) -> Any:
        if type(plain) not in accepted:
            raise _GarbledError(f"{plain!r} is not of type {expected.__name__}")
        return plain

    return run


def _enum_decoder(kind: type[Enum]) -> _Transform:
    def run(plain: Any) -> Any:
        try:
            return kind(plain)
        except ValueError as error:
            raise _GarbledError(str(error)) from error

    return run


def _hex_decoder(hint: Any) -> _Transform:
    def one(plain: Any) -> int:
        try:
            return int(plain, 16)
        except (TypeError, ValueError) as error:
            raise _GarbledError(f"{plain!r} is not a bit mask in hex") from error

    if hint is int:
        return one
    return lambda plain: {name: one(mask) for name, mask in _mapped(plain).items()}


def _listed(plain: Any, length: int | None = None) -> list[Any]:
    if type(plain) is not list or (length is not None and len(plain) != length):
        raise _GarbledError(f"{plain!r} is not a list" + (f" of {length}" if length else ""))
    return plain


def _mapped(plain: Any) -> dict[str, Any]:
    if type(plain) is not dict:
        raise _GarbledError(f"{plain!r} is not an object")
    return plain


# --- annotations -----------------------------------------------------------------------------


def _fields(kind: type) -> list[tuple[dataclasses.Field[Any], Any]]:
    hints = get_type_hints(kind)
    return [(field, hints[field.name]) for field in dataclasses.fields(kind)]


def _key(field: dataclasses.Field[Any]) -> str:
    """What a document calls a field: its name, or the one it had when it was first written."""
    return str(field.metadata.get("key", field.name))


def _optional(hint: Any) -> Any:
    """X of the annotation ``X | None``; None for any other annotation."""
    if get_origin(hint) not in (Union, types.UnionType):
        return None
    first, *others = (part for part in get_args(hint) if part is not types.NoneType)
    if others:
        raise TypeError(f"{hint}: a union of several types has no JSON form here")
    return first


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default
