"""The bound of a view's size against views as they are written."""

from __future__ import annotations

from itertools import cycle, islice

import pytest

from millrace.homes.pods import Role, pod_name, state_url
from millrace.ids import Epoch, Execution, Timeline
from millrace.protocol.codec import encode_view
from millrace.protocol.types import Member, Phase, View
from millrace.topology.checks.views import LARGEST_VIEW, large_view, view_bytes
from millrace.topology.members import MOST_MEMBERS
from millrace.topology.model import StreamTopology
from millrace.topology.scalars import LONGEST_NAME

ADDRESS = "2001:0db8:85a3:0000:0000:8a2e:0370:7334"
CONFIG_MAP = 1 << 20


def topology(name: str, key_groups: int | None, copies: int) -> StreamTopology:
    spec = {
        "sources": [{"name": "lines", "files": {"path": "texts"}}],
        "sinks": [{"name": "out", "inputs": [{"from": "lines"}], "files": {"path": "out"}}],
        "stateServers": {"replicas": MOST_MEMBERS, "copies": copies},
        **({} if key_groups is None else {"keyGroups": key_groups}),
    }
    head = {"apiVersion": "millrace.dev/v1alpha1", "kind": "StreamTopology"}
    return StreamTopology.model_validate({**head, "metadata": {"name": name}, "spec": spec})


def moving(declared: StreamTopology) -> View:
    """A view between two sets of as many servers as there may be, all with names of any length."""
    name, spec = declared.metadata.name, declared.spec
    members, joining = (
        tuple(
            Member(
                pod_name(name, Role.STATE_SERVER, number),
                life * 40,
                state_url(ADDRESS),
                f"node-{number:02}".ljust(253, "n"),
            )
            for number in range(MOST_MEMBERS)
        )
        for life in "ab"
    )
    names = cycle(member.name for member in reversed(joining))
    owners = tuple(tuple(islice(names, spec.state_servers.copies)) for _ in range(spec.key_groups))
    most = 2**63 - 1
    lives = (Timeline(most), Epoch(most), Phase.CREATING, Execution(most))
    return View("u" * 36, *lives, members, joining, Epoch(most), owners, True, 8)


@pytest.mark.parametrize("copies", [1, 2, 8])
@pytest.mark.parametrize("key_groups", [1, 128, 4096])
@pytest.mark.parametrize("length", [1, 7, LONGEST_NAME])
def test_no_view_is_larger_than_its_bound_and_the_bound_is_close(
    length: int, key_groups: int, copies: int
) -> None:
    declared = topology("w" * length, key_groups, copies)
    size, bound = len(encode_view(moving(declared))), view_bytes(declared)
    assert size <= bound <= size + 5_000 + size // 8
    assert bool(large_view(declared)) is (bound > LARGEST_VIEW)
    assert size < CONFIG_MAP or large_view(declared)


def test_what_would_not_fit_is_refused_with_what_to_change() -> None:
    (problem,) = large_view(topology("w" * 40, 4096, 8))
    text = str(problem)
    for named in ("spec.keyGroups: 4096", "copies: 8", "40 characters", str(LARGEST_VIEW)):
        assert named in text
    most = int(text.split("at most ")[1].split()[0])
    assert large_view(topology("w" * 40, most, 8)) == []
    assert large_view(topology("w" * 40, most + 1, 8))


def test_what_is_asked_for_by_default_fits_with_every_name_and_number_of_copies() -> None:
    for copies in range(1, 9):
        assert large_view(topology("w" * LONGEST_NAME, None, copies)) == []
