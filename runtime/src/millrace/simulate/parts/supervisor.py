"""The simulated operator: starts drivers, says which state servers and ackers it sees alive."""

from __future__ import annotations

from collections.abc import Callable, Collection

from millrace.protocol import events as e
from millrace.protocol.types import Member, Phase, View
from millrace.simulate.parts.acklog import AckerProcess
from millrace.simulate.parts.cluster import Cluster
from millrace.simulate.parts.driver import DriverProcess
from millrace.simulate.parts.restoring import Restore, Restorer
from millrace.simulate.world import World

PROPOSE_S = 1.5

READY_S = 2.0
"""Mean time until a driver stands by."""

PATIENCE_S = 1.5
"""How long one that is told to take over may be silent until another driver is started."""

Parting = Callable[[str], bool]
"""Whether a server that is to leave may be ended."""

Releasing = Callable[[tuple[Member, ...], int | None], bool]
"""Whether those that are to leave may, beside these that stay, with so many copies of everything,
None as from the beginning."""

MakeDriver = Callable[[int, Callable[[DriverProcess, str], None]], DriverProcess]


def is_without(view: View | None, name: str) -> bool:
    """Whether a view is open, and no life of a server has a part in it."""
    if view is None or view.phase is not Phase.OPEN:
        return False
    return name not in {member.name for member in (*view.target, *view.last_open)}


def may_release(view: View | None, staying: tuple[Member, ...], copies: int) -> bool:
    """Whether a view has as many members of those that stay as there are to be copies."""
    return view is None or view.can_spare_others(staying, copies)


