"""Names of edges, the turning of nets and the numbers of slices, on which all must agree."""

from __future__ import annotations

import pytest

from millrace.errors import ProtocolError
from millrace.protocol import acklog
from millrace.protocol.acklog import (
    SliceOwners,
    consumer_of,
    rotate,
    rotations,
    slices_for,
    source_edge,
    source_of,
)
from millrace.protocol.types import AttemptId
from millrace.topology.members import MOST_MEMBERS


@pytest.mark.parametrize(
    ("edge", "source"), [(">lines", "lines"), ("lines>split", None), (">", None), ("lines", None)]
)
def test_only_a_sources_own_edge_names_a_source(edge: str, source: str | None) -> None:
    assert source_of(edge) == source


def test_a_sources_own_edge_ends_at_the_source() -> None:
    assert consumer_of(source_edge("lines")) == "lines"
    assert source_of(source_edge("lines")) == "lines"


def test_up_to_64_edges_are_turned_apart_and_the_next_like_the_first() -> None:
    turns = list(rotations([f"e{n}" for n in range(66)]).values())
    assert turns == [*range(64), 0, 1]


def test_turning_loses_no_bit() -> None:
    value = 0x8000_0000_0000_0003
    assert rotate(value, 0) == value
    assert rotate(value, 1) == 7
    assert rotate(value, 63) == 0xC000_0000_0000_0001
    assert rotate(rotate(value, 20), 44) == value


def test_every_slice_that_an_attempt_can_have_is_deleted_with_it() -> None:
    """Whoever does not know how many slices one has deletes as many as any has."""
    assert max(slices_for(ackers) for ackers in range(1, MOST_MEMBERS + 1)) == acklog.MOST_SLICES


def test_slices_have_no_owner_without_an_acker() -> None:
    with pytest.raises(ProtocolError):
        SliceOwners.of(1, ())


def test_owners_are_the_same_in_whatever_order_attempts_have_begun() -> None:
    attempts = {slices: AttemptId(1, slices, 1) for slices in (32, 64, 24, 40, 48)}

    def others(slices: list[int]) -> list[int]:
        live = {attempts[number]: number for number in slices}
        return [len(table) for table in SliceOwners.of(1, ["a", "b"], live).others]

    for turn in range(5):
        order = [*attempts][turn:] + [*attempts][:turn]
        assert others(order) == others(order[::-1]) == [2, *sorted(attempts)]
