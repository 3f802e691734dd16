"""What a sweep deletes, and what it leaves alone however late it comes (rule 22)."""

from __future__ import annotations

import pytest

from millrace.protocol.events import Forget
from millrace.protocol.types import AttemptId, Stamp

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
