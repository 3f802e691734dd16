"""What a sweep deletes, and what it leaves alone however late it comes (rule 22)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millrace.protocol.events import Forget
from millrace.protocol.record import first_record
from millrace.protocol.types import AttemptId, DeadSegment, Sealed, Segment, Staged, Stamp, Tag
from millrace.protocol.windows.forgetting import Forgetting, Held

SWEEP = Forget(
    Stamp(3, 5),
    sealed=7,
    names=("5.9.1.0.0.0/out/named",),
    attempts=(AttemptId(5, 8, 2),),
    keep=frozenset(("4.6.1.0.0.0/state/kept", "5.7.1.3/dead")),
)


@pytest.mark.parametrize(
    ("name", "goes"),
    [
        ("5.9.1.0.0.0/out/named", True),
        ("4.6.1.0.0.0/state/kept", False),
        ("5.7.1.3/dead", False),
        ("4.9.1.0.0.0/state/older", True),
        ("6.1.1.0.0.0/state/newer", False),
        ("5.7.1.0.0.0/state/sealed", True),
        ("5.8.2.0.0.0/state/ended", True),
        ("5.8.1.0.0.0/state/running", False),
        ("5.8.3.0.0.0/state/running", False),
        ("5.8.2.3/dead", False),
        ("5.7.2.3/dead", True),
        ("4.8.2.3/dead", True),
    ],
)
def test_a_sweep_takes_what_has_ended_alone(name: str, goes: bool) -> None:
    assert SWEEP.covers(name) is goes


def test_without_a_sweep_only_what_is_named_goes() -> None:
    some = Forget(Stamp(3, 5), 7, ("4.6.1.0.0.0/state/old",), ())
    assert some.covers("4.6.1.0.0.0/state/old")
    assert not some.covers("4.6.1.0.0.0/state/other")


def test_what_a_snapshot_copies_stays_until_it_is_copied() -> None:
    """State and dead letters; output that is shown meanwhile goes."""
    held = Held()
    record = replace(
        first_record("u", Tag(1, 1, 1, 1)),
        sealed=2,
        chains={"p": (Segment("chain", 2, 1, True),)},
        dead=(DeadSegment("letters", 2, 1),),
        unpublished=(Sealed(2, "d", (Staged("out", "staged", "d", 1, 1, stored=True),)),),
    )
    names = ("chain", "letters", "other", "staged")
    assert held.spared(Forget(Stamp(1, 1), 3, ("earlier",), ())).names == ("earlier",)
    held.hold(record)
    found = held.spared(Forget(Stamp(1, 1), 3, names, (), keep=frozenset(("new",))))
    assert found.names == ("other", "staged")
    assert found.keep == {"new", "chain", "letters"}
    assert held.spared(Forget(Stamp(1, 1), 4, ("next",), ())).names == ("next",)
    held.release()
    assert held.spared(Forget(Stamp(1, 1), 5, ("last",), ())).names == ("chain", "last", "letters")
    assert held.spared(Forget(Stamp(1, 1), 6, (), ())).names == ()


def test_what_losers_left_is_looked_for_once_every_so_many_windows() -> None:
    """Not with every record that is written while no further window is sealed."""
    found, last = Forgetting(), first_record("u", Tag(1, 1, 1, 1))

    def sweeps(sealed: int) -> bool:
        nonlocal last
        before, last = last, replace(last, sealed=sealed)
        return any(one.keep is not None for one in found.next(Stamp(1, 1), before, last))

    assert sweeps(1), "what the driver before has left"
    assert not sweeps(255)
    assert sweeps(256)
    assert not sweeps(256)
    assert not sweeps(257)
    assert sweeps(512)
