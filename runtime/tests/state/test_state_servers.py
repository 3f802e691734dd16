"""Objects on their owners, over several real servers."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.engine.driver.stores import Stores
from millrace.engine.task.state import StateHost
from millrace.errors import StateServerError
from millrace.homes.pods import NODE
from millrace.protocol.server import Listed, NotOwner, Reason, Stamped
from millrace.protocol.types import Member, Phase, Stamp, View
from millrace.ring import owners
from millrace.state.client import StateClient
from millrace.state.errors import (
    NotOwnerError,
    ObjectMissingError,
    ObjectTooLargeError,
    UnreachableError,
)
from millrace.state.servers import (
    ObjectPart,
    StateAccess,
    StateObject,
    StateServers,
    owners_of,
)
from millrace_e2e.embedded import started

STAMP = Stamp(1, 1)
OWNERS = (("s0", "s1"), ("s1", "s2"), ("s2", "s0"), ("s0", "s1"))


class Cluster:
    """Three servers and a view in which each key group has two owners."""

    def __init__(self, folder: Path) -> None:
        self.servers = {n: started(folder / n, n) for n in ("s0", "s1", "s2")}
        addresses = tuple(server.address for server in self.servers.values())
        self.access = StateAccess("t", STAMP, addresses, OWNERS)
        self.stores = StateServers(self.access, StateClient)
        for client in self.stores.clients.values():
            assert isinstance(client.stamp(STAMP), Stamped)

    def names_on(self, server: str) -> set[str]:
        listed = self.stores.clients[server].list_objects(STAMP)
        assert isinstance(listed, Listed)
        return set(listed.names)

    def stop(self) -> None:
        self.stores.close()
        for name, server in self.servers.items():
            self.stores.clients[name].close()
            server.stop()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    three = Cluster(tmp_path)
    yield three
    three.stop()


def test_objects_lie_on_all_owners_of_their_key_groups(cluster: Cluster) -> None:
    cluster.stores.put(
        [StateObject("a", b"A", 0b0001), StateObject("b", b"B", 0b0110), StateObject("c", b"C")]
    )
    assert {n for n in cluster.servers if "a" in cluster.names_on(n)} == {"s0", "s1"}
    assert {n for n in cluster.servers if "b" in cluster.names_on(n)} == {"s0", "s1", "s2"}
    assert {n for n in cluster.servers if "c" in cluster.names_on(n)} == set(
        cluster.stores.owners("c")
    )
    assert cluster.stores.get([("b", 0b0110), ("c", 0), ("a", 1)]) == [b"B", b"C", b"A"]


def test_reads_fall_back_to_the_next_owner(cluster: Cluster) -> None:
    cluster.stores.put([StateObject("a", b"A", 1), StateObject("b", b"B", 0b0010)])
    cluster.servers["s0"].kill()
    assert cluster.stores.get([("a", 1), ("b", 0b0010)]) == [b"A", b"B"]
    cluster.stores.clients["s1"].delete(STAMP, ["b"])
    assert cluster.stores.get([("b", 0b0010)]) == [b"B"]
    cluster.servers["s1"].kill()
    with pytest.raises(UnreachableError):
        cluster.stores.get([("a", 1)])


@pytest.mark.parametrize("damaged", ["s0", "s1"])
def test_a_damaged_copy_is_passed_over(cluster: Cluster, damaged: str) -> None:
    part = ObjectPart("a", 1, is_intact=lambda data: data == b"A")
    cluster.stores.put([StateObject("a", b"A", 1)])
    hurt(cluster, damaged, "a")
    for _ in range(2):
        assert cluster.stores.get_parts([part]) == [b"A"]
    # The other one may have it, and is not there to say so.
    (other,) = {"s0", "s1"} - {damaged}
    cluster.servers[other].kill()
    with pytest.raises(UnreachableError):
        cluster.stores.get_parts([part])


@pytest.mark.parametrize(
    ("groups", "shown"), [(0b100, "key group 2"), (0b111, "3 key groups, 0 to 2")]
)
def test_an_object_that_is_too_large_is_told_with_its_key_groups(
    groups: int, shown: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.state.messages.MAX_OBJECT_BYTES", 10)
    with pytest.raises(ObjectTooLargeError, match=f"object a of {shown} has 11 bytes"):
        cluster.stores.put([StateObject("a", bytes(11), groups)])


def test_what_is_damaged_on_every_owner_is_for_its_reader_to_refuse(cluster: Cluster) -> None:
    cluster.stores.put([StateObject("a", b"A", 1)])
    for owner in ("s0", "s1"):
        hurt(cluster, owner, "a")
    part = ObjectPart("a", 1, is_intact=lambda data: data == b"A")
    assert cluster.stores.get_parts([part]) == [b"?"]


def hurt(cluster: Cluster, server: str, name: str) -> None:
    client = cluster.stores.clients[server]
    client.delete(STAMP, [name])
    client.put(STAMP, [(name, b"?")])


def test_of_several_owners_the_one_on_the_same_node_is_asked_first(cluster: Cluster) -> None:
    on = (("s0", "n0"), ("s1", "n1"), ("s2", "n0"))
    access = replace(cluster.access, nodes=on)
    # Never so but here: who was asked is seen by what comes.
    for name, client in cluster.stores.clients.items():
        client.put(STAMP, [("a", name.encode())])
    wanted = [("a", 1 << group) for group in range(len(OWNERS))]
    asked = {
        node: StateServers(access, StateClient, node=node).get(wanted)
        for node in ("n0", "n1", "n2", None)
    }
    assert asked["n0"] == [b"s0", b"s2", b"s2", b"s0"]
    assert asked["n1"] == [b"s1", b"s1", asked["n2"][2], b"s1"]
    assert asked["n2"] == asked[None] == cluster.stores.get(wanted)
    near = StateServers(access, StateClient, node="n1")
    cluster.servers["s1"].kill()
    assert near.get([("a", 1)]) == [b"s0"]


def test_a_task_asks_on_its_own_node(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    members = tuple(
        Member(n, s.address.run_id, s.address.url, "n1" if n == "s1" else "")
        for n, s in cluster.servers.items()
    )
    view = View("t", 1, 1, Phase.OPEN, 1, members, members, 1, OWNERS)
    stores = Stores("t", lambda name: cluster.servers[name].address.password)
    access = stores.access(view)
    assert access.nodes == (("s1", "n1"),)
    for name, client in cluster.stores.clients.items():
        client.put(STAMP, [("a", name.encode())])
    monkeypatch.setenv(NODE, "n1")
    servers = StateHost().servers(access)
    assert servers.get([("a", 1), ("a", 2)]) == [b"s1", b"s1"]
    servers.close()


def test_a_write_needs_every_owner(cluster: Cluster) -> None:
    cluster.servers["s1"].kill()
    with pytest.raises(UnreachableError, match="s1"):
        cluster.stores.put([StateObject("a", b"A", 1)])
    cluster.stores.put([StateObject("b", b"B", 0b0100)])


def test_an_object_that_is_nowhere_is_missing(cluster: Cluster) -> None:
    with pytest.raises(ObjectMissingError, match="object gone is on none of its owners"):
        cluster.stores.get([("gone", 1)])


def test_a_restarted_owner_is_passed_over_and_never_believed(cluster: Cluster) -> None:
    cluster.stores.put([StateObject("a", b"A", 1)])
    cluster.servers["s0"].kill()
    cluster.servers["s0"] = started(cluster.servers["s0"].folder, "s0")
    reborn = replace(cluster.access.addresses[0], url=cluster.servers["s0"].address.url)
    access = replace(cluster.access, addresses=(reborn, *cluster.access.addresses[1:]))
    stores = StateServers(access, StateClient)
    assert stores.get([("a", 1)]) == [b"A"]
    with pytest.raises(NotOwnerError) as caught:
        stores.put([StateObject("b", b"B", 1)])
    assert (caught.value.server, caught.value.refusal) == ("s0", NotOwner(Reason.RUN_ID))
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (copied.server, copied.refusal) == ("s0", NotOwner(Reason.RUN_ID))
    stores.close()
    for client in stores.clients.values():
        client.close()


def test_a_fenced_task_reads_and_writes_nothing(cluster: Cluster) -> None:
    cluster.stores.put([StateObject("a", b"A", 1)])
    cluster.stores.clients["s0"].stamp(Stamp(1, 2))
    for action in (
        lambda: cluster.stores.get([("a", 1)]),
        lambda: cluster.stores.put([StateObject("b", b"B", 1)]),
    ):
        with pytest.raises(NotOwnerError) as caught:
            action()
        assert caught.value.refusal == NotOwner(Reason.FENCED, Stamp(1, 2))
        assert "execution 2 of the topology has taken over; this driver ends" in str(caught.value)


def test_access_travels_to_tasks(cluster: Cluster) -> None:
    data = pickle.dumps(cluster.access)
    hidden = tuple(replace(address, password=None) for address in cluster.access.addresses)
    assert pickle.loads(data) == replace(cluster.access, addresses=hidden)
    password = cluster.access.addresses[0].password
    assert password is not None
    assert password not in repr(cluster.access)
    assert password.encode() not in data


def test_owners_come_without_repetition() -> None:
    assert owners_of(OWNERS, "x", 0b1001) == ("s0", "s1")
    assert owners_of(OWNERS, "x", 0b0011) == ("s0", "s1", "s2")
    assert sorted(owners_of(OWNERS, "x", 0)) in [sorted(owners) for owners in OWNERS]


@pytest.mark.parametrize(("servers", "copies"), [(2, 2), (3, 2), (4, 2), (3, 3), (5, 3)])
def test_reads_are_shared_out_evenly(servers: int, copies: int) -> None:
    groups = 128
    placed = owners(groups, [f"state-{number}" for number in range(servers)], copies)
    of_groups = Counter(owners_of(placed, "", 1 << group)[0] for group in range(groups))
    of_objects = Counter(owners_of(placed, f"w{number}/note", 0)[0] for number in range(3000))
    for asked_first, count in ((of_groups, groups), (of_objects, 3000)):
        assert len(asked_first) == servers
        assert max(asked_first.values()) <= 1.25 * count / servers


def test_an_owner_that_is_no_member_is_an_error() -> None:
    with pytest.raises(StateServerError, match="places key groups on s9"):
        StateServers(StateAccess("t", STAMP, (), (("s9",),))).put([StateObject("a", b"")])
