"""State servers that come and go while a run goes on: who is proposed, and who may end when."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from standins import until

from millrace.clock import SystemClock
from millrace.local.servers import Embedded, RunPasswords, ServerKeeper
from millrace.protocol.types import Member, Phase, View
from millrace_e2e.embedded import sockets

NAMES = ("state-0", "state-1")


class World:
    """Servers, kept alive; ``told`` are the kinds of what is told."""

    def __init__(self, folder: Path, names: Sequence[str] = NAMES, copies: int = 1) -> None:
        self.folder = folder
        self.told: list[str] = []
        self.texts: list[str] = []
        self.keeper = ServerKeeper(
            [self.make(name) for name in names], SystemClock(), self.tell, lambda: 0, copies
        )

    def make(self, name: str) -> Embedded:
        return Embedded(name, self.folder, sockets(), RunPasswords(self.folder, "u"))

    def tell(self, kind: str, text: str) -> None:
        self.told.append(kind)
        self.texts.append(text)

    def names(self) -> set[str]:
        return {member.name for member in self.keeper.proposed}

    def member(self, name: str) -> Member:
        return next(a.member() for a in self.keeper.addresses if a.name == name)

    def kill(self, name: str) -> None:
        row = next(row for row in self.keeper.rows() if row.name == name)
        os.kill(row.pid, signal.SIGKILL)
        until(self.noticed, "that the end is noticed")

    def noticed(self) -> bool:
        self.keeper.look()
        return "StateServerStarted" in self.told


def view(phase: Phase, *members: Member) -> View:
    return View("u", 1, 3, phase, 1, members, members, 3, (tuple(m.name for m in members),))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    made.keeper.start_all()
    yield made
    made.keeper.stop_all()


def test_one_that_leaves_ends_when_a_view_without_it_is_open(world: World) -> None:
    first, second = world.member("state-0"), world.member("state-1")
    world.keeper.want({"state-0"}, world.make)
    assert world.keeper.leaving
    # Its state may have to be copied from it: a member first, which this life has not been yet.
    former = Member("state-1", "an earlier life")
    for unsafe in (None, view(Phase.OPEN, first, former), view(Phase.MOVING, first, second)):
        world.keeper.settle(unsafe)
        assert world.names() == set(NAMES)
    assert world.keeper.released == ()
    world.keeper.settle(view(Phase.OPEN, first, second))
    assert world.names() == {"state-0"}
    # The driver is told that it is there, for others to learn what it holds.
    assert world.keeper.released == (second,)
    # Others copy from it while the view moves.
    world.keeper.settle(view(Phase.MOVING, first))
    assert len(world.keeper.pids()) == 2
    world.keeper.settle(view(Phase.OPEN, first))
    assert len(world.keeper.pids()) == 1
    assert not (world.folder / "state-1").exists()
    assert world.told == ["StateServerLeft"]
    assert not world.keeper.leaving
    assert world.keeper.released == ()


def test_one_that_dies_while_it_leaves_comes_back_and_is_proposed_again(world: World) -> None:
    """It may hold the only copy of something that was not copied yet."""
    first, second = world.member("state-0"), world.member("state-1")
    world.keeper.want({"state-0"}, world.make)
    world.keeper.settle(view(Phase.OPEN, first, second))
    world.kill("state-1")
    assert world.keeper.released == ()
    again = world.member("state-1")
    assert again != second
    assert world.names() == set(NAMES)
    world.keeper.settle(view(Phase.MOVING, first))
    assert world.names() == set(NAMES)
    world.keeper.settle(view(Phase.OPEN, first, again))
    world.keeper.settle(view(Phase.OPEN, first))
    assert world.keeper.pids() == {row.pid for row in world.keeper.rows()}
    assert {row.name for row in world.keeper.rows()} == {"state-0"}


def test_one_that_is_wanted_again_before_it_has_left_stays(world: World) -> None:
    first, second = world.member("state-0"), world.member("state-1")
    world.keeper.want({"state-0"}, world.make)
    world.keeper.settle(view(Phase.OPEN, first, second))
    world.keeper.want(set(NAMES), world.make)
    world.keeper.settle(view(Phase.OPEN, first))
    assert world.names() == set(NAMES)
    assert world.member("state-1") == second


def test_those_that_are_missing_are_started(world: World) -> None:
    world.keeper.want({*NAMES, "state-2"}, world.make)
    assert world.names() == set(NAMES)
    until(world.noticed, "that it is there")
    assert world.names() == {*NAMES, "state-2"}
    assert "is there" in world.texts[0]


@pytest.fixture
def copied(tmp_path: Path) -> Iterator[World]:
    """Three servers, two copies."""
    made = World(tmp_path, (*NAMES, "state-2"), copies=2)
    made.keeper.start_all()
    yield made
    made.keeper.stop_all()


def test_an_end_says_what_it_means_with_copies(copied: World) -> None:
    copied.kill("state-0")
    assert "others have copies of what it holds" in copied.texts[0]


def test_nobody_leaves_while_one_that_stays_is_no_member(copied: World) -> None:
    """There are to be two copies: it takes the part of the one that is not there."""
    first, second, third = (copied.member(name) for name in (*NAMES, "state-2"))
    copied.keeper.want(set(NAMES), copied.make)
    copied.keeper.settle(view(Phase.OPEN, first, second, third))
    assert copied.names() == set(NAMES)
    assert copied.keeper.released == (third,)
    # A server that stays is left out, as one that hangs is.
    for without in (Phase.MOVING, Phase.OPEN):
        copied.keeper.settle(view(without, first, third))
        assert copied.names() == {*NAMES, "state-2"}
        assert copied.keeper.released == ()
    # The same where it died, and comes back as another incarnation.
    copied.keeper.settle(view(Phase.OPEN, first, second, third))
    copied.kill("state-1")
    copied.keeper.settle(view(Phase.OPEN, first, second, third))
    assert copied.names() == {*NAMES, "state-2"}
    # Nor does it end where a view is open without it, as long as it is needed.
    copied.keeper.settle(view(Phase.OPEN, first))
    assert len(copied.keeper.pids()) == 3
    again = copied.member("state-1")
    copied.keeper.settle(view(Phase.OPEN, first, again, third))
    assert copied.keeper.released == (third,)
    copied.keeper.settle(view(Phase.OPEN, first, again))
    assert len(copied.keeper.pids()) == 2


def test_one_that_was_left_out_and_hangs_leaves_at_once(world: World) -> None:
    """The open view is without it, and never has it again: nothing has to be copied from it."""
    first = world.member("state-0")
    hung = next(row.pid for row in world.keeper.rows() if row.name == "state-1")
    os.kill(hung, signal.SIGSTOP)
    world.keeper.want({"state-0"}, world.make)
    world.keeper.settle(view(Phase.MOVING, first))
    assert world.names() == set(NAMES)
    world.keeper.settle(view(Phase.OPEN, first))
    # First it is proposed no more, which is written before the next look.
    assert world.names() == {"state-0"}
    assert len(world.keeper.pids()) == 2
    world.keeper.settle(view(Phase.OPEN, first))
    assert hung not in world.keeper.pids()
    assert not (world.folder / "state-1").exists()
    assert world.told == ["StateServerLeft"]
    assert not world.keeper.leaving


def test_one_that_a_driver_takes_in_meanwhile_keeps_what_it_holds(world: World) -> None:
    """A driver may follow a proposal that is older than its release."""
    first, second = world.member("state-0"), world.member("state-1")
    world.keeper.want({"state-0"}, world.make)
    world.keeper.settle(view(Phase.OPEN, first))
    for meanwhile in (view(Phase.MOVING, first, second), view(Phase.OPEN, first, second), None):
        world.keeper.settle(view(Phase.OPEN, first), lambda found=meanwhile: found)
        assert (world.folder / "state-1").exists()
        assert world.keeper.leaving
        world.told.clear()
        until(world.noticed, "that it is back")
        again = world.member("state-1")
        assert again != second
        assert world.names() == set(NAMES)
        world.keeper.settle(view(Phase.OPEN, first, again))
    world.keeper.settle(view(Phase.OPEN, first), lambda: view(Phase.OPEN, first))
    assert not (world.folder / "state-1").exists()


def test_one_that_never_came_up_may_leave(world: World) -> None:
    first, second = world.member("state-0"), world.member("state-1")
    (world.folder / "state-2").write_text("")
    world.keeper.want({*NAMES, "state-2"}, world.make)
    world.keeper.look()
    assert world.told == ["StateServerFailed"]
    world.keeper.want(set(NAMES), world.make)
    world.keeper.settle(view(Phase.OPEN, first, second))
    assert not world.keeper.leaving
    assert world.keeper.next_due_s() is None
