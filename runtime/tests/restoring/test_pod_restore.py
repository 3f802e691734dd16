"""Restores by a driver of a pod, which dies behind each of its steps: a real state server and real
snapshots; the view and what stands beside it are in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field

from millrace import crash
from millrace.clock import SystemClock
from millrace.errors import (
    FencedError,
    NewerFormatError,
    SinkError,
    SnapshotError,
    StateLostError,
    StateServerError,
)
from millrace.homes import pods
from millrace.homes.documents import Proposal
from millrace.homes.memory import MemoryHome
from millrace.homes.settings import DriverSettings, MemoryPlace, RestoreSettings, RetiredSink
from millrace.homes.stores import HomeAwayError
from millrace.protocol.codec import decode, decode_record, encode_view
from millrace.protocol.record import first_record
from millrace.protocol.server import Stamped
from millrace.protocol.types import Components, DeadSegment, Member, Phase, Record, Tag, View
from millrace.restoring.pods import PodRestore, Surroundings
from millrace.sinks import SinkUnavailableError
from millrace.snapshots.places import FolderPlace
from millrace.snapshots.reading import delete
from millrace.snapshots.timelines import decoded
from millrace.snapshots.writing import Subject, write_snapshot
from millrace.state.client import StateClient
from millrace.state.embedded import EmbeddedServer
from millrace.topology.model import StreamTopology
from millrace_e2e.embedded import started

UID = "life-1"
HELD = 5
"""The execution of the driver that finds its state lost."""
NOW = Components(0, {"lines": 0}, {}, {"out": 0})
POINTS = ("claimed", "fenced", "retracted", "cleared", "put", "recorded", "opened")
DOCUMENT: dict[str, Any] = {
    "apiVersion": "millrace.dev/v1alpha1",
    "kind": "StreamTopology",
    "metadata": {"name": "words"},
    "spec": {
        "keyGroups": 1,
        "onStateLoss": "Restore",
        "snapshots": {"to": "snapshots"},
        "sources": [{"name": "lines", "generator": {}}],
        "sinks": [{"name": "out", "inputs": [{"from": "lines"}], "files": {"path": "out"}}],
    },
}


class KilledError(Exception):
    """The process dies here."""


class Marked:
    """A view, and what is written with it."""

    def __init__(self) -> None:
        self.version = 0
        self.view: View | None = None
        self.keys: dict[str, str] = {}
        self.others = 0
        self.away = ""

    def read(self) -> tuple[int, View | None]:
        return self.version, self.view

    def beside(self, key: str) -> str | None:
        return self.keys.get(key)

    def cas(
        self, expected: int, view: View, beside: dict[str, str | None] | None = None
    ) -> int | None:
        self.version += self.others
        if expected != self.version:
            return None
        if self.away == "before":
            raise self.lose()
        self.version, self.view = self.version + 1, view
        for key, text in (beside or {}).items():
            self.keys.pop(key, None)
            if text is not None:
                self.keys[key] = text
        if self.away == view.phase.value:
            raise self.lose()
        return self.version

    def lose(self) -> HomeAwayError:
        """The answer, once."""
        self.away = ""
        return HomeAwayError("no answer")


class Shows:
    """A sink that shows windows up to ``window``; ``done`` is what was asked of it."""

    name = "out"

    def __init__(self, window: int | None, retracts: bool = True) -> None:
        self.window, self.retracts = window, retracts
        self.done: list[str] = []

    def prepare(self, uid: str) -> None:
        self.done.append("prepare")

    def check_fresh(self, overwrite: bool) -> None:
        if self.window is not None:
            raise SinkError("holds something")

    def last_shown(self) -> tuple[int, str] | None:
        return None if self.window is None else (self.window, "")

    def fence(self, execution: int) -> None:
        self.done.append(f"fence {execution}")

    def retract(self, window: int) -> None:
        self.done.append(f"retract {window}")
        self.window = min(window, self.window or 0)


class Bench:
    def __init__(self, server: EmbeddedServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.place = FolderPlace(folder / "snapshots")
        self.topology = StreamTopology.model_validate(DOCUMENT)
        self.home = MemoryHome()
        self.home.inbox.propose(Proposal((server.address.member(),), ()))
        self.view = Marked()
        self.sink = Shows(None)
        self.others: list[Shows] = []
        self.removed: dict[str, Shows] = {}
        self.retired: tuple[RetiredSink, ...] = ()
        self.components = NOW
        self.pauses = 0
        self.waited: list[float] = []
        self.beats: list[str] = []
        self.paused: Callable[[], object] | None = None

    def keep(
        self,
        name: str,
        sealed: int,
        uid: str = UID,
        of: str = "words",
        groups: int = 1,
        letters: int = 0,
    ) -> None:
        record = first_record(uid, Tag(1, 3, 2, 9))  # type: ignore[arg-type]
        record = replace(record, sealed=sealed, published=sealed, components=NOW)  # type: ignore[arg-type]
        dead = tuple(DeadSegment(f"1.{n}.1.1/dead", n, 1) for n in range(letters))  # type: ignore[arg-type]
        record = replace(record, dead=dead)
        spec = {**DOCUMENT["spec"], "keyGroups": groups}
        document = {**DOCUMENT, "metadata": {"name": of}, "spec": spec}
        subject = Subject(of, document, groups, record, 1_770_000_000.0 + sealed)
        write_snapshot(self.place, name, subject, lambda name, *_: name.encode(), lambda: None)

    def lose(self, sealed: int) -> None:
        """The view was open, and what its members held is gone."""
        member = self.server.address.member()
        self.view.view = View(UID, 1, 4, Phase.OPEN, HELD, (member,), (member,), 4, (("state-0",),))  # type: ignore[arg-type]
        self.view.version = 7
        self.sink = Shows(sealed)

    def restore(self, wanted: RestoreSettings | None = None, **more: Any) -> PodRestore:
        place = MemoryPlace("none")
        told = DriverSettings(
            UID,
            str(self.folder),
            "t",
            str(self.folder),
            place,
            place,
            place,
            self.components,
            self.retired,
        )
        around = Surroundings(
            self.view,
            self.home.inbox,
            self.home.journal,
            lambda: [*self.others, self.sink],  # type: ignore[list-item]
            lambda declared: self.removed[declared["name"]],  # type: ignore[arg-type,return-value]
            lambda _: StateClient(self.server.address, UID),
            self._pause,
            SystemClock(),
        )
        return PodRestore(replace(told, restore=wanted, **more), self.topology, around)

    def _pause(self, seconds: float) -> None:
        self.pauses += seconds > 0
        self.waited += [seconds] if seconds else []
        self.beats.append("beat")
        if seconds and (then := self.paused) is not None:
            self.paused = None
            then()
        assert self.pauses < 9

    def record(self) -> Record:
        reply = StateClient(self.server.address, UID).peek()
        assert isinstance(reply, Stamped)
        assert reply.record is not None
        return decode_record(reply.record)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    (tmp_path / "state-0").mkdir(mode=0o700)
    server = started(tmp_path / "state-0", "state-0")
    yield Bench(server, tmp_path)
    server.stop()


@pytest.fixture
def dies(monkeypatch: pytest.MonkeyPatch) -> Any:
    def at(point: str) -> None:
        def reached(name: str) -> None:
            if name == point:
                raise KilledError

        monkeypatch.setattr(crash, "reached", reached)

    return at


EARLY = RestoreSettings("early", "snapshots")


def test_a_new_topology_begins_with_its_snapshot(bench: Bench) -> None:
    bench.keep("early", 4, uid="another-life")
    said = bench.restore(EARLY).prepare()
    assert said == "snapshot early is restored behind window 4, as timeline 2"
    view, record = bench.view.view, bench.record()
    assert view is not None
    assert (view.phase, view.timeline, view.uid) == (Phase.OPEN, 2, UID)
    assert (record.sealed, record.uid, record.tag) == (4, UID, Tag(2, 4, 3, 1))
    assert record.components == NOW
    assert bench.view.beside(pods.RESTORING) is None
    assert bench.home.journal.status().sealed == 4
    # Nobody restores it once more.
    assert bench.restore(EARLY).prepare() is None
    assert bench.restore(RestoreSettings("gone", "snapshots")).prepare() is None


@pytest.mark.parametrize("point", [p for p in POINTS if p not in ("fenced", "retracted")])
def test_who_dies_while_a_topology_begins_is_followed_by_one_that_goes_on(
    bench: Bench, dies: Any, point: str
) -> None:
    bench.keep("early", 4, uid="another-life")
    dies(f"restore.{point}")
    with pytest.raises(KilledError):
        bench.restore(EARLY).prepare()
    view = bench.view.view
    assert view is not None
    opened = point == "opened"
    assert view.phase is (Phase.OPEN if opened else Phase.CREATING)
    assert view.restoring is not opened
    dies("")
    # The next one may have been told of nothing.
    said = bench.restore(None).prepare()
    assert (said is None) is opened
    view = bench.view.view
    assert view is not None
    assert (view.phase, view.timeline) == (Phase.OPEN, 2 if opened else 3)
    assert bench.record().sealed == 4
    assert bench.restore(EARLY).prepare() is None


def test_another_snapshot_may_be_named_until_the_first_is_restored(bench: Bench, dies: Any) -> None:
    bench.keep("early", 4, uid="another-life")
    bench.keep("other", 6, uid="another-life")
    dies("restore.put")
    with pytest.raises(KilledError):
        bench.restore(EARLY).prepare()
    dies("")
    delete(bench.place, "early")
    for wanted in (EARLY, None):
        with pytest.raises(SnapshotError, match="snapshot early: is not in"):
            bench.restore(wanted).prepare()
    said = bench.restore(RestoreSettings("other", "snapshots")).prepare()
    assert said == "snapshot other is restored behind window 6, as timeline 3"
    (fork,) = decoded(bench.view.beside(pods.TIMELINES))
    assert (fork.snapshot, bench.record().sealed) == ("other", 6)
    assert bench.view.beside(pods.RESTORING) is None


@pytest.mark.parametrize(
    ("name", "of", "why"),
    [
        ("gone", "words", "is not in"),
        ("foreign", "words", "is of the topology 'others'"),
        ("torn", "words", "is damaged and not believed"),
    ],
)
def test_what_does_not_fit_changes_nothing(bench: Bench, name: str, of: str, why: str) -> None:
    bench.keep("foreign", 4, uid="another-life", of="others")
    bench.keep("torn", 4, uid="another-life")
    (bench.folder / "snapshots" / "torn" / "manifest.json").write_bytes(b"{}")
    with pytest.raises(SnapshotError, match=why):
        bench.restore(RestoreSettings(name, "snapshots")).prepare()
    assert bench.view.read() == (0, None)
    # Of another name, where that is said.
    if name == "foreign":
        assert bench.restore(RestoreSettings(name, "snapshots", "others")).prepare()


def test_a_new_topology_has_places_of_its_own_for_its_sinks(bench: Bench) -> None:
    bench.keep("early", 4, uid="another-life")
    bench.topology.spec.sinks[0].settings.__dict__["path"] = "elsewhere"
    assert bench.restore(EARLY).prepare()
    # In its own life that would leave behind what waits to be shown.
    bench.keep("own", 4)
    bench.lose(9)
    with pytest.raises(StateLostError, match=r"spec\.sinks\[out\]\.files\.path"):
        bench.restore().lost(HELD)


def test_a_topology_goes_on_in_another_namespace(bench: Bench) -> None:
    """Also one of the same name, which need not be said."""
    bench.keep("early", 4, uid="another-life")
    bench.topology.metadata.__dict__["namespace"] = "jobs"
    assert bench.restore(EARLY).prepare()


def test_a_topology_does_not_begin_over_what_its_sinks_hold(bench: Bench) -> None:
    bench.keep("early", 4, uid="another-life")
    bench.sink = Shows(3)
    with pytest.raises(SinkError, match="holds something"):
        bench.restore(EARLY).prepare()
    assert bench.view.read() == (0, None)


def test_one_that_began_without_its_snapshot_says_so(bench: Bench) -> None:
    bench.lose(3)
    with pytest.raises(SnapshotError, match="the topology has begun without it"):
        bench.restore(EARLY).prepare()


def test_lost_state_is_that_of_the_newest_snapshot_that_is_whole(bench: Bench) -> None:
    bench.keep("early", 4)
    bench.keep("later", 6)
    bench.keep("another", 8, uid="another-life")
    (bench.folder / "snapshots" / "later" / "manifest.json").write_bytes(b"{}")
    bench.lose(9)
    assert bench.restore().prepare() is None
    said = bench.restore().lost(HELD)
    assert said.startswith(
        "all copies of some state were gone: snapshot early is restored behind window 4, as "
        "timeline 2; windows 5 to 9 are given up, and processed again; passed over: snapshot later"
    )
    assert bench.sink.done == ["prepare", "fence 6", "retract 4"]
    (fork,) = decoded(bench.view.beside(pods.TIMELINES))
    assert (fork.timeline, fork.parent, fork.window, fork.last, fork.lost) == (2, 1, 4, 9, True)
    assert bench.record().sealed == 4


@pytest.mark.parametrize("point", POINTS)
def test_who_dies_while_lost_state_is_restored_is_followed_by_one_that_goes_on(
    bench: Bench, dies: Any, point: str
) -> None:
    bench.keep("early", 4)
    bench.lose(9)
    dies(f"restore.{point}")
    with pytest.raises(KilledError):
        bench.restore().lost(HELD)
    # A newer snapshot than was begun with is not gone back to: sinks may show less by now.
    bench.keep("later", 7)
    dies("")
    said = bench.restore().prepare()
    opened = point == "opened"
    assert (said is None) is opened
    assert said is None or "snapshot early is restored behind window 4, as timeline 3" in said
    assert said is None or "windows 5 to 9 are given up" in said
    view = bench.view.view
    assert view is not None
    assert (view.phase, bench.record().sealed) == (Phase.OPEN, 4)
    assert bench.restore().prepare() is None


def test_without_a_snapshot_or_again_and_again_it_stops(bench: Bench) -> None:
    bench.lose(9)
    before = bench.view.read()
    with pytest.raises(StateLostError, match="holds no snapshot of it that can be restored"):
        bench.restore().lost(HELD)
    assert bench.view.read() == before
    bench.keep("early", 4)
    for execution in range(HELD, HELD + 3):
        bench.restore().lost(execution)
    with pytest.raises(StateLostError, match="3 times in a row"):
        bench.restore().lost(HELD + 3)


@pytest.mark.parametrize("killed", [None, "restore.claimed"])
def test_another_nonce_allows_to_restore_again(bench: Bench, dies: Any, killed: str | None) -> None:
    bench.keep("early", 4)
    bench.lose(9)

    def held() -> int:
        view = bench.view.view
        assert view is not None
        return view.execution

    for _ in range(3):
        bench.restore().lost(held())
    for nonce in (7, 8):
        with pytest.raises(StateLostError, match=r"give spec\.restartNonce another value"):
            bench.restore().lost(held())
        bench.topology.spec.__dict__["restart_nonce"] = nonce
        if killed is None:
            bench.restore().lost(held())
        else:
            dies(killed)
            with pytest.raises(KilledError):
                bench.restore().lost(held())
            dies("")
            assert bench.restore().prepare()
        for _ in range(2):
            bench.restore().lost(held())
        # As many as before, and no more.
        with pytest.raises(StateLostError, match="3 times in a row"):
            bench.restore().lost(held())


@dataclass(frozen=True, slots=True)
class ViewBefore:
    """As releases read it that knew no restores."""

    DOCUMENT = "View"

    uid: str
    timeline: int
    epoch: int
    phase: Phase
    execution: int
    last_open: Annotated[tuple[Member, ...], Field(alias="source")]
    target: tuple[Member, ...]
    open_epoch: int
    owners: tuple[tuple[str, ...], ...]


@pytest.mark.parametrize("begins", [True, False])
def test_a_release_that_knows_no_restores_stops_at_one_that_is_not_done(
    bench: Bench, dies: Any, begins: bool
) -> None:
    """It would take the view for that of a topology that is being created, and begin empty."""
    bench.keep("early", 4, uid="another-life" if begins else UID)
    if not begins:
        bench.lose(9)
    dies("restore.put")
    with pytest.raises(KilledError):
        bench.restore(EARLY).prepare() if begins else bench.restore().lost(HELD)
    assert bench.view.view is not None
    with pytest.raises(NewerFormatError, match="the field 'restoring'"):
        decode(ViewBefore, encode_view(bench.view.view))
    dies("")
    bench.restore(None).prepare()
    assert bench.view.view.phase is Phase.OPEN
    assert decode(ViewBefore, encode_view(bench.view.view)).phase is Phase.OPEN


def test_sinks_that_cannot_take_back_keep_everything_as_it_is(bench: Bench) -> None:
    bench.keep("early", 4)
    bench.lose(9)
    bench.sink.retracts = False
    before = bench.view.read()
    with pytest.raises(SinkError, match="cannot take windows back"):
        bench.restore().lost(HELD)
    assert (bench.view.read(), bench.sink.done) == (before, ["prepare"])


def instead(bench: Bench, removed: Shows) -> None:
    """An edit has taken ``out`` out since the snapshot, and ``late`` came and went behind it."""
    spec = {**DOCUMENT["spec"]}
    (out,) = spec["sinks"]
    late, new = ({**out, "name": name, "files": {"path": name}} for name in ("late", "new"))
    gone = {**out, "name": "gone", "files": {"path": "gone"}}
    bench.topology = StreamTopology.model_validate({**DOCUMENT, "spec": {**spec, "sinks": [new]}})
    bench.components = Components(3, {"lines": 0}, {}, {"new": 2})
    # That of number 0 which the snapshot does not know was removed before it, and its place went.
    bench.retired = (
        RetiredSink("gone", 0, gone),
        RetiredSink("out", 0, out),
        RetiredSink("late", 1, late),
    )
    bench.removed = {"out": removed, "late": Shows(8)}
    bench.sink.name = "new"


def test_a_sink_that_was_removed_since_the_snapshot_takes_its_windows_back_too(
    bench: Bench,
) -> None:
    bench.keep("early", 4)
    bench.lose(9)
    instead(bench, Shows(7))
    assert "windows 5 to 9 are given up" in bench.restore().lost(HELD)
    assert [sink.window for sink in (bench.sink, *bench.removed.values())] == [4, 4, 4]
    steps = ["prepare", "fence 6", "retract 4"]
    assert all(sink.done == steps for sink in (bench.sink, *bench.removed.values()))


def test_one_that_was_removed_and_cannot_take_back_stops_it_until_it_is_given_up(
    bench: Bench,
) -> None:
    bench.keep("early", 4)
    bench.lose(9)
    instead(bench, Shows(7, retracts=False))
    before = bench.view.read()
    said = r"sink 'out': shows windows up to 7, .* no longer in the file.* in a new topology"
    with pytest.raises(SinkError, match=said):
        bench.restore().lost(HELD)
    assert bench.view.read() == before
    assert bench.restore(drop_removed=True).lost(HELD)
    assert bench.removed["out"].window == 7


def test_one_that_was_removed_and_is_away_says_what_to_do(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench.keep("early", 4)
    bench.lose(9)
    instead(bench, Shows(7))
    monkeypatch.setattr(bench.removed["out"], "prepare", partial(_away, "out"))
    bench.paused = partial(monkeypatch.setattr, bench.removed["out"], "prepare", lambda uid: None)
    assert bench.restore().lost(HELD)
    assert "sink 'out': is away. Sink 'out' is no longer in the file" in caplog.text
    assert "begin with the snapshot in a new topology" in caplog.text
    assert bench.removed["out"].window == 4


def _away(name: str, uid: str) -> None:
    raise SinkUnavailableError(f"sink {name!r}: is away")


@pytest.mark.parametrize("lost", ["", "before", "creating"])
def test_what_a_driver_of_before_shows_until_the_fence_is_taken_back_and_said(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """It may live on a node that cannot be reached, and has committed more than is known."""
    bench.keep("early", 4)
    bench.lose(9)

    def shows(name: str) -> None:
        if name == "restore.claimed" and bench.sink.window != 4:
            bench.sink.window, bench.view.away = 12, lost

    monkeypatch.setattr(crash, "reached", shows)
    said = bench.restore().lost(HELD)
    assert "12" in said
    assert bench.sink.window == 4
    forks = decoded(bench.view.keys[pods.TIMELINES])
    assert [(fork.window, fork.last) for fork in forks] == [(4, 12)]
    assert bench.view.view is not None
    assert bench.view.view.phase is Phase.OPEN


def test_what_it_shows_until_the_fence_on_a_sink_that_cannot_take_back_stops_all(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its windows would show twice: the other sinks keep theirs then, too."""
    bench.keep("early", 4)
    bench.lose(9)
    bench.sink.retracts, bench.sink.window = False, 4

    def shows(name: str) -> None:
        if name == "restore.claimed":
            bench.sink.window = 9

    monkeypatch.setattr(crash, "reached", shows)
    other = Shows(9)
    bench.others = [other]
    stops = partial(pytest.raises, SinkError, match=r"up to 9, .* cannot take windows back")
    with stops():
        bench.restore().lost(HELD)
    with stops():
        bench.restore().prepare()
    assert other.window == 9
    assert bench.view.view is not None
    assert bench.view.view.phase is Phase.CREATING


