"""Who breaks things: kills and starts servers, ackers and the log, scales, starts rivals, asks.

State servers are only killed as far as the protocol promises to survive: of the members of the
last open view at most R-1 may be gone at once, or out of the driver's reach for good; with a single
copy a server comes back with its fsynced file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from millrace.protocol import events as e
from millrace.protocol.types import DeadSegment, Member, Phase, Record, Replay, View
from millrace.simulate import history as h
from millrace.simulate.options import Options
from millrace.simulate.parts.acklog import AckerProcess, AckLog
from millrace.simulate.parts.cluster import BOTH, FOR_GOOD_S, Cluster, Side, ViewStore
from millrace.simulate.parts.server import ServerFile
from millrace.simulate.parts.snapshots import Shelf
from millrace.simulate.parts.supervisor import Supervisor
from millrace.simulate.parts.workload import CALM_S, Root, Workload, root_of
from millrace.simulate.world import World

RESTART_S = 0.8

KEPT = (0.0, 0.5, 0.0, 0.9, 0.0, 0.2)
"""Which share of the ack log its server comes back with, in turn."""

SEVERAL = 0.3
"""How often all servers but as many as there are copies are to leave at once."""

EMPTY_FILE = 0.3
"""How often a file that takes the place of the only server's own holds nothing."""

ONCE_MORE_S = 20.0
"""How long a server hangs after the storm: longer than a driver waits for it."""

ALL_FROM_TASKS_S = 60.0
"""How long tasks that reach no server do not: longer than it takes to find that out of each."""

FOR_GOOD = 0.3
"""How often a server that is parted from its driver, or hangs, stays so for good."""

Letter = tuple[Root, int]
"""A dead letter, whichever object has it: its root, and how often that was replayed."""


@dataclass(frozen=True, slots=True)
class Targets:
    """What can be broken."""

    options: Options
    cluster: Cluster
    store: ViewStore
    ackers: list[AckerProcess]
    log: AckLog
    supervisor: Supervisor
    workload: Workload
    committed: Callable[[], Record | None]
    shelf: Shelf


