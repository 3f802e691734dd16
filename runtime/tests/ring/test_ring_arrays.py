"""Look-ups over arrays equal those of the ring, one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.errors import ProtocolError
from millrace.ring import Ring, Strategy, number_position
from millrace.ringarrays import RingLookup, number_positions

ARRAYS = [Strategy.PAPER, Strategy.MIX]
NUMBERS = st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 300), max_size=40)


@given(NUMBERS, st.sampled_from(ARRAYS))
@settings(deadline=None)
def test_positions_are_those_of_the_scalar_way(numbers: list[int], strategy: Strategy) -> None:
    found = number_positions(np.array(numbers, np.uint64), strategy)
    assert found.dtype == np.uint32
    assert found.tolist() == [number_position(number, strategy) for number in numbers]


@given(
    NUMBERS,
    st.frozensets(st.sampled_from([f"acker-{n}" for n in range(7)]), min_size=1),
    st.integers(1, 300),
    st.sampled_from(ARRAYS),
)
@settings(deadline=None, max_examples=50)
def test_owners_are_those_of_the_scalar_way(
    numbers: list[int], members: frozenset[str], virtual_nodes: int, strategy: Strategy
) -> None:
    ring = Ring(members, virtual_nodes, strategy)
    found = RingLookup(ring).owners(np.array(numbers, np.uint64))
    assert [ring.members[at] for at in found] == [
        ring.owner_at(number_position(number, strategy)) for number in numbers
    ]


def test_positions_on_and_beside_every_virtual_node_and_at_the_seam() -> None:
    ring = Ring(["a", "b", "c"], 64, Strategy.MIX)
    near = [(at + step) % 2**32 for at, _ in ring.points for step in (-1, 0, 1)]
    near += [0, 1, 2**32 - 1, 2**31]
    found = RingLookup(ring).owners_at(np.array(near, np.uint32))
    assert [ring.members[at] for at in found] == [ring.owner_at(at) for at in near]


def test_many_numbers_are_looked_up_in_parts() -> None:
    ring = Ring([f"acker-{n}" for n in range(6)], 64, Strategy.PAPER)
    numbers = np.arange(70_001, dtype=np.uint64)
    found = RingLookup(ring).owners(numbers)
    for at in (0, 1, 32_767, 32_768, 65_535, 65_536, 70_000):
        assert ring.members[found[at]] == ring.owner_at(number_position(at, Strategy.PAPER))
    assert len(found) == 70_001


def test_what_arrays_cannot_do_is_said() -> None:
    with pytest.raises(ProtocolError, match="'blake2' cannot be computed over arrays; use 'mix'"):
        RingLookup(Ring(["a"]))
    with pytest.raises(ProtocolError, match="add a member"):
        RingLookup(Ring([], strategy=Strategy.MIX))