def test_who_is_overtaken_changes_nothing(bench: Bench) -> None:
    bench.keep("early", 4)
    bench.lose(9)
    bench.view.others = 1
    with pytest.raises(FencedError):
        bench.restore().lost(HELD)
    assert bench.view.keys == {}
    assert bench.sink.done == ["prepare"]


def test_who_was_overtaken_before_it_looks_takes_nothing_back(bench: Bench) -> None:
    bench.keep("early", 4)
    bench.lose(9)
    bench.restore().lost(HELD)
    before = bench.view.read()
    with pytest.raises(FencedError):
        bench.restore().lost(HELD)
    assert bench.view.read() == before


@pytest.mark.parametrize("begins", [True, False])
def test_who_is_overtaken_while_it_puts_does_not_begin_anew(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, begins: bool
) -> None:
    """The servers serve another by now and refuse it, which would otherwise be tried again."""
    bench.keep("early", 4, uid="another-life" if begins else UID)
    if not begins:
        bench.lose(9)

    def overtaken(name: str) -> None:
        if name == "restore.cleared":
            monkeypatch.setattr(crash, "reached", lambda _: None)
            assert bench.restore(None).prepare()
            # Its driver runs, and has shown more.
            view = bench.view.view
            assert view is not None
            bench.view.view = replace(view, execution=view.execution + 1)  # type: ignore[arg-type]
            bench.view.version += 1
            bench.sink.window = 12

    monkeypatch.setattr(crash, "reached", overtaken)
    with pytest.raises(FencedError):
        bench.restore(EARLY).prepare() if begins else bench.restore().lost(HELD)
    assert bench.view.view is not None
    assert bench.view.view.timeline == 3
    assert bench.sink.window == 12


