"""Writes a snapshot: its parts, and then the manifest that makes them one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import xxhash

from millrace import checked, crash
from millrace.errors import MillraceError, SnapshotError
from millrace.protocol.codec import encode_record
from millrace.protocol.record import mark_published, object_groups
from millrace.protocol.types import Record
from millrace.snapshots.manifest import (
    Column,
    Manifest,
    SnapshotPart,
    check_name,
    digest_of,
    encode,
)
from millrace.snapshots.places import Place
from millrace.snapshots.reading import MANIFEST, check_ours, discard, find

Fetch = Callable[[str, int, str], bytes]
"""Gives an object of a (name, mask of key groups, digest of its bytes or ""), from a copy with that
digest where there is one."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What a snapshot is taken of; see ``Manifest``."""

    topology: str
    document: Mapping[str, Any]
    key_groups: int
    record: Record
    created: float
    asked: str = ""


def write_snapshot(
    place: Place, name: str, subject: Subject, fetch: Fetch, shown: Callable[[], None]
) -> Manifest:
    """Write a snapshot of a committed record.

    ``shown`` returns once the sinks show every window of the record, so that none of them has to
    be shown by who restores it; it is called behind the parts. A snapshot of that name that
    answers the same request counts as this one. Raises ``SnapshotError``, and what ``fetch`` and
    ``shown`` raise; then no snapshot of that name has come to be, and what was written is removed
    again, as far as the place allows it.
    """
    check_name(name)
    known = find(place, name)
    if known is not None:
        return _same(known, subject)
    check_ours(place, name, place.files(name))
    try:
        place.try_create(name, MANIFEST)
        return _written(place, name, subject, fetch, shown)
    except BaseException:
        with suppress(MillraceError):
            discard(place, name)
        raise


def _written(
    place: Place, name: str, subject: Subject, fetch: Fetch, shown: Callable[[], None]
) -> Manifest:
    record = mark_published(subject.record, subject.record.sealed)
    text = encode_record(record).decode()
    _check_size(name, len(json.dumps(text)))  # before anything is copied
    state: dict[str, tuple[Column, ...]] = {}
    parts = []
    for one in _objects(subject.record):
        data = fetch(one.name, one.groups, one.digest)
        if one.processor:
            state[one.processor] = _columns(one, data)
        part = SnapshotPart(
            one.name, "state" if one.processor else "letters", len(data), digest_of(data)
        )
        place.write(name, part.file, data)
        parts.append(part)
        crash.reached("snapshot.part")
    shown()
    manifest = Manifest(
        name,
        subject.topology,
        record.uid,
        record.sealed,
        subject.created,
        subject.key_groups,
        subject.document,
        state,
        tuple(parts),
        text,
        subject.asked,
    )
    data = encode(manifest)
    _check_size(name, len(data))
    _check_there(place, name, parts)
    # A store that sends it twice finds its own.
    if not place.create(name, MANIFEST, data) and place.read(name, MANIFEST) != data:
        known = find(place, name)
        if known is None:
            raise _gone(name)
        return _same(known, subject)
    crash.reached("snapshot.manifest")
    try:
        # Somebody may have deleted parts just before they had a manifest.
        _check_there(place, name, parts, MANIFEST)
    except SnapshotError:
        place.remove(name, MANIFEST)
        raise
    return manifest


def _check_there(place: Place, name: str, parts: Iterable[SnapshotPart], *others: str) -> None:
    """Raises ``SnapshotError`` where something that was written is not there any more."""
    sizes = place.sizes(name)
    if not sizes.keys() >= set(others):
        raise _gone(name)
    for part in parts:
        if part.file not in sizes or sizes[part.file] not in (None, part.size_bytes):
            raise _gone(name)


def _gone(name: str) -> SnapshotError:
    return SnapshotError(f"snapshot {name}: was deleted while it was written, so there is none")


def _check_size(name: str, size_bytes: int) -> None:
    """A manifest that nobody could read again is never written."""
    if size_bytes > checked.LARGEST_BYTES:
        raise SnapshotError(
            f"snapshot {name}: its manifest would have {size_bytes:,} bytes or more, and none of "
            f"more than {checked.LARGEST_BYTES:,} is read; the record names too many open windows, "
            "replays or dead letters: let replays end, remove dead letters, and ask again"
        )


def _same(known: Manifest, subject: Subject) -> Manifest:
    if subject.asked and known.asked == subject.asked and known.uid == subject.record.uid:
        return known
    raise SnapshotError(
        f"snapshot {known.name}: there is one of that name, of {known.topology} behind window "
        f"{known.window}; give it another name, or delete that one"
    )


@dataclass(frozen=True, slots=True)
class _Object:
    """An object of a record; one of dead letters has no processor."""

    name: str
    groups: int
    processor: str = ""
    digest: str = ""


def _objects(record: Record) -> Iterator[_Object]:
    """Every object that a record with shown windows needs, once."""
    state = {
        segment.name: (processor, segment.digest)
        for processor, chain in record.chains.items()
        for segment in chain
    }
    for name, groups in object_groups(record).items():
        yield _Object(name, groups, *state.get(name, ()))


def _columns(one: _Object, data: bytes) -> tuple[Column, ...]:
    """The columns of a state object. Raises ``SnapshotError`` for one that is damaged."""
    found = xxhash.xxh3_128_hexdigest(data)
    if one.digest and found != one.digest:
        raise SnapshotError(
            f"state of {one.processor!r}: object {one.name} has digest {found}, the record says "
            f"{one.digest}: it was damaged, and no snapshot is taken of it"
        )
    try:
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            return tuple(Column(field.name, str(field.type)) for field in reader.schema)
    except (pa.ArrowException, OSError) as error:
        raise SnapshotError(
            f"state of {one.processor!r}: object {one.name} cannot be read ({error})"
        ) from error
