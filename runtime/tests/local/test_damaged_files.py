"""Files beside the data that were damaged: a clear error or a warning, and never believed."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from millrace.checked import with_checksum
from millrace.cli.list_ import row_of
from millrace.cli.progress import Figures
from millrace.cli.report import totals_in
from millrace.cli.status import drawn
from millrace.clock import SystemClock
from millrace.engine.driver.home.inbox import Mailbox
from millrace.engine.driver.letters import decode_letters, encode_letters
from millrace.engine.task import blackbox
from millrace.engine.task.blackbox import Note, Recipient
from millrace.errors import ExitCode, MillraceError, NewerFormatError, WorkFolderError
from millrace.homes.accepted import accept
from millrace.homes.documents import RunningWindow, Status
from millrace.homes.told import read_settings, read_topology
from millrace.local.accepted import read_accepted, write_accepted
from millrace.local.files import write_json
from millrace.local.inspect.letters import _asked
from millrace.local.inspect.overview import overview
from millrace.local.takeover import take_over
from millrace.local.workdir import find_folder, open_folder
from millrace.protocol.record import first_record
from millrace.protocol.types import DeadSegment, Phase, Replay, Stamp, Tag, Totals, View
from millrace.sinks.markers import Markers
from millrace.state.client import StateAddress
from millrace.state.viewfile import ViewFile

CLOCK = SystemClock()
ADDRESS = StateAddress("state-0", "redis://127.0.0.1:1", "run", "password")
DEEP = b"[" * 200_000


def damages(data: bytes, seed: int = 0) -> list[tuple[str, bytes]]:
    """What may become of a file's content."""
    rng = random.Random(seed)
    found = [
        ("empty", b""),
        ("half", data[: len(data) // 2]),
        ("without its end", data[:-1]),
        ("foreign object", b'{"a": 1}'),
        ("foreign list", b"[1, 2]"),
        ("foreign number", b"17"),
        ("foreign text", b'"text"'),
        ("null", b"null"),
        ("deep", DEEP),
        ("deep object", b'{"a":' * 50_000),
        ("huge", b'{"a": "' + b"x" * (8 << 20)),
        ("binary", bytes(range(256)) * 4),
        ("not UTF-8", b"\xff\xfe" + data),
        ("twice", data + data),
    ]
    for at in sorted(rng.sample(range(len(data)), min(len(data), 60))):
        flipped = bytearray(data)
        flipped[at] ^= 1 << rng.randrange(8)
        found.append((f"bit at {at}", bytes(flipped)))
    return found


def judged(file: Path, read, truth) -> None:
    """Damage a file in every way: ``read`` gives the truth or raises an error with a remedy."""
    data = file.read_bytes()
    assert read() == truth
    for name, damaged in damages(data):
        file.write_bytes(damaged)
        refusal = None
        try:
            found = read()
        except MillraceError as error:
            refusal = error
        if refusal is None:
            assert found == truth, name
        else:
            assert refusal.exit_code in set(ExitCode), name
            assert ";" in str(refusal), f"{name}: {refusal} has no remedy"
    file.write_bytes(data)


@pytest.fixture
def folder(tmp_path):
    return open_folder(tmp_path / "work", "counts", tmp_path / "topology.yaml", CLOCK)


def test_identity(folder):
    judged(
        folder.path / "identity.json", lambda: find_folder(folder.path).identity, folder.identity
    )


def test_an_identity_from_before_checksums_is_read(folder):
    file = folder.path / "identity.json"
    document = json.loads(file.read_bytes())
    del document["checksum"]
    file.write_text(json.dumps(document))
    assert find_folder(folder.path).identity == folder.identity


def test_view(folder):
    view = View(folder.uid, 1, 1, Phase.OPEN, 1, (), (), 1, ())
    store = ViewFile(folder.view)
    store.cas(0, view)
    judged(folder.view, store.read, (1, view))


def test_a_view_from_before_checksums_is_read(folder):
    view = View(folder.uid, 1, 1, Phase.OPEN, 1, (), (), 1, ())
    ViewFile(folder.view).cas(0, view)
    document = json.loads(folder.view.read_bytes())
    del document["checksum"]
    folder.view.write_text(json.dumps(document))
    assert ViewFile(folder.view).read() == (1, view)


def test_owner_and_manifest_of_a_sink(tmp_path):
    markers = Markers("out", tmp_path / "sink")
    markers.claim("uid-1")
    judged(markers.home / "owner.json", markers.owner, "uid-1")
    document = {"digest": "abc", "files": []}
    markers.create_manifest(3, document, 1)
    file = markers.windows / "000000000003.json"
    judged(file, lambda: markers.manifest(3), markers.manifest(3))


def test_markers_from_before_checksums_are_read(tmp_path):
    markers = Markers("out", tmp_path / "sink")
    markers.claim("uid-1")
    file = markers.home / "owner.json"
    document = json.loads(file.read_bytes())
    del document["checksum"]
    file.write_text(json.dumps({**document, "format": 1}))
    assert markers.owner() == "uid-1"
    file.write_text(json.dumps(document))
    with pytest.raises(MillraceError, match="checksum"):
        markers.owner()


FOREIGN = [".DS_Store", "notes.txt", "x.done", "1x", "-1", "²", "12.json.bak", "~lock", "Thumbs.db"]


def test_foreign_files_among_the_markers_change_nothing(tmp_path):
    markers = Markers("out", tmp_path / "sink")
    markers.claim("uid-1")
    for place in (markers.executions, markers.windows, markers.home):
        for name in FOREIGN:
            (place / name).write_text("foreign")
    markers.fence(4)
    markers.check_fence(4)
    with pytest.raises(MillraceError, match="serves execution 4"):
        markers.check_fence(3)
    assert markers.high_water() == -1
    markers.create_manifest(7, {"digest": "abc"}, 4)
    markers.done(7, 4)
    assert markers.high_water() == 7
    assert markers.latest() == (7, "abc")
    assert not (markers.home / ".DS_Store").exists(), "it has the name of a draft"
    assert (markers.windows / "notes.txt").exists()


def test_dead_letters_are_never_believed_when_damaged(tmp_path):
    letters = [Replay("lines", 0, n, n, 0.0, None, "split", "no word", False) for n in range(3)]
    made = SimpleNamespace(payload=lambda root: b"a word", place=lambda root: "line 1")
    data = encode_letters(letters, {"lines": made})
    truth = decode_letters(data)
    assert [letter["offset"] for letter in truth] == [0, 1, 2]
    assert decode_letters(data.partition(b"\n")[2]) == truth  # as older releases wrote them
    for _, damaged in [*damages(data, 1), *damages(data, 2), *damages(data, 3)]:
        with pytest.raises(MillraceError, match="dead letters"):
            decode_letters(damaged)


def test_dead_letters_of_a_newer_format_are_not_called_damaged():
    for letters in ([{"other": 1}], {"none": 0}, None):
        data = json.dumps({"format": 99, "letters": letters}).encode()
        with pytest.raises(NewerFormatError, match=r"format 99.*use the newer release"):
            decode_letters(data)


def test_requests_and_proposals(folder):
    told: list[tuple[str, ...]] = []
    box = Mailbox(folder.inbox, lambda name: b"damaged", told.append)
    proposal = {"members": [{"name": "s", "run_id": "r", "url": "u"}], "ackers": ["acker-0"]}
    write_json(folder.proposal, proposal)
    data = folder.proposal.read_bytes()
    assert len(list(box.look())) == 1
    for _, damaged in damages(data):
        folder.proposal.write_bytes(damaged)
        for event in box.look():
            assert len(event.members) == 1
    write_json(folder.proposal, {**proposal, "ackers": []})
    assert len(list(box.look())) == 1
    assert told[-1] == ()

    box._record = SimpleNamespace(dead=(), sealed=9, tag=Tag(1, 1, 1, 1))
    request = {"action": "replay", "segment": "1.2.3.4/dead", "indexes": [0, 1]}
    data = json.dumps(request).encode()
    for number, (_, damaged) in enumerate(damages(data)):
        (folder.requests / f"{number}.json").write_bytes(damaged)
    for number, odd in enumerate(({"indexes": [0]}, {**request, "indexes": 5}, {"indexes": None})):
        write_json(folder.requests / f"odd-{number}.json", odd)
    write_json(folder.requests / "whole.json", request)
    record = replace(first_record("u", Tag(1, 1, 1, 1)), dead=(DeadSegment("1.2.3.4/dead", 2, 2),))
    asked = _asked([one.request for one in folder.inbox.requests()], record)
    assert asked[request["segment"], 1] == "replay"
    (folder.requests / "folder.json").mkdir()
    list(box.look())
    assert [path.name for path in folder.requests.iterdir()] == ["folder.json"]


def test_notes_of_workers():
    page = blackbox.Page()
    box = blackbox.Box(page, None)
    recipient = Recipient("1.2.3.0.0.4/death/5", 1, "uid", Stamp(1, 1), (ADDRESS,))
    box.task(Note(os.getpid(), 1, 2, 3, 0, 0), recipient)
    box.begin("split", (1, 5))
    note, whole = page.note(), page.recipient()
    assert whole == recipient
    assert note is not None
    content = json.dumps(asdict(note)).encode()
    for _, damaged in damages(content):
        page.write_note(damaged)
        read = page.note()
        assert read is None or isinstance(read, Note)
    for _, damaged in damages(recipient.encode()):
        page.write_recipient(damaged)
        found = page.recipient()
        assert found is None or isinstance(found, Recipient)
    page.close()


def test_what_the_driver_is_told(folder, tmp_path):
    topology = {
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "StreamTopology",
        "metadata": {"name": "counts"},
        "spec": {
            "sources": [{"name": "made", "generator": {"count": 1}}],
            "sinks": [{"name": "shown", "inputs": [{"from": "made"}], "console": {}}],
        },
    }
    write_json(folder.topology, with_checksum(topology))
    document = {"topology": str(folder.topology), "uid": folder.uid, "folder": str(tmp_path)}
    components = {"edit": 0, "sources": {"made": 0}, "processors": {}, "sinks": {"shown": 0}}
    document |= {"fresh": False, "overwrite": False, "components": components, "retired": []}
    write_json(folder.driver, with_checksum(document))

    def read() -> object:
        settings = read_settings(folder.driver)
        return settings, read_topology(Path(settings.topology))

    truth = read()
    for file in (folder.driver, folder.topology):
        judged(file, read, truth)


def test_what_was_accepted_is_never_believed_when_damaged(folder):
    """A topology that is taken for the one that ran decides what becomes of state and offsets."""
    spec = {"sources": [{"name": "a"}], "processors": [], "sinks": [{"name": "x"}, {"name": "y"}]}
    before = accept(None, {"metadata": {"name": "counts"}, "spec": spec})
    truth = accept(before, {"metadata": {"name": "counts"}, "spec": {**spec, "sinks": []}})
    write_accepted(folder.accepted, truth)
    judged(folder.accepted, lambda: read_accepted(folder.accepted, folder.topology), truth)
    folder.accepted.unlink()
    write_json(folder.topology, with_checksum(dict(before.topology)))
    with pytest.raises(WorkFolderError, match=r"accepted\.json beside it is gone.*; bring it back"):
        read_accepted(folder.accepted, folder.topology)
    folder.topology.write_text("{")
    with pytest.raises(WorkFolderError, match="cannot be read"):
        read_accepted(folder.accepted, folder.topology)


def figures_of(pid: int) -> dict:
    totals = {"roots": 3, "windows": 3, "replays": 0, "dead": 0, "dropped": 0}
    numbers = {"execution": 1, "epoch": 1, "sealed": 3, "published": 3, "pendingReplays": 0}
    window = {"number": 4, "attempt": 1, "roots": 1, "since": 0.5}
    told = {"state": "running", "pid": pid, "phase": "open", "rootsPerS": 1.5, "updated": 9e9}
    return {**told, **numbers, "deadLetters": 0, "totals": totals, "window": window}


ODD = [None, 5, -1.5, True, "text", [1], {"a": 1}, [], {}, float("nan")]


def test_figures_of_a_wrong_kind_are_left_out_with_or_without_a_checksum(folder):
    console = Console(file=io.StringIO())
    whole = figures_of(1)
    write_json(folder.status, whole)
    figures = Status(
        pid=1,
        state="running",
        execution=1,
        epoch=1,
        phase="open",
        sealed=3,
        published=3,
        window=RunningWindow(4, 1, 1, 0.5),
        totals=Totals(3, 3),
        pending_replays=0,
        dead_letters=0,
        roots_per_s=1.5,
        updated=9e9,
    )
    assert folder.journal.status() == figures, "an older release writes no checksum"
    places = [(whole, name) for name in whole] + [
        (whole[inner], name) for inner in ("totals", "window") for name in whole[inner]
    ]
    for place, name in places:
        kept = place[name]
        for odd in ODD:
            place[name] = odd
            for document in (whole, with_checksum(whole)):
                write_json(folder.status, document)
                found = overview(folder)
                console.print(drawn(found))
                row_of(folder.path)
                totals_in(folder.path)
                Figures.of(folder.journal.status(), 0.0).line()
                if not isinstance(odd, type(kept)) and odd is not None:
                    assert found["sealed"] is None or isinstance(odd, int | float), (name, odd)
        place[name] = kept


def test_files_that_only_tell_something_are_left_out(folder):
    me = os.getpid()
    console = Console(file=io.StringIO())
    write_json(folder.status, with_checksum(figures_of(me)))
    rows = [{"role": "driver", "name": "driver", "pid": me, "ticks": 1, "guard": 0, "restarts": 0}]
    write_json(folder.processes, rows)
    write_json(folder.topology, with_checksum({"spec": {"guarantee": "ExactlyOnce"}}))
    folder.ackers.mkdir()
    figures = folder.ackers / "acker-0.json"
    write_json(figures, {"roots": 1, "bytes": 8})
    take_over(folder.path, lambda _: None).release()
    lease = take_over(folder.path, lambda _: None)
    told = (folder.status, folder.processes, folder.topology, figures, folder.path / "run.json")
    try:
        for file in told:
            kept = file.with_suffix(".kept")
            shutil.copy(file, kept)
            for name, damaged in damages(kept.read_bytes()):
                file.write_bytes(damaged)
                document = overview(folder)
                assert document["name"] == "counts", (file.name, name)
                assert document["sealed"] in (3, None), (file.name, name)
                assert document["guarantee"] in ("ExactlyOnce", None), (file.name, name)
                told_so = any("status.json is damaged" in one for one in document["warnings"])
                assert told_so == (document["sealed"] is None), (file.name, name)
                console.print(drawn(document))
                assert row_of(folder.path)["name"] == "counts"
                assert totals_in(folder.path)["roots"] in (3, 0)
                Figures.of(folder.journal.status(), 0.0).line()
            shutil.move(kept, file)
    finally:
        lease.release()
