"""Deliberate bugs of how a driver brings an open view about (rules 1 to 17 and 24)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from millrace.protocol import events as e
from millrace.protocol.membership import Membership, Owners, RecordWrite, Standing
from millrace.protocol.suspicion import Suspicion
from millrace.protocol.types import Member, Phase, Record


class NoWriteBack(Membership):
    """Acts on what it read, without making it final first."""

    def copied(self, event: e.Copied) -> list[e.Action]:
        assert self.view is not None
        due = self.standing is Standing.COPYING and event.stamp == self.stamp
        if due and self.view.phase is Phase.OPEN:
            self.standing = Standing.RECOVERED
            return []
        return super().copied(event)


class ClaimWithoutCas(Membership):
    """Believes in a claim that the view store has not confirmed."""

    def cas_lost(self, event: e.CasLost) -> list[e.Action]:
        if self.standing is Standing.CLAIMING and event.view == self._cas:
            return self._installed(event.view)
        return super().cas_lost(event)


class StaleMemberIsSource(Membership):
    """Reads the record from members that only join."""

    def _sources(self) -> list[Member]:
        return [m for m in self._to_stamp() if m in self._answers]


class ActsBeforeOpening(Membership):
    """Takes what a moving view recovered for final before the view is open."""

    def acknowledged(self, event: e.RecordAck) -> list[e.Action]:
        actions = super().acknowledged(event)
        if self.standing is Standing.OPENING:
            self.standing = Standing.RECOVERED
        return actions


class StaleFileIsSource(Membership):
    """Reads the record from a restarted server whatever the age of its file."""

    def _recent(self, record: Record | None) -> bool:
        return True


class ForgetsLastOpen(Membership):
    """Takes the members that a view was moving to for those of the last open one."""

    def move(self) -> list[e.Action]:
        assert self.view is not None
        self.view = replace(self.view, last_open=self.view.target)
        return super().move()


class GoesOnWithSome(Membership):
    """Takes an open view for recovered when those members that answer have the record."""

    def _when_stamped(self) -> list[e.Action]:
        assert self.view is not None
        found = super()._when_stamped()
        silent = self._lost - self._answers.keys()
        if found or self.view.phase is not Phase.OPEN or not silent or not self._answers:
            return found
        held = [record for record in self._answers.values() if record is not None]
        if not held or len(self._answers) + len(silent) < len(self.view.target):
            return []
        self.record = self._choose(held)
        self.standing = Standing.COPYING
        return self._copy()

    def _write_back(self) -> list[e.Action]:
        actions = super()._write_back()
        assert self._write is not None
        assert self.view is not None
        if self.view.phase is Phase.OPEN:
            waiting = {n: m for n, m in self._write.waiting.items() if m in self._answers}
            self._write.waiting = waiting
        return actions


class TargetMayBeSilent(Membership):
    """Opens a view although some of its members have not answered."""

    def _when_stamped(self) -> list[e.Action]:
        assert self.view is not None
        known = dict(self._answers)
        held = [record for record in known.values() if record is not None]
        if self.view.phase is Phase.MOVING and held:
            absent = self._lost.intersection(self.view.target) - known.keys()
            self._answers.update(dict.fromkeys(absent, self._choose(held)))
        actions = super()._when_stamped()
        self._answers = known
        return actions

    def unreachable(self, event: e.Unreachable) -> list[e.Action]:
        if self.standing is Standing.COPYING and event.stamp == self.stamp:
            return self._write_back()
        return super().unreachable(event)

    def _write_back(self) -> list[e.Action]:
        assert self.view is not None
        actions = super()._write_back()
        assert self._write is not None
        if self.view.phase is Phase.MOVING:
            waiting = {n: m for n, m in self._write.waiting.items() if m in self._answers}
            self._write.waiting = waiting
        return actions


class ReadsBeforeStamping(Membership):
    """Believes what members answered to an earlier stamp."""

    def _stamp_all(self) -> list[e.Action]:
        known = dict(self._answers)
        actions = super()._stamp_all()
        if self.standing is Standing.STAMPING:
            self._answers = {m: r for m, r in known.items() if m in self._to_stamp()}
        return actions

    def stamped(self, event: e.Stamped) -> list[e.Action]:
        known = self._answers.get(event.member)
        return super().stamped(replace(event, record=known) if known is not None else event)


class CopiesNothing(Membership):
    """Writes the record back without the objects that it names."""

    def _copy(self) -> list[e.Action]:
        return self._write_back()


class WritesBackToSources(Membership):
    """Writes the record back to those alone that had one."""

    def _write_back(self) -> list[e.Action]:
        actions = super()._write_back()
        assert self._write is not None
        assert self.view is not None
        if self.view.phase is Phase.MOVING:
            sources = [m for m in self.view.target if m in self.view.last_open]
            self._write = RecordWrite.to(tuple(sources), self.stamp, self._write.record)
            return self._write.send()
        return actions


class OpensWhatIsNotItsOwn(Membership):
    """Opens the view whatever has become of it meanwhile."""

    def view_read(self, event: e.ViewRead) -> list[e.Action]:
        if self.standing is Standing.OPENING and event.view is not None and self._cas is not None:
            self.version = event.version
            if event.view != self._cas:
                return [e.CasView(self.version, self._cas)]
        return super().view_read(event)


class EmptyIsBeginning(Membership):
    """Takes a member without a record for one of a new topology."""

    def _when_stamped(self) -> list[e.Action]:
        actions = super()._when_stamped()
        if any(isinstance(a, e.Stop) and "holds none" in a.text for a in actions):
            return self._write_back()
        return actions


class CreatesOverState(Membership):
    """Begins a topology without a look at what servers hold."""

    def _begun(self, record: Record) -> list[e.Action]:
        assert self.view is not None
        there = all(m in self._answers for m in self.view.target)
        return self._write_back() if there else []


class OverlooksOlderView(Membership):
    """Looks for a successor where servers are further, and for nothing else."""

    def view_read(self, event: e.ViewRead) -> list[e.Action]:
        return super().view_read(replace(event, token=0))


class _Suspecting(Membership):
    """Suspects servers in another way."""

    suspects: type[Suspicion]

    def __init__(
        self, uid: str, copies: int, key_groups: int, owners: Owners, **options: bool
    ) -> None:
        super().__init__(uid, copies, key_groups, owners, **options)
        self.suspicion = self.suspects()


class _Trusting(Suspicion):
    def silent(self, member: Member) -> bool:
        return False


class SuspectsNobody(_Suspecting):
    """Waits for a server for as long as the operator sees it alive."""

    suspects = _Trusting


class _Credulous(Suspicion):
    def heard(self, event: e.Event) -> None:
        if isinstance(event, e.Refused):
            event = e.Stamped(event.member, event.stamp, None)
        super().heard(event)


class TakesRefusalsForAnswers(_Suspecting):
    """Takes what a later life of a server refuses for an answer of the one that it asks."""

    suspects = _Credulous


class _Unforgiving(Suspicion):
    def tick(self, proposed: Iterable[Member], others: Collection[Member]) -> tuple[str, ...]:
        self._answered.clear()
        return super().tick(proposed, others)


class NeverLetsIn(_Suspecting):
    """Leaves out for good whoever was left out once."""

    suspects = _Unforgiving


class _Patient(Suspicion):
    def give_up(self) -> tuple[str, ...]:
        return ()


class TeachesForEver(_Suspecting):
    """Goes on bringing objects to one that takes none, and tells nobody."""

    suspects = _Patient


class _Reckless(Suspicion):
    def choose(
        self, proposed: tuple[Member, ...], at_stake: Collection[Member], bearable: int
    ) -> tuple[Member, ...]:
        return super().choose(proposed, (), 1)


class LeavesOutTooMany(_Suspecting):
    """Goes on with whoever answers, however few they are."""

    suspects = _Reckless

    def copy_failed(self, event: e.CopyFailed) -> list[e.Action]:
        return self.copied(e.Copied(event.stamp, event.planned))


class WaitsForWhatTasksMiss(Membership):
    """Keeps a server that answers the driver, though tasks never reach it."""

    def unreached(self, name: str) -> None:
        return


class _Parting(Suspicion):
    def part(self, members: Collection[Member], copies: int) -> tuple[str, ...]:
        return super().part(members, 1)


class PartsWithAll(_Suspecting):
    """Leaves out one server after the other, where tasks reach none."""

    suspects = _Parting


class KeepsItsCopies(Membership):
    """Leaves the view as it is when other numbers of copies are asked for."""

    def _copies_changed(self) -> bool:
        return False


class CountsCopiesToCome(Membership):
    """Takes the number of copies that is asked for, for the one that there is."""

    @property
    def held(self) -> int:
        return self.copies


class LearnerIsSource(Membership):
    """Reads from those that have learned as from members of the last open view."""

    def move(self) -> list[e.Action]:
        assert self.view is not None
        lesson = self._lesson
        if lesson is not None and lesson.learned:
            taught = sorted(lesson.learners, key=lambda one: one.name)
            self.view = replace(self.view, last_open=(*self.view.last_open, *taught))
        return super().move()


class LearnerIsComplete(Membership):
    """Takes what was learned for all that there is, whatever was written meanwhile."""

    _taught: tuple[Member, ...] = ()

    def move(self) -> list[e.Action]:
        lesson = self._lesson
        self._taught = lesson.planned.target if lesson is not None and lesson.learned else ()
        return super().move()

    def _copy(self) -> list[e.Action]:
        assert self.view is not None
        return self._write_back() if self._taught == self.view.target else super()._copy()
