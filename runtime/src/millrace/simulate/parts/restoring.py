"""A restore, behind the loss of all copies of some state, as the supervisor does it.

No driver starts meanwhile. A restore may die between any two of its steps, or meet a server that
does not answer; then it is done again, of the same snapshot or an older one, since the sinks may
show no more than that. Drivers of before have ended, but where every sink looks at its fence in the
step that shows something: one that has looked earlier would show what was taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from millrace.ids import WindowNumber
from millrace.protocol import server as s
from millrace.protocol.record import next_timeline, object_groups, restored, restoring_view
from millrace.protocol.types import Member, Phase, Record, Stamp, Tag, View
from millrace.simulate import history as h
from millrace.simulate.options import Options
from millrace.simulate.parts.cluster import Cluster, ViewStore, owners_of, place
from millrace.simulate.parts.sinks import Sink
from millrace.simulate.parts.snapshots import Shelf, Snapshot
from millrace.simulate.world import World

KILL = 0.04
"""How often a restore dies right after one of its steps."""

AGAIN_S = 0.5


class _BrokenOffError(Exception):
    """A server does not answer, or somebody else has changed the view."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What a restore is done to."""

    options: Options
    cluster: Cluster
    store: ViewStore
    sinks: Mapping[str, Sink]
    shelf: Shelf


class Restore:
    """All tries of one restore, until ``done``."""

    def __init__(
        self, world: World, history: h.History, ground: Ground, done: Callable[[], None]
    ) -> None:
        self._world = world
        self._history = history
        self._on = ground
        self._done = done
        self._begun: int | None = None
        self.crashes = 0

    @property
    def fences(self) -> bool:
        """Whether older drivers may live on."""
        return all(sink.atomic for sink in self._on.sinks.values())

    def begin(self) -> None:
        self._world.soon(self._step, self.steps())

    def _step(self, steps: Iterator[None]) -> None:
        try:
            next(steps)
        except StopIteration:
            self._done()
            return
        except _BrokenOffError as why:
            self._history.add(h.Note(f"the restore is broken off: {why}"))
            self._world.after(AGAIN_S, self.begin)
            return
        if self._world.chance(KILL):
            self.crashes += 1
            self._history.add(h.Note("the restore dies"))
            self._world.after(self._world.rng.expovariate(1 / AGAIN_S), self.begin)
        else:
            self._world.soon(self._step, steps)

    def steps(self) -> Iterator[None]:
        """The steps of one try: sinks, view, servers, view."""
        version, view = self._on.store.read()
        assert view is not None
        snapshot = self.choose(view)
        self._begun = snapshot.record.sealed
        tag = next_timeline(snapshot.record.tag, view)
        self._history.add(h.Note(f"{snapshot.record.tag} is restored as {tag}"))
        yield
        yield from self.fence(tag)
        for sink in self._on.sinks.values():
            sink.retract(WindowNumber(snapshot.record.sealed))
            yield
        members = self._members()
        creating = self._view(view, tag, members)
        self._on.shelf.fork(tag.timeline, snapshot)
        yield
        version = self._swapped(version, creating)
        yield
        yield from self._fill(creating, snapshot)
        record = self.record(snapshot, tag)
        for member in members:
            self._must(self._on.cluster.write(member, creating.stamp(), record), member)
            yield
        self._swapped(version, replace(creating, phase=Phase.OPEN, restoring=False))

    def choose(self, view: View) -> Snapshot:
        """The newest one, or an older one that the user asks for. There is one: else nothing would
        have been lost on purpose."""
        found = self._on.shelf.of(view.timeline, self._begun)
        asked = self._world.rng.random() < 0.3
        return self._world.rng.choice(found) if asked else found[0]

    def fence(self, tag: Tag) -> Iterator[None]:
        for sink in self._on.sinks.values():
            sink.fence(tag.execution)
            yield

    def record(self, snapshot: Snapshot, tag: Tag) -> Record:
        """The first record of the new timeline."""
        return restored(snapshot.record, snapshot.record.uid, tag)

    def _members(self) -> tuple[Member, ...]:
        members = self._on.cluster.reachable()
        if not members:
            raise _BrokenOffError("no server is there")
        return members

    def _view(self, before: View, tag: Tag, members: tuple[Member, ...]) -> View:
        options = self._on.options
        names = tuple(sorted(member.name for member in members))
        nowhere: tuple[tuple[str, ...], ...] = ((),) * options.key_groups
        placed = place(options.key_groups, options.copies, names, nowhere)
        return restoring_view(before.uid, tag, members, placed)

    def _fill(self, view: View, snapshot: Snapshot) -> Iterator[None]:
        """The servers hold the snapshot's objects in the end, and nothing else."""
        cluster, stamp = self._on.cluster, view.stamp()
        for member in view.target:
            if not isinstance(cluster.stamp(member, stamp), s.Stamped):
                raise _BrokenOffError(f"{member} takes no stamp")
            yield
        for member in view.target:
            self._clear(member, stamp, snapshot.names)
            yield
        groups = object_groups(snapshot.record)
        members = {member.name: member for member in view.target}
        for name in sorted(snapshot.names):
            for owner in owners_of(view.owners, name, groups.get(name, 0)):
                self._must(cluster.put(members[owner], stamp, (name,)), members[owner])
            yield

    def _clear(self, member: Member, stamp: Stamp, keep: frozenset[str]) -> None:
        listed = self._on.cluster.listed(member, stamp)
        if not isinstance(listed, s.Listed):
            raise _BrokenOffError(f"{member} does not say what it holds")
        if gone := tuple(name for name in listed.names if name not in keep):
            self._must(self._on.cluster.delete(member, stamp, gone), member)

    def _must(self, reply: object, member: Member) -> None:
        if not isinstance(reply, s.Ok):
            raise _BrokenOffError(f"{member} says {reply}")

    def _swapped(self, version: int, view: View) -> int:
        swapped = self._on.store.cas(version, view, self._on.store.life)
        if swapped is None:
            raise _BrokenOffError("somebody else has changed the view")
        return swapped


Restorer = Callable[[Callable[[], None]], Restore]
"""Makes a restore, of what to call when it is done."""


def restorer(
    world: World, history: h.History, ground: Ground, make: type[Restore] = Restore
) -> Restorer:
    return partial(make, world, history, ground)
