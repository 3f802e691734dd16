"""Placement: shares that differ by one, the least movement, owners on different nodes."""

from __future__ import annotations

from collections import Counter
from itertools import chain, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.errors import ProtocolError
from millrace.ring import Difference, assign, diff, largest_share, owners, placement

MEMBERS = st.frozensets(st.sampled_from([f"m{i}" for i in range(9)]), min_size=1)


def _even(loads: Counter[str], members: frozenset[str], total: int) -> None:
    assert sum(loads.values()) == total
    counts = [loads[name] for name in members]
    assert max(counts) - min(counts) <= 1


@given(st.integers(0, 300), MEMBERS)
@settings(deadline=None)
def test_shares_differ_by_one_unit_at_most(units: int, members: frozenset[str]) -> None:
    placed = assign(units, members)
    assert set(placed) <= members
    _even(Counter(placed), members, units)
    assert placed == assign(units, sorted(members, reverse=True))


@given(st.integers(1, 64), st.lists(MEMBERS, min_size=2, max_size=4), st.data())
@settings(deadline=None)
def test_a_change_moves_the_minimum(
    units: int, history: list[frozenset[str]], data: st.DataObject
) -> None:
    any_owner = st.sampled_from([f"m{i}" for i in range(9)] + ["gone"])
    placed = tuple(data.draw(st.lists(any_owner, min_size=units, max_size=units)))
    for members in history:
        before, placed = placed, assign(units, members, placed)
        _even(Counter(placed), members, units)
        moved = sum(a != b for a, b in zip(before, placed, strict=True))
        assert moved == units - _most_kept(units, members, Counter(before))


def _most_kept(units: int, members: frozenset[str], held: Counter[str]) -> int:
    """The largest number of units that may stay under any even choice of shares."""
    floor, larger = divmod(units, len(members))
    gains = sorted((held[name] > floor for name in members), reverse=True)
    return sum(min(held[name], floor) for name in members) + sum(gains[:larger])


@given(st.integers(1, 5), st.integers(1, 3), st.data())
@settings(deadline=None)
def test_no_even_assignment_moves_less(units: int, count: int, data: st.DataObject) -> None:
    members = [f"m{i}" for i in range(count)]
    previous = data.draw(st.lists(st.sampled_from([*members, "x"]), min_size=units, max_size=units))
    placed = assign(units, members, previous)
    fewest = min(
        sum(a != b for a, b in zip(previous, other, strict=True))
        for other in product(members, repeat=units)
        if max(map(other.count, members)) - min(map(other.count, members)) <= 1
    )
    assert sum(a != b for a, b in zip(previous, placed, strict=True)) == fewest


@given(st.integers(1, 64), MEMBERS)
@settings(deadline=None)
def test_no_change_moves_nothing(units: int, members: frozenset[str]) -> None:
    placed = assign(units, members)
    assert assign(units, members, placed) == placed


@given(st.integers(0, 90), MEMBERS)
@settings(deadline=None)
def test_stripes_lie_on_the_members_in_turn(units: int, members: frozenset[str]) -> None:
    placed = assign(units, members, striped=True)
    turn = placed[: len(members)]
    assert len(set(turn)) == len(turn)
    assert placed == tuple(turn[unit % len(members)] for unit in range(units))
    assert placed == assign(units, sorted(members, reverse=True), striped=True)


@given(st.integers(1, 64), MEMBERS, MEMBERS, st.booleans())
@settings(deadline=None)
def test_a_placement_moves_what_diff_says_had_to(
    units: int, members: frozenset[str], others: frozenset[str], striped: bool
) -> None:
    before = assign(units, members, striped=striped)
    after = assign(units, others, before, striped=striped)
    found = diff(before, after, others)
    assert found.units == tuple(u for u in range(units) if before[u] != after[u])
    assert found.moves == len(found.units) == found.least
    assert found.least == units - _most_kept(units, others, Counter(before))


@given(st.integers(1, 64), st.integers(1, 3), MEMBERS, MEMBERS)
@settings(deadline=None)
def test_diff_counts_each_owner_that_is_new(
    groups: int, copies: int, members: frozenset[str], others: frozenset[str]
) -> None:
    before = owners(groups, members, copies)
    after = owners(groups, others, copies, previous=before)
    found = diff(before, after, others)
    new = [set(b) - set(a) for a, b in zip(before, after, strict=True)]
    assert found.moves == sum(map(len, new))
    assert found.units == tuple(group for group, names in enumerate(new) if names)
    assert 0 <= found.least <= found.moves
    assert diff(after, after).moves == diff(after, after).least == 0


