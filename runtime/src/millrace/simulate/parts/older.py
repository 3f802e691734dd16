"""The user puts an older copy back: of everything, while the sinks are further, or of the view.

With a single state server a work folder is the view and that server's file. The story: a copy is
taken, the run goes on, everything is stopped, the copy takes its place, and drivers are started on
it. Each must refuse (``Stop`` behind) with nothing changed on the sinks; then the newest state is
put back and the run goes on as if nothing had been. What happens on the copy is no part of the
history that the other checkers judge.

Where the view alone is put back, or is gone, each driver says so and leaves the record as it is:
without a view also once so many have tried that their tags are above that of the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace

from millrace.ids import Execution
from millrace.protocol.types import Phase, Record, Stamp, View
from millrace.simulate import history as h
from millrace.simulate.options import Older
from millrace.simulate.parts.acklog import AckerProcess, AckLog
from millrace.simulate.parts.cluster import Cluster, ViewStore
from millrace.simulate.parts.driver import DriverProcess
from millrace.simulate.parts.server import ServerModel
from millrace.simulate.parts.sinks import Sink
from millrace.simulate.parts.supervisor import Supervisor
from millrace.simulate.world import World

STARTS = 3
"""How often the user tries to run on the copy; each start claims a higher execution."""

REFUSED_WITHIN_S = 60.0

LIVES = 50
"""Of how many drivers a view that is put back knows nothing."""


@dataclass(frozen=True, slots=True)
class Copy:
    """The view store and the server, as they were."""

    version: int
    view: View | None
    server: ServerModel


class OlderCopy:
    """One such story of a run with one server: ``right`` and ``wrong`` are ends of drivers."""

    right = "behind"
    wrong: tuple[str, ...] = ("drained", "failed")

    def __init__(
        self,
        world: World,
        history: h.History,
        cluster: Cluster,
        store: ViewStore,
        supervisor: Supervisor,
        sinks: Mapping[str, Sink],
        tracking: tuple[AckLog, list[AckerProcess]],
    ) -> None:
        self._world = world
        self._history = history
        self._cluster = cluster
        self._store = store
        self._supervisor = supervisor
        self._sinks = sinks
        self._log, self._ackers = tracking
        (self._name,) = cluster.names
        self._copy: Copy | None = None
        self._newest: Copy | None = None
        self._before: list[object] = []
        self._refused = 0

    def plan(self, at_s: float) -> None:
        self._world.after(at_s, self._take)
        self._world.after(at_s + 4.0, self._put_back)

    def _take(self) -> None:
        if self._cluster.held(self._name) is not None:
            self._copy = self._now()

    def _now(self) -> Copy:
        return Copy(self._store.version, self._store.view, self._cluster.copy_of(self._name))

    def _shown(self) -> list[object]:
        return [(sink.mark(), sink.high_water) for sink in self._sinks.values()]

    def _put_back(self) -> None:
        if self._copy is None or self._supervisor.drained or not self.can_tell():
            return
        self._supervisor.watcher = self._gone
        self._end_drivers()
        self._newest = self._now()
        self._history.muted = True
        self._become(self.made_of(self._copy))
        self._before = self._shown()
        self._supervisor.start_driver()
        self._world.after(REFUSED_WITHIN_S, self._too_late)

    def can_tell(self) -> bool:
        """Whether a driver can find out that the copy is an older one: the sinks are further."""
        assert self._copy is not None
        sealed = self._cluster.sealed_in(self._copy.server)
        return any(sink.high_water > sealed for sink in self._sinks.values())

    def made_of(self, copy: Copy) -> Copy:
        """What is put back of a copy."""
        return copy

    def is_tried(self) -> bool:
        """Whether enough drivers were started on it."""
        return self._refused >= STARTS

    def _become(self, copy: Copy) -> None:
        self._store.put_back(copy.version, copy.view)
        self._cluster.put_back(self._name, copy.server)
        # The ack log lies on the same server, and nothing that was running knows of later.
        self._log.lose()
        for acker in self._ackers:
            acker.kill()
            acker.start()
        self._supervisor.look()

    def _end_drivers(self) -> None:
        for driver in self._supervisor.drivers:
            driver.kill()

    def _gone(self, driver: DriverProcess, how: str) -> None:
        if self._newest is None:
            return
        if how in self.wrong:
            raise h.ViolationError("older copy", f"a driver on it ended: {driver.machine.stopped}")
        if self._shown() != self._before:
            raise h.ViolationError("older copy", "a driver on it has changed something")
        if how == self.right:
            self._refused += 1
        if not self.is_tried():
            self._world.after(0.5, self._supervisor.start_driver)
        else:
            self._go_on()

    def _go_on(self) -> None:
        assert self._newest is not None
        newest, self._newest = self._newest, None
        self._end_drivers()
        self._become(newest)
        self._history.muted = False
        self._supervisor.watcher = None
        self._supervisor.start_driver()

    def _too_late(self) -> None:
        if self._newest is not None:
            raise h.ViolationError("older copy", "no driver on it says so")


class OlderView(OlderCopy):
    """The view alone is put back. Many drivers have come since then, and the server may still be
    under the stamp of the last one."""

    def can_tell(self) -> bool:
        assert self._copy is not None
        view = self._copy.view
        return view is not None and view.phase is not Phase.CREATING

    def made_of(self, copy: Copy) -> Copy:
        assert self._newest is not None
        record, server = self._record(), deepcopy(self._newest.server)
        assert record is not None
        under = server.stamp_in_effect
        epoch = max(record.tag.epoch, under.epoch) if under is not None else record.tag.epoch
        further = Execution(record.tag.execution + LIVES)
        tag = replace(record.tag, execution=further, epoch=epoch)
        self._last = Stamp(tag.epoch, tag.execution)
        later = self._cluster.vault.encode(replace(record, tag=tag))
        server.stamp(server.run_id, self._last)
        server.write_record(server.run_id, self._last, tag, later)
        return Copy(copy.version, copy.view, server)

    def _become(self, copy: Copy) -> None:
        super()._become(copy)
        if self._newest is not None and self._world.rng.random() < 0.5:
            (member,) = self._cluster.alive()
            self._cluster.stamp(member, self._last)

    def _shown(self) -> list[object]:
        return [*super()._shown(), self._record()]

    def _record(self) -> Record | None:
        return self._cluster.held(self._name)


class NoView(OlderCopy):
    """The view is gone, and the server was started anew."""

    right = "failed"
    wrong = ("drained",)

    def can_tell(self) -> bool:
        record = self._cluster.held(self._name)
        return record is not None and record.sealed > 0

    def made_of(self, copy: Copy) -> Copy:
        assert self._newest is not None
        return Copy(0, None, self._newest.server)

    def is_tried(self) -> bool:
        view, record = self._store.view, self._cluster.held(self._name)
        assert record is not None
        tried = view is not None and view.execution > record.tag.execution
        return super().is_tried() and tried

    def _shown(self) -> list[object]:
        return [*super()._shown(), self._cluster.held(self._name)]


STORIES = {Older.EVERYTHING: OlderCopy, Older.VIEW: OlderView, Older.NO_VIEW: NoView}
