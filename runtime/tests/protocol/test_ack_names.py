"""Names of edges and the turning of nets, on which the acker and every producer must agree."""

from __future__ import annotations

import pytest

from millrace.protocol.acklog import consumer_of, rotate, rotations, source_edge, source_of


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
