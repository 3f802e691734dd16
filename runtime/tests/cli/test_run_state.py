"""``millrace state`` against a real state server, whose run is not alive."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cli_support import HEAD
from command_calls import called, command

from millrace.clock import SystemClock
from millrace.errors import ExitCode, StateServerError
from millrace.homes import pods
from millrace.local.files import write_json
from millrace.local.inspect import state as statereader
from millrace.local.launch import state_servers
from millrace.local.workdir import WorkFolder, open_folder
from millrace.pods.reading import OwnServerReading
from millrace.protocol.codec import encode_record
from millrace.protocol.types import Record, Segment, Stamp, Tag
from millrace.remote.own import OwnServerReader
from millrace.state.client import StateAddress, StateClient
from millrace.state.keyed.aggregates import Aggregate
from millrace.state.keyed.aggregatestate import AggregateState
from millrace.state.keyed.columnstate import ColumnState
from millrace.state.keyed.dictstate import DictState
from millrace.state.readable import Readable
from millrace.topology.load import parse
from millrace_e2e.embedded import sockets

K = 128
SPEC = """
  sources:
    - name: lines
      files: {path: t, format: jsonLines, schema: "value string, x long, user string, day date"}
  processors:
    - name: count
      inputs: [{from: lines, key: [value]}]
      aggregate: {columns: [{name: n, function: count}, {name: mean, function: avg, of: x}]}
    - name: visits
      inputs: [{from: lines, key: [user, day]}]
      function: visits:visits
    - {name: plain, inputs: [{from: lines}], function: "visits:plain"}
  sinks: [{name: out, inputs: [{from: count}, {from: visits}, {from: plain}], files: {path: out}}]
"""
WORDS = pa.schema([("value", pa.string()), ("x", pa.int64())])
VISITS = pa.schema([("user", pa.string()), ("day", pa.date32())])
DAY = "2024-02-29"


def totals() -> bytes:
    functions = (Aggregate("n", "count"), Aggregate("mean", "avg", "x"))
    state = AggregateState(WORDS, ["value"], functions, K)
    state.begin()
    values = [["the", "a", "the", "\x1b[31mred"], [1, 2, 2, None]]
    columns = [pa.array(v, f.type) for v, f in zip(values, WORDS, strict=True)]
    state.update(pa.RecordBatch.from_arrays(columns, schema=WORDS))
    return state.base().data


def visits(form: type[DictState] | type[ColumnState] = DictState) -> bytes:
    state = form(VISITS, pa.schema([("n", pa.int64())]), K)
    state.begin()
    rows = state.find([pa.array(["ann"]), pa.array([DAY]).cast(pa.date32())])
    if isinstance(state, ColumnState):
        state.write(rows, state.converted(pa.record_batch({"n": [7]})))
    else:
        state.values[int(rows[0])]["n"] = 7
    return state.base().data


def segment(name: str, window: int) -> Segment:
    return Segment(name, window, (1 << K) - 1, base=True, rows=1)


def store(
    address: StateAddress, uid: str, window: int, objects: dict[str, bytes], **chains: Any
) -> None:
    """A committed record behind a window."""
    client, stamp, tag = StateClient(address, uid), Stamp(1, 1), Tag(1, 1, 1, window)
    record = Record(uid, tag, window, {}, (), chains, (), (), (), window)
    client.stamp(stamp)
    client.put(stamp, list(objects.items()))
    client.write_record(stamp, tag, encode_record(record))
    client.close()


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> WorkFolder:
    """A topology that has run and is not alive; ``visits`` may have been a grouped function."""
    form = getattr(request, "param", DictState)
    made = open_folder(tmp_path / "work", "first", tmp_path / "t.yaml", SystemClock())
    topology = parse(HEAD + SPEC)
    write_json(made.topology, topology.document())
    (server,) = state_servers(made, topology, sockets())
    chains = {"count": (segment("1/count", 9),), "visits": (segment("1/visits", 3),)}
    store(
        server.start(),
        made.uid,
        9,
        {"1/count": totals(), "1/visits": visits(form)},
        **chains,
    )
    server.stop()
    return made


def state(folder: WorkFolder, *arguments: str, code: int = 0) -> tuple[str, str]:
    done = called("state", *arguments, "--workdir", str(folder.path))
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


def test_all_state_of_a_processor_is_shown_by_key(folder: WorkFolder) -> None:
    shown, note = state(folder, "scan", "count")
    rows = [line.split() for line in shown.splitlines()]
    assert rows == [
        ["value", "n", "mean"],
        [r"\x1b[31mred", "1"],
        ["a", "1", "2"],
        ["the", "2", "1.5"],
    ]
    assert note == "3 keys, behind window 9\n"
    shown, note = state(folder, "scan", "count", "--limit", "2", "--json")
    first, second = map(json.loads, shown.splitlines())
    assert first == {"window": 9, "key": {"value": "\x1b[31mred"}, "state": {"n": 1, "mean": None}}
    assert second["key"] == {"value": "a"}
    assert note == "2 of 3 keys, behind window 9\n"
    place = ("--workdir", str(folder.path))
    same = command("state", "scan", "count", "--limit", "2", "--json", *place)
    assert (same.returncode, same.stdout, same.stderr) == (0, shown, note)


@pytest.mark.parametrize("folder", [DictState, ColumnState], indirect=True)
def test_one_key_is_found_by_the_values_of_its_columns(folder: WorkFolder) -> None:
    shown, _ = state(folder, "get", "visits", "ann", DAY, "--json")
    key = {"user": "ann", "day": DAY}
    assert json.loads(shown) == {"window": 9, "key": key, "state": {"n": 7}}
    assert state(folder, "get", "count", "the")[0].split() == [
        "value",
        "n",
        "mean",
        "the",
        "2",
        "1.5",
    ]


def test_what_is_not_there_is_said(folder: WorkFolder) -> None:
    for arguments, said in (
        (["get", "count", "none"], "count has no state of key none behind window 9"),
        (["get", "visits", "ann"], "the key has 2 columns, 1 values were given"),
        (["get", "visits", "ann", "soon"], "'soon' is no value of type date32[day]"),
        (["scan", "plain"], "processors that have: count, visits"),
        (["scan", "nowhere"], "'nowhere' is no processor with a key"),
    ):
        shown, error = state(folder, *arguments, code=ExitCode.FAILED)
        assert shown == ""
        assert said in error


def test_what_a_later_window_deletes_meanwhile_is_read_from_its_record(
    folder: WorkFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next window is sealed, and what it replaces deleted, between the two reads."""
    windows = iter(range(10, 13))
    newest = statereader.committed_record

    def then_sealed(clients: Sequence[StateClient]) -> Record | None:
        record = newest(clients)
        window = next(windows, None)
        if window is not None:
            objects = {f"{window}/count": totals()}
            address = clients[0].address
            store(address, folder.uid, window, objects, count=(segment(f"{window}/count", window),))
            client = StateClient(address, folder.uid)
            assert record is not None
            client.delete(Stamp(1, 1), [one.name for one in record.chains["count"]])
            client.close()
        return record

    monkeypatch.setattr(statereader, "committed_record", then_sealed)
    found = statereader.scan(folder, "count")
    assert found.window == 12
    assert found.rows.num_rows == 3


