"""Snapshots of a topology that does not run, and what is restored of them: real state servers, real
sinks and a real work folder, without Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
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
    state_of,
    topology,
    windows,
)

from millrace import checked
from millrace.crash import SNAPSHOT_POINTS
from millrace.errors import ExitCode, SinkError, SnapshotError
from millrace.homes.accepted import Accepted
from millrace.homes.documents import Proposal
from millrace.local.accepted import read_accepted, write_accepted
from millrace.local.files import write_json
from millrace.local.inspect.reading import committed_record, reachable
from millrace.local.snapshots.asking import take
from millrace.local.snapshots.places import place_of_file
from millrace.local.snapshots.restoring import Restored, restore
from millrace.local.snapshots.unfinished import mark, refuse_unfinished
from millrace.local.takeover import held_briefly
from millrace.local.workdir import find_folder
from millrace.protocol.server import Found
from millrace.protocol.types import Phase, Sealed
from millrace.sinks.files import FileSink
from millrace.snapshots.manifest import Manifest
from millrace.snapshots.reading import load
from millrace.state.viewfile import ViewFile
from millrace.topology.load import LoadedTopology
from millrace.topology.load import load as load_topology
from millrace_e2e.embedded import started
from millrace_e2e.valkey import free_port


def manifest(lived: Lived) -> Manifest:
    return load(place(lived), "seven")


def back(lived: Lived, loaded: LoadedTopology | None = None, work: Path | None = None) -> Restored:
    loaded, work = loaded or lived.loaded, work or lived.folder.path
    return restore(loaded, work, place(lived), "seven", CLOCK, lambda _: None)


def test_a_snapshot_of_what_a_run_left_holds_its_record(lived: Lived) -> None:
    found = manifest(lived)
    record, objects = record_of(lived.folder.uid, 7)
    assert found.decoded == record
    assert {part.name for part in found.parts} == set(objects)
    assert lived.folder.inbox.requests() == [], "no later run is asked for it again"


def test_what_is_not_settled_gives_no_snapshot(lived: Lived) -> None:
    def refused(said: str) -> None:
        with pytest.raises(SnapshotError, match=said):
            take(lived.folder, "other", None, 60.0, CLOCK)
        assert lived.folder.inbox.requests() == []
        assert place(lived).folders() == ["seven"]

    record, objects = record_of(lived.folder.uid, LAST + 1)
    waiting = replace(record, published=LAST, unpublished=(Sealed(LAST + 1, "d", ()),))
    lived.commit(waiting, objects)
    refused("windows up to 10 are sealed, and not all of them are shown")
    record, objects = record_of(lived.folder.uid, LAST + 2)
    lived.commit(replace(record, components=None), objects)
    refused("the last edit of the topology is not applied")
    lived.commit(*record_of(lived.folder.uid, LAST + 3))
    version, view = ViewFile(lived.folder.view).read()
    assert view is not None
    assert ViewFile(lived.folder.view).cas(version, replace(view, phase=Phase.MOVING))
    refused("its state servers are not settled")
    with pytest.raises(SnapshotError, match="there is one of that name"):
        take(lived.folder, "seven", None, 60.0, CLOCK)


def test_the_work_folder_goes_back_and_the_sinks_with_it(lived: Lived) -> None:
    restored = back(lived)
    assert (restored.given_up, restored.timeline) == (LAST, 2)
    judge(restored, lived, servers=1, copies=1)
    assert lived.windows() == set(range(1, 8))
    # Once more, and from a snapshot of the later timeline.
    judge(back(lived), lived, servers=1, copies=1, timeline=3)
    assert take(lived.folder, "again", None, 60.0, CLOCK).decoded.tag.timeline == 3
    assert (
        restore(
            lived.loaded, lived.folder.path, place(lived), "again", CLOCK, lambda _: None
        ).timeline
        == 4
    )


def named(lived: Lived, name: str) -> Restored:
    return restore(lived.loaded, lived.folder.path, place(lived), name, CLOCK, lambda _: None)


def test_windows_that_were_taken_back_are_not_skipped_by_a_later_snapshot(lived: Lived) -> None:
    nine = take(lived.folder, "nine", None, 60.0, CLOCK)
    assert nine.window == LAST
    back(lived)
    before = ViewFile(lived.folder.view).read()
    with pytest.raises(SinkError, match=r"'out': shows windows up to 7, .* window 9") as found:
        named(lived, "nine")
    assert found.value.exit_code == 6
    assert "Nothing was changed" in str(found.value)
    assert ViewFile(lived.folder.view).read() == before
    assert lived.windows() == set(range(1, 8))
    refuse_unfinished(lived.folder.path)
    # The same where the first restore was only begun.
    mark(lived.folder.path, manifest(lived), own=True)
    with pytest.raises(SinkError, match="shows windows up to 7"):
        named(lived, "nine")
    back(lived)


def test_what_was_sealed_behind_it_makes_room_first(lived: Lived) -> None:
    """Both together are more than the server may hold."""
    record, objects = record_of(lived.folder.uid, LAST)
    (letters,) = [one.name for one in record.dead]
    lived.commit(record, {**objects, letters: b"x" * (6 << 20)})
    take(lived.folder, "big", None, 60.0, CLOCK)
    later = f"3.{LAST + 1}.1.1.0.0/state/count"
    lived.commit(record, {**objects, later: b"y" * (20 << 20)})
    limited = topology(lived.base, stateServers={"memory": "24m"})
    restored = restore(limited, lived.folder.path, place(lived), "big", CLOCK, lambda _: None)
    assert (restored.manifest.window, restored.timeline) == (LAST, 2)
    with records(lived.folder) as found:
        ((_, client),) = found.values()
        kept = client.get(None, [*objects, later])
    assert [isinstance(one, Found) for one in kept] == [True] * len(objects) + [False]
    refuse_unfinished(lived.folder.path)


def test_folders_of_servers_that_are_none_any_more_are_deleted(lived: Lived) -> None:
    """What they hold is state that the restore gave up, and the password."""
    two = topology(lived.base, stateServers={"replicas": 2})
    back(lived, two)
    work = lived.folder.path
    assert (work / "state-1").is_dir()
    (work / "state-notes").mkdir()
    (work / "state-7").mkdir()
    one = topology(lived.base, stateServers={"replicas": 1})
    judge(back(lived, one), lived, servers=1, copies=1, timeline=3)
    assert sorted(path.name for path in work.glob("state-*")) == ["state-0", "state-notes"]


def test_what_embedded_servers_left_says_nothing_of_the_users_own(
    lived: Lived, tmp_path: Path
) -> None:
    """Both are called ``state-0``, and only one has the password that lies in the folder."""
    work = lived.folder.path
    left = (work / "state-0" / "password").read_text()
    with started(tmp_path / "own", place=free_port()) as own:
        url = own.address.url.replace("//", f"//:{own.address.password}@")
        back(lived, topology(lived.base, stateServers={"url": url}))
        assert list(work.glob("state-*")) == []
        # What a release left that did not delete it.
        (work / "state-0").mkdir()
        (work / "state-0" / "password").write_text(left)
        lived.folder.inbox.propose(Proposal((own.address.member(),), ()))
        with held_briefly(work) as free, reachable(find_folder(work)) as clients:
            assert free
            record = committed_record(clients)
    assert record is not None
    assert record.sealed == 7


def test_half_a_restore_gives_no_snapshot(lived: Lived) -> None:
    mark(lived.folder.path, manifest(lived), own=True)
    with pytest.raises(SnapshotError, match="a restore of snapshot seven was begun"):
        take(lived.folder, "lies", None, 60.0, CLOCK)
    assert place(lived).folders() == ["seven"]


def test_half_a_restore_goes_on_with_no_snapshot_of_another_life(
    lived: Lived, tmp_path: Path
) -> None:
    elsewhere = back(lived, topology(tmp_path / "second"), tmp_path / "second" / "work").folder
    other = take(elsewhere, "other", str(place(lived).root), 60.0, CLOCK)
    assert other.uid != lived.folder.uid
    mark(lived.folder.path, manifest(lived), own=True)
    with pytest.raises(SnapshotError, match="holds another life of the topology"):
        named(lived, "other")
    assert lived.windows() == set(range(1, LAST + 1))


def test_the_file_of_today_is_an_edit_of_what_the_record_was_written_for(lived: Lived) -> None:
    def accepted() -> Accepted:
        found = read_accepted(lived.folder.accepted, lived.folder.topology)
        assert found is not None
        return found

    back(lived)
    assert accepted().components == COMPONENTS, "numbers of lives are those of the record"
    sinks = [*document()["spec"]["sinks"]]
    sinks.append({**sinks[0], "name": "added", "files": {"path": "added"}})
    back(lived, topology(lived.base, sinks=sinks))
    added = replace(COMPONENTS, edit=3, sinks={"out": 0, "added": 3})
    assert accepted().components == added
    assert [one["name"] for one in accepted().topology["spec"]["sinks"]] == ["out", "added"]


def test_a_new_work_folder_has_other_numbers_of_servers_and_tasks(
    lived: Lived, tmp_path: Path
) -> None:
    servers = {"replicas": 3, "copies": 2}
    loaded = topology(tmp_path / "second", parallelism=5, stateServers=servers)
    restored = back(lived, loaded, tmp_path / "second" / "work")
    assert restored.folder.uid != lived.folder.uid
    assert restored.given_up is None
    # Each state object belongs to all key groups, so each server owns some of it.
    folder = find_folder(restored.folder.path)
    with records(folder) as found:
        assert len(found) == 3
        for record, client in found.values():
            assert (record.sealed, record.uid, record.tag.timeline) == (7, folder.uid, 2)
            (state,) = client.get(None, [record.chains["count"][0].name])  # type: ignore[misc]
            assert state.data == state_of("w7")[0]  # type: ignore[union-attr]
    assert lived.windows() == set(range(1, LAST + 1)), "the other life is as it was"


POINTS = [point for point in SNAPSHOT_POINTS if point.startswith("restore.")]
KILLED = """
import sys
from pathlib import Path
from millrace.clock import SystemClock
from millrace.local.snapshots.places import place_of_file
from millrace.local.snapshots.restoring import restore
from millrace.topology.load import load
file, work, place = map(Path, sys.argv[1:])
loaded = load(file, ())
where = place_of_file(loaded, work, str(place))
restore(loaded, work, where, "seven", SystemClock(), print)
"""


@pytest.mark.parametrize("own", [True, False], ids=["own", "new"])
def test_a_restore_that_is_killed_at_any_step_is_done_again(
    lived: Lived, tmp_path: Path, own: bool
) -> None:
    loaded = lived.loaded if own else topology(tmp_path / "second")
    work = lived.folder.path if own else tmp_path / "second" / "work"
    for point in POINTS:
        if not own and point in ("restore.fenced", "restore.retracted"):
            continue  # the sinks of a new life are not touched
        command = [sys.executable, "-c", KILLED, loaded.file, work, place(lived).root]
        environment = {**os.environ, "MILLRACE_CRASH_AT": point}
        done = subprocess.run(command, check=False, env=environment, capture_output=True)
        assert done.returncode == -signal.SIGKILL, (point, done.stderr)
        with pytest.raises(SnapshotError, match="a restore of snapshot seven was begun"):
            refuse_unfinished(work)
        _, view = ViewFile(find_folder(work).view).read()
        begun = POINTS.index(point) >= POINTS.index("restore.claimed")
        opened = POINTS.index(point) >= POINTS.index("restore.opened")
        assert (view is not None and view.restoring) is (begun and not opened), point
    restored = back(lived, loaded, work)
    judge(restored, lived, 1, 1, timeline=restored.timeline)
    if own:
        assert lived.windows() == set(range(1, 8))


def test_a_run_does_not_begin_with_half_a_restore(lived: Lived) -> None:
    write_json(
        lived.folder.path / "restoring.json",
        checked.with_checksum({"format": 1, "snapshot": "seven", "window": 7, "own": True}),
    )
    command = [sys.executable, "-m", "millrace.cli.app", "run", str(lived.loaded.file)]
    done = subprocess.run(
        [*command, "--workdir", str(lived.folder.path)], check=False, capture_output=True, text=True
    )
    assert done.returncode == ExitCode.SNAPSHOT
    assert "a restore of snapshot seven was begun and is not done" in done.stderr


def unchanged(lived: Lived) -> None:
    _, view = ViewFile(lived.folder.view).read()
    assert view is not None
    assert (view.timeline, view.execution) == (1, 3)
    assert lived.windows() == set(range(1, LAST + 1))
    refuse_unfinished(lived.folder.path)


def test_a_run_that_is_alive_is_left_alone(lived: Lived) -> None:
    with held_briefly(lived.folder.path) as free:
        assert free
        with pytest.raises(SnapshotError, match=r"a run of first is alive .* millrace stop"):
            back(lived)
    unchanged(lived)


def test_a_file_that_does_not_fit_is_refused(lived: Lived, tmp_path: Path) -> None:
    base = tmp_path / "second"
    with pytest.raises(SnapshotError, match=r"16 key groups, spec.keyGroups is 8, .*set it to 16"):
        back(lived, topology(base, keyGroups=8), base / "work")
    other = document()
    other["metadata"]["name"] = "another"
    (base / "t.yaml").write_text(yaml.safe_dump(other))
    with pytest.raises(SnapshotError, match="of the topology 'first', not of 'another'"):
        back(lived, load_topology(base / "t.yaml", ()), base / "work")
    rekeyed = document()["spec"]["processors"]
    rekeyed[0]["aggregate"] = {"columns": [{"name": "n", "function": "max", "of": "word"}]}
    with pytest.raises(SnapshotError, match=r"snapshot seven: spec.processors.*refused"):
        back(lived, topology(base, processors=rekeyed), base / "work")
    assert not (base / "work").exists()


def test_a_damaged_part_is_found_before_anything_is_touched(lived: Lived) -> None:
    part = manifest(lived).parts[0]
    file = place(lived).root / "seven" / part.file
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(SnapshotError, match=part.file):
        back(lived)
    unchanged(lived)


def test_a_work_folder_with_another_life_is_refused(lived: Lived, tmp_path: Path) -> None:
    loaded = topology(tmp_path / "second")
    back(lived, loaded, tmp_path / "second" / "work")
    with pytest.raises(SnapshotError, match="holds another life of the topology"):
        back(lived, loaded, tmp_path / "second" / "work")


def test_sinks_of_a_new_life_must_hold_nothing(lived: Lived, tmp_path: Path) -> None:
    loaded = topology(tmp_path / "second")
    sink = FileSink("out", {"path": "out"}, tmp_path / "second")
    sink.prepare("another-life")
    sink.fence(1)
    shows(sink, 1, 2)
    with pytest.raises(SinkError, match="sink 'out'"):
        back(lived, loaded, tmp_path / "second" / "work")
    assert windows(tmp_path / "second" / "out") == {1, 2}


KEEPS = """
from millrace.sinks import Sink