@pytest.mark.parametrize(("lost", "timeline"), [("before", 2), ("creating", 3), ("open", 2)])
@pytest.mark.parametrize("begins", [True, False])
def test_the_answer_to_a_write_of_the_view_is_lost(
    bench: Bench, lost: str, timeline: int, begins: bool
) -> None:
    bench.keep("early", 4, uid="another-life" if begins else UID)
    if not begins:
        bench.lose(9)
    bench.view.away = lost
    said = bench.restore(EARLY).prepare() if begins else bench.restore().lost(HELD)
    assert said is not None
    assert f"early is restored behind window 4, as timeline {timeline}" in said
    view = bench.view.view
    assert view is not None
    assert (view.phase, view.timeline) == (Phase.OPEN, timeline)
    assert bench.home.journal.status().execution == view.execution


def test_a_claim_of_the_same_execution_by_another_is_not_taken_for_one_s_own(bench: Bench) -> None:
    bench.keep("early", 4)
    bench.lose(9)
    bench.view.away = "before"
    one, other = bench.restore(), bench.restore()
    bench.paused = lambda: other.lost(HELD)
    with pytest.raises(FencedError):
        one.lost(HELD)
    assert bench.view.view is not None
    assert bench.view.view.timeline == 2


def test_the_copies_of_what_is_restored_lie_on_different_nodes(bench: Bench, dies: Any) -> None:
    member = bench.server.address.member()
    names = [f"state-{n}" for n in range(6)]
    spec = bench.topology.spec
    servers = spec.state_servers.model_copy(update={"replicas": len(names), "copies": 2})
    spec.__dict__.update(state_servers=servers, key_groups=16)
    members = tuple(replace(member, name=name) for name in names)
    nodes = tuple((name, f"node-{int(number > 2)}") for number, name in enumerate(names))
    bench.home.inbox.propose(Proposal(members, (), nodes=nodes))
    bench.keep("early", 4, uid="another-life", groups=16)
    dies("restore.claimed")
    with pytest.raises(KilledError):
        bench.restore(EARLY).prepare()
    assert bench.view.view is not None
    on = dict(nodes)
    assert len(bench.view.view.owners) == 16
    for group in bench.view.view.owners:
        assert {on[name] for name in group} == {"node-0", "node-1"}


