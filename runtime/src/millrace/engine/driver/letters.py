"""Dead letters as objects: what failed, where, why, and the record's own bytes.

An object may begin with the letters of one before it, in their order. A letter of those has the
name of the object that it was first written in, by which users call it ever after; the others were
first written in the object itself.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from millrace.engine.program.cutting import IN_TURN
from millrace.errors import NewerFormatError, ProtocolError, message_of
from millrace.protocol.types import FORMAT, DeadSegment, Replay
from millrace.sources.base import Source

_MAGIC = b"MRDEAD"
_OLD = b'{"format":'
_NUMBERS = ("partition", "offset", "number")
_TEXTS = ("source", "processor", "error", "payloadEncoding")
MOST_BYTES = 256 << 20
"""Of an object's letters with their payloads, half of what a state server takes: there is room left
for letters without."""

CARRIED_BYTES = 256 << 10
"""A larger object is not carried over, so that a window writes little of what is stored again."""

_FIRST = "object"
_FIELDS = {
    *("alone", "locator", "payload", "payloadError", "trace", "where", _FIRST),
    *_NUMBERS,
    *_TEXTS,
}
REMEDY = (
    "bring back the state server's append-only file from a copy, or give its letters up with "
    "millrace dead-letters drop"
)
"""For an object of dead letters that cannot be had as it was written."""

_DAMAGED = f"an object of dead letters is damaged and not believed; {REMEDY}"

_TOO_MUCH = (
    f"the dead letters of its window have more than {MOST_BYTES >> 20} MiB with their payloads; "
    "the record itself is where it was, and replay reads it there"
)


class DamagedLettersError(ProtocolError):
    """An object of dead letters is not what was written."""


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).hexdigest().encode()


def encode_letters(
    letters: Sequence[Replay],
    sources: Mapping[str, Source],
    carried: Sequence[Mapping[str, Any]] = (),
) -> bytes:
    """The object of one window's dead letters, behind those that are carried over: a line with its
    checksum, and JSON.

    What would make it larger than ``MOST_BYTES`` is left out: payloads of some of them.
    """
    texts = [json.dumps(letter) for letter in carried]
    size = sum(map(len, texts))
    for root in letters:
        letter = _letter(root, sources)
        text = json.dumps(letter)
        if size + len(text) > MOST_BYTES:
            text = json.dumps({**letter, **payload_fields(None), "payloadError": _TOO_MUCH})
        size += len(text)
        texts.append(text)
    data = f'{{"format": {FORMAT}, "letters": [{", ".join(texts)}]}}'.encode()
    return b"%s %s\n%s" % (_MAGIC, _digest(data), data)


def decode_letters(data: bytes) -> list[dict[str, Any]]:
    """The letters of an object, in order. Raises ``NewerFormatError``, ``DamagedLettersError``.

    Objects from before there were checksums begin with their JSON.
    """
    head, _, body = data.partition(b"\n")
    if not data.startswith(_OLD):
        if head != b"%s %s" % (_MAGIC, _digest(body)):
            raise DamagedLettersError(_DAMAGED)
        data = body
    try:
        document = json.loads(data)
        # First of all: fields of a newer format need not be those that are known here.
        newer = int(document["format"]) > FORMAT
        letters = [] if newer else [_whole(one) for one in document["letters"]]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedLettersError(_DAMAGED) from error
    if newer:
        raise NewerFormatError(
            f"dead letters have format {document['format']}, this release reads up to {FORMAT}; "
            "use the newer release"
        )
    unknown = sorted({name for one in letters for name in one.keys() - _FIELDS})
    if unknown:
        raise NewerFormatError(
            f"dead letters have the field {unknown[0]!r}, which this release does not know; use "
            "the newer release"
        )
    return letters


def letters_of(segment: DeadSegment, data: bytes) -> list[dict[str, Any]]:
    """The letters of the object that a record names so. Raises ``NewerFormatError``,
    ``DamagedLettersError``, also where they are not as many as the record says."""
    letters = decode_letters(data)
    if len(letters) != segment.count:
        raise DamagedLettersError(
            f"this object holds {len(letters)} dead letters and not {segment.count}; {REMEDY}"
        )
    return letters


def carried_over(segment: DeadSegment, data: bytes) -> list[dict[str, Any]]:
    """The letters of an object as another one begins with them. Raises as ``letters_of``."""
    return [{_FIRST: segment.name, **letter} for letter in letters_of(segment, data)]


def origins(name: str, letters: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, int]]:
    """Of each letter of the object of this name the object that it was first written in, and its
    place among those that were first written there."""
    places: Counter[str] = Counter()
    for letter in letters:
        first = str(letter.get(_FIRST, name))
        yield first, places[first]
        places[first] += 1


def are_intact(data: bytes) -> bool:
    """Whether an object of dead letters is what was written, by whichever release."""
    try:
        decode_letters(data)
    except (DamagedLettersError, NewerFormatError) as error:
        return isinstance(error, NewerFormatError)
    return True


def payload_fields(payload: bytes | None) -> dict[str, str | None]:
    """A record's own bytes as text, with how to read it; ``payload_of`` reads it back."""
    if payload is None:
        return {"payload": None, "payloadEncoding": "none"}
    try:
        return {"payload": payload.decode(), "payloadEncoding": "utf-8"}
    except UnicodeDecodeError:
        return {"payload": base64.b64encode(payload).decode(), "payloadEncoding": "base64"}


