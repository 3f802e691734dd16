"""A topology that has run and does not run now, without Spark: real state servers, a real sink, a
real work folder and a snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from millrace import checked
from millrace.clock import SystemClock
from millrace.homes import codec
from millrace.homes.accepted import Accepted
from millrace.homes.settings import in_folder
from millrace.local.accepted import write_accepted
from millrace.local.files import write_json
from millrace.local.snapshots.asking import servers_started, take
from millrace.local.snapshots.restoring import Restored
from millrace.local.snapshots.unfinished import refuse_unfinished
from millrace.local.workdir import WorkFolder, find_folder, open_folder
from millrace.protocol.codec import decode_record, encode_record
from millrace.protocol.record import first_record, needed_objects
from millrace.protocol.types import (
    Components,
    DeadSegment,
    Intent,
    Phase,
    Record,
    Replay,
    RootRange,
    Sealed,
    Segment,
    Stamp,
    Tag,
    View,
)
from millrace.ring import owners
from millrace.sinks.files import FileSink
from millrace.snapshots.places import FolderPlace
from millrace.state.client import StateClient
from millrace.state.keyed.aggregates import Aggregate
from millrace.state.keyed.aggregatestate import AggregateState
from millrace.state.viewfile import ViewFile
from millrace.topology.load import LoadedTopology
from millrace.topology.load import load as load_topology

K = 16
COMPONENTS = Components(2, {"lines": 0}, {"count": 2}, {"out": 0})
CLOCK = SystemClock()
LAST = 9
"""The last window that the topology sealed; the snapshot is of window 7."""


def document(**spec: Any) -> dict[str, Any]:
    files = {"path": "texts", "format": "jsonLines", "schema": "word string"}
    return {
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "StreamTopology",
        "metadata": {"name": "first"},
        "spec": {
            "keyGroups": K,
            "sources": [{"name": "lines", "files": files}],
            "processors": [
                {
                    "name": "count",
                    "inputs": [{"from": "lines", "key": ["word"]}],
                    "aggregate": {"columns": [{"name": "n", "function": "count"}]},
                }
            ],
            "sinks": [{"name": "out", "inputs": [{"from": "count"}], "files": {"path": "out"}}],
            **spec,
        },
    }


def state_of(word: str) -> tuple[bytes, str]:
    schema = pa.schema([("word", pa.string())])
    state = AggregateState(schema, ["word"], (Aggregate("n", "count"),), K)
    state.begin()
    state.update(pa.RecordBatch.from_arrays([pa.array([word])], schema=schema))
    blob = state.base()
    return blob.data, blob.digest


def record_of(uid: str, window: int) -> tuple[Record, dict[str, bytes]]:
    """What the topology knows behind a window, and the objects."""
    data, digest = state_of(f"w{window}")
    name, letters = f"3.{window}.1.1.0.0/state/count", "1.2.1.1/dead"
    every = (1 << K) - 1
    record = replace(
        first_record(uid, Tag(1, 3, 2, window)),
        sealed=window,
        published=window,
        offsets={"lines": {"read": window * 10}},
        intents=(Intent(window + 1, (RootRange("lines", 5, window * 10, 10),)),),
        chains={"count": (Segment(name, window, every, True, 1, len(data), digest),)},
        replays=(Replay("lines", 5, 3, 1, 0.5),),
        dead=(DeadSegment(letters, 2, 1),),
        components=COMPONENTS,
    )
    return record, {name: data, letters: b"letters"}


@dataclass
class Lived:
    """A topology that has run up to window ``LAST`` and does not run now."""

    folder: WorkFolder
    loaded: LoadedTopology

    @property
    def base(self) -> Path:
        return self.folder.path.parent

    def commit(self, record: Record, objects: dict[str, bytes]) -> None:
        with servers_started(self.folder) as clients:
            members = tuple(client.address.member() for client in clients)
            names = [member.name for member in members]
            version, _ = ViewFile(self.folder.view).read()
            view = View(
                self.folder.uid, 1, 2, Phase.OPEN, 3, members, members, 2, owners(K, names, 1)
            )
            assert ViewFile(self.folder.view).cas(version, view)
            for client in clients:
                client.stamp(Stamp(2, 3))
                client.put(Stamp(2, 3), list(objects.items()))
                client.write_record(Stamp(2, 3), record.tag, encode_record(record))

    def windows(self) -> set[int]:
        """Windows of which the sink shows files."""
        return windows(self.base / "out")


def windows(folder: Path) -> set[int]:
    return {int(path.name.split("-")[1]) for path in folder.glob("part-*")}


def topology(base: Path, **spec: Any) -> LoadedTopology:
    (base / "texts").mkdir(parents=True, exist_ok=True)
    (base / "t.yaml").write_text(yaml.safe_dump(document(**spec)))
    return load_topology(base / "t.yaml", ())


def shows(sink: FileSink, execution: int, last: int, first: int = 1) -> None:
    for window in range(first, last + 1):
        name = f"{execution}.{window}.1.1.0.0/out/out"
        one = sink.stage(name, [pa.record_batch({"word": [f"w{window}"]})])
        assert one is not None
        sink.publish(Sealed(window, one.digest, (one,)), [one], execution)


def live(tmp_path: Path) -> Lived:
    """It lies in the folder ``first``, with a snapshot called ``seven``."""
    loaded = topology(tmp_path / "first")
    work = tmp_path / "first" / "work"
    folder = open_folder(work, "first", loaded.file, CLOCK)
    plain = loaded.topology.document()
    write_json(folder.topology, checked.with_checksum(plain))
    write_accepted(folder.accepted, Accepted(plain, COMPONENTS))
    settings = in_folder(folder.path, folder.uid, folder.topology, loaded.folder)
    write_json(folder.driver, codec.encode(settings))
    made = Lived(folder, loaded)
    made.commit(*record_of(folder.uid, 7))
    assert take(folder, "seven", None, 60.0, CLOCK).window == 7
    made.commit(*record_of(folder.uid, LAST))
    sink = FileSink("out", {"path": "out"}, tmp_path / "first")
    sink.prepare(folder.uid)
    sink.fence(3)
    shows(sink, 3, LAST)
    return made


def place(lived: Lived) -> FolderPlace:
    return FolderPlace(lived.folder.path / "snapshots")


@contextmanager
def records(folder: WorkFolder) -> Iterator[dict[str, tuple[Record, StateClient]]]:
    with servers_started(folder) as clients:
        found = {}
        for client in clients:
            reply = client.peek()
            assert reply.record is not None  # type: ignore[union-attr]
            record = decode_record(reply.record)  # type: ignore[union-attr]
            found[client.address.name] = record, client
        yield found


def judge(
    restored: Restored,
    lived: Lived,
    servers: int,
    copies: int,
    timeline: int = 2,
    window: int = 7,
) -> Record:
    """The record is that of the window in a later timeline, and its objects are on their owners."""
    folder = find_folder(restored.folder.path)
    _, view = ViewFile(folder.view).read()
    assert view is not None
    assert (view.phase, view.uid, view.timeline) == (Phase.OPEN, folder.uid, timeline)
    assert view.execution > 3, "older drivers are fenced"
    wanted, objects = record_of(folder.uid, window)
    held: dict[str, list[bytes]] = {name: [] for name in objects}
    with records(folder) as found:
        assert len(found) == servers
        assert len({record.tag for record, _ in found.values()}) == 1
        for record, client in found.values():
            assert record == replace(wanted, tag=record.tag)
            assert record.tag.timeline == timeline
            for name in needed_objects(record):
                (one,) = client.get(None, [name])  # type: ignore[misc]
                if hasattr(one, "data"):
                    held[name].append(one.data)
    assert held == {name: [data] * copies for name, data in objects.items()}
    refuse_unfinished(folder.path)
    return record