def test_diff_needs_the_same_units() -> None:
    with pytest.raises(ProtocolError, match="3 units cannot be compared with one of 2"):
        diff(("a",) * 3, ("a",) * 2)
    # A needless exchange is told from what had to move.
    assert diff(("a", "b"), ("b", "a")) == Difference((0, 1), 2, 0)


def test_the_largest_share_is_in_parts_of_the_mean() -> None:
    assert largest_share([3, 3, 3]) == 1.0
    assert largest_share([4, 2, 0]) == 2.0
    assert largest_share([]) == largest_share([0, 0]) == 1.0


def test_placing_on_nobody_is_refused() -> None:
    with pytest.raises(ProtocolError, match="add a member"):
        assign(16, [])
    with pytest.raises(ProtocolError, match="names 3 units, this one 16"):
        assign(16, ["a"], ["a"] * 3)
    with pytest.raises(ProtocolError, match="copies is 0"):
        owners(16, ["a"], 0)
    with pytest.raises(ProtocolError, match="add a member"):
        owners(16, [], 1)


Groups = tuple[tuple[str, ...], ...]


def _loads(placed: Groups) -> Counter[str]:
    return Counter(name for group in placed for name in group)


@given(st.integers(1, 64), MEMBERS, st.integers(1, 4))
@settings(deadline=None)
def test_owners_are_distinct_and_even(groups: int, members: frozenset[str], copies: int) -> None:
    placed = owners(groups, members, copies)
    wanted = min(copies, len(members))
    assert all(len(set(group)) == len(group) == wanted for group in placed)
    _even(_loads(placed), members, groups * wanted)
    assert owners(groups, members, copies, previous=placed) == placed


@given(st.integers(1, 40), MEMBERS, st.integers(1, 4), st.integers(1, 4), st.data())
@settings(deadline=None)
def test_owners_lie_on_different_nodes_while_enough_exist(
    groups: int, members: frozenset[str], copies: int, count: int, data: st.DataObject
) -> None:
    names = st.sampled_from([f"node-{i}" for i in range(count)])
    nodes = {name: data.draw(names) for name in sorted(members)}
    placed = None
    for _ in range(2):
        placed = owners(groups, members, copies, nodes, placed)
        reach = min(copies, len(set(nodes.values())))
        for group in placed:
            assert len(set(group)) == min(copies, len(members))
            assert len({nodes[name] for name in group}) >= reach
        nodes = {name: data.draw(names) for name in sorted(members)}


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from([16, 64, 128]),
    st.integers(2, 8),
    st.integers(1, 3),
    st.sampled_from(["join", "leave", "replace"]),
)
def test_one_change_moves_the_minimum_of_copies(
    groups: int, count: int, copies: int, change: str
) -> None:
    members = frozenset(f"m{i}" for i in range(count))
    before = owners(groups, members, copies)
    gone = frozenset() if change == "join" else {"m0"}
    new = members - gone | (frozenset() if change == "leave" else {"new"})
    after = owners(groups, new, copies, previous=before)
    total = groups * min(copies, len(new))
    _even(_loads(after), new, total)
    made = sum(len(set(b) - set(a)) for a, b in zip(before, after, strict=True))
    kept = _loads(tuple(tuple(set(group) & new) for group in before))
    # Distinctness may cost a copy or two over what the loads alone would need.
    assert made <= total - _most_kept(total, new, kept) + copies - 1


def test_even_loads_on_even_nodes() -> None:
    members = [f"s{i}" for i in range(6)]
    nodes = {name: f"n{i % 3}" for i, name in enumerate(members)}
    placed = owners(128, members, 2, nodes)
    loads = _loads(placed)
    assert max(loads.values()) - min(loads.values()) <= 1


def test_losing_one_owner_spreads_its_groups() -> None:
    members = [f"s{i}" for i in range(5)]
    before = owners(128, members, 2)
    after = owners(128, members[1:], 2, previous=before)
    gained = Counter(n for a, b in zip(before, after, strict=True) for n in set(b) - set(a))
    assert set(gained) == set(members[1:])


def test_as_many_looks_as_there_are_groups_place_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver places them between two windows, and there may be thousands."""
    looks = 0
    allowed = placement._Owners._allowed

    def counted(self: placement._Owners, group: set[str], name: str) -> bool:
        nonlocal looks
        looks += 1
        return allowed(self, group, name)

    monkeypatch.setattr(placement._Owners, "_allowed", counted)
    groups, few, more = 2048, ["a", "b"], ["a", "b", "c", "d"]
    before = owners(groups, few, 2)
    looks = 0
    after = owners(groups, more, 2, previous=before)
    assert Counter(chain.from_iterable(after)) == dict.fromkeys(more, groups // 2)
    assert looks < 5 * groups * len(more)
