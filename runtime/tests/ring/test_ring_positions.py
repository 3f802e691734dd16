"""The circle: positions, clockwise ownership, movement of a plain ring, measured balance."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.errors import ProtocolError
from millrace.ring import POSITIONS, Ring, Strategy, paper_hash, position

NAMES = st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=8, unique=True)


def test_paper_hash_follows_the_formula_by_hand() -> None:
    # One byte "a" (97): add, shift-left 10, shift-right 6; then 3, 11, 15.
    h = 97 + (97 << 10)
    h ^= h >> 6
    h += h << 3
    h ^= h >> 11
    h += h << 15
    assert paper_hash("a") == h % POSITIONS


def test_paper_hash_reads_from_right_to_left() -> None:
    def from_left(text: str) -> int:
        h = 0
        for byte in text.encode():
            h = (h + byte) % POSITIONS
            h = (h + (h << 10)) % POSITIONS
            h ^= h >> 6
        h = (h + (h << 3)) % POSITIONS
        h ^= h >> 11
        return (h + (h << 15)) % POSITIONS

    assert paper_hash("acker#17") == from_left("71#rekca")
    assert paper_hash("acker#17") != from_left("acker#17")


@given(st.text(max_size=40), st.sampled_from(Strategy))
@settings(deadline=None)
def test_positions_lie_on_the_circle(text: str, strategy: Strategy) -> None:
    assert 0 <= position(text, strategy) < POSITIONS


@given(NAMES, st.integers(1, 9), st.integers(0, POSITIONS - 1), st.sampled_from(Strategy))
@settings(deadline=None)
def test_owner_is_the_first_virtual_node_clockwise(
    names: list[str], virtual: int, at: int, strategy: Strategy
) -> None:
    nodes = [
        (position(f"{name}#{number}", strategy), name)
        for name in names
        for number in range(1, virtual + 1)
    ]
    nearest = min(((point - at) % POSITIONS, name) for point, name in nodes)
    assert Ring(names, virtual, strategy).owner_at(at) == nearest[1]


@given(NAMES, st.text(max_size=10))
@settings(deadline=None)
def test_the_ring_is_a_value(names: list[str], key: str) -> None:
    again = Ring(reversed(names + names))
    assert again == Ring(names)
    assert again.owner(key) == Ring(names).owner(key)
    assert next(again.walk(key)) == again.owner(key)
    assert sorted(again.walk(key)) == sorted(names)


@given(NAMES, st.text(min_size=1, max_size=12), st.lists(st.text(max_size=8), max_size=50))
@settings(deadline=None)
def test_a_new_member_takes_keys_only_for_itself(
    names: list[str], new: str, keys: list[str]
) -> None:
    before, after = Ring(names), Ring([*names, new])
    for key in keys:
        assert after.owner(key) in {before.owner(key), new}


@pytest.mark.parametrize("strategy", list(Strategy))
def test_shares_are_even_enough(strategy: Strategy) -> None:
    for names in ([f"acker-{i}" for i in range(10)], [f"wc-state-{i}" for i in range(4)]):
        shares = Ring(names, 256, strategy).shares()
        assert sum(shares.values()) == pytest.approx(1.0)
        assert max(shares.values()) < 1.25 / len(names)
        assert min(shares.values()) > 0.75 / len(names)


def _chi_square(keys: list[str], strategy: Strategy) -> float:
    counts = [0] * 64
    for key in keys:
        counts[position(key, strategy) * 64 // POSITIONS] += 1
    expected = len(keys) / 64
    return sum((count - expected) ** 2 / expected for count in counts)


def test_why_the_papers_hash_is_not_the_default() -> None:
    limit = 92.0  # 99 % of chi-square with 63 degrees of freedom
    single = [chr(code) for code in range(32, 127)]
    numbers = [str(i) for i in range(10_000)]
    assert _chi_square(single, Strategy.PAPER) > limit
    assert _chi_square(single, Strategy.BLAKE2) < limit
    assert _chi_square(numbers, Strategy.PAPER) < limit
    assert _chi_square(numbers, Strategy.BLAKE2) < limit


def test_an_empty_ring_says_so() -> None:
    with pytest.raises(ProtocolError, match="no member"):
        Ring([]).owner("x")
    with pytest.raises(ProtocolError, match="virtualNodes is 0"):
        Ring(["a"], 0)
    assert Ring([]).shares() == {}
