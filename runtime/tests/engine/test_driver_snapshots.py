"""Snapshots that a driver takes while windows go on: real state servers, real places, no Spark."""

from __future__ import annotations

import errno
import os
import queue
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.clock import SystemClock
from millrace.engine.driver.errands import Foreground
from millrace.engine.driver.home.inbox import Mailbox
from millrace.engine.driver.home.journal import EventTeller
from millrace.engine.driver.letters import encode_letters
from millrace.engine.driver.performer import Equipment, RealPerformer
from millrace.engine.driver.snapshots import SnapshotPlan, SnapshotTaker
from millrace.engine.driver.stores import Stores
from millrace.errors import WorkFolderError
from millrace.homes.documents import (
    Answer,
    Ask,
    Outcome,
    Request,
    delete_token,
    named_for,
    take_token,
)
from millrace.homes.memory import MemoryHome
from millrace.homes.passwords import shared
from millrace.homes.stores import PendingRequest
from millrace.protocol import events as e
from millrace.protocol.record import digest_of, first_record
from millrace.protocol.types import (
    Components,
    DeadSegment,
    Phase,
    Record,
    Sealed,
    Stamp,
    Tag,
    View,
)
from millrace.snapshots.places import FolderPlace, _explained
from millrace.snapshots.reading import delete, entries, load, read_part
from millrace.snapshots.retention import Retention, own_name
from millrace.snapshots.timelines import Fork
from millrace.snapshots.writing import Subject, write_snapshot
from millrace.state.embedded import EmbeddedServer
from millrace_e2e.embedded import started
from millrace_e2e.waiting import until

UID = "snapshots-of-a-driver"
STAMP = Stamp(1, 1)
WAIT_S = 60.0
EDITED = Components(1, {"lines": 0}, {}, {"out": 0})


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    (tmp_path / "state-0").mkdir(mode=0o700)
    made = started(tmp_path / "state-0", "state-0")
    yield made
    os.kill(made.pid, signal.SIGCONT)
    made.stop()


def quiet(*_: Any, **__: Any) -> None:
    return None


