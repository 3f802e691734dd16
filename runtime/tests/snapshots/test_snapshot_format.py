"""Snapshots as they are kept: written whole or not at all, and believed only where whole."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from snapshot_parts import COMPONENTS, UID, K, Objects, content, empty, shown, subject, unpublished

from millrace import checked, durable
from millrace.errors import ExitCode, NewerFormatError, SnapshotError, SnapshotsAwayError
from millrace.protocol.record import needed_objects
from millrace.restoring.fit import candidates
from millrace.snapshots import reading
from millrace.snapshots.manifest import FORMAT, Column, Manifest, encode
from millrace.snapshots.places import FolderPlace, Place, StorePlace, _explained, open_place
from millrace.snapshots.retention import (
    Retention,
    is_kept,
    leftovers,
    outdated,
    own_name,
    successor,
)
from millrace.snapshots.timelines import Fork, Line, line_to
from millrace.snapshots.writing import write_snapshot


@pytest.fixture(params=["folder", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "folder":
        yield FolderPlace(tmp_path / "snapshots")
        return
    url = f"memory://{uuid.uuid4().hex}/snapshots"
    yield StorePlace(url)


def written(place: Place, name: str = "one", asked: str = "") -> Manifest:
    record, held = content()
    return write_snapshot(place, name, subject(record, asked), Objects(held), shown)


def restorable(place: Place, name: str) -> bool:
    """Whether all that ``restore`` reads is there and whole."""
    manifest = reading.load(place, name)
    return not list(reading.faults(place, manifest))


def test_a_snapshot_says_all_that_its_record_knew_and_holds_every_object(place: Place) -> None:
    record, held = content()
    objects = Objects(held)
    write_snapshot(place, "one", subject(unpublished(record)), objects, shown)
    manifest = reading.load(place, "one")
    assert manifest.decoded == record, "what the sinks show now is not shown again"
    assert manifest.decoded.components == COMPONENTS
    assert (manifest.window, manifest.uid, manifest.key_groups) == (7, UID, K)
    assert manifest.state == {"count": (Column("word", "string"), Column("n", "int64"))}
    parts = {part.name: reading.read_part(place, manifest, part) for part in manifest.parts}
    assert parts == held
    assert set(parts) == needed_objects(record)
    assert objects.read == [(name, (1 << K) - 1 if "state" in name else 0) for name in held]
    assert [entry.name for entry in reading.entries(place)] == ["one"]


def test_one_without_any_state_is_one_too(place: Place) -> None:
    write_snapshot(place, "none", subject(empty()), Objects({}), shown)
    assert reading.load(place, "none").decoded == empty()


def test_a_snapshot_that_fails_before_its_manifest_is_none(place: Place) -> None:
    """Whatever fails: an object, the sinks, or damage that is noticed on the way."""
    record, held = content()
    lacking = {name: data for name, data in held.items() if "dead" not in name}
    with pytest.raises(KeyError):
        write_snapshot(place, "one", subject(record), Objects(lacking), shown)

    def away() -> None:
        raise SnapshotError("the sinks are away")

    with pytest.raises(SnapshotError, match="the sinks are away"):
        write_snapshot(place, "one", subject(record), Objects(held), away)
    name = next(iter(held))
    damaged = {**held, name: held[name][:-1] + b"x"}
    with pytest.raises(SnapshotError, match="it was damaged, and no snapshot is taken of it"):
        write_snapshot(place, "one", subject(record), Objects(damaged), shown)
    # Nothing of them takes room, or a name.
    assert place.folders() == []
    with pytest.raises(SnapshotError, match="snapshot one: is not in") as found:
        reading.load(place, "one")
    assert found.value.exit_code == ExitCode.SNAPSHOT == 14
    # The next try under that name is as good as the first.
    written(place)
    assert restorable(place, "one")


def test_what_was_killed_before_its_manifest_is_told_and_not_believed(place: Place) -> None:
    place.write("one", f"{'0' * 64}.arrow", b"part")
    with pytest.raises(SnapshotError, match="was never finished, so it is not believed"):
        reading.load(place, "one")
    (entry,) = reading.entries(place)
    assert (entry.manifest, entry.unfinished) == (None, True)
    written(place)
    assert restorable(place, "one")


def test_a_try_that_fails_leaves_what_another_has_finished_meanwhile(place: Place) -> None:
    record, held = content()

    def meanwhile() -> None:
        written(place)
        raise SnapshotError("the sinks are away")

    with pytest.raises(SnapshotError, match="the sinks are away"):
        write_snapshot(place, "one", subject(record), Objects(held), meanwhile)
    assert restorable(place, "one")


@pytest.mark.parametrize("moment", ["before the manifest", "as it is made"])
@pytest.mark.parametrize("harm", ["deleted", "a part gone", "cut"])
def test_one_whose_parts_go_while_it_is_made_is_none(
    place: Place, monkeypatch: pytest.MonkeyPatch, moment: str, harm: str
) -> None:
    """Somebody deletes what has no manifest yet: a user, or a later driver that cleans."""
    record, held = content()
    create = place.create

    def act() -> None:
        first = place.files("one")[0]
        if harm == "deleted":
            reading.delete(place, "one")
        elif harm == "a part gone":
            place.remove("one", first)
        else:
            place.write("one", first, b"")

    def creates(folder: str, file: str, data: bytes) -> bool:
        act()
        return create(folder, file, data)

    if moment == "as it is made":
        monkeypatch.setattr(place, "create", creates)
    meanwhile = act if moment == "before the manifest" else shown
    with pytest.raises(SnapshotError, match="snapshot one: was deleted while it was written"):
        write_snapshot(place, "one", subject(record), Objects(held), meanwhile)
    assert place.folders() == []
    monkeypatch.undo()
    written(place)
    assert restorable(place, "one")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (errno.ENOSPC, r"No space left on device\); free some space, or name another place"),
        (errno.EACCES, r"Permission denied\); allow it, or name another place"),
    ],
)
def test_a_disk_that_is_full_or_not_to_be_written_leaves_no_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: int, said: str
) -> None:
    """Whatever is the last that is still taken, up to the manifest."""
    whole = os.fsync
    for room in range(9):
        left = [room]

        def refused(descriptor: int, left: list[int] = left) -> None:
            if not left[0]:
                raise OSError(fault, os.strerror(fault))
            left[0] -= 1
            whole(descriptor)

        place = FolderPlace(tmp_path / str(room))
        monkeypatch.setattr(os, "fsync", refused)
        with pytest.raises(SnapshotError, match=rf"{room}: cannot be written \({said}"):
            written(place)
        monkeypatch.setattr(os, "fsync", whole)
        assert [e.name for e in reading.entries(place) if e.manifest] == []
        with pytest.raises(SnapshotError, match=r"never finished|is not in"):
            reading.load(place, "one")
        written(place)
        assert restorable(place, "one")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(SnapshotError, match=r"closed: cannot be written .*allow it"):
        written(FolderPlace(tmp_path / "closed" / "in"))


def test_a_place_that_is_a_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SnapshotError, match=r"file: cannot be (written|listed|read)"):
        written(FolderPlace(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "mine"


KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from snapshot_parts import Objects, content, shown, subject
from millrace.snapshots.places import FolderPlace
from millrace.snapshots.reading import delete
from millrace.snapshots.writing import write_snapshot
record, held = content()
place = FolderPlace(Path({place!r}))
write_snapshot(place, "one", subject(record, "token"), Objects(held), shown)
delete(place, "one")
"""


