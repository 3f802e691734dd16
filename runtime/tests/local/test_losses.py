"""All copies of the state are gone: a snapshot takes their place, or nothing is changed."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from lived_topology import (
    CLOCK,
    COMPONENTS,
    LAST,
    Lived,
    document,
    judge,
    place,
    record_of,
    records,
    shows,
    topology,
)
from rich.console import Console

from millrace import checked
from millrace.cli.status import drawn
from millrace.crash import SNAPSHOT_POINTS
from millrace.engine.driver.home.journal import StatusBoard
from millrace.engine.driver.statistics import Statistics
from millrace.errors import (
    ExitCode,
    FencedError,
    SinkError,
    SnapshotError,
    SnapshotsAwayError,
    StateLostError,
    WorkFolderError,
)
from millrace.homes.accepted import Accepted
from millrace.homes.documents import Status
from millrace.local.accepted import read_accepted, write_accepted
from millrace.local.files import write_json
from millrace.local.inspect.overview import overview
from millrace.local.snapshots.asking import take
from millrace.local.snapshots.losses import newest, restore_lost
from millrace.local.snapshots.restoring import Restored, restore
from millrace.local.snapshots.unfinished import Begun, mark, marked, refuse_unfinished
from millrace.protocol.edits import apply_edit
from millrace.protocol.types import View
from millrace.sinks.files import FileSink
from millrace.snapshots import timelines
from millrace.snapshots.places import FolderPlace, _explained
from millrace.snapshots.reading import load
from millrace.snapshots.timelines import Fork, line_to
from millrace.state.viewfile import ViewFile

FURTHER = LAST + 2
"""The last window that was sealed and shown when the state was lost."""


def view(lived: Lived) -> View:
    _, found = ViewFile(lived.folder.view).read()
    assert found is not None
    return found


def show(lived: Lived, first: int, last: int) -> None:
    """The sink shows more windows of the present timeline."""
    sink = FileSink("out", {"path": "out"}, lived.base)
    sink.prepare(lived.folder.uid)
    sink.fence(view(lived).execution)
    shows(sink, view(lived).execution, last, first)


@pytest.fixture
def lost(lived: Lived) -> Lived:
    """There are snapshots ``seven`` and ``nine``, sinks show window 11, and all state is gone."""
    assert take(lived.folder, "nine", None, 60.0, CLOCK).window == LAST
    lived.commit(*record_of(lived.folder.uid, FURTHER))
    show(lived, LAST + 1, FURTHER)
    lose(lived)
    return lived


def lose(lived: Lived) -> None:
    shutil.rmtree(lived.folder.path / "state-0")


def recovered(lived: Lived, told: list[tuple[str, str]] | None = None, **spec: Any) -> Restored:
    loaded = topology(lived.base, onStateLoss="Restore", **spec)
    events = [] if told is None else told

    def warn(kind: str, text: str) -> None:
        events.append((kind, text))

    return restore_lost(loaded, lived.folder, CLOCK, warn, lambda: None)


def unchanged(lived: Lived, before: View) -> None:
    assert view(lived) == before
    assert lived.windows() == set(range(1, FURTHER + 1))
    refuse_unfinished(lived.folder.path)
    assert timelines.read(lived.folder.path) == ()


def damage(lived: Lived, name: str) -> None:
    part = next((place(lived).root / name).glob("*.arrow"))
    part.write_bytes(part.read_bytes()[:-1])


def test_the_newest_snapshot_takes_the_place_of_what_is_gone(lost: Lived) -> None:
    told: list[tuple[str, str]] = []
    restored = recovered(lost, told)
    judge(restored, lost, servers=1, copies=1, window=LAST)
    assert lost.windows() == set(range(1, LAST + 1))
    text = (
        "all copies of some state were gone: snapshot nine is restored behind window 9, as "
        "timeline 2; windows 10 to 11 are given up, and processed again"
    )
    assert told == [("StateRestored", text)]
    (fork,) = timelines.read(lost.folder.path)
    assert fork == Fork(2, 1, LAST, "nine", FURTHER, True, fork.at_s)
    shown = overview(lost.folder)
    assert (shown["restored"]["window"], shown["restored"]["last"]) == (LAST, FURTHER)


def test_the_last_window_is_known_where_a_driver_that_starts_finds_the_loss(lost: Lived) -> None:
    """It commits no record, and what is sealed last is on no sink."""
    uid, journal = lost.folder.uid, lost.folder.journal
    journal.tell(Status(uid=uid, sealed=FURTHER + 1))
    Statistics(StatusBoard(journal, CLOCK, uid), CLOCK)
    told: list[tuple[str, str]] = []
    assert recovered(lost, told).last == FURTHER + 1
    assert "windows 10 to 12 are given up" in told[0][1]


def test_status_says_from_which_window_to_which(lost: Lived) -> None:
    recovered(lost)
    out = Console(width=300, record=True, file=StringIO())
    out.print(drawn(overview(lost.folder)))
    text = out.export_text()
    assert "snapshot nine behind window 9, " in text
    assert "all copies of some state were gone; windows 10 to 11 were given up (timeline 2)" in text


def test_where_the_newest_is_damaged_the_one_before_it_is_taken(lost: Lived) -> None:
    damage(lost, "nine")
    judge(recovered(lost), lost, servers=1, copies=1)
    assert lost.windows() == set(range(1, 8))


def test_what_was_passed_over_is_named(lost: Lived) -> None:
    damage(lost, "nine")
    (place(lost).root / "odd").mkdir()
    (place(lost).root / "odd" / "manifest.json").write_text("{")
    told: list[tuple[str, str]] = []
    recovered(lost, told)
    (event,) = told
    behind, *passed = event[1].split("; passed over: snapshot ")
    assert behind.endswith("windows 8 to 11 are given up, and processed again")
    assert [text.split(":")[0] for text in passed] == ["nine", "odd"]
    assert "are not those that were written" in passed[0]


def failing(monkeypatch: pytest.MonkeyPatch, file: str, times: int) -> None:
    """The place cannot give a file of snapshot ``nine``, so many times."""
    read = FolderPlace.read
    left = [times]

    def reads(place: FolderPlace, folder: str, name: str) -> bytes | None:
        if folder == "nine" and name.endswith(file) and left[0]:
            left[0] -= 1
            with _explained(place.shown, "read"):
                raise OSError(errno.EIO, "Input/output error")
        return read(place, folder, name)

    monkeypatch.setattr(FolderPlace, "read", reads)
    monkeypatch.setattr("millrace.local.snapshots.losses.DELAYS_S", (0.0,) * 6)


@pytest.mark.parametrize("file", [".arrow", "manifest.json"])
def test_a_snapshot_that_cannot_be_read_for_a_while_is_waited_for(
    lost: Lived, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    failing(monkeypatch, file, 2)
    told: list[tuple[str, str]] = []
    judge(recovered(lost, told), lost, servers=1, copies=1, window=LAST)
    assert [kind for kind, _ in told] == ["RestoreFailed", "RestoreFailed", "StateRestored"]
    assert "cannot be read (Input/output error)" in told[0][1]
    assert "snapshot nine is restored" in told[-1][1]


@pytest.mark.parametrize("file", [".arrow", "manifest.json"])
def test_one_that_stays_away_is_not_given_up_for_an_older_one(
    lost: Lived, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    before = view(lost)
    failing(monkeypatch, file, 99)
    with pytest.raises(SnapshotsAwayError, match=r"cannot be read \(Input/output error\)"):
        recovered(lost)
    unchanged(lost, before)


def test_what_another_topology_took_need_not_be_readable(
    lost: Lived, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = place(lost).root / "auto-ffffffff-1.1.4"
    shutil.copytree(place(lost).root / "nine", other)
    read = FolderPlace.read

    def reads(place: FolderPlace, folder: str, name: str) -> bytes | None:
        if folder == other.name:
            with _explained(place.shown, "read"):
                raise PermissionError(errno.EACCES, "Permission denied")
        return read(place, folder, name)

    monkeypatch.setattr(FolderPlace, "read", reads)
    judge(recovered(lost), lost, servers=1, copies=1, window=LAST)


def test_without_a_snapshot_that_can_be_used_nothing_is_changed(lost: Lived) -> None:
    before = view(lost)
    damage(lost, "nine")
    (place(lost).root / "seven" / "manifest.json").write_text("{")
    with pytest.raises(StateLostError) as found:
        recovered(lost)
    assert found.value.exit_code == ExitCode.STATE_LOST
    first, *reasons = str(found.value).splitlines()
    assert "holds no snapshot of it that can be restored" in first
    assert [line.split(":")[0] for line in reasons] == ["snapshot nine", "snapshot seven"]
    unchanged(lost, before)
    shutil.rmtree(place(lost).root)
    with pytest.raises(StateLostError, match=r"--fresh; spec.snapshots.every takes"):
        recovered(lost)
    unchanged(lost, before)


def test_a_snapshot_that_does_not_fit_the_file_is_passed_over_with_the_reason(lost: Lived) -> None:
    before = view(lost)
    with pytest.raises(StateLostError, match=r"nine: its state is cut into 16 key groups"):
        recovered(lost, keyGroups=8)
    unchanged(lost, before)


def test_one_of_a_timeline_that_was_left_before_it_is_no_choice(lived: Lived) -> None:
    """Once the sinks show window 9 again they could not tell which window 9 it is."""
    take(lived.folder, "nine", None, 60.0, CLOCK)
    restore(lived.loaded, lived.folder.path, place(lived), "seven", CLOCK, lambda _: None)
    show(lived, 8, LAST)
    before = view(lived)
    with pytest.raises(SnapshotError, match="timeline 1, which a restore left behind its window 7"):
        restore(lived.loaded, lived.folder.path, place(lived), "nine", CLOCK, lambda _: None)
    assert view(lived) == before
    refuse_unfinished(lived.folder.path)
    assert lived.windows() == set(range(1, LAST + 1))
    lose(lived)
    judge(recovered(lived), lived, servers=1, copies=1, timeline=3)
    assert lived.windows() == set(range(1, 8))
    assert [one.lost for one in timelines.read(lived.folder.path)] == [False, True]


def test_what_was_removed_and_brought_back_keeps_its_new_life(lost: Lived) -> None:
    """As on a cluster: its read position of before does not come back with the snapshot."""
    components = replace(COMPONENTS, edit=5, sources={"lines": 5})
    accepted = Accepted(lost.loaded.topology.document(), components)
    write_accepted(lost.folder.accepted, accepted)
    recovered(lost)
    found = read_accepted(lost.folder.accepted, lost.folder.topology)
    assert found is not None
    assert found.components == components
    with records(lost.folder) as held:
        ((record, _),) = held.values()
    assert apply_edit(record, found.components)[0].offsets == {}


def test_what_is_not_read_again_is_said(lost: Lived) -> None:
    """The rows of a source that was removed since go with the windows, and do not come back."""
    (lines,) = document()["spec"]["sources"]
    other = {**lines, "name": "other", "files": {**lines["files"], "path": "others"}}
    (count,) = document()["spec"]["processors"]
    from_other = {**count, "inputs": [{"from": "other", "key": ["word"]}]}
    told: list[tuple[str, str]] = []
    recovered(lost, told, sources=[other], processors=[from_other])
    assert told[0][1].endswith(
        "windows 10 to 11 are given up, and processed again, but for what was read of source "
        "'lines', which the file has no more: that is read no more"
    )


def test_one_of_another_life_is_no_choice(lost: Lived, tmp_path: Path) -> None:
    elsewhere = restore(
        topology(tmp_path / "second"),
        tmp_path / "second" / "work",
        place(lost),
        "nine",
        CLOCK,
        lambda _: None,
    ).folder
    shutil.rmtree(place(lost).root)
    take(elsewhere, "other", str(place(lost).root), 60.0, CLOCK)
    with pytest.raises(StateLostError):
        recovered(lost)


KEEPS = """
from io import StringIO
from pathlib import Path
from millrace.sinks import Sink
from millrace.sinks.base import SinkUnavailableError

