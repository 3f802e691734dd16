"""What a driver copies when it starts: what an owner lacks, and nothing that is there already."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from millrace import crash
from millrace.clock import Clock
from millrace.engine.driver.stores import CopyProgress, GivenUpError, Stores
from millrace.errors import StateServerError
from millrace.homes.passwords import shared
from millrace.protocol import events as e
from millrace.protocol.record import first_record
from millrace.protocol.server import Found, Stamped
from millrace.protocol.types import (
    DeadSegment,
    Member,
    Phase,
    Record,
    Sealed,
    Segment,
    Staged,
    Stamp,
    Tag,
    View,
)
from millrace.state.client import StateClient
from millrace.state.embedded import EmbeddedServer
from millrace.state.errors import UnreachableError
from millrace.state.keyed.chunks import digest_of
from millrace.state.servers import owners_of
from millrace_e2e.embedded import started

UID = "copied"
STAMP = Stamp(2, 1)
# Group 0 belongs to the first two members, group 1 to the last two.
OWNERS = (("m0", "m1"), ("m1", "m2"))
NAMES = {"a": 0b01, "b": 0b10, "c": 0b11}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[EmbeddedServer]]:
    made = [started(tmp_path_factory.mktemp(f"m{n}")) for n in range(4)]
    yield made
    for server in made:
        server.stop()


class World:
    """Three members of a view and an older one, all stamped; ``reads`` is what was read."""

    def __init__(self, servers: list[EmbeddedServer], monkeypatch: pytest.MonkeyPatch) -> None:
        self.members = [
            replace(server.address, name=f"m{n}").member() for n, server in enumerate(servers)
        ]
        password = servers[0].address.password
        assert password is not None
        self.stores = Stores(UID, shared(None))
        addresses = [replace(s.address, name=f"m{n}") for n, s in enumerate(servers)]
        self.clients = [StateClient(address, UID) for address in addresses]
        by_name = {m.name: c for m, c in zip(self.members, self.clients, strict=True)}
        monkeypatch.setattr(self.stores, "client", lambda member: by_name[member.name])
        self.reads: list[str] = []
        for client in self.clients:
            client.wipe()
            assert isinstance(client.stamp(STAMP), Stamped)
            monkeypatch.setattr(client, "get", self._counted(client.get))

    def _counted(self, get):
        def counting(stamp, names):
            self.reads += names
            return get(stamp, names)

        return counting

    def put(self, member: int, *names: str) -> None:
        self.clients[member].put(STAMP, [(name, f"bytes of {name}".encode()) for name in names])

    def copy(self, record: Record, stamp: Stamp = STAMP) -> e.Event:
        target = tuple(self.members[:3])
        view = View(UID, 1, 2, Phase.MOVING, 1, (self.members[3],), target, 1, OWNERS)
        return self.stores.copy(e.CopyObjects(stamp, record, view, tuple(self.members)))

    def held(self, member: int) -> set[str]:
        listed = self.clients[member].list_objects(STAMP).names
        for reply in self.clients[member].get(STAMP, listed):
            assert isinstance(reply, Found)
        return set(listed)


@pytest.fixture
def world(servers: list[EmbeddedServer], monkeypatch: pytest.MonkeyPatch) -> World:
    return World(servers, monkeypatch)


def record(*names: str) -> Record:
    chain = tuple(Segment(name, 1, NAMES[name], True) for name in names)
    return replace(first_record(UID, Tag(1, 1, 1, 1)), chains={"counts": chain})


def test_of_two_drivers_that_were_given_one_execution_only_one_is_served(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The view was put back while the first one was idle, and gave its execution out again."""
    another = Stores(UID, shared(None))
    monkeypatch.setattr(another, "client", world.stores.client)
    member, stamp = world.members[0], Stamp(STAMP.epoch, 11)
    assert world.stores.stamp(member, stamp) == e.Stamped(member, stamp, None)
    assert another.stamp(member, stamp) == e.Refused(member, stamp, "fenced")
    assert world.stores.stamp(member, stamp) == e.Stamped(member, stamp, None)


def test_what_is_there_is_not_read(world: World) -> None:
    world.put(0, "a", "c")
    world.put(1, "a", "b", "c")
    world.put(2, "b", "c")
    assert world.copy(record("a", "b", "c")) == e.Copied(STAMP)
    assert world.reads == []