@pytest.mark.parametrize(
    ("point", "whole"),
    [
        ("snapshot.part:1", False),
        ("snapshot.part:2", False),
        ("snapshot.part:3", False),
        ("snapshot.manifest", True),
        ("snapshot.unlisted", False),
    ],
)
def test_killed_at_any_step_there_is_a_whole_snapshot_or_none(
    tmp_path: Path, point: str, whole: bool
) -> None:
    place = FolderPlace(tmp_path / "snapshots")
    code = KILLED.format(tests=str(Path(__file__).parent), place=str(place.root))
    environment = {**os.environ, "MILLRACE_CRASH_AT": point}
    done = subprocess.run([sys.executable, "-c", code], check=False, env=environment)
    assert done.returncode == -signal.SIGKILL
    assert [bool(e.manifest) for e in reading.entries(place)] == [whole]
    if whole:
        assert restorable(place, "one")
    # Who takes over answers the same request under the same name, once.
    again = written(place, asked="token")
    assert restorable(place, "one")
    assert reading.load(place, "one") == again
    reading.delete(place, "one")
    assert reading.entries(place) == []


def test_two_who_write_under_one_name_leave_the_snapshot_of_one(place: Place) -> None:
    """An old driver that wakes up behind its parts finds the other's, and harms nothing."""
    record, held = content()
    later = replace(record, sealed=8, published=8, intents=())

    def meanwhile() -> None:
        write_snapshot(place, "one", subject(later, "token"), Objects(held), shown)

    found = write_snapshot(place, "one", subject(record, "token"), Objects(held), meanwhile)
    assert found.window == 8
    assert reading.load(place, "one").window == 8
    assert restorable(place, "one")


