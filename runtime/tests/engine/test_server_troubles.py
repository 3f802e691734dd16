"""What a driver tells of state servers that are of no use: until when."""

from __future__ import annotations

from millrace.engine.driver.home.troubles import ServerTroubles
from millrace.ids import Epoch, Execution, Timeline
from millrace.protocol import events as e
from millrace.protocol.membership import Membership
from millrace.protocol.presence import Presence
from millrace.protocol.suspicion import TRIES
from millrace.protocol.types import Member, Phase, View

A, B, C = (Member(name, f"{name}1", f"redis://{name}") for name in "abc")


class World:
    """A driver's machine has the view; ``epoch`` rises with each other one."""

    def __init__(self, *members: Member) -> None:
        self.view: View | None = None
        self.troubles = ServerTroubles(lambda: self.view)
        self.epoch = 0
        self.move(*members)
        self.troubles.proposed({member.name for member in (A, B, C)})

    def move(self, *members: Member) -> None:
        self.epoch += 1
        epoch = Epoch(self.epoch)
        owners = (tuple(member.name for member in members),)
        self.view = View(
            "u", Timeline(1), epoch, Phase.OPEN, Execution(1), members, members, epoch, owners
        )
        self.troubles.look()

    def tell(self, kind: str, server: str) -> None:
        self.troubles.heard(e.Notify(kind, f"{kind} of {server}", server=server))

    def names(self) -> list[tuple[str, str]]:
        return [(one.name, one.kind) for one in self.troubles.now or ()]


def test_nothing_is_told_where_nothing_is_wrong():
    world = World(A, B)
    world.troubles.heard(e.Notify("WindowRunAgain", "a text"))
    world.tell("StateServerNearlyFull", "a")
    assert world.troubles.now is None


def test_one_that_is_left_out_is_told_until_a_view_has_it_again():
    world = World(A, B)
    world.tell("StateServerLeftOut", "b")
    # The view without it comes after.
    world.troubles.look()
    assert world.names() == [("b", "StateServerLeftOut")]
    world.move(A)
    assert world.names() == [("b", "StateServerLeftOut")]
    world.move(A, B)
    assert world.troubles.now is None


def test_one_that_takes_no_objects_is_told_until_it_is_let_in():
    world = World(A, B)
    world.tell("StateServerLeftOut", "c")
    world.move(A)
    assert world.names() == [("c", "StateServerLeftOut")]
    world.tell("StateServerBack", "c")
    assert world.troubles.now is None


def test_one_that_is_to_be_no_member_any_more_is_not_told_of():
    world = World(A, B)
    world.tell("StateServerLeftOut", "c")
    world.troubles.proposed({"a", "b"})
    assert world.troubles.now is None


def test_one_that_is_away_is_told_until_it_is_back_or_none_waits_for_it():
    world = World(A, B)
    world.tell("StateServerAway", "a")
    world.tell("StateServerAway", "b")
    world.tell("StateServerBack", "a")
    assert world.names() == [("b", "StateServerAway")]
    world.move(A)
    assert world.troubles.now is None


def test_one_that_is_full_is_told_also_where_it_only_joins():
    world = World(A, B)
    world.tell("StateServerFull", "c")
    world.move(A)
    assert world.names() == [("c", "StateServerFull")]
    world.troubles.proposed({"a", "b"})
    assert world.troubles.now is None


def test_there_may_be_no_view_yet():
    world = World()
    world.view = None
    world.tell("StateServerAway", "a")
    assert world.names() == [("a", "StateServerAway")]


def test_the_machine_names_the_server_in_what_it_tells():
    view = World(A, B).view
    assert view is not None
    presence = Presence()
    (away,) = presence.observe(e.Unreachable(A, view.stamp(), "no route"), view)
    (back,) = presence.observe(e.Stamped(A, view.stamp(), None), view)
    membership = Membership("u", 1, 1, lambda *_: ())
    membership.propose((A, B))
    for _ in range(TRIES):
        membership.suspicion.broke_off(B)
        told = membership._suspect()
    (out,) = told
    assert isinstance(away, e.Notify)
    assert isinstance(back, e.Notify)
    assert isinstance(out, e.Notify)
    assert (away.kind, away.server) == ("StateServerAway", "a")
    assert (back.kind, back.server) == ("StateServerBack", "a")
    assert (out.kind, out.server) == ("StateServerLeftOut", "b")
