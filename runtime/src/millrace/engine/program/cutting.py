"""Cuts the roots of a window in pieces, with exact counts."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace

from millrace.errors import SourceError
from millrace.protocol.codec import as_read
from millrace.protocol.types import Intent, RootRange
from millrace.sources.base import Source

IN_TURN = threading.Lock()
"""Held while a source's ``split``, ``locate`` or ``payload`` is called, as sources are promised."""


def cut_intent(intent: Intent, at: int, sources: Mapping[str, Source]) -> tuple[Intent, Intent]:
    """Two intents that together hold exactly the roots of one, ``at`` of them in the first."""
    low: list[RootRange] = []
    high: list[RootRange] = []
    left = at
    for piece in intent.ranges:
        if left >= piece.count:
            low.append(piece)
        elif left <= 0:
            high.append(piece)
        else:
            with IN_TURN:
                first, second = sources[piece.source].split(piece, left)
            _check(piece, left, first, second)
            low.append(as_recorded(first))
            high.append(as_recorded(second))
        left -= piece.count
    replays = max(0, left)
    return (
        replace(intent, ranges=tuple(low), replays=intent.replays[:replays]),
        replace(intent, ranges=tuple(high), replays=intent.replays[replays:]),
    )


def as_recorded(piece: RootRange) -> RootRange:
    """What a source gave, as whoever reads the record finds it: an intent that was read is equal to
    the one that was written. Raises ``ProtocolError`` where the locator is none for a record."""
    return replace(piece, locator=as_read(piece.locator))


def _check(piece: RootRange, at: int, first: RootRange, second: RootRange) -> None:
    """A cut must keep every root, or windows would lose some. Raises ``SourceError``."""
    wanted = ((piece.start, at), (piece.start + at, piece.count - at))
    told = f"source {piece.source!r}: split(piece, {at})"
    halves = {(one.source, one.partition) for one in (first, second)}
    if halves != {(piece.source, piece.partition)}:
        raise SourceError(
            f"{told} of partition {piece.partition:016x} gave pieces of {first.source!r} "
            f"{first.partition:016x} and {second.source!r} {second.partition:016x}; both must be "
            "of the piece's own source and partition"
        )
    if ((first.start, first.count), (second.start, second.count)) != wanted:
        raise SourceError(
            f"{told} of {piece.count} records from "
            f"{piece.start} gave {first.count} from {first.start} and {second.count} from "
            f"{second.start}; the two must be {at} and {piece.count - at} records, in order"
        )
