"""Snapshots of a running topology, and where they lie: no loss of state servers reaches them.

A driver life takes one after another, beside its windows: the objects of one committed record are
held (``protocol.windows.forgetting``) and read one by one, and the snapshot counts once the sinks
show every window of that record. What a life has not finished is gone with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from millrace.protocol import events as e
from millrace.protocol import server as s
from millrace.protocol.record import mark_published, object_groups
from millrace.protocol.types import Record, Tag, View
from millrace.protocol.windows.forgetting import Held
from millrace.simulate import history as h
from millrace.simulate.parts.cluster import Cluster
from millrace.simulate.world import World


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A record whose windows are all shown, and the objects that were copied with it."""

    record: Record
    names: frozenset[str]

    @property
    def age(self) -> tuple[int, int]:
        return self.record.sealed, self.record.tag.timeline


class Shelf:
    """All snapshots that were finished, and which restore began which timeline."""

    def __init__(self, history: h.History) -> None:
        self._history = history
        self.taken: list[Snapshot] = []
        self._forks: dict[int, tuple[int, int]] = {}

    def add(self, snapshot: Snapshot) -> None:
        self.taken.append(snapshot)
        self._history.add(h.SnapshotTaken(snapshot.record, snapshot.names))

    def fork(self, timeline: int, snapshot: Snapshot) -> None:
        """``timeline`` goes on behind a snapshot."""
        self._forks[timeline] = (snapshot.record.tag.timeline, snapshot.record.sealed)

    def of(self, timeline: int, most: int | None = None) -> list[Snapshot]:
        """Those that led to a timeline, the newest first; of no window above ``most``."""
        limits = self._line(timeline)
        found = [one for one in self.taken if _within(one.record, limits, most)]
        return sorted(found, key=lambda one: one.age, reverse=True)

    def _line(self, timeline: int) -> dict[int, float]:
        """The last window that counts of each timeline on the way."""
        limits, limit = {timeline: float("inf")}, float("inf")
        while timeline in self._forks:
            timeline, window = self._forks[timeline]
            limit = min(limit, window)
            limits[timeline] = limit
        return limits


def _within(record: Record, limits: dict[int, float], most: int | None) -> bool:
    known = record.sealed <= limits.get(record.tag.timeline, -1.0)
    return known and (most is None or record.sealed <= most)


class Taker:
    """Takes the snapshots of one driver life; ``every_s`` is the mean time between two."""

    def __init__(
        self,
        world: World,
        cluster: Cluster,
        shelf: Shelf,
        every_s: float,
        view: Callable[[], View | None],
        runs: Callable[[], bool | None],
    ) -> None:
        """``runs`` says whether the process does; None if it never will again."""
        self._world = world
        self._cluster = cluster
        self._shelf = shelf
        self._every_s = every_s
        self._view = view
        self._runs = runs
        self._held = Held()
        self._left: list[str] = []
        self._names: set[str] = set()
        self._last: Tag | None = None
        self.record: Record | None = None
        self.subject: Record | None = None
        """The record that the snapshot under way is of."""

    def start(self) -> None:
        self._world.after(self._world.rng.expovariate(1 / self._every_s), self._step)

    def committed(self, record: Record) -> None:
        """A record is committed; what it replaces has not been deleted yet."""
        self.record = record

    def spared(self, forget: e.Forget) -> e.Forget:
        return self._held.spared(forget)

    def _step(self) -> None:
        runs = self._runs()
        if runs is None:
            return
        if not runs:
            self._world.after(0.2, self._step)
        elif self.subject is None:
            self._begin()
        elif self._left:
            self._copy()
        elif self.shown():
            self._shelf.add(self.made())
            self._end()
        else:
            self._world.after(0.05, self._step)

    def _begin(self) -> None:
        if self.record is None or self.record.tag == self._last:
            self.start()
            return
        self.subject = self.record
        self._held.hold(self.subject)
        self._left = sorted(object_groups(self.subject))
        self._names = set()
        self._world.soon(self._step)

    def _copy(self) -> None:
        name = self._left.pop()
        if self._read(name):
            self._names.add(name)
            pause_s = self._world.rng.expovariate(5.0) if self._world.rng.random() < 0.2 else 0.005
            self._world.after(pause_s, self._step)
        else:
            # It went with a server while members changed, or none that has it is there now.
            self._end()

    def _read(self, name: str) -> bool:
        view = self._view()
        for member in view.target if view is not None else ():
            reply = self._cluster.get(member, None, (name,))
            if reply is None or isinstance(reply, s.NotOwner):
                continue
            if isinstance(reply[0], s.Found):
                return True
        return False

    def _end(self) -> None:
        self._held.release()
        self._last, self.subject = (self.subject or self.record).tag, None  # type: ignore[union-attr]
        self.start()

    def shown(self) -> bool:
        """Whether the sinks show all windows that the snapshot knows."""
        assert self.record is not None
        assert self.subject is not None
        return self.record.published >= self.subject.sealed

    def made(self) -> Snapshot:
        """The snapshot, with what was copied for it."""
        assert self.subject is not None
        shown = mark_published(self.subject, self.subject.sealed)
        return Snapshot(shown, frozenset(self._names))