def test_only_what_an_owner_lacks_is_read_once_and_written(world: World) -> None:
    world.put(0, "a", "c")
    world.put(1, "a")
    world.put(3, "b")
    assert world.copy(record("a", "b", "c")) == e.Copied(STAMP)
    assert sorted(world.reads) == ["b", "c"]
    assert [world.held(n) for n in range(3)] == [{"a", "c"}, {"a", "b", "c"}, {"b", "c"}]
    world.reads.clear()
    assert world.copy(record("a", "b", "c")) == e.Copied(STAMP)
    assert world.reads == []


def test_an_intact_copy_is_taken_where_there_is_one(world: World) -> None:
    whole = record("c")
    (segment,) = whole.chains["counts"]
    segment = replace(segment, digest=digest_of(b"bytes of c"))
    whole = replace(whole, chains={"counts": (segment,)})
    world.clients[0].put(STAMP, [("c", b"damaged")])
    world.put(3, "c")
    assert world.copy(whole) == e.Copied(STAMP)
    for member in (1, 2):
        (held,) = world.clients[member].get(STAMP, ["c"])
        assert held == Found(b"bytes of c")


LETTERS = b'{"format": 2, "letters": []}'


def test_of_staged_rows_and_letters_an_intact_copy_is_taken_too(world: World) -> None:
    """The members that stay hold damaged ones; who leaves takes the intact ones along."""
    staged = Staged("out", "1.1.1.0.0.0/out/out", digest_of(b"rows"), 1, 4, stored=True)
    dead = DeadSegment("1.1.1.1/dead", 1, 1)
    waiting = replace(record(), unpublished=(Sealed(1, "d", (staged,)),), dead=(dead,))
    joining = []
    for name, data in ((staged.name, b"rows"), (dead.name, LETTERS)):
        stays, joins = (world.clients[int(owner[1:])] for owner in owners_of(OWNERS, name, 0))
        stays.put(STAMP, [(name, b"damaged")])
        world.clients[3].put(STAMP, [(name, data)])
        joining.append((joins, name, data))
    assert world.copy(waiting) == e.Copied(STAMP)
    for joins, name, data in joining:
        assert tuple(joins.get(STAMP, [name])) == (Found(data),)


def test_a_damaged_copy_is_better_than_none(world: World) -> None:
    """Whoever reads it says what is wrong with it."""
    whole = record("c")
    (segment,) = whole.chains["counts"]
    whole = replace(whole, chains={"counts": (replace(segment, digest="another"),)})
    world.put(0, "c")
    assert world.copy(whole) == e.Copied(STAMP)
    assert world.held(2) == {"c"}


def test_a_damaged_copy_is_not_taken_while_one_that_may_be_intact_is_silent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = record("c")
    (segment,) = whole.chains["counts"]
    whole = replace(whole, chains={"counts": (replace(segment, digest="another"),)})
    world.put(0, "c")
    world.put(3, "c")

    def silent(*_: object) -> None:
        raise UnreachableError("it is cut off")

    monkeypatch.setattr(world.clients[3], "list_objects", silent)
    told = world.copy(whole)
    assert isinstance(told, e.Unreachable)
    assert told.member == world.members[3]
    assert world.held(2) == set()


