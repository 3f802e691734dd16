"""Which of a window's roots each of its tasks reads."""

from __future__ import annotations

from collections.abc import Mapping

from millrace.engine.program.cutting import cut_intent
from millrace.engine.task.steps.ends import Piece
from millrace.protocol.types import Intent, RootRange
from millrace.sources.base import Source


def share(intent: Intent, tasks: int, sources: Mapping[str, Source]) -> list[list[Piece]]:
    """Cut a window's roots into consecutive parts of nearly equal size, one for each task."""
    pieces: list[list[Piece]] = []
    rest, first, left = intent, 0, intent.roots
    for number in range(tasks):
        count = -(-left // (tasks - number))
        mine, rest = (rest, rest) if number == tasks - 1 else cut_intent(rest, count, sources)
        pieces.append(_pieces(mine, first))
        first += count
        left -= count
    return pieces


def _pieces(intent: Intent, first: int) -> list[Piece]:
    pieces = []
    for part in intent.ranges:
        pieces.append(Piece(first, part))
        first += part.count
    for replay in intent.replays:
        alone = RootRange(replay.source, replay.partition, replay.offset, 1, replay.locator)
        pieces.append(Piece(first, alone, replay.number))
        first += 1
    return pieces
