"""How many roots of a window each acker gets, as its own machine follows them."""

from __future__ import annotations

import pytest

from millrace.protocol.acker import AckerMachine, Follow
from millrace.protocol.acklog import MOST_SLICES, Open, SliceOwners, roots_of
from millrace.protocol.types import AttemptId
from millrace.ring import largest_share
from millrace.topology.model import Ackers
from millrace.tracking.fold import ArrayFold
from millrace.tracking.message import AckMessage, read_enclosed

EDGES = (">lines",)


def loads(ackers: int, window: int, roots: int) -> list[int]:
    """Roots of the slices that each acker follows once the window is open."""
    names = [f"acker-{number}" for number in range(ackers)]
    owners = SliceOwners.of(1, names)
    opened = Open(AttemptId(1, window, 1), roots, EDGES, owners.slices)
    found = []
    for name in names:
        machine = AckerMachine[AckMessage](name, ArrayFold, read_enclosed)
        actions = [*machine.control(owners), *machine.control(opened)]
        mine = [action.partition for action in actions if isinstance(action, Follow)]
        found.append(sum(roots_of(window, one, roots, opened.slices) for one in mine))
    return found


@pytest.mark.parametrize("roots", [100_000, 200_000, 300_000])
@pytest.mark.parametrize("ackers", [2, 3, 5, 6])
def test_no_acker_has_more_than_a_fiftieth_above_its_share(ackers: int, roots: int) -> None:
    for window in (1, 2, 7, 16, 17, 18):
        shares = loads(ackers, window, roots)
        assert sum(shares) == roots
        assert largest_share(shares) <= 1.02


def test_a_topology_may_have_as_many_ackers_as_an_attempt_may_have_slices() -> None:
    most = Ackers.model_json_schema()["properties"]["replicas"]["maximum"]
    assert most == MOST_SLICES