class Keeps(Sink):
    def prepare(self, uid, fresh=False, overwrite=False): pass
    def fence(self, execution): raise AssertionError("nothing may change")
    def stage(self, name, batches): return None
    def publish(self, sealed, mine, execution, step=None): pass
    def last_shown(self):
        if self.options["shows"] is None:
            raise NotImplementedError
        return self.options["shows"], ""


class Gives(Keeps):
    taken = []
    def fence(self, execution): pass
    def retract(self, window): self.taken.append(window)
"""


def custom(name: str, shows_: int | None) -> dict[str, Any]:
    part = {"class": f"keeps:{name}", "options": {"shows": shows_}}
    return {"name": "kept", "inputs": [{"from": "count"}], "custom": part}


@pytest.mark.parametrize(
    ("shows_", "said"), [(8, "shows windows up to 8"), (None, "cannot tell what it shows")]
)
def test_a_sink_that_keeps_what_it_shows_is_not_shown_it_twice(
    lived: Lived, shows_: int | None, said: str
) -> None:
    (lived.base / "keeps.py").write_text(KEEPS)
    loaded = topology(lived.base, sinks=[*document()["spec"]["sinks"], custom("Keeps", shows_)])
    with pytest.raises(SinkError, match=f"sink 'kept': {said}.*No sink was changed"):
        back(lived, loaded)
    unchanged(lived)


def test_a_sink_that_shows_no_more_than_the_snapshot_may_keep_it(lived: Lived) -> None:
    text = KEEPS.replace('raise AssertionError("nothing may change")', "pass")
    (lived.base / "keeps.py").write_text(text)
    sinks = [*document()["spec"]["sinks"], custom("Keeps", 7)]
    judge(back(lived, topology(lived.base, sinks=sinks)), lived, 1, 1)


def instead(lived: Lived, removed: dict[str, Any] | None = None) -> LoadedTopology:
    """The file with a new sink in place of those that the work folder knows, which are ``out`` and
    perhaps one more."""
    (out,) = document()["spec"]["sinks"]
    if removed is not None:
        plain = topology(lived.base, sinks=[out, removed]).topology.document()
        components = replace(COMPONENTS, edit=3, sinks={"out": 0, removed["name"]: 3})
        write_accepted(lived.folder.accepted, Accepted(plain, components))
    return topology(lived.base, sinks=[{**out, "name": "new", "files": {"path": "new"}}])


def test_a_sink_that_the_file_has_no_more_takes_its_windows_back_too(lived: Lived) -> None:
    (out,) = document()["spec"]["sinks"]
    loaded = instead(lived, {**out, "name": "late", "files": {"path": "late"}})
    late = FileSink("late", {"path": "late"}, lived.base)
    late.prepare(lived.folder.uid)
    late.fence(3)
    shows(late, 3, LAST, LAST - 1)
    assert back(lived, loaded).given_up == LAST
    assert lived.windows() == set(range(1, 8))
    assert windows(lived.base / "late") == set()
    # Should an older snapshot be restored afterwards; the other one shows nothing any more.
    found = read_accepted(lived.folder.accepted, lived.folder.topology)
    assert found is not None
    assert [(one.name, one.number) for one in found.retired] == [("out", 0)]


def test_one_that_cannot_take_them_back_stops_it_until_it_is_given_up(lived: Lived) -> None:
    (lived.base / "keeps.py").write_text(KEEPS)
    loaded = instead(lived, custom("Keeps", 8))
    with pytest.raises(SinkError, match=r"'kept': shows .* no longer in the file.*--drop-removed"):
        back(lived, loaded)
    unchanged(lived)
    around = lived.folder.path, place(lived), "seven", CLOCK, lambda _: None
    assert restore(loaded, *around, drop_removed=True).given_up is None
    assert lived.windows() == set(range(1, LAST + 1)), "none that was removed is touched"


def test_one_whose_code_is_gone_says_what_to_do(lived: Lived) -> None:
    (lived.base / "keeps.py").write_text(KEEPS)
    loaded = instead(lived, custom("Keeps", 8))
    found = read_accepted(lived.folder.accepted, lived.folder.topology)
    assert found is not None
    plain = json.loads(json.dumps(found.topology).replace("keeps:Keeps", "keeps:Gone"))
    write_accepted(lived.folder.accepted, replace(found, topology=plain))
    with pytest.raises(SinkError, match=r"Gone.*Sink 'kept' is no longer in the file.*mend it, or"):
        back(lived, loaded)
    unchanged(lived)


def test_the_place_of_snapshots_is_what_the_file_says(tmp_path: Path) -> None:
    loaded = topology(tmp_path, snapshots={"to": "kept"})
    work = tmp_path / "work"
    assert place_of_file(loaded, work, None).shown == str(tmp_path / "kept")
    assert place_of_file(loaded, work, str(tmp_path / "x")).shown == str(tmp_path / "x")
    loaded = topology(tmp_path)
    assert place_of_file(loaded, work, None).shown == str(work / "snapshots")
