"""JSON of the documents that processes of a run leave for each other.

A document is one JSON object with ``format``, its fields in camelCase, and ``checksum`` over all
else. An older format is brought to today's one step at a time; documents of format 1 carry no
number and may lack the checksum. Of today's format every field is known: one that is not was
written by a newer release.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from millrace import checked
from millrace.errors import NewerFormatError

FORMAT = 2
"""The format of all documents that this release writes."""

STRICT = ConfigDict(
    extra="forbid",
    strict=True,
    allow_inf_nan=False,
    alias_generator=to_camel,
    populate_by_name=True,
)
"""For ``__pydantic_config__`` of a document's dataclass."""

Plain = dict[str, Any]
Upgrade = Callable[[Plain], Plain]
"""From the fields of one format to those of the next."""

T = TypeVar("T")


_adapters: dict[type[Any], TypeAdapter[Any]] = {}


def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


def plain(document: object) -> Plain:
    """A document's fields as JSON has them, without format and checksum."""
    found: Plain = _adapter(type(document)).dump_python(document, mode="json", by_alias=True)
    return found


def encode(document: object) -> Plain:
    """A document as it is kept; fields of which nothing is known, None, are left out."""
    known = {name: value for name, value in plain(document).items() if value is not None}
    return checked.with_checksum({"format": FORMAT, **known})


def encode_line(document: object) -> str:
    """A document as one line of a file of many, without a checksum."""
    return json.dumps({"format": FORMAT, **plain(document)}) + "\n"


def decode(kind: type[T], data: bytes | str, upgrades: Mapping[int, Upgrade] | None = None) -> T:
    """A document of any format up to today's; ``upgrades[n]`` brings fields of format n to n+1.

    Raises ``NewerFormatError``, and ``checked.DamagedError`` for anything that no release wrote.
    """
    found = checked.parse(data)
    number = found.get("format", 1)
    if type(number) is not int or number < 1:
        raise checked.DamagedError(f"its format is {number!r}, not a number")
    if number > FORMAT:
        raise _newer(kind, f"has format {number}, this release reads up to {FORMAT}")
    fields = checked.verified(found, required=number >= FORMAT)
    fields.pop("format", None)
    return _read(kind, fields, number, upgrades or {})


def decode_line(kind: type[T], line: bytes) -> T:
    """A document that ``encode_line`` wrote; errors as ``decode``."""
    found = checked.parse(line)
    number = found.pop("format", 1)
    if type(number) is not int or number < 1:
        raise checked.DamagedError(f"its format is {number!r}, not a number")
    if number > FORMAT:
        raise _newer(kind, f"has format {number}, this release reads up to {FORMAT}")
    return _read(kind, found, number, {})


def _read(kind: type[T], fields: Plain, number: int, upgrades: Mapping[int, Upgrade]) -> T:
    try:
        for step in range(number, FORMAT):
            fields = upgrades.get(step, dict)(fields)
        found: T = _adapter(kind).validate_json(json.dumps(fields))
    except ValidationError as error:
        faults = error.errors(include_url=False)
        unknown = [fault for fault in faults if fault["type"] == _UNKNOWN]
        if number == FORMAT and unknown and len(unknown) == len(faults):
            # Undamaged as it is, so that a release wrote it that knows of more.
            raise _newer(kind, f"has the field {_where(unknown[0])!r}") from None
        first = faults[0]
        text = f"its field {_where(first) or kind.__name__!r} is wrong: {first['msg']}"
        raise checked.DamagedError(text) from None
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise checked.DamagedError(f"it has other fields ({error!r})") from None
    return found


_UNKNOWN = "unexpected_keyword_argument"


def _where(fault: Mapping[str, Any]) -> str:
    return ".".join(str(part) for part in fault["loc"])


def _newer(kind: type[Any], what: str) -> NewerFormatError:
    return NewerFormatError(
        f"{kind.__name__} {what}; install the release that wrote it, or a later one"
    )