def payload_of(letter: Mapping[str, Any]) -> bytes | None:
    """The record's own bytes; None where the source could not give them any more."""
    if letter["payload"] is None:
        return None
    if letter["payloadEncoding"] == "base64":
        return base64.b64decode(letter["payload"])
    return str(letter["payload"]).encode()


def _whole(letter: dict[str, Any]) -> dict[str, Any]:
    """A letter with all its fields. Raises ``LookupError``, ``TypeError``, ``ValueError``."""
    if not all(type(letter[name]) is int for name in _NUMBERS):
        raise TypeError("a field is no number")
    if not all(isinstance(letter[name], str) for name in _TEXTS):
        raise TypeError("a field is no text")
    if not isinstance(letter.get(_FIRST, ""), str):
        raise TypeError("an object has no such name")
    _ = letter["alone"], letter["locator"], payload_of(letter)
    return letter


def replay_of(letter: Mapping[str, Any]) -> Replay:
    """The root of a letter as one replay more, at once.

    Its count goes on: the ids of its tree are made of its number, which must not come twice. So a
    letter that had all its replays is a letter again as soon as this one fails.
    """
    return Replay(
        letter["source"],
        letter["partition"],
        letter["offset"],
        letter["number"] + 1,
        0.0,
        letter["locator"],
        letter["processor"],
        letter["error"],
        letter["alone"],
    )


def _where(root: Replay, source: Source) -> str:
    try:
        return source.place(root)
    except BaseException:  # noqa: BLE001 the boundary to code of users, which is worth no letter
        return Source.place(source, root)


def _letter(root: Replay, sources: Mapping[str, Source]) -> dict[str, Any]:
    letter: dict[str, Any] = {
        "source": root.source,
        "partition": root.partition,
        "offset": root.offset,
        "number": root.number,
        "processor": root.processor,
        "error": root.error,
        "alone": root.alone,
        "locator": root.locator,
        "trace": root.trace,
        "where": _where(root, sources[root.source]),
    }
    try:
        with IN_TURN:
            payload = sources[root.source].payload(root)
    except BaseException as error:  # noqa: BLE001 the boundary to code of users
        # A letter without its payload is better than a stream that stops for it, and the source
        # may be anyone's code.
        return {**letter, **payload_fields(None), "payloadError": message_of(error)}
    return {**letter, **payload_fields(payload)}