@pytest.mark.parametrize("begins", [True, False])
def test_whoever_restores_says_that_it_lives_before_all_that_takes_long(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, begins: bool
) -> None:
    bench.keep("early", 4, uid="another-life" if begins else UID, letters=3)
    if not begins:
        bench.lose(9)
    done = bench.beats

    def note(of: type, name: str, step: str) -> None:
        real = getattr(of, name)

        def noting(self: object, *args: object, **more: object) -> object:
            done.append(step)
            return real(self, *args, **more)

        monkeypatch.setattr(of, name, noting)

    note(FolderPlace, "read", "read")
    for name in ("check_fresh", "fence", "retract"):
        note(Shows, name, name)
    bench.restore(EARLY).prepare() if begins else bench.restore().lost(HELD)
    steps = [name for name in done if name != "beat"]
    # The manifest, each part to see whether all is whole, and each part to put it on its owners.
    wanted = ["check_fresh"] if begins else ["fence", "retract"]
    assert steps == ["read"] * 4 + wanted + ["read"] * 3
    assert all(done[at - 1] == "beat" for at in range(1, len(done)) if done[at] != "beat")


@pytest.mark.parametrize("begins", [True, False])
def test_a_restore_that_keeps_failing_notes_one_fork_and_waits_longer_each_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, begins: bool
) -> None:
    bench.keep("early", 4, uid="another-life" if begins else UID)
    if not begins:
        bench.lose(9)
    tries = 0

    def fails(name: str) -> None:
        nonlocal tries
        if name == "restore.cleared" and (tries := tries + 1) < 8:
            raise StateServerError("is full")

    monkeypatch.setattr(crash, "reached", fails)
    said = bench.restore(EARLY).prepare() if begins else bench.restore().lost(HELD)
    assert said is not None
    (fork,) = decoded(bench.view.beside(pods.TIMELINES))
    assert (fork.timeline, fork.parent, fork.window) == (9, 1, 4)
    assert fork.last == (None if begins else 9)
    assert bench.waited == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_who_is_overtaken_behind_the_fence_takes_nothing_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.keep("early", 4)
    bench.lose(9)

    def overtaken(name: str) -> None:
        if name == "restore.fenced":
            monkeypatch.setattr(crash, "reached", lambda _: None)
            assert bench.restore(None).prepare()
            bench.sink.window = 12

    monkeypatch.setattr(crash, "reached", overtaken)
    with pytest.raises(FencedError):
        bench.restore().lost(HELD)
    assert bench.sink.window == 12
