"""The manifest of a snapshot, its format and what makes one believable."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from millrace import checked
from millrace.errors import NewerFormatError, ProtocolError, SnapshotError
from millrace.protocol.codec import decode_record
from millrace.protocol.record import needed_objects
from millrace.protocol.types import Record

FORMAT = 1
"""Of manifests; a newer one is refused."""

KIND = "MillraceSnapshot"

_STRICT = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel, populate_by_name=True)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_DIGEST = r"^[0-9a-f]{64}$"
_SUFFIX = {"state": "arrow", "letters": "letters"}


@dataclass(frozen=True)
class SnapshotPart:
    """A copy of an immutable object. ``name`` is what the record calls it."""

    __pydantic_config__ = _STRICT

    name: str
    kind: Literal["state", "letters"]
    size_bytes: Annotated[int, Field(ge=0)]
    digest: Annotated[str, Field(pattern=_DIGEST)]

    @property
    def file(self) -> str:
        """What the copy is called."""
        return f"{self.digest}.{_SUFFIX[self.kind]}"


@dataclass(frozen=True)
class Column:
    """A column of a processor's state; ``type`` as Arrow calls it."""

    __pydantic_config__ = _STRICT

    name: str
    type: str


@dataclass(frozen=True)
class Manifest:
    """All that a snapshot says of itself.

    ``topology`` is the name, ``document`` the topology's file as it was accepted. ``record`` is
    the text of the record: offsets, open windows, the replay queue, dead letters, lives of the
    components, and the chains of state objects. ``created`` is wall-clock time in seconds, for
    people and for retention by age. ``asked`` tells which request this is the answer to.
    """

    __pydantic_config__ = _STRICT

    name: str
    topology: str
    uid: str
    window: int
    created: float
    key_groups: int
    document: Mapping[str, Any]
    state: Mapping[str, tuple[Column, ...]]
    parts: tuple[SnapshotPart, ...]
    record: str
    asked: str = ""

    @cached_property
    def decoded(self) -> Record:
        """The record. Raises ``ProtocolError``, ``NewerFormatError``."""
        return decode_record(self.record.encode())

    @property
    def size_bytes(self) -> int:
        """Size of all parts."""
        return sum(part.size_bytes for part in self.parts)


_ADAPTER: TypeAdapter[Manifest] = TypeAdapter(Manifest)


def digest_of(data: bytes) -> str:
    """The digest that parts are named by: BLAKE2b of 256 bits, in hex."""
    return blake2b(data, digest_size=32).hexdigest()


def is_name(name: str) -> bool:
    """Whether a snapshot may be called so."""
    return _NAME.fullmatch(name) is not None


def check_name(name: str) -> None:
    """Raises ``SnapshotError`` for what is no name of a snapshot."""
    if not is_name(name):
        raise SnapshotError(
            f"snapshot {name!r}: a name has up to 100 letters, digits, dots, dashes and "
            "underscores, and begins with a letter or digit"
        )


def encode(manifest: Manifest) -> bytes:
    """The manifest as it is kept."""
    plain = _ADAPTER.dump_python(manifest, mode="json", by_alias=True)
    document = checked.with_checksum({"kind": KIND, "format": FORMAT, **plain})
    return json.dumps(document, indent=1).encode()


class MisnamedError(SnapshotError):
    """The manifest of a snapshot that has another name."""


def decode(data: bytes, name: str, where: str) -> Manifest:
    """The manifest of the snapshot ``name``, which was read from ``where``.

    Raises ``NewerFormatError``, ``MisnamedError`` for one that has another name, and
    ``SnapshotError`` for anything that was not written as it is.
    """
    told = f"snapshot {name}: {where}"
    try:
        found = checked.parse(data)
        if found.get("kind") != KIND:
            raise checked.DamagedError("it is no manifest of a snapshot")
        number = found.get("format")
        if type(number) is not int or number < 1:
            raise checked.DamagedError(f"its format is {number!r}, not a number")
        if number > FORMAT:
            raise NewerFormatError(
                f"{told} has format {number}, this release reads up to {FORMAT}; install the "
                "release that wrote it, or a later one"
            )
        fields = checked.verified(found, required=True)
        del fields["kind"], fields["format"]
        manifest = _ADAPTER.validate_json(json.dumps(fields))
        _check_whole(manifest)
    except NewerFormatError:
        raise
    except (ValidationError, ProtocolError, ValueError, LookupError, TypeError) as error:
        why = " ".join(str(error).split())
        raise SnapshotError(
            f"{told} is damaged and not believed ({why}); take another snapshot"
        ) from error
    if manifest.name != name:
        raise MisnamedError(
            f"{told} is a copy of snapshot {manifest.name}, and a snapshot has one name; call the "
            f"folder {manifest.name} again, or delete the copy"
        )
    return manifest


def _check_whole(manifest: Manifest) -> None:
    """What the manifest says must agree with its record."""
    record = manifest.decoded
    if (manifest.uid, manifest.window) != (record.uid, record.sealed):
        raise ValueError("it is of another window or topology than its record")
    if record.unpublished or record.published != record.sealed:
        raise ValueError("its record has windows that were not shown")
    names = [part.name for part in manifest.parts]
    if len(names) != len(set(names)) or set(names) != needed_objects(record):
        raise ValueError("its parts are not those that its record names")