class Gate:
    """Lets reads of objects through when somebody wants."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self.reading = threading.Event()
        self.open = threading.Event()

    def fetch(self, name: str, groups: int = 0, digest: str = "") -> bytes:
        self.reading.set()
        assert self.open.wait(WAIT_S)
        return self._stores.fetch(name, groups, digest)


class Bench:
    """A performer on a real server. Window w leaves one object, that of window w-1 goes."""

    def __init__(self, server: EmbeddedServer, place: Path, **plan: Any) -> None:
        self.home = MemoryHome()
        self.stores = Stores(UID, shared(server.address.password))
        member = server.address.member()
        self.member = member
        self.stores.use(View(UID, 1, 1, Phase.OPEN, 1, (member,), (member,), 1, (("state-0",),)))
        self.stores.stamp(member, STAMP)
        self.gate = Gate(self.stores)
        self.told: queue.SimpleQueue[e.Notify] = queue.SimpleQueue()
        settings = {
            "components": None,
            "to": str(place),
            "folder": place,
            "retention": Retention(1),
            **plan,
        }
        self.snapshots = SnapshotTaker(
            SnapshotPlan("first", {"metadata": {"name": "first"}}, 1, **settings),
            self.gate.fetch,
            self.home.inbox.done,
            self.told.put,
            SystemClock(),
        )
        self.place = FolderPlace(place)
        part = SimpleNamespace(
            stop=quiet, ask=quiet, fence=quiet, forget=quiet, discard=quiet, busy=quiet
        )
        equipment = Equipment(
            view=self.home.view,
            stores=self.stores,
            verdicts=part,  # type: ignore[arg-type]
            planner=part,  # type: ignore[arg-type]
            publisher=part,  # type: ignore[arg-type]
            mailbox=Mailbox(self.home.inbox, self.stores.fetch, quiet, self.snapshots.asked),
            events=EventTeller(self.home.journal, SystemClock()),
            sources={},
            runner=quiet,  # type: ignore[arg-type]
            committed=quiet,
            running=quiet,
            settle=quiet,
            foreground=Foreground(),
            snapshots=self.snapshots,
        )
        self.performer = RealPerformer(equipment, quiet, quiet)
        self.record = first_record(UID, Tag(1, 1, 1, 1))

    def name(self, window: int) -> str:
        return f"1.{window}.1.1/dead"

    def seal(self, *, published: int | None = None, forget: bool = True) -> Record:
        """Commit the next window as the machine does: the record, then what is forgotten."""
        window = self.record.sealed + 1
        data = encode_letters((), {}) + b" " * window
        self.stores.put_everywhere(STAMP, self.name(window), data)
        now = replace(
            self.record,
            tag=replace(self.record.tag, seq=self.record.tag.seq + 1),
            sealed=window,
            published=window if published is None else published,
            dead=(DeadSegment(self.name(window), window, 1),),
            unpublished=(Sealed(window, digest_of(()), ()),) if published is not None else (),
        )
        self.commit(now, *([self.name(window - 1)] if forget and window > 1 else []))
        return now

    def commit(self, record: Record, *gone: str) -> None:
        self.record = record
        self.performer.perform(e.Committed(record, 1))
        if gone:
            self.performer.perform(e.Forget(STAMP, record.sealed, gone, ()))

    def held(self) -> set[str]:
        """What the server holds, behind all that was asked of the janitor."""
        done = threading.Event()
        self.performer._janitor.submit(done.set)
        assert done.wait(WAIT_S)
        listed = self.stores.client(self.member).list_objects(STAMP)
        return set(listed.names)  # type: ignore[union-attr]

    def ask(self, name: str, to: Path | None = None) -> str:
        to_ = None if to is None else str(to)
        token = self.home.inbox.ask(Request(Ask.SNAPSHOT, name=name, to=to_))
        self.performer.poll()
        return token

    def next(self) -> e.Notify:
        return self.told.get(timeout=WAIT_S)

    def asked(self) -> list[str]:
        return [one.token for one in self.home.inbox.requests()]


@pytest.fixture
def bench(server: EmbeddedServer, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(server, tmp_path / "snapshots")
    yield made
    made.gate.open.set()
    made.performer.close()


def test_a_snapshot_is_of_one_window_whatever_is_sealed_and_deleted_meanwhile(
    bench: Bench,
) -> None:
    first = bench.seal()
    bench.ask("one")
    assert bench.gate.reading.wait(WAIT_S)
    for _ in range(5):
        bench.seal()
    # What is copied is still there; everything else that was superseded is gone.
    assert bench.held() == {bench.name(1), bench.name(6)}
    bench.gate.open.set()
    taken = bench.next()
    assert taken.kind == "SnapshotTaken"
    assert "snapshot one is taken behind window 1" in taken.text
    manifest = load(bench.place, "one")
    assert manifest.decoded == first
    (part,) = manifest.parts
    assert read_part(bench.place, manifest, part) == encode_letters((), {}) + b" "
    # What was spared goes with the next window.
    bench.seal()
    assert bench.held() == {bench.name(7)}


def test_a_sweep_spares_what_is_copied(bench: Bench) -> None:
    bench.seal()
    bench.ask("one")
    assert bench.gate.reading.wait(WAIT_S)
    now = bench.seal(forget=False)
    bench.performer.perform(e.Forget(STAMP, 2, (), (), frozenset({bench.name(2)})))
    assert bench.held() == {bench.name(1), bench.name(2)}
    bench.gate.open.set()
    assert bench.next().kind == "SnapshotTaken"
    bench.performer.perform(e.Forget(STAMP, now.sealed, (), (), frozenset({bench.name(2)})))
    assert bench.held() == {bench.name(2)}


def test_a_snapshot_waits_until_the_sinks_show_its_window(bench: Bench) -> None:
    sealed = bench.seal(published=0)
    token = bench.ask("one")
    assert bench.gate.reading.wait(WAIT_S)
    bench.gate.open.set()
    # The next window is sealed, and still the first one is not shown.
    later = bench.seal(published=0)
    assert entries(bench.place) == [] or entries(bench.place)[0].unfinished
    assert bench.asked() == [token]
    bench.commit(replace(later, published=1))
    assert "behind window 1" in bench.next().text
    found = load(bench.place, "one").decoded
    assert (found.published, found.unpublished) == (1, ())
    assert found.dead == sealed.dead


def test_a_request_is_done_once_and_a_later_driver_finds_it_done(
    bench: Bench, server: EmbeddedServer
) -> None:
    bench.gate.open.set()
    bench.seal()
    token = bench.ask("one")
    assert bench.next().kind == "SnapshotTaken"
    bench.ask("two")
    assert "snapshot two" in bench.next().text
    # One thread does one after the other.
    assert token not in bench.asked()
    # As if the driver had died between the manifest and that.
    again = Bench(server, bench.place.root)
    again.gate.open.set()
    again.home = bench.home
    request = Request(Ask.SNAPSHOT, name="one")
    again.seal()
    again.snapshots.asked(SimpleNamespace(token=token, request=request))  # type: ignore[arg-type]
    assert "snapshot one is taken behind window 1" in again.next().text
    assert [entry.name for entry in entries(bench.place)] == ["one", "two"]
    again.performer.close()


def test_a_snapshot_that_fails_says_why_and_leaves_nothing_held(
    bench: Bench, tmp_path: Path
) -> None:
    bench.gate.open.set()
    (tmp_path / "file").write_text("no folder")
    bench.seal()
    bench.ask("one", tmp_path / "file" / "in")
    failed = bench.next()
    assert (failed.kind, failed.warning) == ("SnapshotFailed", True)
    assert failed.text.startswith("snapshot one was not taken: snapshots in ")
    bench.seal()
    bench.seal()
    assert bench.held() == {bench.name(3)}
    # The next one is as good as any.
    bench.ask("two")
    assert "snapshot two is taken behind window 3" in bench.next().text


def test_an_object_that_went_with_a_state_server_is_answered_by_a_newer_record(
    bench: Bench,
) -> None:
    """While members change only what the newest record names is copied to new owners."""
    bench.seal()
    bench.ask("one")
    assert bench.gate.reading.wait(WAIT_S)
    bench.stores.client(bench.member).delete(STAMP, [bench.name(1)])
    bench.seal()
    bench.gate.open.set()
    assert "snapshot one is taken behind window 2" in bench.next().text


def answered(bench: Bench, token: str, action: Ask, name: str) -> Answer:
    """What the driver answers to a request of the operator."""
    request = Request(action, name=name, answered=True)
    bench.snapshots.waiting({token})
    bench.snapshots.asked(PendingRequest(token, request))

    def answer() -> Answer | None:
        figures = bench.snapshots.figures()
        found = {one.token: one for one in figures.answers} if figures is not None else {}
        return found.get(token)

    return until(answer, f"an answer to {token}", WAIT_S)


def test_with_a_resource_goes_what_was_taken_for_it_and_nothing_else(bench: Bench) -> None:
    bench.gate.open.set()
    bench.seal()
    uid, other = "0a1b2c3d-1", "4e5f6a7b-2"
    name = named_for("early", uid)
    taken = answered(bench, take_token(uid), Ask.SNAPSHOT, name)
    assert taken.outcome is Outcome.TAKEN
    # A status says what somebody wrote into it.
    refused = answered(bench, delete_token(other), Ask.DELETE_SNAPSHOT, name)
    assert refused.outcome is Outcome.FAILED
    assert refused.text == (
        f"snapshot {name}: was not taken for the resource that is gone, and is not deleted with it"
    )
    assert load(bench.place, name).asked == take_token(uid)
    # As a driver leaves it that dies as it deletes: of what is left only the name is known.
    (bench.place.root / name / "manifest.json").unlink()
    again = answered(bench, delete_token(f"{other}b"), Ask.DELETE_SNAPSHOT, name)
    assert again.outcome is Outcome.FAILED
    assert bench.place.files(name)
    gone = answered(bench, delete_token(uid), Ask.DELETE_SNAPSHOT, name)
    assert gone.outcome is Outcome.DELETED
    assert bench.place.folders() == []
    # Nothing is there any more: it is deleted.
    assert answered(bench, delete_token(other), Ask.DELETE_SNAPSHOT, name) == replace(
        gone, token=delete_token(other)
    )


def test_with_a_resource_goes_what_the_topology_took_by_itself(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    bench = Bench(server, tmp_path / "snapshots", every_s=0.001, retention=Retention(2))
    bench.gate.open.set()
    record = bench.seal()
    assert due(bench).kind == "SnapshotTaken"
    gone = answered(bench, delete_token("0a1b2c3d-1"), Ask.DELETE_SNAPSHOT, own_name(record))
    assert gone.outcome is Outcome.DELETED
    assert bench.place.folders() == []
    bench.performer.close()


def test_a_record_from_before_an_edit_is_waited_past(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    bench = Bench(server, tmp_path / "snapshots", components=EDITED)
    bench.gate.open.set()
    bench.seal()
    bench.ask("one")
    bench.commit(replace(bench.record, components=EDITED))
    assert bench.next().kind == "SnapshotTaken"
    assert load(bench.place, "one").decoded.components == EDITED
    bench.performer.close()


def test_a_driver_that_ends_leaves_the_request_to_the_next(bench: Bench) -> None:
    bench.seal(published=0)
    token = bench.ask("one")
    bench.gate.open.set()
    bench.performer.close()
    assert bench.snapshots._thread is not None
    bench.snapshots._thread.join(WAIT_S)
    assert not bench.snapshots._thread.is_alive()
    assert bench.asked() == [token]
    assert all(entry.manifest is None for entry in entries(bench.place))


def test_snapshots_come_by_themselves_once_for_each_window_and_old_ones_go(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    bench = Bench(server, tmp_path / "snapshots", every_s=0.001, retention=Retention(2))
    bench.gate.open.set()
    for window in (1, 2, 3):
        bench.seal()
        assert f"behind window {window}" in due(bench).text
    # Nothing was sealed since: one that is due takes no other.
    asked_for = bench.snapshots._due_s
    while bench.snapshots._due_s == asked_for:
        bench.snapshots.look()
    bench.ask("by-hand")
    assert "snapshot by-hand is taken" in bench.next().text
    bench.seal()
    assert "behind window 4" in due(bench).text
    bench.ask("last")
    assert "snapshot last is taken" in bench.next().text
    names = [entry.name for entry in entries(bench.place)]
    family = f"auto-{UID[:8]}-1.1."
    assert sorted(names) == sorted([f"{family}3", f"{family}4", "by-hand", "last"])
    bench.performer.close()


def test_those_that_a_restore_left_go_first(server: EmbeddedServer, tmp_path: Path) -> None:
    plan: dict[str, Any] = {"every_s": 0.001, "retention": Retention(3)}
    bench = Bench(server, tmp_path / "snapshots", **plan)
    bench.gate.open.set()
    for _ in range(3):
        bench.seal()
        due(bench)
    bench.performer.close()
    fork = Fork(2, 1, 2, "auto", 3, True, 0.0)
    after = Bench(server, tmp_path / "snapshots", forks=lambda: (fork,), **plan)
    after.gate.open.set()
    tag = replace(bench.record.tag, timeline=2, execution=2)
    after.commit(replace(bench.record, sealed=2, published=2, dead=(), tag=tag))
    after.seal()
    assert "behind window 3" in due(after).text
    after.ask("last")
    assert "snapshot last is taken" in after.next().text
    family = f"auto-{UID[:8]}-"
    names = [f"{family}1.1.1", f"{family}1.1.2", f"{family}2.2.3", "last"]
    assert sorted(entry.name for entry in entries(after.place)) == names
    after.performer.close()


def test_a_late_driver_leaves_what_the_present_timeline_can_go_back_to(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    forks: list[Fork] = []
    bench = Bench(server, tmp_path / "snapshots", every_s=0.001, forks=lambda: tuple(forks))
    bench.gate.open.set()
    first = bench.seal()
    due(bench)
    until(lambda: not bench.snapshots._jobs, "an end of cleaning behind it", WAIT_S)
    forks.append(Fork(2, 1, 1, own_name(first), None, True, 0.0))
    second = bench.seal()
    told = due(bench)
    assert told.kind == "SnapshotsKept"
    assert told.text == (
        "old snapshots stay for now: the topology was restored, as timeline 2, and the driver of "
        "execution 1 deletes none any more"
    )
    assert bench.next().kind == "SnapshotTaken"
    bench.performer.close()
    assert bench.snapshots._thread is not None
    bench.snapshots._thread.join(WAIT_S)
    names = [entry.name for entry in entries(bench.place)]
    assert names == [own_name(first), own_name(second)]


class Limited(FolderPlace):
    """A folder on a disk of so many bytes."""

    size_bytes = 0

    def write(self, folder: str, file: str, data: bytes) -> None:
        used = sum(one.stat().st_size for one in self.root.rglob("*") if one.is_file())
        with _explained(self.shown, "written"):
            if used + len(data) > self.size_bytes:
                raise OSError(errno.ENOSPC, "No space left on device")
        super().write(folder, file, data)


def test_a_full_place_is_made_room_in_before_one_is_written(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Limited(tmp_path / "snapshots")
    place.size_bytes = 9_000
    monkeypatch.setattr("millrace.engine.driver.snapshots.open_place", lambda *_: place)
    bench = Bench(server, place.root, every_s=0.001)
    bench.gate.open.set()
    record = bench.seal()
    # As earlier tries of this driver's execution, and of one before, left it when killed.
    for execution in (0, 1):
        tag = replace(record.tag, execution=execution)
        FolderPlace(place.root).write(
            own_name(replace(record, tag=tag, sealed=0)), f"{'0' * 64}.letters", b"x" * 8_000
        )
    assert due(bench).kind == "SnapshotTaken"
    # What fails leaves nothing either, and the next one has the room again.
    place.size_bytes = 0
    bench.seal()
    assert "No space left on device" in due(bench).text
    assert place.folders() == [own_name(record)]
    place.size_bytes = 9_000
    until(lambda: due(bench).kind == "SnapshotTaken", "one that is taken", WAIT_S)
    bench.performer.close()


def test_what_is_too_old_goes_while_nothing_is_sealed(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    retention = Retention(6, 3600.0)
    bench = Bench(server, tmp_path / "snapshots", every_s=0.001, retention=retention)
    names = []
    for window, age_s in ((1, 9000.0), (2, 6000.0), (3, 5000.0)):
        record = replace(bench.record, sealed=window, published=window)
        names.append(own_name(record))
        subject = Subject("first", {}, 1, record, SystemClock().now_s() - age_s)
        write_snapshot(bench.place, names[-1], subject, bench.stores.fetch, quiet)
    bench.commit(record)
    ended = time.monotonic() + WAIT_S
    while bench.place.folders() != names[2:] and time.monotonic() < ended:
        bench.snapshots.look()
    assert bench.place.folders() == names[2:], "the newest stays, however old it is"
    bench.performer.close()


def test_one_that_is_begun_again_leaves_nothing_of_what_it_began(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    bench = Bench(server, tmp_path / "snapshots", every_s=0.001)
    bench.seal()
    bench.snapshots.look()
    time_s = time.monotonic() + WAIT_S
    while not bench.gate.reading.is_set() and time.monotonic() < time_s:
        bench.snapshots.look()
    # As a try that copied one object before it met one that is gone.
    bench.place.write(own_name(bench.record), f"{'0' * 64}.letters", b"part")
    bench.stores.client(bench.member).delete(STAMP, [bench.name(1)])
    second = bench.seal()
    bench.gate.open.set()
    assert "behind window 2" in bench.next().text
    assert bench.place.folders() == [own_name(second)]
    bench.performer.close()


def test_where_the_restores_are_not_known_old_ones_stay(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    def damaged() -> tuple[Fork, ...]:
        raise WorkFolderError("timelines.json: cannot be read")

    bench = Bench(server, tmp_path / "snapshots", every_s=0.001, forks=damaged)
    bench.gate.open.set()
    bench.seal()
    assert due(bench).kind == "SnapshotTaken"
    told = bench.next()
    assert told.kind == "SnapshotsKept"
    assert told.text == "old snapshots stay for now: timelines.json: cannot be read"
    bench.performer.close()


def test_one_that_somebody_deleted_is_taken_again_though_nothing_was_sealed_since(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    bench = Bench(server, tmp_path / "snapshots", every_s=0.001, retention=Retention(2))
    bench.gate.open.set()
    bench.seal()
    due(bench)
    (name,) = bench.place.folders()
    delete(bench.place, name)
    assert f"snapshot {name} is taken behind window 1" in due(bench).text
    assert bench.place.folders() == [name]
    bench.performer.close()


def test_a_driver_that_starts_again_takes_no_other_of_the_same_window(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    plan: dict[str, Any] = {"every_s": 0.001, "retention": Retention(2)}
    bench = Bench(server, tmp_path / "snapshots", **plan)
    bench.gate.open.set()
    for _ in range(2):
        bench.seal()
        due(bench)
    bench.performer.close()
    again = Bench(server, tmp_path / "snapshots", **plan)
    again.gate.open.set()
    again.commit(replace(bench.record, tag=replace(bench.record.tag, execution=2)))
    again.snapshots.look()
    asked_for = again.snapshots._due_s
    while again.snapshots._due_s == asked_for:
        again.snapshots.look()
    # One thread does one after the other.
    again.ask("by-hand")
    assert "snapshot by-hand is taken" in again.next().text
    names = [entry.name for entry in entries(again.place)]
    family = f"auto-{UID[:8]}-1.1."
    assert sorted(names) == [f"{family}1", f"{family}2", "by-hand"]
    again.seal()
    assert "behind window 3" in due(again).text
    again.performer.close()


@pytest.mark.parametrize(
    ("age_s", "execution", "wanted_s"),
    [
        (None, 1, 600.0),
        (None, 2, 30.0),
        (100.0, 2, 500.0),
        (590.0, 2, 30.0),
        (1e6, 2, 30.0),
        # A clock that was set back, or forward.
        (-1e6, 2, 600.0),
    ],
)
def test_the_first_is_due_as_if_no_driver_had_begun_since_the_newest(
    server: EmbeddedServer, tmp_path: Path, age_s: float | None, execution: int, wanted_s: float
) -> None:
    bench = Bench(server, tmp_path / "snapshots", every_s=600.0)
    record = replace(bench.record, tag=replace(bench.record.tag, execution=execution))
    if age_s is not None:
        before = replace(record, sealed=1, published=1)
        subject = Subject("first", {}, 1, before, SystemClock().now_s() - age_s)
        write_snapshot(bench.place, own_name(before), subject, bench.stores.fetch, quiet)
    bench.commit(record)
    bench.snapshots.look()
    began_s = bench.snapshots._began_s
    assert began_s is not None
    until(lambda: not bench.snapshots._jobs, "the look at what there is", WAIT_S)
    assert bench.snapshots._due_s - began_s == pytest.approx(wanted_s, abs=WAIT_S / 2)
    bench.performer.close()


def test_a_damaged_one_that_its_topology_took_goes_with_its_resource(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    bench = Bench(server, tmp_path / "snapshots")
    record = bench.seal()
    for name in (own_name(record), "named"):
        bench.place.write(name, "manifest.json", b"{")
    uid = "0a1b2c3d-1"
    refused = answered(bench, delete_token(uid), Ask.DELETE_SNAPSHOT, "named")
    assert "is damaged and not believed" in refused.text
    gone = answered(bench, delete_token(f"{uid}b"), Ask.DELETE_SNAPSHOT, own_name(record))
    assert gone.outcome is Outcome.DELETED
    assert bench.place.folders() == ["named"]
    bench.performer.close()


def due(bench: Bench) -> e.Notify:
    """Time passes until one is taken."""
    end_s = time.monotonic() + WAIT_S
    while time.monotonic() < end_s:
        bench.snapshots.look()
        try:
            return bench.told.get(timeout=0.01)
        except queue.Empty:
            continue
    raise AssertionError("none was taken")