def test_a_driver_may_die_between_two_of_those_that_lack_the_same_object(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the histories of kills find a copy that is half done."""
    steps: list[tuple[str, list[bool]]] = []

    def reached(point: str) -> None:
        steps.append((point, ["c" in world.held(n) for n in range(3)]))

    monkeypatch.setattr(crash, "reached", reached)
    world.put(3, "c")
    assert world.copy(record("c")) == e.Copied(STAMP)
    copying = [("driver.copying", [n <= done for n in range(3)]) for done in range(3)]
    assert steps == [*copying, ("driver.copied", [True] * 3)]


def test_what_is_nowhere_is_named(world: World) -> None:
    world.put(1, "a")
    told = world.copy(record("a", "b"))
    assert isinstance(told, e.CopyFailed)
    assert "object b is on no state server any more" in told.reason
    assert told.lost


def test_a_learner_takes_what_there_is_and_windows_may_have_superseded_the_rest(
    world: World,
) -> None:
    """m2 is to join; "b" was deleted after the record that names it was committed."""
    world.put(0, "a", "c")
    world.put(1, "a", "c")
    members = tuple(world.members[:3])
    view = View(UID, 1, 2, Phase.OPEN, 1, members[:2], members, 2, OWNERS)
    steps: list[tuple[int, int, int]] = []
    lesson = e.CopyObjects(STAMP, record("a", "b", "c"), view, members[:2], learning=True)
    told = world.stores.copy(lesson, step=lambda *step: steps.append(step))
    assert told == e.Copied(STAMP, view)
    assert world.held(2) == {"c"}
    assert steps == [(1, 2, 0), (2, 2, len(b"bytes of c"))]


class HandClock(Clock):
    """Goes on when it is told to."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def monotonic_s(self) -> float:
        return self.at_s


class TestProgress:
    """What a copy tells, and how much of the time it takes while windows go on."""

    def run(self, learning: bool, each_s: float, objects: int) -> tuple[list[str], list[float]]:
        clock, told, rests = HandClock(), [], []

        def rest(pause_s: float) -> None:
            rests.append(pause_s)
            clock.at_s += pause_s

        view = View(UID, 1, 2, Phase.OPEN, 1, (), (Member("m0", "0", "redis://h:1"),), 2, OWNERS)
        lesson = e.CopyObjects(STAMP, record(), view, (), learning)
        step = CopyProgress(lesson, lambda notify: told.append(notify.text), clock, rest)
        for done in range(1, objects + 1):
            clock.at_s += each_s
            step(done, objects, done * 1_000_000)
        return told, rests

    def test_a_short_one_says_nothing(self) -> None:
        assert self.run(False, 0.1, 19) == ([], [])

    def test_a_long_one_tells_how_far_it_is_and_its_end(self) -> None:
        told, rests = self.run(False, 1.0, 15)
        assert [text.split()[0] for text in told] == ["2", "12", "15"]
        assert told[-1] == "15 of 15 objects, 15.0 MB, are copied to m0; windows wait"
        assert rests == []

    def test_one_beside_windows_rests_as_long_as_it_works(self) -> None:
        told, rests = self.run(True, 1.0, 15)
        assert rests == [1.0] * 14
        assert told[0].startswith("2 of 15")
        assert all(text.endswith("; windows go on") for text in told)


def test_nobody_is_told_to_start_over_while_one_that_may_hold_the_rest_is_silent(
    world: World,
) -> None:
    """m3 was a member of the last open view, and is no source since it has not answered."""
    members = tuple(world.members)
    view = View(UID, 1, 2, Phase.MOVING, 1, members, members[:3], 1, OWNERS)
    told = world.stores.copy(e.CopyObjects(STAMP, record("a"), view, members[:3]))
    assert isinstance(told, e.CopyFailed)
    assert "m3 may hold it" in told.reason
    assert "--fresh" not in told.reason
    assert not told.lost


def test_outputs_of_sinks_with_files_of_their_own_are_no_objects(world: World) -> None:
    staged = Staged("out", "1.1.1.0.0.0/out/out", "d", 1, 1)
    waiting = replace(record(), unpublished=(Sealed(1, "d", (staged,)),))
    assert world.copy(waiting) == e.Copied(STAMP)
    assert world.reads == []


def test_staged_rows_of_which_no_copy_is_left_are_missed_and_others_are_copied(
    world: World,
) -> None:
    staged = Staged("out", "c", "d", 1, 1, stored=True)
    waiting = replace(record(), unpublished=(Sealed(1, "d", (staged,)),))
    told = world.copy(waiting)
    assert isinstance(told, e.CopyFailed)
    assert "object c is on no state server any more" in told.reason
    world.put(3, "c")
    assert world.copy(waiting) == e.Copied(STAMP)
    assert "c" in world.held(0) | world.held(1)


def test_an_older_driver_copies_nothing(world: World) -> None:
    world.put(1, "a")
    told = world.copy(record("a"), Stamp(1, 1))
    assert isinstance(told, e.CopyFailed)
    assert "refused to list objects: the view has changed, to epoch 2" in told.reason
    assert world.held(0) == set()


def test_a_member_that_is_away_is_told(
    servers: list[EmbeddedServer], tmp_path: Path, monkeypatch
) -> None:
    gone = started(tmp_path)
    world = World([*servers[:2], gone, servers[3]], monkeypatch)
    gone.stop()
    told = world.copy(record("a"))
    assert isinstance(told, e.Unreachable)
    assert told.member == world.members[2]


def test_a_source_that_is_away_is_passed_over_where_another_has_the_object(
    servers: list[EmbeddedServer], tmp_path: Path, monkeypatch
) -> None:
    gone = started(tmp_path)
    world = World([*servers[:3], gone], monkeypatch)
    gone.stop()
    world.put(1, "a")
    view = View(UID, 1, 2, Phase.MOVING, 1, (), tuple(world.members[:3]), 1, OWNERS)
    sources = (world.members[3], world.members[1])
    copied = world.stores.copy(e.CopyObjects(STAMP, record("a"), view, sources))
    assert copied == e.Copied(STAMP)
    assert world.held(0) == {"a"}
    # What only the silent one can have is waited for, and it is named.
    told = world.stores.copy(e.CopyObjects(STAMP, record("a", "b"), view, sources))
    assert isinstance(told, e.Unreachable)
    assert told.member == world.members[3]


@pytest.mark.parametrize("learning", [False, True])
def test_a_member_without_room_is_named(
    servers: list[EmbeddedServer], tmp_path: Path, monkeypatch, learning: bool
) -> None:
    """As one that is full: what windows write there is refused in the same way."""
    small = started(tmp_path, max_memory_bytes=6 << 20)
    try:
        world = World([*servers[:2], small, servers[2]], monkeypatch)
        world.clients[1].put(STAMP, [("b", b"x" * (8 << 20))])
        view = View(UID, 1, 2, Phase.MOVING, 1, (), tuple(world.members[:3]), 1, OWNERS)
        sources = tuple(world.members[:2])
        asked = e.CopyObjects(STAMP, record("b"), view, sources, learning=learning)
        told = world.stores.copy(asked)
        assert isinstance(told, e.CopyFailed)
        assert (told.full, told.lost, told.planned) == ("m2", False, view if learning else None)
        assert "its memory is full" in told.reason
    finally:
        small.stop()


class Ending:
    """A member that names its objects and is gone when one is read."""

    def __init__(self, client: StateClient, server: EmbeddedServer) -> None:
        self._client, self._server = client, server

    def __getattr__(self, name: str):
        return getattr(self._client, name)

    def get(self, stamp, names):
        self._server.stop()
        return self._client.get(stamp, names)


@pytest.mark.parametrize("leaves", [True, False])
def test_an_object_is_read_from_the_next_where_the_first_that_names_it_falls_silent(
    servers: list[EmbeddedServer], tmp_path: Path, monkeypatch, leaves: bool
) -> None:
    """Whether the first is an older member, or one of the view that stays."""
    ending = started(tmp_path)
    try:
        order = [*servers[:2], ending, servers[2]] if leaves else [ending, *servers[:3]]
        world = World(order, monkeypatch)
        at = order.index(ending)
        for holding in (at, 3):
            world.put(holding, "b" if leaves else "c")
        target = tuple(world.members[:2])
        view = View(UID, 1, 2, Phase.MOVING, 1, (), target, 1, (("m0", "m1"), ("m0", "m1")))
        by_name = dict(zip([m.name for m in world.members], world.clients, strict=True))
        by_name[f"m{at}"] = Ending(world.clients[at], ending)  # type: ignore[assignment]
        monkeypatch.setattr(world.stores, "client", lambda member: by_name[member.name])
        wanted = record("b" if leaves else "c")
        sources = (world.members[at], world.members[3])
        told = world.stores.copy(e.CopyObjects(STAMP, wanted, view, sources))
        assert told == e.Copied(STAMP)
        assert world.held(1) == ({"b"} if leaves else {"c"})
    finally:
        ending.stop()


def test_what_the_first_owner_does_not_give_is_read_from_the_second(
    servers: list[EmbeddedServer], tmp_path: Path, monkeypatch
) -> None:
    gone = started(tmp_path)
    world = World([gone, *servers[:3]], monkeypatch)
    gone.stop()
    members = tuple(world.members[:2])
    world.stores.use(View(UID, 1, 2, Phase.OPEN, 1, members, members, 2, (("m0", "m1"),)))
    world.put(1, "a")
    assert world.stores.fetch("a") == b"bytes of a"
    with pytest.raises(UnreachableError, match="m0"):
        world.stores.fetch("b")


def test_of_what_is_too_large_no_more_is_read_than_is_wanted(world: World) -> None:
    members = tuple(world.members[:2])
    world.stores.use(View(UID, 1, 2, Phase.OPEN, 1, members, members, 2, (("m0", "m1"),)))
    world.put(0, "a")
    data = b"bytes of a"
    assert world.stores.fetch("a", most_bytes=len(data)) == data
    with pytest.raises(StateServerError, match="object a has more than 9 bytes"):
        world.stores.fetch("a", most_bytes=len(data) - 1)


@pytest.mark.parametrize(
    ("name", "data", "digest"),
    [
        ("1.1.1.0.0.0/state/counts.0", b"state", digest_of(b"state")),
        ("1.1.1.0.0.0/out/out", b"rows", digest_of(b"rows")),
        ("1.1.1.1/dead", LETTERS, ""),
    ],
)
def test_of_several_copies_the_driver_reads_one_that_is_intact(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str, data: bytes, digest: str
) -> None:
    members = tuple(world.members[:2])
    view = View(UID, 1, 2, Phase.OPEN, 1, members, members, 2, (("m0", "m1"),))
    world.stores.use(view)
    first, second = (world.clients[int(one[1:])] for one in owners_of(view.owners, name, 0))
    first.put(STAMP, [(name, b"damaged")])
    assert world.stores.fetch(name, 0, digest) == b"damaged", "whoever reads it says so"
    second.put(STAMP, [(name, data)])
    assert world.stores.fetch(name, 0, digest) == data

    def silent(*_: object) -> None:
        raise UnreachableError("it is cut off")

    monkeypatch.setattr(second, "get", silent)
    with pytest.raises(UnreachableError):
        world.stores.fetch(name, 0, digest)


@pytest.mark.parametrize(
    ("setting", "value", "text"),
    [
        ("requirepass", "another", "does not accept the password"),
        ("min-replicas-to-write", "1", "NOREPLICAS"),
        ("appendonly", "no", "has appendonly no"),
    ],
)
def test_a_server_that_refuses_what_may_be_mended_is_told_as_one_that_does_not_answer(
    tmp_path: Path, setting: str, value: str, text: str
) -> None:
    """So windows wait, or others go on without it; once it is mended it answers."""
    with started(tmp_path) as server:
        member = server.address.member()
        admin = StateClient(server.address, "admin").redis
        before = admin.config_get(setting)[setting]
        admin.config_set(setting, value)
        stores = Stores(UID, shared(server.address.password))
        told = [stores.stamp(member, STAMP), stores.write_record(member, STAMP, record())]
        assert isinstance(told[-1], e.Unreachable)
        assert text in told[-1].reason
        if setting != "appendonly":
            assert told[0] == e.Unreachable(member, STAMP, told[-1].reason)
        admin.config_set(setting, before)
        assert isinstance(stores.stamp(member, STAMP), e.Stamped)
        assert stores.write_record(member, STAMP, record()) == e.RecordAck(member, STAMP, 1)


def test_what_waiting_does_not_mend_ends_the_driver(world: World, monkeypatch) -> None:
    class ForGoodError(StateServerError):
        retryable = False

    def refuse(*_):
        raise ForGoodError("never")

    for name in ("stamp", "write_record"):
        monkeypatch.setattr(world.clients[0], name, refuse)
    with pytest.raises(ForGoodError):
        world.stores.stamp(world.members[0], STAMP)
    with pytest.raises(ForGoodError):
        world.stores.write_record(world.members[0], STAMP, record())


def test_a_copy_that_nobody_waits_for_ends(world: World) -> None:
    world.put(1, "a")
    view = View(UID, 1, 2, Phase.MOVING, 1, (), tuple(world.members[:3]), 1, OWNERS)
    action = e.CopyObjects(STAMP, record("a"), view, tuple(world.members))
    with pytest.raises(GivenUpError):
        world.stores.copy(action, lambda: False)
    assert world.held(0) == set()
