"""Whom the checker of teaching accuses: a driver that teaches for ever, and no correct one."""

from __future__ import annotations

import pytest

from millrace.protocol import events as e
from millrace.protocol.record import first_record
from millrace.protocol.types import Member, Phase, Stamp, Tag, View
from millrace.simulate.checkers.teaching import MOST, Teaching
from millrace.simulate.history import CopyBroken, CopyEnded, History, ServerStamped, ViolationError

HERE, JOINS = Member("state-0", "r0", ""), Member("state-1", "r1", "")
VIEW = View("words", 1, 1, Phase.MOVING, 1, (HERE,), (HERE, JOINS), 1, ((HERE.name, JOINS.name),))
COPY = e.CopyObjects(VIEW.stamp(), first_record("words", Tag(1, 1, 1, 1)), VIEW, (HERE,))


def broken(history: History, times: int, number: int = 1) -> None:
    """So many copies to one that answers break off."""
    for _ in range(times):
        history.add(ServerStamped(JOINS, Stamp(1, 1)))
        history.add(CopyBroken(number, JOINS, COPY))


def test_one_that_takes_nothing_is_not_taught_for_ever() -> None:
    history = History()
    Teaching(history)
    broken(history, MOST)
    with pytest.raises(ViolationError, match="takes nothing"):
        broken(history, 1)


def test_a_copy_that_comes_to_its_end_ends_the_count() -> None:
    """As it does for the driver, in whose life servers may come and go without end."""
    history = History()
    Teaching(history)
    for _ in range(5):
        broken(history, MOST)
        history.add(CopyEnded(1))
    broken(history, MOST)
    history.add(CopyEnded(2))
    with pytest.raises(ViolationError, match="takes nothing"):
        broken(history, 1)
