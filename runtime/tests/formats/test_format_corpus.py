"""Documents that the first release wrote and users have: every later one reads them as they are.

The files are never written again; a format that changes gets a folder of its own beside them.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from millrace.engine.driver.letters import (
    decode_letters,
    payload_fields,
    payload_of,
    replay_of,
)
from millrace.errors import NewerFormatError
from millrace.homes.documents import (
    Ask,
    ProcessRow,
    Proposal,
    Request,
    RunEvent,
    RunningWindow,
    Status,
    Timing,
    decode_processes,
)
from millrace.homes.settings import RetiredSink, in_folder
from millrace.homes.stores import PendingRequest
from millrace.homes.told import read_settings
from millrace.protocol import codec
from millrace.protocol.acklog import Open, SliceOwners
from millrace.protocol.types import (
    AttemptId,
    Components,
    DeadSegment,
    Intent,
    Member,
    Phase,
    Record,
    Replay,
    RootRange,
    Roots,
    Sealed,
    Segment,
    Staged,
    Tag,
    Totals,
    View,
)
from millrace.sinks.files import FileSink
from millrace.snapshots.places import FolderPlace
from millrace.snapshots.reading import faults, load, read_part
from millrace.state.inboxfiles import InboxFiles
from millrace.state.journalfiles import JournalFiles
from millrace.state.keyed import blobs
from millrace.state.keyed.aggregates import Aggregate
from millrace.state.keyed.aggregatestate import AggregateState

FIRST = Path(__file__).with_name("corpus") / "format-1"

PIECE = RootRange("lines", 2**64 - 1, 5, 40, {"f": "a.txt", "at": [1, 2]})
# It was to be run at a time of a wall clock; now it waits no longer.
WAITS = Replay("lines", 7, 3, 2, 0.0, {"f": "b.txt"}, "split", "ValueError: no", True)
STATE_0 = Member("state-0", "run1", "redis://127.0.0.1:1")


def test_a_record() -> None:
    staged = Staged("out", "1.5.1.1.0.0/out/out", "cd" * 8, 2, 64, {"x": 1})
    roots = Roots(Intent(5, (PIECE,)), (WAITS,), ())
    assert codec.decode_record((FIRST / "record.json").read_bytes()) == Record(
        uid="uid",
        tag=Tag(1, 2, 3, 4),
        sealed=5,
        offsets={"lines": {"next": 45}},
        intents=(Intent(6, (PIECE,), (WAITS,)), Intent(7, (), (), final=True)),
        chains={
            "counts": (Segment("1.4.1.0.0.0/state/counts", 4, 0b1011, True, 3, 120, "ab" * 8),)
        },
        replays=(WAITS,),
        dead=(DeadSegment("1.3.1.1/dead", 3, 2, (0,)),),
        unpublished=(Sealed(5, "ef" * 8, (staged,), roots),),
        published=4,
        totals=Totals(100, 5, 3, 2, 1),
    )


def test_a_view() -> None:
    found = codec.decode_view((FIRST / "view.json").read_bytes())
    target = (STATE_0, Member("state-1", "run2"))
    owners = (("state-0",), ("state-0", "state-1"))
    assert found == View("uid", 1, 3, Phase.MOVING, 2, (STATE_0,), target, 2, owners)
    assert found.last_open[0].url == STATE_0.url


def test_a_name_in_the_code_may_change_and_none_in_a_document() -> None:
    view = View("u", 1, 3, Phase.MOVING, 2, (STATE_0,), (), 2, ())
    owners = SliceOwners(3, ("a",), (AttemptId(1, 2, 3),))
    assert codec.encode(view).endswith(
        b'"value":{"uid":"u","timeline":1,"epoch":3,"phase":"moving","execution":2,"source":[{"name":'
        b'"state-0","run_id":"run1","url":"redis://127.0.0.1:1"}],"target":[],"open_epoch":2,"owners":[]}}'
    )
    assert codec.encode(owners) == (
        b'{"format":2,"kind":"Members","crc":"03d42362","value":{"execution":3,"owners":["a"],'
        b'"live":[{"execution":1,"window":2,"attempt":3}]}}'
    )


def test_an_ack_log_from_when_every_attempt_had_sixteen_slices() -> None:
    opened = codec.decode(
        Open,
        b'{"format":2,"kind":"Open","crc":"e33781d9","value":{"id":{"execution":1,"window":2,'
        b'"attempt":3},"roots":10,"edges":[">s"]}}',
    )
    assert opened == Open(AttemptId(1, 2, 3), 10, (">s",), 16)
    owners = codec.decode(
        SliceOwners,
        b'{"format":2,"kind":"Members","crc":"8810e7c4","value":{"execution":3,"owners":["a","b",'
        b'"a","b","a","b","a","b","a","b","a","b","a","b","a","b"],"live":[{"execution":1,"window"'
        b':2,"attempt":3}]}}',
    )
    assert owners.owned_by("b") == {opened.slices: frozenset(range(1, 16, 2))}


def test_dead_letters() -> None:
    (letter,) = decode_letters((FIRST / "letters.json").read_bytes())
    assert payload_of(letter) is None
    again = replay_of(letter)
    assert (again.source, again.partition, again.offset) == ("lines", 7, 3)
    assert (again.number, again.locator, again.alone) == (3, {"f": "b.txt"}, True)


def test_dead_letters_with_a_field_of_a_newer_release_ask_for_it() -> None:
    document = json.loads((FIRST / "letters.json").read_bytes())
    document["letters"][0]["colour"] = "red"
    with pytest.raises(NewerFormatError, match="the field 'colour', which this release"):
        decode_letters(json.dumps(document).encode())


@pytest.mark.parametrize("payload", [None, b"", b"caf\xc3\xa9", b"caf\xe9"])
def test_the_bytes_of_a_letter_come_back(payload: bytes | None) -> None:
    assert payload_of(payload_fields(payload)) == payload


def test_the_folder_of_a_sink(tmp_path: Path) -> None:
    shutil.copytree(FIRST / "sink", tmp_path / "sink")
    shown = sorted((tmp_path / "sink").glob("part-*"))
    before = [path.read_bytes() for path in shown]
    sink = FileSink("out", {"path": "sink"}, tmp_path)
    sink.prepare("uid", False, False)
    sealed = codec.decode(Sealed, (FIRST / "sealed.json").read_bytes())
    assert sink.last_shown() == (sealed.window, sealed.digest)
    sink.fence(3)
    # A window that a driver of the first release showed, confirmed to one of this release.
    sink.publish(sealed, list(sealed.staged), 3)
    assert [path.read_bytes() for path in shown] == before
    assert sorted((tmp_path / "sink").glob("part-*")) == shown
    rows = pa.record_batch({"word": ["c"], "n": [3]})
    (more,) = [sink.stage("3.6.1.1.0.0/out/out", [rows])]
    assert more is not None
    sink.publish(Sealed(6, "d", (more,)), [more], 3)
    lines = [line for path in sorted((tmp_path / "sink").glob("part-*")) for line in path.open()]
    assert [json.loads(line)["word"] for line in lines] == ["a", "b", "c"]


def test_the_state_of_an_aggregate() -> None:
    inputs = pa.schema([("k", pa.string()), ("n", pa.int64())])
    declared = [
        Aggregate("rows", "count"),
        Aggregate("total", "sum", "n"),
        Aggregate("mean", "avg", "n"),
    ]
    state = AggregateState(inputs, ["k"], declared, 8)
    state.apply(blobs.read((FIRST / "aggregate.blob").read_bytes()))
    found = {row.pop("k"): row for row in state.rows().to_pylist()}
    assert found == {
        "a": {"rows": 2, "total": 4, "mean": 2.0},
        "b": {"rows": 1, "total": 2, "mean": 2.0},
        None: {"rows": 1, "total": None, "mean": None},
    }


def test_what_processes_of_a_run_tell_each_other(tmp_path: Path) -> None:
    member = Member("state-0", "4f1c", "unix:///tmp/work/state-0/socket")
    (tmp_path / "requests").mkdir()
    shutil.copy(FIRST / "request.json", tmp_path / "requests")
    inbox = InboxFiles(FIRST / "proposal.json", tmp_path / "requests")
    assert inbox.proposal() == Proposal((member,), ("acker-0", "acker-1"))
    asked = Request(Ask.REPLAY, "2.7.1.1/dead", (0, 3))
    assert list(inbox.requests()) == [PendingRequest("request", asked)]

    (tmp_path / "events.jsonl").touch()
    journal = JournalFiles(FIRST / "status.json", tmp_path / "events.jsonl")
    follower = journal.follow()
    shutil.copy(FIRST / "events.jsonl", tmp_path)
    assert list(follower.new()) == [
        RunEvent(1700000002.0, "DriverRecovered", "execution 3 goes on behind window 7", 7),
        RunEvent(1700000003.5, "WindowSplit", "a root of window 8 ends its worker", 8, True),
    ]
    assert journal.status() == Status(
        *(81, "running", "running", None, "a1", 3, 1, "open", ("state-0",), 8, 8),
        RunningWindow(9, 2, 100, 1700000009.5),
        Totals(800, 8, 1, 2, 0),
        *(1, 2, 12, 51.5, (Timing(8, 0.031),), 1700000010.0),
    )
    assert decode_processes((FIRST / "processes.json").read_bytes()).processes == (
        ProcessRow("supervisor", "supervisor", 70, 8123, 0, 1700000000.25, 0),
        ProcessRow("driver", "driver", 81, 8200, 80, 1700000001.5, 2),
    )


def test_what_a_driver_is_told() -> None:
    work = Path("/home/me/.millrace/counts")
    settings = read_settings(FIRST / "driver.json")
    components = Components(1, {"lines": 0}, {"split": 0}, {"rows": 1})
    retired = {"name": "old", "inputs": [{"from": "split"}], "console": {}}
    assert settings == replace(
        in_folder(FIRST, "a1", work / "topology.json", Path("/home/me")),
        components=components,
        retired=(RetiredSink("old", 0, retired),),
        drop_removed=True,
    )


def test_a_snapshot() -> None:
    place = FolderPlace(FIRST.parent / "snapshot-1")
    manifest = load(place, "early")
    assert list(faults(place, manifest)) == []
    assert (manifest.topology, manifest.window, manifest.key_groups) == ("first", 7, 16)
    assert (manifest.created, manifest.asked) == (1000.0, "token")
    record = manifest.decoded
    assert record.offsets == {"lines": {"files": [["a.txt", 120]]}}
    assert record.intents == (Intent(8, (RootRange("lines", 5, 100, 20),)),)
    assert record.replays == (Replay("lines", 5, 40, 1, 0.5),)
    assert [(part.name, part.kind, part.size_bytes > 0) for part in manifest.parts] == [
        ("1.6.1.1.0.0/state/count", "state", True),
        ("1.7.1.1.0.0/state/count", "state", True),
        ("1.5.1.1/dead", "letters", True),
    ]
    (base, delta, _) = [read_part(place, manifest, part) for part in manifest.parts]
    rows = [blobs.read(data).to_pydict() for data in (base, delta)]
    assert rows == [{"word": ["a", "b"], "n": [2, 1]}, {"word": ["c"], "n": [1]}]
