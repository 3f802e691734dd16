"""Sinks that were removed from a topology since a snapshot was taken.

They may show windows behind the snapshot, which are read again and shown by the sinks of today: so
a restore takes them back there, too, or is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from millrace.homes.accepted import Retired, accept
from millrace.protocol.types import Components
from millrace.sinks import Sink
from millrace.sinks.base import explained
from millrace.snapshots.manifest import Manifest

Document = Mapping[str, Any]
Make = Callable[[Document], Sink]
"""Makes a sink of its declaration, to be closed by whoever gives this. Raises ``SinkError``."""


def removed(
    manifest: Manifest, today: Document, now: Components | None, retired: Iterable[Retired]
) -> list[Document]:
    """Declarations of the sinks that the topology had at the snapshot or behind it, and does not
    have ``today``.

    ``now`` are the numbers of today's components and ``retired`` the sinks that were removed, as
    far as they are kept. A number tells whether a sink was removed before the snapshot: what it
    shows is of windows that stay, and its place may be long gone.
    """
    before = manifest.decoded.components or accept(None, dict(manifest.document)).components
    here = {one["name"]: one for one in today["spec"].get("sinks", ())}
    found: dict[tuple[str, int], Document] = {
        (one["name"], before.sinks.get(one["name"], 0)): one
        for one in manifest.document["spec"].get("sinks", ())
        if one["name"] not in here
    }
    for one in retired:
        if one.number > before.edit or before.sinks.get(one.name) == one.number:
            found[one.name, one.number] = one.sink
    places = [_where(one) for one in here.values()]
    made: list[Document] = []
    for (name, number), sink in found.items():
        lives = now is not None and now.sinks.get(name) == number
        if not lives and (where := _where(sink)) not in places:
            places.append(where)
            made.append(sink)
    return made


def _where(sink: Document) -> dict[str, Any]:
    """Where it shows rows, and how: two that are alike are one to whoever takes windows back."""
    return {key: value for key, value in sink.items() if key not in ("name", "inputs")}


class RemovedSink:
    """A sink that the topology has no more, as far as a restore needs one. What goes wrong says why
    it is needed, and with ``remedy`` what else can be done."""

    def __init__(self, declared: Document, make: Make, manifest: Manifest, remedy: str) -> None:
        self.name = str(declared["name"])
        self.why = (
            f"Sink {self.name!r} is no longer in the file, but was there when snapshot "
            f"{manifest.name} was taken, or behind it, and what it shows of windows that are read "
            f"again is to be taken back: mend it, or {remedy}"
        )
        with explained(self.why):
            self._sink = make(declared)

    @property
    def retracts(self) -> bool:
        return self._sink.retracts

    def prepare(self, uid: str) -> None:
        with explained(self.why):
            self._sink.prepare(uid)

    def last_shown(self) -> tuple[int, str] | None:
        with explained(self.why):
            return self._sink.last_shown()

    def fence(self, execution: int) -> None:
        with explained(self.why):
            self._sink.fence(execution)

    def retract(self, window: int) -> None:
        with explained(self.why):
            self._sink.retract(window)
