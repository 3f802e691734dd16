"""Checksums of small JSON documents that are the truth about something.

A document carries the checksum of everything else in it, so that a file that was damaged is an
error and never believed. Documents from before there were checksums have none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

CHECKSUM = "checksum"

LARGEST_BYTES = 64 << 20
"""No document of ours is larger; what is, is not read."""


class DamagedError(ValueError):
    """A document is no JSON object, or its content does not fit its checksum."""


def checksum(document: Mapping[str, Any]) -> str:
    """The checksum of a document, its own checksum left out."""
    rest = {key: value for key, value in document.items() if key != CHECKSUM}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def with_checksum(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document with its checksum."""
    return {**document, CHECKSUM: checksum(document)}


def parse(data: bytes | str) -> dict[str, Any]:
    """The document of a text, its checksum not yet compared. Raises ``DamagedError``."""
    if len(data) > LARGEST_BYTES:
        raise DamagedError(f"it has {len(data)} bytes")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"it is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise DamagedError("it is no JSON object")
    return found


def verified(document: Mapping[str, Any], *, required: bool = False) -> dict[str, Any]:
    """A document whose checksum fits, without it.

    Raises ``DamagedError``; also for a missing checksum where one is ``required``.
    """
    if (CHECKSUM in document or required) and document.get(CHECKSUM) != checksum(document):
        raise DamagedError("its checksum does not fit")
    return {key: value for key, value in document.items() if key != CHECKSUM}


def decode(data: bytes | str) -> dict[str, Any]:
    """The document of a text, its checksum compared and taken out. Raises ``DamagedError``."""
    return verified(parse(data))
