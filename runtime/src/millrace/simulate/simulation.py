"""One run from one seed: the simulated world, put together, and its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random

from millrace import ids
from millrace.protocol import acklog as al
from millrace.protocol.cohorts import NO_LIMIT, DeadLimit
from millrace.protocol.driver import Driver
from millrace.protocol.record import Backoff
from millrace.protocol.settings import Settings
from millrace.protocol.types import Components, Member
from millrace.simulate import history as h
from millrace.simulate.brief import brief
from millrace.simulate.checkers import Checkers
from millrace.simulate.checkers.deadshare import LEAST_JUDGED, STOPS_BEFORE_RAISED
from millrace.simulate.machines import Machines
from millrace.simulate.options import Options, draw
from millrace.simulate.parts.acklog import AckerProcess, AckLog
from millrace.simulate.parts.cluster import Cluster, ViewStore, place
from millrace.simulate.parts.driver import DriverProcess, Surroundings
from millrace.simulate.parts.engine import Plant
from millrace.simulate.parts.flow import OUT_SINK, SIDE_SINK, Flow
from millrace.simulate.parts.nemesis import Nemesis, Targets
from millrace.simulate.parts.older import STORIES
from millrace.simulate.parts.restoring import Ground, Restorer, restorer
from millrace.simulate.parts.sinks import Sink
from millrace.simulate.parts.snapshots import Shelf
from millrace.simulate.parts.supervisor import Supervisor
from millrace.simulate.parts.workload import LATE_S, Workload, locate
from millrace.simulate.world import World

CALM_LIMIT_S = 400.0
"""Simulated time after the storm within which a run must be drained."""

NOTICE_S = 12.0
"""Within this time a driver notices that it has a successor."""

STEP_LIMIT = 60_000
"""Events after which a run counts as stuck (an ordinary one takes a few thousand)."""

BACKOFF_S = 0.4


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run was like; ``violation`` is None if everything held."""

    seed: int
    violation: str | None
    actions: int
    crashes: int
    seals: int
    steps: int
    simulated_s: float


