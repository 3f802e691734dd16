"""An inbox that requests fill: what the operator says has room all the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

import pytest

from millrace.homes import codec
from millrace.homes.documents import Ask, Nodes, Proposal, Request
from millrace.kube.configmaps import ApiRefusedError, ConfigMap, Held
from millrace.kube.inboxmap import MOST_REQUESTS_BYTES, InboxMap, written
from millrace.protocol.types import Member
from millrace.topology.members import MOST_MEMBERS
from millrace.topology.scalars import LONGEST_NAME

CONFIG_MAP = 1 << 20


class Map:
    """A ConfigMap that says how often it is read, and takes no more than Kubernetes does."""

    name = "words-inbox"

    def __init__(self) -> None:
        self.data: dict[str, str] = {}
        self.reads = 0

    def read(self) -> Held:
        self.reads += 1
        return Held("1", dict(self.data))

    def merge(self, data: Mapping[str, str | None]) -> None:
        for key, value in data.items():
            self.data.pop(key, None)
            if value is not None:
                self.data[key] = value
        assert self.bytes <= CONFIG_MAP

    @property
    def bytes(self) -> int:
        return sum(len(key) + len(value) for key, value in self.data.items())


def inbox(found: Map) -> InboxMap:
    return InboxMap(cast("ConfigMap", found))


def request(letters: int) -> Request:
    return Request(Ask.DROP, "letters/12.345.1", tuple(range(letters)))


def fill(inboxes: InboxMap, letters: int = 500) -> None:
    for _ in range(10_000):
        inboxes.ask(request(letters))


def longest() -> Proposal:
    """With as many members as there may be, of names as long as they may be."""
    name = "w" * LONGEST_NAME
    members = tuple(
        Member(f"{name}-state-{n}", "a" * 40, f"redis://[{'2001:' * 7}2001]:6379")
        for n in range(MOST_MEMBERS)
    )
    ackers = tuple(f"{name}-acker-{n}" for n in range(MOST_MEMBERS))
    nodes = tuple((one.name, "n" * 253) for one in members)
    return Proposal(members, ackers, 7, nodes, members)


def test_requests_leave_room_for_the_longest_proposal() -> None:
    found = Map()
    asking = inbox(found)
    with pytest.raises(ApiRefusedError, match=r"words-inbox: has no room .* when one runs"):
        fill(asking)
    assert MOST_REQUESTS_BYTES - 8_192 < found.bytes <= MOST_REQUESTS_BYTES
    assert found.reads < 100, "it is not read for each request"
    asking.propose(longest())
    assert inbox(found).proposal() == longest()


def test_there_is_room_again_when_a_driver_has_taken_requests() -> None:
    found = Map()
    asking = inbox(found)
    with pytest.raises(ApiRefusedError):
        fill(asking)
    found.data.clear()
    token = asking.ask(request(500))
    assert [one.token for one in asking.requests()] == [token]


def test_what_others_ask_for_meanwhile_is_seen() -> None:
    found = Map()
    one, other = inbox(found), inbox(found)

    def both() -> None:
        for _ in range(10_000):
            one.ask(request(50))
            other.ask(request(50))

    with pytest.raises(ApiRefusedError):
        both()
    assert found.bytes < CONFIG_MAP - (1 << 15)


def test_the_room_that_is_left_is_enough() -> None:
    proposal = longest()
    size = sum(len(key) + len(text or "") for key, text in written(proposal).items())
    assert size < CONFIG_MAP - MOST_REQUESTS_BYTES
    assert proposal.nodes is not None
    assert len(json.dumps(codec.encode(Nodes(7, proposal.nodes)))) < size