def test_a_name_that_is_taken_is_refused_and_what_is_there_stays(place: Place) -> None:
    first = written(place)
    record, held = content()
    other = subject(replace(record, sealed=8, published=8, intents=()), "other")
    with pytest.raises(SnapshotError, match="there is one of that name, of first behind window 7"):
        write_snapshot(place, "one", other, Objects(held), shown)
    assert reading.load(place, "one") == first


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "x" * 101, "a b", "-x"])
def test_what_is_no_name_is_refused(place: Place, name: str) -> None:
    with pytest.raises(SnapshotError, match="a name has up to 100 letters"):
        written(place, name)
    with pytest.raises(SnapshotError, match="a name has up to 100 letters"):
        reading.delete(place, name)


def test_a_damaged_part_is_named(place: Place) -> None:
    manifest = written(place)
    for part in manifest.parts:
        data = place.read("one", part.file)
        assert data is not None
        for bad in (data[:-1], data + b"x", bytes([data[0] ^ 1]) + data[1:], b""):
            place.write("one", part.file, bad)
            with pytest.raises(SnapshotError, match=f"{part.file} has {len(bad)} bytes that are"):
                reading.read_part(place, manifest, part)
            assert len(list(reading.faults(place, manifest))) == 1
        place.remove("one", part.file)
        with pytest.raises(SnapshotError, match=f"{part.file} is gone"):
            reading.read_part(place, manifest, part)
        place.write("one", part.file, data)
    assert restorable(place, "one")