class Supervisor:
    """Keeps a driver running until one says that the input is drained."""

    def __init__(
        self,
        world: World,
        cluster: Cluster,
        ackers: list[AckerProcess],
        make: MakeDriver,
        standby: bool = False,
        restorer: Restorer | None = None,
        parting: Parting | None = None,
        releasing: Releasing | None = None,
    ) -> None:
        self._world = world
        self._cluster = cluster
        self._ackers = ackers
        self._make = make
        self.drivers: list[DriverProcess] = []
        self.standby: DriverProcess | None = None
        self._with_standby = standby
        self._lives = 0
        self.drained = False
        self.dead_stops = 0
        self.failures: list[str] = []
        self.crashes = 0
        self._starting = False
        self._restorer = restorer
        self._parting = parting
        self._releasing = releasing
        self.restoring: Restore | None = None
        self.watcher: Callable[[DriverProcess, str], None] | None = None
        """Who starts drivers instead, for a while."""
        self._blind_until_s = 0.0
        self._seen: e.MembersSeen | None = None
        """What was proposed last, which stays in force while nobody looks."""
        self.edits = 0
        """How often the topology was edited: what drivers are made for from then on."""
        self.copies: int | None = None
        """How many copies an edit asks for: what drivers are made for from then on."""

    def start(self) -> None:
        self.start_driver()
        self._propose_again()
        if self._with_standby:
            self._stand_by_later()

    def alive_ackers(self) -> tuple[str, ...]:
        return tuple(one.name for one in self._ackers if one.alive)

    # -- drivers

    def start_driver(self) -> None:
        self._starting = False
        if self.drained or self.restoring is not None:
            return
        driver = self._new()
        self.drivers.append(driver)
        driver.start()
        self._propose(driver)

    def _new(self) -> DriverProcess:
        self._lives += 1
        return self._make(self._lives, self._gone)

    def start_anew(self) -> None:
        """Every driver is ended; the next one finds what they have left."""
        for driver in self._running():
            driver.kill()

    def edit(self) -> None:
        """The user edits the file and runs it: a driver for it starts beside the old one."""
        self.edits += 1
        self._start_for_edit()

    def ask_for_copies(self, copies: int) -> None:
        """The same with an edit of the number of copies."""
        self.copies = copies
        self._start_for_edit()

    def _start_for_edit(self) -> None:
        if self.standby is not None:
            self.standby.kill()
        self.start_driver()

    # -- restoring

    def _restore(self) -> None:
        """All copies of some state are gone. Drivers are ended before windows are taken back; one
        that lives on has an execution below the restore's, and no sink takes anything of it."""
        assert self._restorer is not None
        self.restoring = self._restorer(self._restored)
        for driver in [one for one in (*self.drivers, self.standby) if one is not None]:
            stays = self.restoring.fences and not driver.claims and self._world.rng.random() < 0.5
            if driver.alive and not stays:
                driver.kill()
        self.restoring.begin()

    def _restored(self) -> None:
        assert self.restoring is not None
        self.crashes += self.restoring.crashes
        self.restoring = None
        self.start_driver()

    # -- standing by

    def _stand_by_later(self) -> None:
        self._world.after(self._world.rng.expovariate(1 / READY_S), self._stand_by)

    def _stand_by(self) -> None:
        if self.restoring is not None:
            self._stand_by_later()
        elif not self.drained and self.standby is None:
            self.standby = self._new()
            self.standby.stand_by()

    def _promote(self) -> None:
        """The one that stands by takes over, if it is still there."""
        driver, self.standby = self.standby, None
        if driver is None or self.drained or self.restoring is not None:
            self.start_driver()
            return
        self._starting = False
        self.drivers.append(driver)
        self._world.send(driver.take_over)
        self._world.after(PATIENCE_S, self._has_taken_over, driver)
        self._propose_later(driver)
        self._stand_by_later()

    def _has_taken_over(self, driver: DriverProcess) -> None:
        """It may hang, or never have heard of it: another driver is started. It is ended, or may
        still take over, whenever that is, since nobody can know that it is dead."""
        if driver.started or not driver.alive:
            return
        if self.drivers[-1] is driver:
            self.start_driver()
        if self.drained or self._world.rng.random() < 0.3:
            driver.kill()
        else:
            self._world.send(driver.take_over)
            self._world.after(PATIENCE_S, self._has_taken_over, driver)

    def _propose_later(self, driver: DriverProcess) -> None:
        self._world.after(0.2, self._propose, driver)

    def tell(self, event: e.Event) -> None:
        """Say something to every driver there is."""
        for driver in self._running():
            self._world.send(driver.post, event)

    def resize(self, max_records: int) -> None:
        """Every driver that can is to have windows of this size from now on."""
        for driver in self._running():
            if not driver.frozen:
                driver.machine.resize(max_records)

    def ackers_changed(self) -> None:
        for driver in self._running():
            if not driver.frozen:
                driver.acker_change()

    def _running(self) -> list[DriverProcess]:
        return [driver for driver in self.drivers if driver.alive]

    def _gone(self, driver: DriverProcess, how: str) -> None:
        if self.watcher is not None:
            self._starting = False
            self.watcher(driver, how)
            return
        if driver is self.standby:
            if how != "frozen":  # which nobody sees
                self.standby = None
                self._stand_by_later()
            return
        if self.restoring is not None:
            return
        if how == "lost" and self._restorer is not None and driver is self.drivers[-1]:
            self._restore()
            return
        if how == "drained" and driver is self.drivers[-1]:  # else another edit has begun one
            self.drained = True
            if self.standby is not None:
                self.standby.kill()
            return
        if how in ("killed", "frozen"):
            self.crashes += 1
        if how == "deadLetters":
            self.dead_stops += 1
        if how == "failed":
            self.failures.append(str(driver.machine.stopped))
        latest = self.drivers[-1]
        if (latest.alive and not latest.frozen) or self._starting:
            return
        self._starting = True
        if self.standby is not None:
            self._world.after(0.1, self._promote)
        else:
            self._world.after(0.1 + self._world.rng.expovariate(1 / 0.5), self.start_driver)

    # -- proposals

    def look(self) -> None:
        """Something about the state servers has changed; it shows after a moment."""
        self._world.after(0.2 + self._world.rng.random() * 0.3, self._propose_all)

    def blind(self, seconds: float) -> None:
        """Propose nothing new for so long; drivers that start meanwhile find what there is."""
        self._blind_until_s = max(self._blind_until_s, self._world.now_s + seconds)

    def has_proposed(self, members: Collection[Member]) -> bool:
        """Whether these and no others were proposed last."""
        return self._seen is not None and set(self._seen.members) == set(members)

    def _is_blind(self) -> bool:
        return self._seen is not None and self._world.now_s < self._blind_until_s

    def _propose_all(self) -> None:
        for driver in self._running():
            self._propose(driver)

    def _propose(self, driver: DriverProcess) -> None:
        if not self._is_blind():
            self._seen = self._seen_now()
        if self._seen is not None:
            self._world.send(driver.post, self._seen)

    def _seen_now(self) -> e.MembersSeen | None:
        members, leaving = self._cluster.alive(), self._cluster.leaving()
        if not self._may_release():
            members, leaving = (*members, *leaving), ()
        return e.MembersSeen(members, leaving=leaving) if members else None

    def _may_release(self) -> bool:
        """Whether servers that are to leave may."""
        return self._releasing is None or self._releasing(self._cluster.alive(), self.copies)

    def _part(self) -> None:
        """End those that were to leave, once that may be. Whoever asks for one that comes instead
        finds it empty, as a user does who scales down and up again."""
        if self._parting is None or self.restoring is not None or self._is_blind():
            return
        if not self._may_release():
            return
        for member in self._cluster.leaving():
            if self._parting(member.name):
                self._cluster.part_with(member.name)

    def _propose_again(self) -> None:
        if not self.drained:
            self._part()
            self._propose_all()
            self._world.after(PROPOSE_S, self._propose_again)
