"""The user puts an older copy of everything back, while the sinks are further.

With a single state server a work folder is the view and that server's file. The story: a copy is
taken, the run goes on, everything is stopped, the copy takes its place, and drivers are started on
it. Each must refuse (``Stop`` behind) with nothing changed on the sinks; then the newest state is
put back and the run goes on as if nothing had been. What happens on the copy is no part of the
history that the other checkers judge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millrace.protocol.types import View
from millrace.simulate import history as h
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


@dataclass(frozen=True, slots=True)
class Copy:
    """The view store and the server, as they were."""

    version: int
    view: View | None
    server: ServerModel


class OlderCopy:
    """One such story of a run with one server."""

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
        if self._copy is None or self._supervisor.drained or not self._sinks_are_further():
            return
        self._supervisor.watcher = self._gone
        self._end_drivers()
        self._newest, self._before = self._now(), self._shown()
        self._history.muted = True
        self._become(self._copy)
        self._supervisor.start_driver()
        self._world.after(REFUSED_WITHIN_S, self._too_late)

    def _sinks_are_further(self) -> bool:
        assert self._copy is not None
        sealed = self._cluster.sealed_in(self._copy.server)
        return any(sink.high_water > sealed for sink in self._sinks.values())

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
        if how in ("drained", "failed"):
            raise h.ViolationError("older copy", f"a driver on it ended: {driver.machine.stopped}")
        if self._shown() != self._before:
            raise h.ViolationError("older copy", "a driver on it has changed a sink")
        if how == "behind":
            self._refused += 1
        if self._refused < STARTS:
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