class Nemesis:
    """Plans its next blow of each kind at random times until the storm is over."""

    def __init__(self, world: World, history: h.History, targets: Targets) -> None:
        self._world = world
        self._history = history
        self._to = targets
        self.crashes = 0
        self._requested: set[Letter] = set()
        self._stale_file = False
        self._empties = targets.options.seed % 2 == 1
        self._all_from_tasks = targets.options.seed % 4 == 1
        """Whether tasks that do not reach a server reach none at all."""
        self._asked = 0
        self._gone: int | None = None
        self._copies = targets.options.copies
        """How many copies there are of what the last open view holds."""
        history.listen(h.ViewChanged, self._viewed)

    def start(self) -> None:
        chaos = self._to.options.chaos
        for mean_s, blow in (
            (chaos.server_s, self._server),
            (chaos.acker_s, self._acker),
            (chaos.log_s, self._log),
            (chaos.rival_s, self._rival),
            (chaos.stop_s, self._stop),
            (chaos.scale_s, self._scale),
            (chaos.cut_s, self._cut),
            (chaos.power_s, self._power),
            (chaos.stale_s, self._stale),
            (chaos.clock_s, self._jump),
            (chaos.burst_s, self._burst),
            (chaos.part_s, self._part),
            (chaos.hang_s, self._hang),
            (chaos.slow_s, self._slow),
            (chaos.deaf_s, self._deafen),
            (chaos.standby_s, self._strike_standby),
            (chaos.resize_s, self._resize),
            (chaos.copies_s, self._ask_for_copies),
            (chaos.blind_s, self._blind),
            (1.0 if self._to.options.requests else 0.0, self._request),
        ):
            if mean_s:
                self._again(mean_s, blow)
        if chaos.half_seal:
            self._history.listen(h.RecordWritten, self._half_sealed)
        if self._to.options.lost_s is not None:
            self._world.after(self._to.options.lost_s, self._lose)
        if self._to.options.edit_s is not None:
            self._world.after(self._to.options.edit_s, self._to.supervisor.edit)
        if self._to.options.late:
            once_more = self._restart_unseen if self._to.options.unseen else self._hang_once_more
            self._world.after(self._to.options.storm_s + CALM_S - 1.0, once_more)

    def _again(self, mean_s: float, blow: Callable[[], None]) -> None:
        def strike() -> None:
            if self._world.stormy:
                blow()
                self._again(mean_s, blow)

        self._world.after(self._world.rng.expovariate(1 / mean_s), strike)

    def _resize(self) -> None:
        """Windows are to have another size from the next one on."""
        self._to.supervisor.resize(self._world.rng.randint(1, 2 * self._to.options.max_records))

    def _viewed(self, entry: h.ViewChanged) -> None:
        if entry.view.phase is Phase.OPEN:
            self._copies = min(map(len, entry.view.owners))

    def _ask_for_copies(self) -> None:
        """The user wants another number of copies of every object, once there are any."""
        view = self._to.store.view
        if view is None or view.phase is Phase.CREATING:
            return
        names = self._to.cluster.names
        copies = self._world.rng.randint(1, min(3, len(names)))
        if self._away_for_good() >= copies:
            return  # a view with so few copies waits for its members
        self.crashes += 1
        self._history.add(h.CopiesAsked(copies))
        self._to.supervisor.ask_for_copies(copies)

    # -- state servers

    def _server(self) -> None:
        cluster = self._to.cluster
        there = (*cluster.alive(), *cluster.leaving())
        members = [m for m in there if self._copies == 1 or self._expendable(m)]
        if not members or self._stale_file:
            return
        name = self._world.rng.choice(members).name
        self.crashes += 1
        cluster.kill(name)
        self._to.supervisor.look()
        keeps_file = self._copies == 1 or self._world.rng.random() < 0.5
        unsynced = cluster.unsynced(name)
        kept = self._world.rng.randint(0, unsynced) if unsynced else None
        delay_s = self._world.rng.expovariate(1 / RESTART_S)
        self._world.after(delay_s, self._restart, name, keeps_file, kept)

    def _restart(self, name: str, keeps_file: bool, kept: int | None) -> None:
        if name in self._to.cluster.down():  # else another's restart was sooner
            self._to.cluster.start(name, keeps_file, kept)
            self._to.supervisor.look()

    def _stale(self) -> None:
        """A copy of the only server's file, from before the view was last open, or an empty one
        takes its place for a while. The driver must not believe it (rules 17 and 24); then the
        newest file comes back."""
        cluster, view = self._to.cluster, self._to.store.view
        if self._stale_file or len(cluster.names) > 1 or self._to.options.older_s is not None:
            return
        if view is None or view.phase is not Phase.OPEN:
            return
        (name,) = cluster.names
        newest, old = cluster.file(name), cluster.old_file(name)
        if self._empties and self._world.rng.random() < EMPTY_FILE:
            old = ServerFile(None, None, ())
        elif old.tag is None or old.tag.epoch >= view.open_epoch:
            return
        if not cluster.alive():
            return
        self.crashes += 1
        self._stale_file = True
        cluster.kill(name)
        self._world.after(0.3, self._put_file, name, old)
        self._world.after(1.0 + self._world.rng.expovariate(0.5), self._put_file, name, newest)

    def _put_file(self, name: str, file: ServerFile) -> None:
        cluster = self._to.cluster
        if cluster.alive():
            cluster.kill(name)
            self._stale_file = False
        cluster.start_on(name, file)
        self._to.supervisor.look()

    # -- all copies

    def _lose(self) -> None:
        """All copies of something go together: of all that there is, or of what only as many
        servers hold as there are copies. Later it may happen again."""
        cluster, view, rng = self._to.cluster, self._to.store.view, self._world.rng
        if not self._world.stormy:
            return
        if view is None or self._lost or not self._to.shelf.of(view.timeline):
            self._world.after(0.3, self._lose)
            return
        names, copies = cluster.names, self._copies
        if len(names) > copies and rng.random() < 0.5:
            names = sorted(rng.sample(names, rng.randint(copies, len(names) - 1)))
        self.crashes += 1
        self._gone = view.timeline
        cluster.wanted |= {member.name for member in view.last_open}
        cluster.lose(names)
        self._history.add(h.StateGone(tuple(names)))
        for name in cluster.down():
            self._world.after(rng.expovariate(1 / RESTART_S), self._restart, name, True, None)
        self._to.supervisor.look()
        if rng.random() < 0.5:
            self._world.after(rng.uniform(2.0, 8.0), self._lose)

    @property
    def _lost(self) -> bool:
        """Whether what is lost is not restored yet; it may turn out that it was not needed."""
        view = self._to.store.view
        return self._gone is not None and (
            self._to.supervisor.restoring is not None
            or view is None
            or not set(view.last_open) <= set(self._to.cluster.alive())
        )

    def _expendable(self, member: Member) -> bool:
        """Whether R-1 losses among the last open members are not used up yet."""
        view = self._to.store.view
        if view is None:
            return False
        last_open = view.last_open
        if member in view.target and not self._spare(member, view):
            return False
        # Who has come back on its file counts only where nobody is left who never went.
        holding = {one.name for one in last_open if self._holds(one, view)}
        if holding and member not in last_open:
            return True
        if not holding:
            lives = (life for one in last_open for life in self._lives(one))
            holding = {life.name for life in lives if self._holds(life, view)}
        if member.name not in holding:
            return True
        return self._is_borne(len(last_open) - len(holding), len(last_open))

    def _spare(self, member: Member, view: View) -> bool:
        """Whether R-1 losses among those that are to hold everything are not used up yet: a driver
        may open the view with what they have acknowledged before it hears that they are gone."""
        gone = sum(1 for one in view.target if one != member and self._to.cluster.lost(one))
        return self._is_borne(gone, len(view.target))

    def _is_borne(self, gone: int, members: int) -> bool:
        """Whether one more may go of so many members."""
        return gone + 1 <= min(self._copies, members) - 1

    def _lives(self, one: Member) -> set[Member]:
        """A member and who has come back with its name."""
        return {one, *(m for m in self._to.cluster.alive() if m.name == one.name)}

    def _holds(self, member: Member, view: View) -> bool:
        """Whether a driver can have from it what is committed."""
        if self._to.cluster.lost(member):
            return False
        record = self._to.cluster.held(member.name)
        back = record is not None and record.tag.epoch >= view.open_epoch
        named = any(one.name == member.name for one in view.last_open)
        return member in view.last_open or (named and back)

    def _scale(self) -> None:
        """The user wants fewer or more state servers; those too much leave, and then end."""
        cluster, copies = self._to.cluster, self._copies
        if copies == 1 or len(cluster.names) == 1 or self._recovering():
            return
        name = self._world.rng.choice(cluster.names)
        if self._world.rng.random() < SEVERAL:
            wanted = set(self._world.rng.sample(cluster.names, copies))
        elif name in cluster.wanted and len(cluster.wanted) > copies:
            wanted = cluster.wanted - {name}
        else:
            wanted = cluster.wanted | {name}
        if self._one_is_reached(wanted):
            cluster.wanted.clear()
            cluster.wanted.update(wanted)
            self._to.supervisor.look()

    def _away_for_good(self) -> int:
        """How many servers no driver or no task ever reaches again."""
        cluster = self._to.cluster
        return sum(map(cluster.away_for_good, cluster.names))

    def _one_is_reached(self, wanted: Iterable[str]) -> bool:
        """Whether a driver can go on with these in the end: nobody waits for servers of which none
        is ever reached again."""
        return any(not self._to.cluster.away_for_good(name) for name in wanted)

    def _power(self) -> None:
        """The machine goes down: all servers at once, which come back one by one on their files.

        Not while one of the last open members is dead or about to leave: that would be a loss of
        all copies."""
        cluster, view = self._to.cluster, self._to.store.view
        if view is None or not all(cluster.is_alive(member) for member in view.last_open):
            return
        if not {member.name for member in view.last_open} <= cluster.wanted:
            return
        self.crashes += 1
        for member in cluster.alive():
            cluster.kill(member.name)
        for name in cluster.down():
            delay_s = self._world.rng.expovariate(1 / RESTART_S)
            self._world.after(delay_s, self._restart, name, True, None)
        self._to.supervisor.look()

    def _recovering(self) -> bool:
        """Whether servers that have come back may be needed for what is on their files: none is
        taken away until a view is open without their former lives."""
        view = self._to.store.view
        return view is None or any(self._to.cluster.lost(one) for one in view.last_open)

    def _cut(self) -> None:
        cluster, rng = self._to.cluster, self._world.rng
        cluster.cut(rng.choice(cluster.names), rng.expovariate(1.0))

    def _burst(self) -> None:
        """As many servers as may be lost go at once; each comes back on its file as it was, on one
        from when its life began, or on none."""
        cluster, rng, before = self._to.cluster, self._world.rng, self.crashes
        while self._copies > 1:
            members = [m for m in cluster.alive() if self._expendable(m)]
            if not members:
                break
            name = rng.choice(members).name
            self.crashes += 1
            old = cluster.old_file(name)
            cluster.kill(name)
            delay_s = rng.expovariate(1 / RESTART_S)
            if rng.random() < 0.3:
                self._world.after(delay_s, self._restart_on, name, old, cluster.losses)
            else:
                self._world.after(delay_s, self._restart, name, rng.random() < 0.5, None)
        if self.crashes > before:
            self._to.supervisor.look()

    def _restart_on(self, name: str, file: ServerFile, losses: int) -> None:
        """On an older file, unless all files are lost since: that one alone would be believed."""
        cluster = self._to.cluster
        if name in cluster.down() and losses == cluster.losses:
            cluster.start_on(name, file)
            self._to.supervisor.look()
        else:
            self._restart(name, True, None)

    def _half_sealed(self, entry: h.RecordWritten) -> None:
        """The first server that takes a seal dies with the driver, before any other has it. It
        comes back on its file, with a window that never was."""
        record, view = self._to.committed(), self._to.store.view
        if record is None or view is None or entry.record.sealed <= record.sealed:
            return
        chance = self._world.chance(self._to.options.chaos.half_seal)
        if not chance or self._copies == 1 or not self._expendable(entry.member):
            return
        for other in view.target:
            if other != entry.member:
                self._to.cluster.cut(other.name, 0.3)
        self._world.after(0.0, self._break_off, entry.member)

    def _break_off(self, member: Member) -> None:
        if not self._to.cluster.is_alive(member) or not self._expendable(member):
            return
        self.crashes += 1
        self._to.cluster.kill(member.name)
        self._to.supervisor.drivers[-1].kill()
        self._to.supervisor.look()
        self._world.after(self._world.rng.expovariate(1.0), self._restart, member.name, True, None)

    def _part(self) -> None:
        """The network parts a server from the driver, from the tasks or from both, or all of them
        from the tasks."""
        cluster, rng = self._to.cluster, self._world.rng
        sides = rng.choice(((Side.DRIVER,), (Side.DRIVER,), BOTH, (Side.TASKS,)))
        if sides == (Side.TASKS,) and self._all_from_tasks:
            seconds = ALL_FROM_TASKS_S
            self._history.add(h.Note(f"tasks reach no state server for {seconds:.1f} s"))
            for name in cluster.names:
                cluster.cut(name, seconds, sides)
            return
        name = rng.choice(cluster.names)
        seconds = self._how_long(name)
        self._history.add(h.Note(f"{name} is parted from {sides} for {seconds:.1f} s"))
        cluster.cut(name, seconds, sides)

    def _hang(self) -> None:
        """A server's process is stopped, as by SIGSTOP."""
        name = self._world.rng.choice(self._to.cluster.names)
        seconds = self._how_long(name)
        self._history.add(h.Note(f"{name} hangs for {seconds:.1f} s"))
        self._to.cluster.stop(name, seconds)

    def _hang_once_more(self) -> None:
        """With nothing else in the way it is left out, and let in again."""
        members = [member for member in self._to.cluster.alive() if self._expendable(member)]
        if members and self._copies > 1:
            name = self._world.rng.choice(members).name
            self._history.add(h.Note(f"{name} hangs for {ONCE_MORE_S:.1f} s"))
            self._to.cluster.stop(name, ONCE_MORE_S)

    def _blind(self) -> None:
        """The operator is away, and perhaps a server is started anew before it is back."""
        self._to.supervisor.blind(self._till_calm(12.0))
        if self._world.rng.random() < 0.7:
            self._server()

    def _restart_unseen(self) -> None:
        """With nothing else in the way its former life is left out, by the next driver too."""
        cluster, view = self._to.cluster, self._to.store.view
        if view is None or self._copies == 1 or self._lost:
            return
        members = [member for member in view.target if self._expendable(member)]
        if not members or not self._to.supervisor.has_proposed(cluster.alive()):
            return
        name = self._world.rng.choice(members).name
        self.crashes += 1
        self._to.supervisor.blind(FOR_GOOD_S)
        cluster.kill(name)
        cluster.start(name, keeps_file=self._world.rng.random() < 0.5, kept=None)

    def _slow(self) -> None:
        rng, names = self._world.rng, self._to.cluster.names
        slow_s = rng.choice((0.1, 0.4, 1.5))
        self._to.cluster.slow_down(rng.choice(names), self._till_calm(4.0), slow_s)

    def _deafen(self) -> None:
        """A server takes no objects, mostly one that is no member yet."""
        cluster, view, rng = self._to.cluster, self._to.store.view, self._world.rng
        members = {m.name for m in view.last_open} if view is not None else set()
        others = [name for name in cluster.names if name not in members]
        name = rng.choice(others if others and rng.random() < 0.8 else cluster.names)
        seconds = self._till_calm(40.0)
        self._history.add(h.Note(f"{name} takes no objects for {seconds:.1f} s"))
        cluster.deafen(name, seconds)

    def _how_long(self, name: str) -> float:
        """For good only where that is one of the losses that are survived."""
        last_open = self._to.store.view.last_open if self._to.store.view is not None else ()
        lives = [m for m in (*self._to.cluster.alive(), *last_open) if m.name == name]
        # One that is down may have the only file that is left.
        up = name not in self._to.cluster.down()
        copies = min(self._copies, self._to.supervisor.copies or self._copies)
        bearable = up and self._away_for_good() + 1 < copies
        bearable = bearable and all(map(self._expendable, lives))
        bearable = bearable and self._one_is_reached(self._to.cluster.wanted - {name})
        if lives and bearable and not self._lost and self._world.rng.random() < FOR_GOOD:
            return FOR_GOOD_S
        return self._till_calm(8.0)

    def _till_calm(self, mean_s: float) -> float:
        seconds = self._world.rng.expovariate(1 / mean_s)
        return min(seconds, self._world.storm_ends_s - self._world.now_s)

    # -- others

    def _jump(self) -> None:
        """Somebody sets the wall clock, an hour forwards or backwards."""
        jump_s = self._world.rng.choice((-3600.0, 3600.0))
        self._world.jumped_s += jump_s
        self._history.add(h.Note(f"the wall clock jumps by {jump_s:.0f} s"))

    def _acker(self) -> None:
        alive = [one for one in self._to.ackers if one.alive]
        if not alive:
            return
        victim = self._world.rng.choice(alive)
        self.crashes += 1
        victim.kill()
        self._to.supervisor.ackers_changed()
        self._world.after(self._world.rng.expovariate(1 / RESTART_S), self._revive, victim)

    def _revive(self, acker: AckerProcess) -> None:
        acker.start()
        self._to.supervisor.ackers_changed()

    def _log(self) -> None:
        self.crashes += 1
        self._to.log.lose(KEPT[self.crashes % len(KEPT)])

    def _rival(self) -> None:
        """Somebody starts a second driver although the first is well."""
        self._to.supervisor.start_driver()

    def _strike_standby(self) -> None:
        """The driver that stands by dies, or hangs and wakes up late."""
        driver = self._to.supervisor.standby
        if driver is None or not driver.alive or driver.frozen:
            return
        self.crashes += 1
        if self._world.rng.random() < 0.5:
            driver.kill()
        else:
            driver.freeze(self._world.rng.expovariate(1 / 5.0))

    def _stop(self) -> None:
        self._to.supervisor.tell(e.StopAsked())

    def _request(self) -> None:
        """The user takes dead letters, perhaps twice: to be replayed, maybe mended, or dropped."""
        if self._history.muted or self._to.supervisor.drained:
            return
        record = self._to.committed()
        found = [
            (one, indexes)
            for one in (record.dead if record is not None else ())
            if (indexes := tuple(self._left(one)))
        ]
        if not found:
            return
        one, indexes = self._world.rng.choice(found)
        taken = indexes[: self._world.rng.randint(1, (len(indexes) + 1) // 2)]
        held = self._history.letters(one.name)
        letters = tuple(held[index] for index in taken)
        self._requested |= set(map(_letter, letters))
        replays: tuple[Replay, ...] = ()
        if self._world.rng.random() < 0.7:
            for letter in letters:
                self._to.workload.mend(root_of(letter), self._world.rng)
            replays = tuple(
                replace(letter, number=letter.number + 1, delay_s=0.0) for letter in letters
            )
        request = e.DeadLetterRequest(self._token(), one.name, taken, replays)
        self._history.add(h.LettersTaken(request, letters))
        self._insist(request, set(map(_letter, letters)))
        if self._world.rng.random() < 0.8:
            again = replace(request, token=self._token())
            delay_s = self._world.rng.expovariate(1.0)
            self._world.after(delay_s, self._to.supervisor.tell, again)

    def _left(self, one: DeadSegment) -> list[int]:
        """Letters of a segment that nobody has asked for yet."""
        return [
            index
            for index, letter in enumerate(self._history.letters(one.name))
            if index not in one.removed and _letter(letter) not in self._requested
        ]

    def _token(self) -> str:
        self._asked += 1
        return f"request {self._asked}"

    def _insist(self, request: e.DeadLetterRequest, wanted: set[Letter]) -> None:
        """A request is repeated until the committed record shows it, whichever object has the
        letters by then."""
        record = self._to.committed()
        held = {
            _letter(letter)
            for one in (record.dead if record is not None else ())
            for index, letter in enumerate(self._history.letters(one.name))
            if index not in one.removed
        }
        if wanted & held:
            self._to.supervisor.tell(request)
            self._world.after(0.7, self._insist, request, wanted)


def _letter(letter: Replay) -> Letter:
    return root_of(letter), letter.number
