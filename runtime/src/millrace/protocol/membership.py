"""From the start of a driver to an open view whose record is committed, and view changes.

::

    Idle -> Claiming -> Stamping -> Copying -> WritingBack -> (Opening ->) Recovered
                ^          |                                       |
                |          v member changed                        | member changed
                |        Moving (CAS) <----------------------------+
                +-- CAS lost: read the view again; a higher execution there means fenced

What recovery does if the driver dies right after a step:

- claim: the next driver claims the next number; this one's stamp is never valid again;
- stamp: nothing was written; the next driver stamps higher;
- CAS to ``moving``: the next driver finds ``moving`` with the original ``last_open`` and goes on
  from there, perhaps with another ``target`` (rules 11 and 12);
- copy, write-back: in an open view the copied record has the highest tag or it does not, either
  way the next driver picks one version and writes it everywhere (rule 9); in a moving view only
  members of ``last_open`` are read again, so a half-written target is never believed (rule 14);
- CAS to ``open``: done; if the answer was lost the next driver sees the open view.

State servers that are further than the driver tell of another one that has taken over: a look at
the view from then on shows it (rule 8). Where it does not the view is an older copy.

Which members the view should have is the operator's proposal without those servers that do not
answer this driver (``protocol.suspicion``).

A view in phase ``creating`` is the topology's birth: until its CAS to ``open`` succeeds nothing
was ever acted on, so a next driver simply writes the first record again (rule 17). Where a server
has more than a first record another view was lost, and the driver ends. In a later timeline such a
view is a restore's, whose record nobody else knows: a driver that finds it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass, replace
from enum import Enum

from millrace.ids import Epoch, Execution, Seq, Timeline
from millrace.protocol import events as e
from millrace.protocol.learning import Lesson
from millrace.protocol.record import first_record
from millrace.protocol.server import Reason
from millrace.protocol.suspicion import PATIENCE, TRIES, Suspicion
from millrace.protocol.types import Member, Phase, Record, Stamp, Tag, View

Owners = Callable[[tuple[Member, ...], tuple[tuple[str, ...], ...]], tuple[tuple[str, ...], ...]]
"""Places key groups on members, moving little from the previous placement."""

_EMPTY = (
    "a state server that should hold the record of this topology holds none: its append-only "
    "file was lost or replaced; bring the file back, or start over with --fresh"
)
_ALL_GONE = (
    "all copies are gone: none of the state servers that held the state of this topology ({names}) "
    "has its record any more; bring back the append-only file of one of them, or start over with "
    "--fresh"
)
_STALE = (
    "the restarted state server holds an older record than was last committed: its append-only "
    "file is out of date; bring the newest file back, or start over with --fresh"
)

_CUT = (
    "those that answer hold an older record than was last committed, and {names} may have the "
    "newest; start it, or bring the newest append-only file back"
)

_NO_VIEW = (
    "the view of this topology is gone, and state servers hold its window {window}: bring the "
    "newest view back, or start over with --fresh"
)
_OLDER = (
    "the view of this topology is older than what the state servers have: it was put back from an "
    "older copy; bring the newest view back, or start over with --fresh"
)
_UNFINISHED = (
    "a restore of this topology was begun and is not done, so that there is no state to go on "
    "from; the next driver, or whoever began it, does it again"
)

MAX_MISSING = 5
"""How often in a row the view must be missing to be gone."""

SINCE_CLAIM = 2
"""Token of a look at the view behind the claim: it shows this execution or a higher one."""

SINCE_FURTHER = 3
"""Token of a look at the view since a state server was found to be further than this driver: it
shows the execution that has taken over (rule 8)."""


class Standing(str, Enum):
    IDLE = "idle"
    CLAIMING = "claiming"
    STAMPING = "stamping"
    MOVING = "moving"
    COPYING = "copying"
    WRITING = "writing"
    OPENING = "opening"
    RECOVERED = "recovered"


_ON_THE_WAY = (Standing.STAMPING, Standing.COPYING, Standing.WRITING)


@dataclass(slots=True)
class RecordWrite:
    """One record on its way to every member; committed when all have acknowledged (rule 3)."""

    stamp: Stamp
    record: Record
    waiting: dict[str, Member]

    @classmethod
    def to(cls, members: tuple[Member, ...], stamp: Stamp, record: Record) -> RecordWrite:
        return cls(stamp, record, {m.name: m for m in members})

    def send(self) -> list[e.Action]:
        return [e.SendRecord(m, self.stamp, self.record) for m in self.waiting.values()]

    def acknowledge(self, ack: e.RecordAck) -> bool:
        """Take an acknowledgement of this very round; True when it was the last one."""
        if (ack.stamp, ack.seq) != (self.stamp, self.record.tag.seq):
            return False
        if self.waiting.get(ack.member.name) == ack.member:
            del self.waiting[ack.member.name]
        return not self.waiting


class Membership:
    """The machine of this module; the driver machine feeds it and asks ``standing``.

    ``copies`` is the number of copies that an object is to have (R), which may be another one than
    it has in the view that there is; ``owners`` places key groups; with ``learners`` whoever is to
    hold objects learns them before the view moves, unless a member is gone; with ``restores`` an
    object that is lost for good ends the driver, else it is waited for.
    """

    def __init__(
        self,
        uid: str,
        copies: int,
        key_groups: int,
        owners: Owners,
        *,
        learners: bool = False,
        restores: bool = False,
    ) -> None:
        self.uid = uid
        self.copies = copies
        self.owners = owners
        self.standing = Standing.IDLE
        self.view: View | None = None
        self.version = 0
        self.execution = Execution(0)
        self.record: Record | None = None
        self.suspicion = Suspicion()
        self._learners = learners
        self._restores = restores
        self._lesson: Lesson | None = None
        self._key_groups = key_groups
        self._proposed: tuple[Member, ...] = ()
        self._leaving: tuple[Member, ...] = ()
        self._number = 0
        self._seq = Seq(0)
        self._answers: dict[Member, Record | None] = {}
        self._lost: set[Member] = set()
        self._write: RecordWrite | None = None
        self._cas: View | None = None
        self._missing = 0
        self._told: Stamp | None = None
        self._lacking: Stamp | None = None
        self._committed: Tag | None = None

    # -- what the driver machine asks

    @property
    def stamp(self) -> Stamp:
        assert self.view is not None
        return Stamp(self.view.epoch, self.execution)

    def committed(self, tag: Tag) -> None:
        """A record of this tag is committed in an open view: whatever is recovered from later in
        this life is that one or a newer one."""
        self._committed = tag

    def next_tag(self) -> Tag:
        """The tag of the next record write of this driver life (rule 2)."""
        assert self.view is not None
        self._seq = Seq(self._seq + 1)
        return Tag(self.view.timeline, self.execution, self.view.epoch, self._seq)

    @property
    def held(self) -> int:
        """How many copies there are of each object of the last open view: as many servers less one
        may be lost. Where an edit asks for more there are no more until the view has moved."""
        view = self.view
        assert view is not None
        if view.phase is Phase.OPEN:
            return view.owners_each
        return view.copies or min(self.copies, len(view.last_open))

    def wanted(self) -> tuple[Member, ...]:
        """The members that the view should have: those proposed that can be relied on."""
        relied = self._relied()
        staying = tuple(m for m in relied if m in self._proposed)
        if self._too_few(staying):
            # Who is to leave holds a copy that one which is left out should have had.
            return relied
        # Nobody leaves as long as there is none to leave anything to.
        return staying or relied

    def _relied(self) -> tuple[Member, ...]:
        """Those, and who is to leave and can be relied on until then."""
        if self.view is None:
            return self._proposed
        if self.view.phase is Phase.CREATING:
            # Its view was never open: nothing can be lost.
            return self.suspicion.choose(self._proposed, (), 1)
        at_stake = [
            m
            for m in self.view.last_open
            if not (self._answers_the_driver(m) or self._copied_from(m))
        ]
        return self.suspicion.choose((*self._proposed, *self._leavers()), at_stake, self.held)

    def _answers_the_driver(self, member: Member) -> bool:
        """Whether it is left out for others' sake: the driver can copy what it holds."""
        return member in self._proposed and self.suspicion.given_up(member)

    def _copied_from(self, member: Member) -> bool:
        """Whether what a last open member holds is at hand even if it is no member any more: it
        has answered, or has come back on a file that holds as much."""
        if self.standing not in _ON_THE_WAY:
            return False
        if member in self._answers:
            return not self.suspicion.silent(member)
        back = [m for m in self._returned() if m.name == member.name]
        return any(self._answers[m] is not None and self._recent(self._answers[m]) for m in back)

    def followed(self) -> int | None:
        """Number of the proposal from which, or from a later one, every further change of the view
        will be made; None while an earlier one may still be carried out."""
        return self._number if self.standing is Standing.RECOVERED else None

    def view_changed(self) -> bool:
        """Whether the view should have other members, or more or fewer owners, than it has."""
        if self.view is None or not self._proposed:
            return False
        return set(self.wanted()) != set(self.view.target) or self._copies_changed()

    def _copies_changed(self) -> bool:
        assert self.view is not None
        return self.view.owners_each != min(self.copies, len(self.view.target))

    def member_gone(self) -> bool:
        """Whether a member of the view is neither among those that it should have nor one that is
        to leave and still answers."""
        return (
            self.view_changed()
            and self.view is not None
            and not set(self.view.target) <= set(self._relied())
        )

    @property
    def learning(self) -> bool:
        """Whether the view is about to change, and some learn before that; not while one of them
        has no room, which nobody knows the end of."""
        lesson = self._lesson
        return lesson is not None and not lesson.full and self.view_changed()

    def _leavers(self) -> list[Member]:
        """Members that are to leave, once others have learned what they hold."""
        if self.view is None or not self._learners:
            return []
        members = self.view.target
        if self._too_few(self.suspicion.trusted(self._proposed)):
            # A view that was to go on without them cannot.
            members = tuple(dict.fromkeys((*members, *self.view.last_open)))
        there = [m for m in members if m in self._leaving and m not in self._proposed]
        return [m for m in there if not self.suspicion.silent(m)]

    def _too_few(self, staying: Sized) -> bool:
        """Whether there would be fewer copies without those that are to leave: so few of others
        can be relied on. Of fewer proposed than there are to be copies no more are asked for: who
        proposed them has seen to it that the copies are there (``View.can_spare_others``)."""
        return len(staying) < min(self.copies, len(self._proposed))

    def _must_change(self) -> bool:
        """Whether a view that is not open yet is to be another one. Whoever only joins or leaves
        learns, or is learned from, once it is; a view that moves takes those along who come, since
        they may hold what it lacks."""
        assert self.view is not None
        if not self._learners or self.view.phase is Phase.CREATING:
            return self.view_changed()
        if self.view.phase is Phase.OPEN:
            return self.member_gone()
        return bool(self._proposed) and set(self._relied()) != set(self.view.target)

    def prepared(self) -> bool:
        """Whether those that are to hold what others hold now have learned it, if they can."""
        assert self.view is not None
        joined = set(self.wanted()) <= set(self.view.target)
        if not self._learners or (joined and not self._leavers() and not self._copies_changed()):
            return True
        return self._learned()

    def _learned(self) -> bool:
        lesson = self._lesson
        return lesson is not None and lesson.learned and lesson.planned.target == self.wanted()

    def teach(self, record: Record) -> list[e.Action]:
        """Let those that are to join, and those that are to have what others leave behind, learn
        what ``record`` names, the last committed one."""
        assert self.view is not None
        wanted, lesson = self.wanted(), self._lesson
        sources = tuple(m for m in self.view.target if not self.suspicion.silent(m))
        if lesson is None or lesson.planned.target != wanted:
            owners = self.owners(wanted, self.view.owners)
            planned = replace(self.view, target=wanted, owners=owners)
            learners = frozenset(wanted) - frozenset(self.view.target)
            lesson = self._lesson = Lesson(planned, learners)
            return lesson.ask() or lesson.go_on(record, sources)
        return lesson.go_on(record, sources)

    # -- events

    def start(self) -> list[e.Action]:
        self.standing = Standing.CLAIMING
        return [e.ReadView()]

    def propose(
        self, members: tuple[Member, ...], number: int = 0, leaving: tuple[Member, ...] = ()
    ) -> list[e.Action]:
        self._proposed, self._number, self._leaving = members, number, leaving
        if self.standing is Standing.CLAIMING and self._cas is None:
            return [e.ReadView()]
        return self._move_if_changed() or []

    def _move_if_changed(self) -> list[e.Action] | None:
        """On the way to an open view other members make another way; None if they are the same."""
        return self.move() if self.standing in _ON_THE_WAY and self._must_change() else None

    def view_read(self, event: e.ViewRead) -> list[e.Action]:
        view = event.view
        if self.standing is Standing.CLAIMING:
            self.version = event.version
            return self._create() if view is None else self._claim(view)
        if view is None:
            return self._view_gone()
        self._missing = 0
        if view.execution > self.execution:
            return self._fenced(view.execution)
        put_back = event.token == SINCE_CLAIM and view.execution < self.execution
        if put_back or event.token == SINCE_FURTHER:
            return [e.Stop(e.StopKind.BEHIND, _OLDER)]
        if view.execution < self.execution or self.standing not in (
            Standing.MOVING,
            Standing.OPENING,
        ):
            return []
        self.version = event.version
        if view == self._cas:
            return self._installed(view)
        assert self._cas is not None
        return [e.CasView(self.version, self._cas)]

    def _view_gone(self) -> list[e.Action]:
        """An answer from before the view's creation may come late; several are the truth."""
        self._missing += 1
        if self._missing < MAX_MISSING:
            return [e.ReadView()]
        return [e.Stop(e.StopKind.FAILED, "the view document is gone; restore it or start afresh")]

    def cas_done(self, event: e.CasDone) -> list[e.Action]:
        if event.view != self._cas:
            return []
        self.version = event.version
        return self._installed(event.view)

    def cas_lost(self, event: e.CasLost) -> list[e.Action]:
        """Somebody else changed the view, or the answer was lost: only the view itself tells."""
        if event.view != self._cas:
            return []
        if self.standing is Standing.CLAIMING:
            self._cas = None
            return [e.ReadView()]
        return [e.ReadView(SINCE_CLAIM)]

    def stamped(self, event: e.Stamped) -> list[e.Action]:
        if self._lesson is not None:
            self._lesson.heard(event)
        if self.view is None or event.stamp != self.stamp:
            return []
        if self.standing is Standing.COPYING and event.member in self._unheard():
            # It may hold what the copy lacks. Record and sources are chosen anew under a stamp of
            # their own, so that what is still being copied is not taken for the new choice.
            return self.move()
        if self.standing is not Standing.STAMPING:
            return self._heard_again(event)
        self._answers[event.member] = event.record
        return self._when_stamped()

    def _heard_again(self, event: e.Stamped) -> list[e.Action]:
        """A member that has held the record under this stamp and holds none any more has lost all
        its keys in the life that it has, and would be written to as if it had them. An answer to
        what was asked before it had held any may come late, and says nothing."""
        assert self.view is not None
        if event.member not in self.view.target:
            return []
        if event.record is not None:
            if self.standing is Standing.RECOVERED:
                self._answers[event.member] = event.record
            return []
        if not event.held:
            return []
        return [e.Stop(e.StopKind.LOST if self.held == 1 else e.StopKind.FAILED, _EMPTY)]

    def refused(self, event: e.Refused) -> list[e.Action]:
        if self.view is None or event.stamp != self.stamp:
            return []
        if event.reason in (Reason.FENCED, Reason.STALE_EPOCH):
            return [e.ReadView(SINCE_FURTHER)]
        if event.reason == Reason.UNSTAMPED and self.standing is Standing.WRITING:
            # It has lost its stamp with its keys, and takes nothing until it has one again.
            return self._ask([event.member])
        return self._lose(event.member)

    def unreachable(self, event: e.Unreachable) -> list[e.Action]:
        if self.view is None or event.stamp != self.stamp:
            return []
        if not event.full and self._is_taught(event.member):
            self.suspicion.broke_off(event.member)
        return self._lose(event.member)

    def unreached(self, name: str) -> None:
        """A task did not reach a server of the view. Where there are others windows do not wait for
        it for ever."""
        assert self.view is not None
        for member in self.view.target:
            if member.name == name:
                self.suspicion.unreached(member)

    def _is_taught(self, member: Member) -> bool:
        """Whether objects are being copied to a server that joins, and none from it."""
        assert self.view is not None
        if self._lesson is not None:
            return self._lesson.copying and member in self._lesson.learners
        if self.standing is not Standing.COPYING or member in self._sources():
            return False
        return member in self.view.target and member not in self.view.last_open

    def acknowledged(self, event: e.RecordAck) -> list[e.Action]:
        if self._write is None or not self._write.acknowledge(event):
            return []
        self.record = self._write.record
        self._write = None
        assert self.view is not None
        self._answers |= dict.fromkeys(self.view.target, self.record)
        if self.view.phase is Phase.OPEN:
            self.standing = Standing.RECOVERED
            return []
        self.standing = Standing.OPENING
        opened = replace(
            self.view,
            phase=Phase.OPEN,
            last_open=self.view.target,
            open_epoch=self.view.epoch,
            copies=0,
        )
        return self._swap(opened)

    def copied(self, event: e.Copied) -> list[e.Action]:
        if event.planned is not None:
            return self._lesson_ended(event)
        if self.standing is not Standing.COPYING or event.stamp != self.stamp:
            return []
        self.suspicion.copied()
        return self._write_back()

    def _lesson_ended(self, event: e.Copied | e.CopyFailed) -> list[e.Action]:
        if self._lesson is None:
            return []
        actions = self._lesson.ended(event)
        if self._lesson.learned:
            self.suspicion.copied()
        return actions

    def copy_failed(self, event: e.CopyFailed) -> list[e.Action]:
        if event.planned is not None:
            return self._lesson_ended(event)
        if self.standing is not Standing.COPYING or event.stamp != self.stamp:
            return []
        if event.full:
            return []  # ``Presence`` tells of it
        if event.lost and self._restores:
            return [e.Stop(e.StopKind.LOST, event.reason)]
        # What is missing may be in the file of a server that is still starting, or on one that did
        # not answer in time: ``tick`` tries again and asks that one, and a proposal with a new
        # server makes a new view.
        self._lacking = event.stamp
        if self._told == event.stamp:
            return []
        self._told = event.stamp
        if event.unexpected:
            text = f"the state servers' objects could not be copied: {event.reason}"
            return [e.Notify("StateCopyFailed", text, warning=True)]
        text = f"waiting for a state server to come back: {event.reason}"
        return [e.Notify("StateMissing", text, warning=True)]

    def tick(self) -> list[e.Action]:
        """Send again what is unanswered, or go on without whom nothing is heard of."""
        if self.standing is Standing.CLAIMING:
            return [e.ReadView()]
        if self.standing in (Standing.MOVING, Standing.OPENING):
            return [e.ReadView(SINCE_CLAIM)]
        if self.view is None:
            return []
        actions = self._suspect()
        moving = self._move_if_changed()
        return [*actions, *(self._again() if moving is None else moving)]

    def watch(self, everyone: bool) -> list[e.Action]:
        """A tick with an open view: ask those who have to prove themselves, or everyone."""
        assert self.view is not None
        actions = self._suspect()
        on_trial = self.suspicion.on_trial(self._proposed)
        actions += self._ask((*(self.view.target if everyone else ()), *on_trial))
        return actions if self._lesson is None else [*actions, *self._lesson.ask()]

    def _suspect(self) -> list[e.Action]:
        holding = self._to_stamp() if self.view is not None else []
        members = self.view.target if self.view is not None else ()
        given_up: list[e.Action] = [
            e.Notify(
                "StateServerLeftOut",
                f"state server {name} is to join and answers, but has taken no objects for {TRIES} "
                "tries: the others go on without it if they suffice, who is to leave stays where "
                "there would be too few copies, and it is tried again after a while",
                warning=True,
                server=name,
            )
            for name in self.suspicion.give_up()
        ]
        given_up += [
            e.Notify(
                "StateServerLeftOut",
                f"state server {name} answers the driver, and tasks have not reached it in {TRIES} "
                "attempts: the others go on without it if they suffice, and it is tried again "
                "after a while",
                warning=True,
                server=name,
            )
            for name in self.suspicion.part(members, self.copies)
        ]
        given_up += [
            e.Notify(
                "StateServersUnreached",
                f"tasks have not reached state server {name} in {TRIES} attempts, and it answers "
                "the driver: it stays, since too few would be left without it and others that they "
                "did not reach; windows wait, see what lies between executors and state servers",
                warning=True,
                server=name,
            )
            for name in self.suspicion.kept()
        ]
        back = self.suspicion.tick(self._proposed, holding)
        return given_up + [
            e.Notify(
                "StateServerBack", f"state server {name} answers again and is let in", server=name
            )
            for name in back
        ]

    def _again(self) -> list[e.Action]:
        assert self.view is not None
        on_trial = self._ask(self.suspicion.on_trial(self._proposed))
        if self.standing is Standing.STAMPING:
            if self.held > 1:
                self._lost |= {m for m in self.view.last_open if self.suspicion.silent(m)}
            found = self._when_stamped()
            unasked = [m for m in self._to_stamp() if m not in self._answers]
            return found if found else list(dict.fromkeys((*self._ask(unasked), *on_trial)))
        if self.standing is Standing.COPYING:
            asked = self._ask((*self._sources(), *self.view.target, *self._unheard()))
            return [*self._copy(), *asked, *on_trial]
        if self.standing is Standing.WRITING:
            assert self._write is not None
            return [*self._write.send(), *on_trial]
        return []

    def _ask(self, members: Iterable[Member]) -> list[e.Action]:
        held = {member for member, record in self._answers.items() if record is not None}
        return [e.SendStamp(m, self.stamp, m in held) for m in dict.fromkeys(members)]

    # -- steps

    def _create(self) -> list[e.Action]:
        if not self._proposed:
            self._cas = None
            return []
        members = self._proposed
        owners = self.owners(members, ((),) * self._key_groups)
        view = View(
            self.uid,
            Timeline(1),
            Epoch(1),
            Phase.CREATING,
            Execution(1),
            members,
            members,
            Epoch(1),
            owners,
        )
        return self._swap(view)

    def _claim(self, view: View) -> list[e.Action]:
        if view.phase is Phase.CREATING and view.timeline > 1:
            # Only whoever restores writes the first record of a timeline (rule 17).
            return [e.Stop(e.StopKind.FAILED, _UNFINISHED)]
        # A view that equals an earlier claim of mine may be another driver's: two drivers that
        # read the same view write the same words. So an unanswered claim is never believed.
        return self._swap(replace(view, execution=Execution(view.execution + 1)))

    def move(self) -> list[e.Action]:
        """CAS to ``moving`` (rule 12): from the last open members to the proposed ones, and who is
        to leave and has taught nobody yet."""
        assert self.view is not None
        wanted = (self.wanted() if self._learned() else self._relied()) or self.view.target
        self.standing = Standing.MOVING
        self._write = None
        self._lesson = None
        owners = self.owners(wanted, self.view.owners)
        phase = Phase.CREATING if self.view.phase is Phase.CREATING else Phase.MOVING
        last_open = wanted if phase is Phase.CREATING else self.view.last_open
        moving = replace(
            self.view,
            epoch=Epoch(self.view.epoch + 1),
            phase=phase,
            last_open=last_open,
            target=wanted,
            owners=owners,
            copies=self.held,
        )
        return [*self._leave_out(wanted), *self._swap(moving)]

    def _leave_out(self, wanted: tuple[Member, ...]) -> list[e.Action]:
        return [
            e.Notify(
                "StateServerLeftOut",
                f"state server {member.name} is said to run and has not answered the driver for "
                f"{PATIENCE} tries, or was started anew and its new life was not told of: the "
                "others go on without it, and it is let in when it answers",
                warning=True,
                server=member.name,
            )
            for member in self.suspicion.settle(self._proposed, wanted)
        ]

    def _swap(self, view: View) -> list[e.Action]:
        self._cas = view
        return [e.CasView(self.version, view)]

    def _installed(self, view: View) -> list[e.Action]:
        self._cas = None
        self.view = view
        self.execution = view.execution
        if self.standing is Standing.OPENING:
            self.standing = Standing.RECOVERED
            return []
        return self._stamp_all()

    def _stamp_all(self) -> list[e.Action]:
        self.standing = Standing.STAMPING
        self._answers = {}
        self._lost = set()
        actions: list[e.Action] = [e.SendStamp(m, self.stamp) for m in self._to_stamp()]
        if self._must_change():
            # The view names incarnations that are gone: change it, do not wait for them.
            return self.move()
        return actions

    def _unheard(self) -> list[Member]:
        """Members of the last open view that gave no answer in time (rule 13), where the copy
        lacks something without them."""
        assert self.view is not None
        if self._lacking != self.stamp:
            return []
        return [m for m in self.view.last_open if m not in self._answers]

    def _to_stamp(self) -> list[Member]:
        assert self.view is not None
        return list(dict.fromkeys((*self.view.last_open, *self.view.target)))

    def _when_stamped(self) -> list[e.Action]:
        assert self.view is not None
        creating = self.view.phase is Phase.CREATING
        begun = [one for one in self._held() if creating and one != first_record(self.uid, one.tag)]
        if begun:
            return self._begun(self._choose(begun))
        if any(self._is_further(record) for record in self._held()):
            return [e.ReadView(SINCE_FURTHER)]
        if not all(m in self._answers for m in self.view.target):
            return []
        if not all(m in self._answers or m in self._lost for m in self.view.last_open):
            return []
        if creating:
            return self._write_back()
        sources = self._sources()
        if not sources and self.held == 1 and self._returned():
            return [e.Stop(e.StopKind.BEHIND, _STALE)]
        if not sources:
            return self._all_gone()
        held = [self._answers[m] for m in sources]
        if any(record is None for record in held):
            # With several copies another member's record counts, unless there is none.
            gone = self.held == 1 or all(record is None for record in held)
            return [e.Stop(e.StopKind.LOST if gone else e.StopKind.FAILED, _EMPTY)]
        chosen = self._choose([record for record in held if record is not None])
        if self._committed is not None and chosen.tag < self._committed:
            return self._undone()
        self.record = chosen
        self.standing = Standing.COPYING
        return self._copy()

    def _undone(self) -> list[e.Action]:
        """What answers holds less than this driver has committed: a file was cut, or put back."""
        assert self.view is not None
        heard = {member.name for member in self._answers}
        away = sorted({m.name for m in self.view.last_open} - heard)
        if self.held == 1 or not away:
            return [e.Stop(e.StopKind.BEHIND, _STALE)]
        if self._told == self.stamp:
            return []
        self._told = self.stamp
        text = f"waiting for a state server: {_CUT.format(names=', '.join(away))}"
        return [e.Notify("StateMissing", text, warning=True)]

    def _held(self) -> list[Record]:
        return [record for record in self._answers.values() if record is not None]

    def _begun(self, record: Record) -> list[e.Action]:
        """No view is there, and servers hold more than a first record: one was lost."""
        return [e.Stop(e.StopKind.FAILED, _NO_VIEW.format(window=record.sealed))]

    def _is_further(self, record: Record) -> bool:
        """Whether no driver before this one can have written a record."""
        assert self.view is not None
        view, tag = self.view, record.tag
        # Before this one has written any, none can be of its execution, whatever epoch it is in.
        epoch = view.epoch if self._seq else Epoch(0)
        mine = Tag(view.timeline, self.execution, epoch, self._seq)
        return tag > mine or tag.epoch > view.epoch

    def _choose(self, records: list[Record]) -> Record:
        return max(records, key=lambda record: record.tag)

    def _sources(self) -> list[Member]:
        """Whose record and objects count: members of ``last_open`` (rules 13, 14), and where these
        are not enough restarted servers of those names whose record is recent enough (rule 24).

        With several copies one of ``last_open`` is enough. Where all have restarted each that has
        kept its file holds whatever was committed, since an acknowledgement follows the fsync."""
        assert self.view is not None
        answered = [m for m in self.view.last_open if m in self._answers]
        if self.held > 1 and answered:
            return answered
        back = [m for m in self._returned() if self._recent(self._answers[m])]
        kept = [m for m in back if self._answers[m] is not None]
        if self.held > 1 or answered or kept:
            # One that came back empty is no source; the copy says what is lost with its file.
            return answered + kept
        return back

    def _returned(self) -> list[Member]:
        """Members that come instead of one of the last open view, with its name."""
        assert self.view is not None
        gone = {m.name for m in self.view.last_open if m not in self._answers}
        return [m for m in self.view.target if m.name in gone and m in self._answers]

    def _all_gone(self) -> list[e.Action]:
        """None is there that holds anything: wait for servers that are not back yet."""
        assert self.view is not None
        names = {m.name for m in self.view.last_open}
        text = _ALL_GONE.format(names=", ".join(sorted(names)))
        if names <= {m.name for m in self.view.target}:
            return [e.Stop(e.StopKind.LOST, text)]
        if self._told == self.stamp:
            return []
        self._told = self.stamp
        return [e.Notify("StateMissing", f"waiting for a state server: {text}", warning=True)]

    def _recent(self, record: Record | None) -> bool:
        assert self.view is not None
        return record is None or record.tag.epoch >= self.view.open_epoch

    def _copy(self) -> list[e.Action]:
        assert self.view is not None
        assert self.record is not None
        sources = [m for m in self._sources() if not self.suspicion.silent(m)]
        return [e.CopyObjects(self.stamp, self.record, self.view, tuple(sources))]

    def _write_back(self) -> list[e.Action]:
        assert self.view is not None
        self.standing = Standing.WRITING
        tag = self.next_tag()
        record = self.record
        written = first_record(self.uid, tag) if record is None else replace(record, tag=tag)
        self._write = RecordWrite.to(self.view.target, self.stamp, written)
        return self._write.send()

    def _lose(self, member: Member) -> list[e.Action]:
        """A member does not answer: never go on with a subset (rule 10), but a former owner
        that is not in ``target`` may stay silent (rule 13)."""
        if self.standing is Standing.STAMPING:
            self._lost.add(member)
            return self._when_stamped()
        if self.standing is Standing.COPYING and member in self._answers:
            self._lacking = self.stamp
        return []

    def _fenced(self, execution: Execution) -> list[e.Action]:
        text = f"execution {execution} of this topology has taken over from {self.execution}"
        return [e.Stop(e.StopKind.FENCED, text)]
