"""Deliberate bugs of snapshots, of restores, and of what a change of size copies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from millrace.ids import Timeline
from millrace.protocol import events as e
from millrace.protocol.types import Record, Tag, View
from millrace.simulate.parts.copying import Copying
from millrace.simulate.parts.driver import DriverProcess
from millrace.simulate.parts.restoring import Restore
from millrace.simulate.parts.snapshots import Snapshot, Taker


class ForgetsReplays(Restore):
    """Restores state and offsets, and no root that waited for its replay."""

    def record(self, snapshot: Snapshot, tag: Tag) -> Record:
        return replace(super().record(snapshot, tag), replays=())


class ForgetsOpenWindow(Restore):
    """Restores what was sealed, behind offsets that are those of the window that was open."""

    def record(self, snapshot: Snapshot, tag: Tag) -> Record:
        return replace(super().record(snapshot, tag), intents=())


class RestoresUnfenced(Restore):
    """Takes windows back from sinks that still serve the drivers before."""

    def fence(self, tag: Tag) -> Iterator[None]:
        return iter(())


class KeepsTimeline(Restore):
    """Goes back to an earlier window without another timeline."""

    def record(self, snapshot: Snapshot, tag: Tag) -> Record:
        return super().record(snapshot, replace(tag, timeline=Timeline(1)))


class RestoresWhatWasLeft(Restore):
    """Takes the newest snapshot, though an earlier restore went back behind it."""

    def choose(self, view: View) -> Snapshot:
        found = self._on.shelf.taken
        if self._begun is not None:
            return super().choose(view)
        return max(found, key=lambda one: one.age)


class _TornTaker(Taker):
    def made(self) -> Snapshot:
        self.subject = self.record
        return super().made()

    def shown(self) -> bool:
        assert self.record is not None
        return self.record.published >= self.record.sealed


class SnapshotTears(DriverProcess):
    """Copies the objects of one record, and keeps the record that is committed by then."""

    taker = _TornTaker


class _HastyTaker(Taker):
    def shown(self) -> bool:
        return True


class SnapshotBeforeShown(DriverProcess):
    """Takes windows for shown that the sinks do not show yet."""

    taker = _HastyTaker


class _ShortCopying(Copying):
    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        if self.left:
            self.left.pop()


class ScaleLosesLast(DriverProcess):
    """Copies all but the last of what servers that join are to hold."""

    def make_copying(self, action: e.CopyObjects) -> Copying:
        return _ShortCopying(self._plant.cluster, action)
