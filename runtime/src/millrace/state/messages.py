"""How much goes into one message to a state server: so little that others need not wait behind it.

A server answers one message after the other, so a large object is read in several; only an object
that is stored goes as one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from millrace.state.errors import ObjectTooLargeError

MAX_OBJECT_BYTES = 500 << 20
"""Largest object; servers refuse a value of more than 512 MiB."""

MESSAGE_BYTES = 32 << 20
"""What a message carries at most, in either direction, unless it is a single object that is put."""

NAMES = 256
"""Objects in a message at most."""


def of_parts(parts: Sequence[tuple[str, int, int]]) -> Iterator[list[tuple[int, int, int]]]:
    """Cut (name, start, size) into messages of (place among them, start, size), each with an
    answer of bounded size unless the size is only known to be less; at least one message."""
    batch: list[tuple[int, int, int]] = []
    answer = 0
    for at, (_, start, size) in enumerate(parts):
        known = size <= MAX_OBJECT_BYTES
        step = MESSAGE_BYTES if known else size
        for begin in range(start, start + size, step):
            length = min(step, start + size - begin)
            full = known and answer + length > MESSAGE_BYTES
            if batch and (full or len(batch) >= NAMES):
                yield batch
                batch, answer = [], 0
            batch.append((at, begin, length))
            answer += length if known else 0
    yield batch


def of_objects(
    objects: Sequence[tuple[str, bytes]], server: str
) -> Iterator[list[tuple[str, bytes]]]:
    """Cut objects that a server is to store into messages; at least one, maybe an empty one.

    Raises ``ObjectTooLargeError``.
    """
    batch: list[tuple[str, bytes]] = []
    size = 0
    for name, data in objects:
        if len(data) > MAX_OBJECT_BYTES:
            raise too_large(f"object {name}", data, server)
        if batch and (size + len(data) > MESSAGE_BYTES or len(batch) >= NAMES):
            yield batch
            batch, size = [], 0
        batch.append((name, data))
        size += len(data)
    yield batch


def too_large(what: str, data: bytes, server: str) -> ObjectTooLargeError:
    """Says that an object is larger than a server takes, and what to do."""
    return ObjectTooLargeError(
        f"{what} has {len(data)} bytes, state server {server} takes at most {MAX_OBJECT_BYTES}: "
        "raise spec.parallelism, so that each task holds less state, or have less state of a key "
        "group (fewer keys, smaller values)"
    )