@pytest.mark.parametrize("at", ["unlink", "sync"])
def test_a_folder_that_somebody_else_takes_away_meanwhile_is_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Two delete the same snapshot, or a driver clears what a user deletes."""
    place = FolderPlace(tmp_path)
    place.write("one", "manifest.json", b"{}")
    if at == "unlink":
        shutil.rmtree(tmp_path / "one")
    sync = durable.sync_folder

    def gone(folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        sync(folder)

    monkeypatch.setattr(durable, "sync_folder", gone)
    place.remove("one", "manifest.json")
    assert place.folders() == []


def test_a_manifest_with_any_byte_changed_is_not_believed(place: Place) -> None:
    written(place)
    data = place.read("one", reading.MANIFEST)
    assert data is not None
    for at in range(0, len(data), 41):
        flipped = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        place.write("one", reading.MANIFEST, flipped)
        try:
            found = reading.load(place, "one")
        except (SnapshotError, NewerFormatError):
            continue
        # Nothing but the room between two fields may differ.
        assert json.loads(flipped) == json.loads(data), (at, found)
    for cut in (0, 1, len(data) // 2, len(data) - 1):
        place.write("one", reading.MANIFEST, data[:cut])
        with pytest.raises(SnapshotError, match="is damaged and not believed"):
            reading.load(place, "one")
    (entry,) = reading.entries(place)
    assert "is damaged and not believed" in entry.fault


def rewritten(place: Place, **fields: object) -> None:
    """A manifest with other fields, and a checksum that fits."""
    data = place.read("one", reading.MANIFEST)
    assert data is not None
    document = {**checked.parse(data), **fields}
    place.write("one", reading.MANIFEST, json.dumps(checked.with_checksum(document)).encode())


def test_a_newer_format_is_refused_as_such(place: Place) -> None:
    written(place)
    rewritten(place, format=FORMAT + 1, something="new")
    with pytest.raises(NewerFormatError, match=f"has format {FORMAT + 1}, this release reads up"):
        reading.load(place, "one")


@pytest.mark.parametrize(
    "fields",
    [
        {"window": 8},
        {"uid": "other"},
        {"parts": []},
        {"record": "{}"},
        {"kind": "Record"},
        {"format": "one"},
        {"keyGroups": "16"},
        {"unknown": 1},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_manifest_that_contradicts_itself_is_refused(
    place: Place, fields: dict[str, object]
) -> None:
    written(place)
    rewritten(place, **fields)
    with pytest.raises(SnapshotError, match="is damaged and not believed"):
        reading.load(place, "one")


def test_parts_outside_of_the_snapshot_cannot_be_named(place: Place) -> None:
    manifest = written(place)
    (first, *rest) = json.loads(encode(manifest))["parts"]
    rewritten(place, parts=[{**first, "digest": "../" * 21 + "x"}, *rest])
    with pytest.raises(SnapshotError, match="is damaged and not believed"):
        reading.load(place, "one")


def test_deleting_takes_the_whole_snapshot_and_no_other(place: Place) -> None:
    written(place)
    written(place, "two")
    reading.delete(place, "one")
    assert [entry.name for entry in reading.entries(place)] == ["two"]
    assert place.files("one") == []
    assert restorable(place, "two")
    with pytest.raises(SnapshotError, match=r"snapshot one: is not in .*; snapshots there: two"):
        reading.delete(place, "one")


def test_folders_of_others_are_no_snapshots_and_never_deleted(place: Place) -> None:
    manifest = written(place)
    place.write("notes", "thesis.txt", b"all of it")
    place.write("left", manifest.parts[0].file, b"part")
    place.write("left", f".{reading.MANIFEST}.0123456789abcdef", b"{")
    place.write("left", f".{manifest.parts[0].file}.12.345.new", b"pa")
    assert [entry.name for entry in reading.entries(place)] == ["one", "left"]
    for act in (reading.delete, reading.load):
        with pytest.raises(SnapshotError, match=r"'thesis.txt', which is no file of a snapshot"):
            act(place, "notes")
    assert place.read("notes", "thesis.txt") == b"all of it"
    reading.delete(place, "left")
    assert place.files("left") == []
    # Nor does a snapshot take with it what somebody put beside its parts.
    place.write("one", "thesis.txt", b"all of it")
    with pytest.raises(SnapshotError, match=r"'thesis.txt', which is no file of a snapshot"):
        reading.delete(place, "one")
    assert place.read("one", "thesis.txt") == b"all of it"
    assert restorable(place, "one")


class Between(FolderPlace):
    """Calls ``act`` once, right before the first removal of a part."""

    act: Callable[[], object] | None = None

    def _between(self) -> None:
        act, self.act = self.act, None
        if act is not None:
            act()

    def remove(self, folder: str, file: str) -> None:
        if file != reading.MANIFEST:
            self._between()
        super().remove(folder, file)

    def remove_all(self, folder: str, files: Sequence[str]) -> None:
        self._between()
        super().remove_all(folder, files)


class Late(FolderPlace):
    """A writer whose manifest comes to be, and is looked behind, while ``who`` deletes."""

    def __init__(self, root: Path, who: Callable[[Place, str], None]) -> None:
        super().__init__(root)
        self.who = who

    def create(self, folder: str, file: str, data: bytes) -> bool:
        deleter = Between(self.root)
        seen: list[str] = []

        def finished() -> None:
            assert FolderPlace.create(self, folder, file, data)
            seen.extend(self.files(folder))

        deleter.act = finished
        self.who(deleter, folder)
        assert deleter.act is None
        self.seen: dict[str, int | None] | None = dict.fromkeys(seen)
        return True

    def sizes(self, folder: str) -> dict[str, int | None]:
        seen = getattr(self, "seen", None)
        return super().sizes(folder) if seen is None else seen


@pytest.mark.parametrize("who", [reading.delete, reading.discard])
def test_one_that_is_finished_while_it_is_deleted_is_none(
    tmp_path: Path, who: Callable[[Place, str], None]
) -> None:
    """Its writer looked behind the manifest before the parts went, and tells it as taken."""
    written(Late(tmp_path, who))
    place = FolderPlace(tmp_path)
    assert place.folders() == []
    written(place)
    assert restorable(place, "one")


def test_one_that_does_not_name_what_was_cleared_stays(tmp_path: Path) -> None:
    place = Between(tmp_path)
    place.write("one", f"{'0' * 64}.arrow", b"part")
    place.act = lambda: written(FolderPlace(tmp_path))
    reading.discard(place, "one")
    assert restorable(place, "one")


def test_none_is_written_into_somebody_else_s_folder(place: Place) -> None:
    """Nor is it deleted then."""
    place.write("notes", "thesis.txt", b"all of it")
    with pytest.raises(SnapshotError, match=r"'thesis.txt', .* Move it away, or give another name"):
        written(place, "notes")
    assert place.files("notes") == ["thesis.txt"]


def test_what_a_kill_leaves_of_the_manifest_is_no_file_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = FolderPlace(tmp_path)
    written(place)
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)
    with monkeypatch.context() as context:
        context.setattr(os, "link", lambda *_: (_ for _ in ()).throw(FileExistsError()))
        assert not durable.create(tmp_path / "one" / reading.MANIFEST, b"{")
    monkeypatch.undo()
    assert any("-" in name for name in place.files("one"))
    reading.delete(place, "one")
    assert place.folders() == []


def test_a_symbolic_link_is_no_snapshot_and_harms_none(tmp_path: Path) -> None:
    place = FolderPlace(tmp_path)
    written(place)
    (tmp_path / "latest").symlink_to("one")
    assert [entry.name for entry in reading.entries(place)] == ["one"]
    with pytest.raises(SnapshotError, match=r"latest is a symbolic link, so nothing was changed"):
        reading.delete(place, "latest")
    assert restorable(place, "one")


def test_a_copy_under_another_name_says_so(tmp_path: Path) -> None:
    place = FolderPlace(tmp_path)
    written(place)
    (tmp_path / "one").rename(tmp_path / "moved")
    (entry,) = reading.entries(place)
    assert "is a copy of snapshot one, and a snapshot has one name; call the folder one" in (
        entry.fault
    )
    assert not entry.damaged
    with pytest.raises(SnapshotError, match="is a copy of snapshot one"):
        reading.load(place, "moved")
    (tmp_path / "moved").rename(tmp_path / "one")
    assert restorable(place, "one")


@pytest.mark.parametrize("fault", [errno.EPERM, errno.ENOTSUP])
def test_without_hard_links_nothing_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: int
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(fault, os.strerror(fault))

    monkeypatch.setattr(os, "link", refused)
    record, held = content()
    objects = Objects(held)
    with pytest.raises(SnapshotError, match=r"has no hard links .*; name another place"):
        write_snapshot(FolderPlace(tmp_path), "one", subject(record), objects, shown)
    assert objects.read == []
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_writes_over_what_is_there_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two who write at a time the one that finds the other's says so."""
    place = StorePlace(f"memory://{uuid.uuid4().hex}/snapshots")
    pipe_file = place._store.pipe_file
    record, held = content()

    def overtaken(path: str, value: bytes, mode: str = "overwrite", **more: object) -> None:
        pipe_file(path, value)
        if mode == "create":
            pipe_file(path, other)

    other = encode(replace(written(place, "other"), name="one"))
    monkeypatch.setattr(place._store, "pipe_file", overtaken)
    with pytest.raises(SnapshotError, match="snapshot one: there is one of that name"):
        write_snapshot(place, "one", subject(record, created=5.0), Objects(held), shown)