class Keeps(Sink):
    def prepare(self, uid, fresh=False, overwrite=False): pass
    def fence(self, execution): raise AssertionError("nothing may change")
    def stage(self, name, batches): return None
    def publish(self, sealed, mine, execution, step=None): pass
    def last_shown(self): return 11, ""

class Away(Keeps):
    def fence(self, execution): pass
    def last_shown(self):
        calls = Path(__file__).with_name("calls")
        with calls.open("a") as file:
            file.write("x")
        if len(calls.read_text()) < 3:
            raise SinkUnavailableError("sink 'kept': is away")
        return 9, ""
"""


def kept(lived: Lived, name: str) -> list[dict[str, Any]]:
    (lived.base / "keeps.py").write_text(KEEPS)
    part = {"name": "kept", "inputs": [{"from": "count"}], "custom": {"class": f"keeps:{name}"}}
    return [*document()["spec"]["sinks"], part]


def test_a_sink_that_cannot_take_back_what_it_shows_refuses_it(lost: Lived) -> None:
    before = view(lost)
    with pytest.raises(SinkError, match=r"'kept': shows windows up to 11, .*ends with window 9"):
        recovered(lost, sinks=kept(lost, "Keeps"))
    unchanged(lost, before)


def test_a_sink_that_is_away_is_tried_again(lost: Lived) -> None:
    told: list[tuple[str, str]] = []
    restored = recovered(lost, told, sinks=kept(lost, "Away"))
    assert (restored.manifest.name, restored.timeline) == ("nine", 2)
    again = ("RestoreFailed", "sink 'kept': is away; that is tried again")
    assert [told[0], told[1], told[2][0]] == [again, again, "StateRestored"]


POINTS = [point for point in SNAPSHOT_POINTS if point.startswith("restore.")]
KILLED = """
import sys
from io import StringIO
from pathlib import Path
from millrace.clock import SystemClock
from millrace.local.snapshots.losses import restore_lost
from millrace.local.workdir import find_folder
from millrace.topology.load import load
file, work = map(Path, sys.argv[1:])
restore_lost(load(file, ()), find_folder(work), SystemClock(), print, lambda: None)
"""


def test_a_run_that_dies_at_any_step_is_followed_by_one_that_goes_on(lost: Lived) -> None:
    loaded = topology(lost.base, onStateLoss="Restore")
    lost.folder.journal.tell(Status(uid=lost.folder.uid, sealed=FURTHER + 1))
    for point in [*POINTS, "lost.restored"]:
        command = [sys.executable, "-c", KILLED, loaded.file, lost.folder.path]
        environment = {**os.environ, "MILLRACE_CRASH_AT": point}
        done = subprocess.run(command, check=False, env=environment, capture_output=True)
        assert done.returncode == -signal.SIGKILL, (point, done.stderr)
        if point in POINTS:
            begun = Begun("nine", LAST, own=True, lost=True, last=FURTHER + 1)
            assert marked(lost.folder.path) == begun, point
    found = view(lost)
    restored = Restored(lost.folder, load(place(lost), "nine"), found.timeline, None)
    judge(restored, lost, 1, 1, timeline=found.timeline, window=LAST)
    assert lost.windows() == set(range(1, LAST + 1))
    last = timelines.read(lost.folder.path)[-1]
    assert (last.timeline, last.parent, last.last) == (found.timeline, 1, FURTHER + 1)


def test_half_a_restore_goes_on_to_the_window_that_it_began_with(lost: Lived) -> None:
    """Sinks may have taken back what is behind it, so a later snapshot would leave a gap."""
    seven = load(place(lost), "seven")
    mark(lost.folder.path, seven, own=True, lost=True, last=FURTHER)
    loaded = topology(lost.base, onStateLoss="Restore")
    assert newest(loaded, lost.folder, place(lost)).manifest == seven


def test_a_restore_that_a_newer_run_ends_is_gone_on_with(lost: Lived) -> None:
    loaded = topology(lost.base, onStateLoss="Restore")

    def fenced() -> None:
        if lost.windows() == set(range(1, LAST + 1)):
            raise FencedError("a newer run")

    with pytest.raises(FencedError):
        restore_lost(loaded, lost.folder, CLOCK, lambda *_: None, fenced)
    assert marked(lost.folder.path) is not None
    judge(recovered(lost), lost, servers=1, copies=1, window=LAST, timeline=3)


def test_the_mark_of_an_older_release_is_one_that_somebody_asked_for(lived: Lived) -> None:
    write_json(
        lived.folder.path / "restoring.json",
        checked.with_checksum({"format": 1, "snapshot": "seven", "window": 7, "own": True}),
    )
    assert marked(lived.folder.path) == Begun("seven", 7, own=True, lost=False, last=None)


def fork(timeline: int, parent: int, window: int) -> Fork:
    return Fork(timeline, parent, window, "s", None, False, 0.0)


def test_what_leads_to_a_timeline_is_what_no_restore_left() -> None:
    forks = [fork(2, 1, 7), fork(3, 2, 20), fork(4, 2, 5), fork(5, 4, 30)]
    line = line_to(forks, 5)
    assert line.whole
    assert dict(line.limits) == {5: None, 4: 30, 2: 5, 1: 5}
    assert line.has(5, 99)
    assert line.has(1, 5)
    assert not line.has(1, 6)
    assert line.lacks(1, 6)
    assert line.lacks(3, 1), "it was left altogether"
    # Nothing is known of what led to a timeline that an older release began.
    later = line_to([fork(9, 8, 50)], 9)
    assert not later.whole
    assert later.has(8, 50)
    assert later.lacks(8, 51)
    assert not later.has(1, 3)
    assert not later.lacks(1, 3)


def test_damaged_notes_of_timelines_are_not_believed(lived: Lived) -> None:
    timelines.note(lived.folder.path, fork(2, 1, 7))
    timelines.note(lived.folder.path, fork(2, 1, 6))
    assert [one.window for one in timelines.read(lived.folder.path)] == [6]
    (lived.folder.path / timelines.FILE).write_text("{")
    with pytest.raises(WorkFolderError, match=r"timelines.json: cannot be read"):
        timelines.read(lived.folder.path)
    assert overview(lived.folder)["restored"] is None