PARTS = 4
PART_GROUPS = K // PARTS


class Quick:
    """Windows each of which writes a part of the base anew, and deletes what that was before.

    One is sealed whenever the record has been read, so that no try finds all that it names.
    """

    def __init__(self, folder: WorkFolder, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.window = 9
        self.asked: list[str] = []
        self._parts = [self._part(at) for at in range(PARTS)]
        self._newest = statereader.committed_record
        self._fetch = statereader.fetch_parts
        monkeypatch.setattr(statereader, "committed_record", self.record)
        monkeypatch.setattr(statereader, "fetch_parts", self.fetch)

    def record(self, clients: Sequence[Readable]) -> Record | None:
        if self.window == 9:
            self.seal(clients)
        record = self._newest(clients)
        self.seal(clients)
        return record

    def fetch(
        self, clients: Sequence[Readable], parts: Sequence[tuple[str, int, int]], is_intact: Any
    ) -> list[bytes | None]:
        self.asked += [name for name, _, _ in parts]
        return self._fetch(clients, parts, is_intact)

    def seal(self, clients: Sequence[Readable]) -> None:
        first = self.window == 9
        self.window += 1
        at = self.window % PARTS
        before, self._parts[at] = self._parts[at], self._part(at)
        objects = {one.name: totals() for one in (self._parts if first else [self._parts[at]])}
        address = clients[0].address
        store(address, self.folder.uid, self.window, objects, count=tuple(self._parts))
        client = StateClient(address, self.folder.uid)
        client.delete(Stamp(1, 1), [before.name])
        client.close()

    def _part(self, at: int) -> Segment:
        groups = ((1 << PART_GROUPS) - 1) << (at * PART_GROUPS)
        return Segment(f"{self.window}/count.{at}", self.window, groups, base=True, rows=1)


class Pod(OwnServerReader):
    """Asks what a pod answers, without a way to it."""

    def __init__(self, address: StateAddress, uid: str) -> None:
        self.address = address
        self._reading = OwnServerReading(uid, lambda: address, lambda: ["p"])

    def _ask(self, path: str) -> tuple[int, bytes, Any]:
        told = self._reading.told(path, f"{pods.READER} p")
        return told.status, told.body, told.headers


@pytest.mark.parametrize("through_pod", [False, True])
def test_state_of_which_each_try_finds_a_part_gone_is_read_in_the_end(
    folder: WorkFolder, monkeypatch: pytest.MonkeyPatch, through_pod: bool
) -> None:
    """What an earlier try has read is not asked for again: objects never change."""
    quick = Quick(folder, monkeypatch)
    with statereader.holder_of(folder) as holder:
        if through_pod:
            pod = Pod(holder.clients[0].address, folder.uid)
            holder = statereader.Holder(holder.topology, [pod])
        found = statereader.scan_of(holder, "count")
    assert found.rows.to_pydict()["value"] == ["\x1b[31mred", "a", "the"]
    assert found.window == quick.window - 1, "it is as new as the record that was read last"
    assert len(quick.asked) == len(set(quick.asked)) == PARTS + 1


def test_state_that_is_always_gone_ends_with_an_error(
    folder: WorkFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(clients: Sequence[Readable], parts: Sequence[Any], _: Any) -> list[None]:
        return [None] * len(parts)

    monkeypatch.setattr(statereader, "fetch_parts", nothing)
    with pytest.raises(StateServerError, match="in 20 tries"):
        statereader.scan(folder, "count")