def test_what_cannot_be_a_snapshot_is_left_out(tmp_path: Path) -> None:
    place = FolderPlace(tmp_path / "snapshots")
    written(place)
    (place.root / "grafana" / reading.MANIFEST).mkdir(parents=True)
    (place.root / "lost+found").mkdir(mode=0)
    (place.root / ".hidden").mkdir()
    assert [entry.name for entry in reading.entries(place)] == ["one"]
    found, broken = candidates(place, UID, line_to((), 1), None)
    assert ([one.name for one in found], broken) == (["one"], [])
    with pytest.raises(SnapshotError, match=r"'manifest.json/', which is no file of a snapshot"):
        reading.delete(place, "grafana")
    assert (place.root / "grafana" / reading.MANIFEST).is_dir()


@pytest.mark.parametrize("method", ["read", "files"])
def test_only_what_may_be_the_topology_s_own_has_to_be_readable(
    place: Place, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Somebody else's folder in a shared place holds no restore up."""
    written(place)
    own, other = own_name(empty()), own_name(empty("f" * 32))
    real, faults = getattr(place, method), dict[str, OSError]()

    def refuses(folder: str, *file: str) -> object:
        with _explained(place.shown, "read"):
            if folder in faults:
                raise faults[folder]
        return real(folder, *file)

    monkeypatch.setattr(place, method, refuses)
    for name in (own, other, "theirs"):
        place.write(name, f"{'0' * 64}.arrow", b"part")
    denied = PermissionError(errno.EACCES, "Permission denied")
    faults |= {"theirs": denied, other: denied}
    found, broken = candidates(place, UID, line_to((), 1), None)
    assert [one.name for one in found] == ["one"]
    assert len(broken) == 1
    assert "cannot be read (Permission denied)" in broken[0]
    told = [entry.name for entry in reading.entries(place) if entry.away is not None]
    assert told == sorted([other, "theirs"])
    for name, fault in ((own, denied), ("theirs", OSError(errno.EIO, "Input/output error"))):
        faults.clear()
        faults[name] = fault
        with pytest.raises(SnapshotsAwayError):
            candidates(place, UID, line_to((), 1), None)


def test_an_answer_that_was_lost_is_found_in_the_place(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that was asked twice says of its own manifest that there is one."""
    create = place.create
    monkeypatch.setattr(place, "create", lambda *args: create(*args) and False)
    assert written(place) == reading.load(place, "one")
    assert restorable(place, "one")


def test_a_manifest_that_could_not_be_read_again_is_not_written(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(encode(written(place, "fits")))
    monkeypatch.setattr(checked, "LARGEST_BYTES", size - 1)
    with pytest.raises(SnapshotError, match=r"its manifest would have .* remove dead letters"):
        written(place, "fits-not", asked="x" * 9)
    assert place.read("fits-not", reading.MANIFEST) is None
    # A record that is too large by itself is noticed before anything is copied.
    monkeypatch.setattr(checked, "LARGEST_BYTES", 500)
    with pytest.raises(SnapshotError, match=r"its manifest would have .* remove dead letters"):
        written(place, "large")
    assert place.files("large") == []


def test_a_snapshot_holds_passwords_of_the_file_and_the_documents_say_so(place: Place) -> None:
    spec = {"keyGroups": K, "stateServers": {"url": "redis://:sesame@host"}}
    whole = replace(subject(empty()), document={"metadata": {"name": "first"}, "spec": spec})
    write_snapshot(place, "one", whole, Objects({}), shown)
    data = place.read("one", reading.MANIFEST)
    assert data is not None
    assert b"sesame" in data
    said = "can be read by whoever can read the place"
    root = Path(__file__).parents[3]
    for document in ("SECURITY.md", "docs/operations.md"):
        assert said in " ".join((root / document).read_text().split()), document


def test_a_url_of_fsspec_is_one_and_a_path_is_a_folder(tmp_path: Path) -> None:
    assert isinstance(open_place("memory://x", tmp_path), StorePlace)
    relative = open_place("in/here", tmp_path)
    assert isinstance(relative, FolderPlace)
    assert relative.root == tmp_path / "in" / "here"
    local = open_place(f"file://{tmp_path}/there", Path("/elsewhere"))
    assert isinstance(local, FolderPlace)
    assert local.root == tmp_path / "there"
    with pytest.raises(SnapshotError, match=r"nosuch.*name a folder"):
        open_place("nosuch://x", tmp_path)


def test_a_store_that_fails_is_said_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    place = StorePlace("memory://failing/snapshots")
    written(place)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("not for you")

    for method in ("cat_file", "pipe_file", "ls", "rm_file"):
        monkeypatch.setattr(place._store, method, refuse)
    for act in (
        lambda: place.read("one", "x"),
        lambda: place.write("one", "x", b""),
        place.folders,
        lambda: place.remove("one", "x"),
    ):
        with pytest.raises(SnapshotError, match=r"cannot be .* \(not for you\); allow it"):
            act()


def test_folders_are_their_users_alone(tmp_path: Path) -> None:
    manifest = written(FolderPlace(tmp_path / "made"))
    for path in (tmp_path / "made" / "one", tmp_path / "made" / "one" / manifest.parts[0].file):
        assert path.stat().st_mode & 0o077 == 0


def taken(
    place: Place, window: int, created: float = 1.0, uid: str = UID, timeline: int = 1
) -> str:
    """A snapshot that a topology takes by itself."""
    tag = replace(empty().tag, execution=3, timeline=timeline)
    record = replace(empty(uid), tag=tag, sealed=window, published=window)
    name = own_name(record)
    write_snapshot(place, name, subject(record, created=created), Objects({}), shown)
    return name


def test_retention_goes_by_count_and_age_and_leaves_what_is_not_its_own(place: Place) -> None:
    old = [taken(place, window, created=100.0 * window) for window in (9, 10, 100)]
    other = taken(place, 1, created=1.0, uid="f" * 32)
    written(place, "by-hand")
    record = replace(empty(), tag=replace(empty().tag, execution=4))
    found = reading.entries(place)

    def out(keep: int, max_age_s: float | None = None, now_s: float = 0.0) -> list[str]:
        return outdated(found, record, Retention(keep, max_age_s), now_s, line_to((), 1))

    assert out(3) == []
    assert out(2) == [old[0]], "by window, not by name"
    assert out(1) == [old[1], old[0]]
    assert out(3, 5.0, now_s=10_005.0) == [old[1], old[0]]
    # The newest stays, however old it is.
    assert out(3, 5.0, now_s=99_999.0) == [old[1], old[0]]
    assert other not in out(1, 0.0, now_s=99_999.0)


def test_damaged_ones_go_once_enough_newer_ones_are_whole(place: Place) -> None:
    names = [taken(place, window) for window in (9, 10, 100, 101)]
    newer, copy = own_name(replace(empty(), sealed=3)), own_name(replace(empty(), sealed=4))
    place.write(names[1], reading.MANIFEST, b"{")
    text = json.loads(place.read(names[0], reading.MANIFEST) or b"")
    place.write(newer, reading.MANIFEST, json.dumps({**text, "format": FORMAT + 1}).encode())
    place.write(copy, reading.MANIFEST, place.read(names[0], reading.MANIFEST) or b"")
    record = replace(empty(), tag=replace(empty().tag, execution=4))
    found = reading.entries(place)

    def out(keep: int, *forks: Fork) -> list[str]:
        line = line_to(forks, 2 if forks else 1)
        return outdated(found, record, Retention(keep), 0.0, line)

    assert out(3) == []
    assert out(2) == [names[0], names[1]], "two newer ones are whole"
    assert newer not in out(1)
    assert copy not in out(1)
    # Those that a restore left are no reason.
    assert names[1] not in out(2, Fork(2, 1, 9, "s", None, True, 0.0))


def test_what_a_user_called_much_like_its_own_is_not_the_topology_s(place: Place) -> None:
    named = f"auto-{UID[:8]}-before-the-edit"
    write_snapshot(place, named, subject(empty()), Objects({}), shown)
    newer = taken(place, 9)
    half = f"auto-{UID[:8]}-by-hand"
    place.write(half, f"{'0' * 64}.arrow", b"part")
    record = replace(empty(), tag=replace(empty().tag, execution=4))
    found = reading.entries(place)
    assert {entry.name for entry in found} == {named, newer, half}
    assert outdated(found, record, Retention(1, 0.0), 99_999.0, line_to((), 1)) == []
    assert not is_kept(found, empty())


def test_what_earlier_tries_left_unfinished_goes_and_that_of_a_later_driver_stays(
    place: Place,
) -> None:
    record = replace(empty(), tag=replace(empty().tag, execution=4))
    names = [own_name(replace(empty(), tag=replace(empty().tag, execution=n))) for n in (3, 4, 5)]
    for name in names:
        place.write(name, f"{'0' * 64}.arrow", b"part")
    # Whoever cleans writes none meanwhile: what has its own number is of an earlier try.
    assert leftovers(reading.entries(place), record) == names[:2]


def test_one_that_somebody_finishes_while_its_rest_is_cleared_stays(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = f"{'0' * 64}.arrow"
    place.write("half", part, b"part")
    reading.discard(place, "half")
    assert place.files("half") == []
    place.write("one", part, b"part")
    files = place.files

    def finished_behind(folder: str) -> list[str]:
        found = files(folder)
        monkeypatch.setattr(place, "files", files)
        written(place)
        return list(found)

    monkeypatch.setattr(place, "files", finished_behind)
    reading.discard(place, "one")
    assert restorable(place, "one")


def test_those_that_a_restore_left_are_the_first_to_go(place: Place) -> None:
    """Nothing can be restored from them in this work folder."""
    first = [taken(place, window) for window in (7, 9)]
    second = [taken(place, window, timeline=2) for window in (12, 14)]
    record = replace(empty(), tag=replace(empty().tag, timeline=2, execution=9))
    line = line_to([Fork(2, 1, 7, "s", None, True, 0.0)], 2)
    found = reading.entries(place)

    def out(keep: int, of: Line = line) -> list[str]:
        return outdated(found, record, Retention(keep), 0.0, of)

    assert out(4) == []
    assert out(3) == [first[1]]
    assert out(2) == [first[0], first[1]]
    assert out(1) == [second[0], first[0], first[1]]
    # Nothing is known of restores by a release that noted none.
    assert out(3, line_to((), 2)) == [first[0]]


def test_a_driver_that_was_replaced_is_told_by_what_comes_behind_it(place: Place) -> None:
    """Else it would delete what the present timeline can go back to."""
    first = [taken(place, window) for window in (10, 20)]
    other = taken(place, 1, uid="f" * 32, timeline=9)
    fork = Fork(2, 1, 10, first[0], None, True, 0.0)
    late = replace(empty(), tag=replace(empty().tag, execution=3))
    assert successor(reading.entries(place), late, ()) is None
    assert other in [entry.name for entry in reading.entries(place)]
    assert successor((), late, [fork]) == "the topology was restored, as timeline 2"
    assert successor((), replace(late, tag=replace(late.tag, timeline=2)), [fork]) is None
    before = replace(late, tag=replace(late.tag, execution=2))
    assert successor(reading.entries(place), before, ()) == f"{first[0]} is of a later driver"
    second = taken(place, 12, timeline=2)
    assert successor(reading.entries(place), late, ()) == f"{second} is of a later driver"


def test_every_crash_point_of_a_snapshot_is_tried_here() -> None:
    from millrace.crash import SNAPSHOT_POINTS

    text = Path(__file__).read_text()
    points = [point for point in SNAPSHOT_POINTS if point.startswith("snapshot.")]
    assert len(points) == 3
    assert [point for point in points if f'"{point}' not in text] == []
