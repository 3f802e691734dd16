"""Dead letters as objects: what failed, where, why, and the record's own bytes."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from millrace.errors import NewerFormatError
from millrace.protocol.types import FORMAT, Replay
from millrace.sources.base import Source


def encode_letters(letters: Sequence[Replay], sources: Mapping[str, Source]) -> bytes:
    """The object of one window's dead letters, as JSON."""
    return json.dumps(
        {"format": FORMAT, "letters": [_letter(one, sources) for one in letters]}
    ).encode()


def decode_letters(data: bytes) -> list[dict[str, Any]]:
    """The letters of an object, in order. Raises ``NewerFormatError``."""
    document = json.loads(data)
    if document["format"] > FORMAT:
        raise NewerFormatError(
            f"dead letters have format {document['format']}, this release reads up to {FORMAT}; "
            "use the newer release"
        )
    return list(document["letters"])


def replay_of(letter: Mapping[str, Any]) -> Replay:
    """The root of a letter as a fresh replay: its count of replays starts again."""
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
    except Exception:  # noqa: BLE001 the boundary to code of users, which is worth no letter
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
        payload = sources[root.source].payload(root)
    except Exception as error:  # noqa: BLE001 the boundary to code of users
        # A letter without its payload is better than a stream that stops for it, and the source
        # may be anyone's code.
        return {**letter, "payload": None, "payloadEncoding": "none", "payloadError": str(error)}
    try:
        return {**letter, "payload": payload.decode(), "payloadEncoding": "utf-8"}
    except UnicodeDecodeError:
        encoded = base64.b64encode(payload).decode()
        return {**letter, "payload": encoded, "payloadEncoding": "base64"}
