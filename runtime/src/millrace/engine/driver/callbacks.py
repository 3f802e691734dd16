"""Tells sources what became of their roots: at least once, and never a reason to stop.

A window is told of after it is published and before its mark is written, so a driver that dies in
between is followed by one that publishes and tells again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from millrace.protocol.types import Roots
from millrace.sources.base import Acked, Source

log = logging.getLogger(__name__)


class Callbacks:
    """Calls ``on_ack`` and ``on_fail`` of the sources that have them."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._listening = [
            source
            for source in sources
            if type(source).on_ack is not Source.on_ack
            or type(source).on_fail is not Source.on_fail
        ]

    @property
    def wanted(self) -> bool:
        return bool(self._listening)

    def tell(self, window: int, roots: Roots) -> None:
        """Tell every listening source of its share of a published window."""
        for source in self._listening:
            acked = _share(source.name, window, roots)
            if acked.ranges or acked.replays:
                _guarded(source, lambda s=source, a=acked: s.on_ack(a))  # type: ignore[misc]
            letters = [one for one in roots.letters if one.source == source.name]
            if letters:
                _guarded(source, lambda s=source, m=letters: s.on_fail(m))  # type: ignore[misc]


def _share(source: str, window: int, roots: Roots) -> Acked:
    failed = [*roots.replays, *roots.letters]
    return Acked(
        window,
        tuple(r for r in roots.intent.ranges if r.source == source),
        tuple(r for r in roots.intent.replays if r.source == source),
        frozenset((r.partition, r.offset) for r in failed if r.source == source),
    )


def _guarded(source: Source, call: Callable[[], None]) -> None:
    try:
        call()
    except BaseException:
        # User code beside the stream: its failure must not become the stream's.
        log.exception("a callback of source %s", source.name)
