"""Which state servers the driver finds silent, although the operator sees them alive.

A server that hangs, or that the driver alone cannot reach, stays in the operator's proposal for as
long as its process lives. So the driver counts for itself, and leaves such a server out of the
view::

    trusted -- owes an answer at PATIENCE ticks, others hold all it holds --> left out
       ^                                                                         |
       +---- has answered each of PROOF ticks in a row, twice as many each time --+

A server that was started anew refuses what is meant for its former life. That is no answer of that
life: as long as the operator proposes it, perhaps since it is away itself, it is silent like one
that hangs.

Ticks are counted, not seconds: a driver that was stopped itself finds nothing but old questions
when it wakes up, and their answers behind them.

One that is to join and answers, but takes none of the objects that it is to hold, is given up in
the same way once ``TRIES`` copies to it in a row have broken off: others would wait for ever. So is
one that answers the driver and that tasks do not reach, with which as many attempts have ended and
none was sealed; but not so many at once that fewer are left than there are copies, unless these may
be lost. Tasks that reach one after the other of them not are cut off themselves.

A server is left out only as long as fewer members of the last open view are lost than every object
has copies there; otherwise it is waited for, however long that takes (rules 10 and 13). Nothing of
this is remembered by the next driver, which finds out for itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from millrace.protocol import events as e
from millrace.protocol.server import Reason
from millrace.protocol.types import Member

PATIENCE = 10
"""At how many ticks (``driver.RESEND_S``) a server may owe an answer to what it was asked."""

TRIES = 5
"""With how many ticks a copy to one that answers may break off because of it, and none end; how
many attempts may end since a task does not reach it, and none be sealed."""

PROOF = 5
"""How many ticks in a row one that was left out has to answer before it is let in again."""

MOST_PROOF = 60
"""The same for one that was left out again and again."""


@dataclass(slots=True)
class _LeftOut:
    """``proofs`` of the ``needed`` ticks are answered in a row; ``back`` when that is enough. One
    that ``answers`` is left out since it takes no objects, or is ``parted`` from the tasks."""

    needed: int
    proofs: int = 0
    back: bool = False
    answers: bool = False
    parted: bool = False


class Suspicion:
    """Told every question and every answer; servers are left out by name, whatever their life."""

    def __init__(self) -> None:
        self._owed: dict[Member, int] = {}
        self._asked: set[Member] = set()
        self._answered: set[Member] = set()
        self._left_out: dict[str, _LeftOut] = {}
        self._broke: set[Member] = set()
        self._tries: dict[Member, int] = {}
        self._unreached: dict[Member, int] = {}
        self._kept: dict[str, bool] = {}
        """Those that stay although tasks do not reach them, and whether that was told."""

    def asked(self, actions: Iterable[e.Action]) -> None:
        """Note questions that a state server owes an answer to."""
        for action in actions:
            if isinstance(action, e.SendStamp | e.SendRecord):
                self._asked.add(action.member)

    def heard(self, event: e.Event) -> None:
        """Note an answer, whatever it says; a server that is full has answered, too. What a later
        life of a server refuses is none."""
        match event:
            case e.Refused(reason=Reason.RUN_ID):
                return
            case e.Stamped() | e.RecordAck() | e.Refused() | e.Unreachable(full=True):
                self._answered.add(event.member)
                self._asked.discard(event.member)
                self._owed.pop(event.member, None)

    def broke_off(self, member: Member) -> None:
        """Note that a copy has broken off since a server that is to join gave no answer."""
        self._broke.add(member)

    def copied(self) -> None:
        """Note that a copy has come to its end."""
        self._broke.clear()
        self._tries.clear()

    def give_up(self) -> tuple[str, ...]:
        """The names of those that are left out from now on since they take no objects; to be asked
        before each ``tick``."""
        for member in self._broke - self._asked:
            self._tries[member] = self._tries.get(member, 0) + 1
        self._broke.clear()
        names = sorted(m.name for m, tries in self._tries.items() if tries >= TRIES)
        self._tries = {m: tries for m, tries in self._tries.items() if tries < TRIES}
        return self._leave_out(names)

    def unreached(self, member: Member) -> None:
        """Note that an attempt has ended since a task did not reach it."""
        self._unreached[member] = self._unreached.get(member, 0) + 1

    def reached(self) -> None:
        """Note that an attempt was sealed."""
        self._unreached.clear()
        self._kept.clear()

    def part(self, members: Collection[Member], copies: int) -> tuple[str, ...]:
        """The names of those ``members`` of the view that are left out from now on since tasks do
        not reach them; to be asked before each ``tick``. Of one that owes the driver an answer
        ``silent`` will tell."""
        names = sorted(
            member.name
            for member, attempts in self._unreached.items()
            if attempts >= TRIES and member not in self._asked and not self._owed.get(member)
        )
        out = {n for n, one in self._left_out.items() if one.parted and not one.back}
        known = len({m.name for m in members} | out)
        room = min(known - 1, max(known - copies, copies - 1, 1)) - len(out)
        parted, kept = names[: max(0, room)], names[max(0, room) :]
        for name in kept:
            self._kept.setdefault(name, False)
        self._unreached = {m: n for m, n in self._unreached.items() if m.name not in names}
        return self._leave_out(parted, parted=True)

    def kept(self) -> tuple[str, ...]:
        """The names of those that ``part`` has kept, each once until an attempt is sealed."""
        new = tuple(name for name, told in self._kept.items() if not told)
        self._kept.update(dict.fromkeys(new, True))
        return new

    def _leave_out(self, names: list[str], parted: bool = False) -> tuple[str, ...]:
        """Those answer, and are of no use all the same."""
        for name in names:
            before = self._left_out.get(name)
            needed = PROOF if before is None else min(MOST_PROOF, 2 * before.needed)
            self._left_out[name] = _LeftOut(needed, answers=True, parted=parted)
        return tuple(names)

    def given_up(self, member: Member) -> bool:
        """Whether it is left out although it answers."""
        out = self._left_out.get(member.name)
        return out is not None and out.answers and not out.back

    def tick(self, proposed: Iterable[Member], others: Collection[Member]) -> tuple[str, ...]:
        """A tick has passed; the names that are trusted again with it.

        It counts for those that were asked since the last one. ``others`` are those that hold
        something without being proposed; the debts of any further ones are forgotten.
        """
        known = {*proposed, *others}
        owed = {m: self._owed.get(m, 0) + 1 for m in self._asked}
        self._owed = {m: ticks for m, ticks in {**self._owed, **owed}.items() if m in known}
        again = []
        for member in proposed:
            out = self._left_out.get(member.name)
            if out is None or out.back:
                continue
            if member in self._asked:
                out.proofs = 0
            elif member in self._answered:
                out.proofs += 1
            if out.proofs >= out.needed:
                out.back = True
                again.append(member.name)
        self._asked.clear()
        self._answered.clear()
        return tuple(again)

    def silent(self, member: Member) -> bool:
        """Whether it owes an answer for too long."""
        return self._owed.get(member, 0) >= PATIENCE

    def on_trial(self, proposed: Iterable[Member]) -> list[Member]:
        """Those that have to prove themselves: to be asked with each tick."""
        return [m for m in proposed if self._is_out(m)]

    def trusted(self, proposed: Iterable[Member]) -> tuple[Member, ...]:
        """Those that are neither silent nor left out."""
        return tuple(m for m in proposed if not (self.silent(m) or self._is_out(m)))

    def choose(
        self, proposed: tuple[Member, ...], at_stake: Collection[Member], bearable: int
    ) -> tuple[Member, ...]:
        """The members to have, of those proposed: all who can be trusted, if these suffice.

        ``at_stake`` are the members of whom all that they hold is lost where they are not chosen:
        fewer than ``bearable`` may be.
        """
        trusted = self.trusted(proposed)
        called_back = tuple(m for m in proposed if not (self.silent(m) or self._is_away(m)))
        for chosen in (trusted, called_back):
            if chosen and sum(m not in chosen for m in at_stake) < bearable:
                return chosen
        return tuple(m for m in proposed if not self._is_away(m)) or proposed

    def settle(self, proposed: Iterable[Member], chosen: Collection[Member]) -> list[Member]:
        """A view is made with those chosen. Whoever of the others is left out by that, anew."""
        new = []
        for member in proposed:
            out = self._left_out.get(member.name)
            if member in chosen:
                if out is not None:
                    out.back = True
            elif out is None:
                self._left_out[member.name] = _LeftOut(PROOF)
                new.append(member)
            elif out.back:
                self._left_out[member.name] = _LeftOut(min(MOST_PROOF, 2 * out.needed))
                new.append(member)
        return new

    def _is_out(self, member: Member) -> bool:
        out = self._left_out.get(member.name)
        return out is not None and not out.back

    def _is_away(self, member: Member) -> bool:
        """Left out and of no use: one that answers is called back early, should it be needed."""
        if not self._is_out(member):
            return False
        out = self._left_out[member.name]
        return out.proofs == 0 and not out.answers
