"""What no committed record needs any more, and when it is told to go.

The names that a record no longer has go with the commit of that record; objects that no record ever
named (those of attempts that lost or were given up) are looked for by a sweep, which a commit after
every ended attempt asks for, and every so many windows one more: a sweep that died is made up for.
*Dies here*: nothing is lost, the next driver begins with a sweep.
"""

from __future__ import annotations

from dataclasses import replace

from millrace.protocol import events as e
from millrace.protocol import record as records
from millrace.protocol.types import AttemptId, Record, Stamp

SWEEP_WINDOWS = 256
"""How often objects of losing task attempts are looked for, in windows."""


class Forgetting:
    """What can be forgotten once the next record is committed (rule 22)."""

    def __init__(self) -> None:
        self._attempts: list[AttemptId] = []
        self._sweep = True

    def sweep(self) -> None:
        """What others may have left is looked for with the next commit."""
        self._sweep = True

    def sealed(self, attempt: AttemptId) -> None:
        """An attempt is sealed: its ack log is not needed any more."""
        self._attempts.append(attempt)

    def given_up(self, attempt: AttemptId) -> None:
        """An attempt has ended for nothing: whatever it wrote goes."""
        self._attempts.append(attempt)
        self._sweep = True

    def next(self, stamp: Stamp, before: Record, now: Record) -> list[e.Action]:
        """What goes once ``now`` has followed ``before``, both committed."""
        needed = records.needed_objects(now)
        names = tuple(sorted(records.needed_objects(before) - needed))
        if now.sealed % SWEEP_WINDOWS == 0 and now.sealed > before.sealed:
            self._sweep = True
        attempts, self._attempts = tuple(self._attempts), []
        if not (names or attempts or self._sweep):
            return []
        keep = needed if self._sweep else None
        self._sweep = False
        return [e.Forget(stamp, now.sealed, names, attempts, keep)]


class Held:
    """What a snapshot copies is spared for as long, whatever windows supersede meanwhile.

    *Dies here*: what was spared is found by the next driver's sweep.
    """

    def __init__(self) -> None:
        self._names: frozenset[str] = frozenset()
        self._spared: set[str] = set()

    def hold(self, record: Record) -> None:
        """The objects of a committed record stay from now on, its staged outputs do not."""
        shown = records.mark_published(record, record.sealed)
        self._names = records.needed_objects(shown)

    def release(self) -> None:
        self._names = frozenset()

    def spared(self, forget: e.Forget) -> e.Forget:
        """What may be deleted now: not what is held, but what was and is needed no more."""
        names = set(forget.names)
        self._spared |= names & self._names
        if not self._names:
            names |= self._spared
            self._spared.clear()
        keep = None if forget.keep is None else forget.keep | self._names
        return replace(forget, names=tuple(sorted(names - self._names)), keep=keep)