class Simulation:
    """Build with a seed, then ``run`` once."""

    def __init__(
        self,
        seed: int,
        machines: Machines | None = None,
        options: Options | None = None,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self.options = options or draw(seed)
        self.machines = machines or Machines()
        rng = Random(seed)
        self.world = World(rng, self.options.network, self.options.storm_s)
        self.history = h.History(self._tracer(trace))
        self.workload = Workload(self.options, rng, self.world.now_s)
        names = [f"s{n}" for n in range(self.options.servers)]
        self.store = ViewStore(self.history, self.options.codec)
        self.cluster = Cluster(
            self.world, self.history, self.machines.server, names, self.options.codec
        )
        self.log = AckLog(self.history)
        self.sinks = self._sinks(rng)
        self.shelf = Shelf(self.history)
        flow = Flow(self.options, self.workload, self.machines.ids())
        self._plant = Plant(
            self.world,
            self.history,
            self.options,
            self.cluster,
            self.log,
            self.sinks,
            flow,
            self.machines.attempt,
        )
        self.ackers = [
            AckerProcess(f"acker-{n}", self.world, self.history, self.log, self.machines.acker)
            for n in range(self.options.ackers)
        ]
        self.supervisor = Supervisor(
            self.world,
            self.cluster,
            self.ackers,
            self._make_driver,
            self.options.standby,
            self._restorer() if self.options.lost_s is not None else None,
            lambda name: self.machines.parting(self.store.view, name),
            self._may_release,
        )
        self.checkers = Checkers(
            self.history,
            self.options,
            self.workload,
            self.cluster,
            self.store,
            self.sinks,
            lambda: self.world.now_s,
        )
        self.nemesis = Nemesis(
            self.world,
            self.history,
            Targets(
                self.options,
                self.cluster,
                self.store,
                self.ackers,
                self.log,
                self.supervisor,
                self.workload,
                lambda: self.checkers.ledger.record,
                self.shelf,
            ),
        )

    def _older_copy(self, at_s: float) -> None:
        tracking = (self.log, self.ackers)
        STORIES[self.options.older](
            self.world,
            self.history,
            self.cluster,
            self.store,
            self.supervisor,
            self.sinks,
            tracking,
        ).plan(at_s)

    def run(self) -> Outcome:
        """Run until the input is drained; a violation of any invariant ends the run."""
        violation = None
        with small_blocks():
            try:
                self._to_the_end()
            except h.ViolationError as found:
                violation = str(found)
            except Exception as found:  # noqa: BLE001
                # A machine that raises has met something that its rules do not foresee.
                violation = f"raised: {found!r} in {_where(found)}"
        return Outcome(
            seed=self.options.seed,
            violation=violation,
            actions=sum(driver.actions for driver in self.supervisor.drivers),
            crashes=self.supervisor.crashes + self.nemesis.crashes,
            seals=self.checkers.ledger.seals,
            steps=self.world.steps,
            simulated_s=self.world.now_s,
        )

    def _to_the_end(self) -> None:
        self.supervisor.start()
        self.nemesis.start()
        if self.options.older_s is not None:
            self._older_copy(self.options.older_s)
        if self.options.late:
            self.world.after(self.options.storm_s + LATE_S - 10.0, self._start_anew)
        latest_s = self.world.storm_ends_s + CALM_LIMIT_S
        while not self.supervisor.drained:
            if not self.world.step():
                raise h.ViolationError(
                    "liveness", "nothing is left to happen and input is not drained"
                )
            if self.world.steps > STEP_LIMIT or self.world.now_s > latest_s:
                raise h.ViolationError("liveness", self._stuck())
        self._let_zombies_finish()
        self.checkers.finish()

    def _start_anew(self) -> None:
        """All is well for long. The next driver knows nothing of whom this one has left out."""
        if not self.options.unseen:
            self.checkers.let_in.look()
        self.supervisor.start_anew()

    def _let_zombies_finish(self) -> None:
        """What is still on its way, and drivers that wake up late, must change nothing."""
        until_s = self.world.now_s + 20.0
        for _ in range(5_000):
            if self.world.now_s > until_s or not self.world.step():
                break
        view = self.store.view
        for driver in self.supervisor.drivers:
            awake_s = self.world.now_s - driver.awake_since_s
            # One that has claimed last has none; nobody tells it of state servers any more.
            last = view is not None and driver.machine.membership.execution == view.execution
            if driver.alive and not driver.frozen and not last and awake_s > NOTICE_S:
                raise h.ViolationError(
                    "liveness", f"driver {driver.number} never notices its successor"
                )

    def _stuck(self) -> str:
        record = self.checkers.ledger.record
        driver = self.supervisor.drivers[-1]
        failures = "; ".join(self.supervisor.failures[-2:])
        return (
            f"not drained after {self.world.steps} steps and {self.world.now_s:.0f} s: "
            f"last driver {driver.number} {driver.machine.membership.standing.value} "
            f"(alive {driver.alive}), view {self.store.view}, record {record}, "
            f"failures [{failures}]"
        )

    # -- parts

    def _make_driver(
        self, number: int, gone: Callable[[DriverProcess, str], None]
    ) -> DriverProcess:
        options = self.options
        copies = self.supervisor.copies or options.copies
        settings = Settings(
            uid="sim",
            guarantee=options.guarantee,
            tracking=options.tracking,
            backoff=Backoff(options.max_replays, BACKOFF_S),
            max_records=options.max_records,
            copies=copies,
            key_groups=options.key_groups,
            learners=options.learners,
            prepares_from=1 if options.prepares else None,
            restores=options.lost_s is not None,
            max_unpublished=options.max_unpublished,
            emits_final=options.emits_final,
            callbacks=options.callbacks,
            components=self._components(),
            dead_limit=self._dead_limit(),
            letters_together=options.letters_together,
        )
        machine: Driver = self.machines.driver(settings, partial(self._owners, copies), locate)
        around = Surroundings(
            self._plant,
            self.store,
            self.workload,
            self.supervisor.alive_ackers,
            gone,
            self.machines.clock,
            self.shelf,
        )
        return self.machines.process(around, machine, number)

    def _restorer(self) -> Restorer:
        ground = Ground(self.options, self.cluster, self.store, self.sinks, self.shelf)
        return restorer(self.world, self.history, ground, self.machines.restore)

    def _may_release(self, staying: tuple[Member, ...], copies: int | None) -> bool:
        # Fewer servers than copies are asked for here alone.
        most = min(copies or self.options.copies, len(self.cluster.wanted))
        return self.machines.releasing(self.store.view, staying, most)

    def _dead_limit(self) -> DeadLimit:
        """What the user allows: all, once the run has stopped for it often enough."""
        percent = self.options.dead_percent
        if percent is None or self.supervisor.dead_stops >= STOPS_BEFORE_RAISED:
            return NO_LIMIT
        return DeadLimit(percent, LEAST_JUDGED)

    def _components(self) -> Components | None:
        edits = self.workload.edits
        return edits[self.supervisor.edits] if edits else None

    def _owners(
        self, copies: int, members: tuple[Member, ...], previous: tuple[tuple[str, ...], ...]
    ) -> tuple[tuple[str, ...], ...]:
        names = tuple(sorted(m.name for m in members))
        return place(self.options.key_groups, copies, names, previous)

    def _sinks(self, rng: Random) -> dict[str, Sink]:
        names = [OUT_SINK, SIDE_SINK] if self.options.side else [OUT_SINK]
        return {name: rng.choice(self.machines.sinks)(name, self.history) for name in names}

    def _tracer(self, trace: Callable[[str], None] | None) -> Callable[[object], None] | None:
        if trace is None:
            return None
        return lambda entry: trace(f"{self.world.now_s:10.4f} {brief(entry)}")


@contextmanager
def small_blocks(block_roots: int = 2) -> Iterator[None]:
    """Blocks of few roots, so that small windows use all slices."""
    before = ids.BLOCK_ROOTS
    try:
        _set_block_roots(block_roots)
        yield
    finally:
        _set_block_roots(before)


def _set_block_roots(block_roots: int) -> None:
    for module in (ids, al):
        module.BLOCK_ROOTS = block_roots  # type: ignore[attr-defined]


def _where(error: Exception) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_qualname}:{trace.tb_lineno}" if trace else "?"
