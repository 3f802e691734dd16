"""``millrace dead-letters`` against a real state server, with and without a living run."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_calls import called
from command_calls import command as started

from millrace.clock import SystemClock
from millrace.engine.driver.home.inbox import Mailbox
from millrace.engine.driver.letters import encode_letters
from millrace.errors import ExitCode
from millrace.homes import codec
from millrace.homes.documents import Ask, Request
from millrace.local.files import write_json
from millrace.local.launch import state_servers
from millrace.local.takeover import take_over
from millrace.local.workdir import WorkFolder, open_folder
from millrace.protocol.codec import encode_record
from millrace.protocol.events import DeadLetterRequest
from millrace.protocol.types import Components, DeadSegment, Record, Replay, Stamp, Tag
from millrace.state.client import StateAddress, StateClient
from millrace.topology.load import parse
from millrace_e2e.embedded import sockets

TEXT = """
apiVersion: millrace.dev/v1alpha1
kind: StreamTopology
metadata: {name: poison}
spec:
  sources: [{name: lines, files: {path: texts}}]
  sinks: [{name: out, inputs: [{from: lines}], files: {path: out}}]
"""


def letter(offset: int, payload: str, encoding: str, processor: str = "parse") -> dict[str, Any]:
    return {
        "source": "lines",
        "partition": 7,
        "offset": offset,
        "number": 3,
        "processor": processor,
        "error": f"Traceback\nValueError: line {offset}",
        "alone": False,
        "locator": None,
        "payload": payload,
        "payloadEncoding": encoding,
    }


LETTERS = {
    "1.2.0/dead": [letter(5, "bad [line]", "utf-8"), letter(6, "/wA=", "base64")],
    "1.9.1/dead": [letter(40, "gone", "utf-8"), letter(41, "kept", "utf-8", "load")],
}
DEAD = (DeadSegment("1.2.0/dead", 2, 2), DeadSegment("1.9.1/dead", 9, 2, removed=(0,)))


TOGETHER = {
    "1.9.1.1/dead": [
        *({**one, "object": "1.2.1.1/dead"} for one in LETTERS["1.2.0/dead"]),
        *LETTERS["1.9.1/dead"],
    ]
}


def store(
    address: StateAddress,
    uid: str,
    dead: tuple[DeadSegment, ...] = DEAD,
    letters: dict[str, list[dict[str, Any]]] = LETTERS,
    **changes: Any,
) -> None:
    """A committed record with four letters, one of them removed."""
    client, stamp, tag = StateClient(address, uid), Stamp(1, 1), Tag(1, 1, 1, 1)
    record = Record(uid, tag, 9, {}, (), {}, (), dead, (), 9, **changes)
    client.stamp(stamp)
    objects = [
        (name, json.dumps({"format": 1, "letters": found}).encode())
        for name, found in letters.items()
    ]
    client.put(stamp, objects)
    client.write_record(stamp, tag, encode_record(record))
    client.close()


@pytest.fixture
def folder(tmp_path: Path) -> WorkFolder:
    """A topology that has run and is not alive."""
    made = open_folder(tmp_path / "work", "poison", tmp_path / "t.yaml", SystemClock())
    topology = parse(TEXT)
    write_json(made.topology, topology.document())
    (server,) = state_servers(made, topology, sockets())
    store(server.start(), made.uid)
    server.stop()
    return made


def stored_anew(folder: WorkFolder, **changes: Any) -> WorkFolder:
    (server,) = state_servers(folder, parse(TEXT), sockets())
    address = server.start()
    client = StateClient(address, folder.uid)
    client.wipe()
    client.close()
    store(address, folder.uid, **changes)
    server.stop()
    return folder


@pytest.fixture
def edited(folder: WorkFolder) -> WorkFolder:
    """Behind window 5 the source was removed, and another one of its name came."""
    components = Components(2, {"lines": 2}, {}, {"out": 0})
    return stored_anew(folder, components=components, since={"lines": 5})


@pytest.fixture
def together(folder: WorkFolder) -> WorkFolder:
    """Window 9 has carried over the letters of window 2, and one of its own was removed."""
    dead = (DeadSegment("1.9.1.1/dead", 9, 4, (2,), "1.2.1.1/dead"),)
    return stored_anew(folder, dead=dead, letters=TOGETHER)


def command(folder: WorkFolder, *arguments: str, code: int = 0) -> str:
    done = called("dead-letters", *arguments, "--workdir", str(folder.path))
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def listed(folder: WorkFolder, *options: str) -> dict[str, dict[str, Any]]:
    lines = command(folder, "list", "--json", *options).splitlines()
    return {one["id"]: one for one in map(json.loads, lines)}


def requests(folder: WorkFolder) -> list[dict[str, Any]]:
    plain = [codec.plain(asked.request) for asked in folder.inbox.requests()]
    return [{k: value for k, value in one.items() if value is not None} for one in plain]


def test_letters_are_listed_while_no_run_is_alive(folder: WorkFolder) -> None:
    found = listed(folder)
    assert list(found) == ["1.2.0:0", "1.2.0:1", "1.9.1:1"]
    assert found["1.2.0:0"]["payload"] == "bad [line]"
    assert found["1.2.0:0"]["window"] == 2
    assert (found["1.2.0:1"]["payload"], found["1.2.0:1"]["payloadEncoding"]) == ("/wA=", "base64")
    assert list(listed(folder, "--processor", "load")) == ["1.9.1:1"]
    table = command(folder, "list")
    assert "bad [line]" in table
    assert "ValueError: line 41" in table
    shown = command(folder, "show", "1.9.1")
    assert "Traceback" in shown
    assert "kept" in shown
    same = started("dead-letters", "list", "--workdir", str(folder.path))
    assert (same.returncode, same.stdout, same.stderr) == (0, table, "")


def test_what_is_asked_for_waits_for_the_next_run_and_is_asked_for_once(
    folder: WorkFolder,
) -> None:
    answer = command(folder, "replay", "1.2.0")
    assert "2 dead letters will be replayed by the next millrace run" in answer
    assert requests(folder) == [{"action": "replay", "segment": "1.2.0/dead", "indexes": [0, 1]}]
    assert listed(folder)["1.2.0:0"]["asked"] == "replay"
    answer = command(folder, "drop", "--all")
    assert "1 dead letter will be dropped" in answer
    assert "asked for before: 2" in answer
    assert requests(folder)[1:] == [{"action": "drop", "segment": "1.9.1/dead", "indexes": [1]}]


def test_letters_that_were_carried_over_are_called_as_before(together: WorkFolder) -> None:
    found = listed(together)
    assert list(found) == ["1.2.1.1:0", "1.2.1.1:1", "1.9.1.1:1"]
    assert [one["window"] for one in found.values()] == [2, 2, 9]
    assert [one["offset"] for one in found.values()] == [5, 6, 41]
    for named, payload in (("2:0", "bad [line]"), ("1.2.1.1:0", "bad [line]"), ("9", "kept")):
        shown = command(together, "show", named)
        assert payload in shown
        assert shown.count("payload:") == 1
    assert command(together, "show", "2").count("payload:") == 2
    assert "9:0" in command(together, "show", "9:0", code=ExitCode.FAILED), "it was removed"


def test_a_request_names_the_object_that_has_the_letters_now(together: WorkFolder) -> None:
    """One that was made by the name of an older object is of the same letters."""
    together.inbox.ask(Request(Ask.REPLAY, "1.2.1.1/dead", (1,)))
    assert [one["asked"] for one in listed(together).values()] == [None, "replay", None]
    assert "1 dead letter will be replayed" in command(together, "replay", "9:1")
    answer = command(together, "drop", "1.2.1.1")
    assert "1 dead letter will be dropped" in answer
    assert "asked for before: 1" in answer
    assert requests(together)[1:] == [
        {"action": "replay", "segment": "1.9.1.1/dead", "indexes": [3]},
        {"action": "drop", "segment": "1.9.1.1/dead", "indexes": [0]},
    ]


def test_a_damaged_object_of_several_windows_names_them(together: WorkFolder) -> None:
    damage(together, "lost", "1.9.1.1/dead")
    table = command(together, "list")
    assert "1.9.1.1 (3 dead letters of windows 2 to 9) cannot be read: " in table
    for name in ("2:0", "9:0", "1.9.1.1:0"):
        assert name in command(together, "drop", name, code=ExitCode.FAILED), "which is not known"
    assert "3 dead letters will be dropped" in command(together, "drop", "9")


def test_letters_of_a_removed_source_are_shown_and_dropped_but_not_replayed(
    edited: WorkFolder,
) -> None:
    gone = {name: one["sourceGone"] for name, one in listed(edited).items()}
    assert gone == {"1.2.0:0": True, "1.2.0:1": True, "1.9.1:1": False}
    assert "bad [line]" in command(edited, "show", "1.2.0")
    refused = command(edited, "replay", "1.2.0:1", code=ExitCode.FAILED)
    assert (
        "dead letter 1.2.0:1: cannot be replayed, since its source 'lines' was removed" in refused
    )
    assert requests(edited) == []
    answer = command(edited, "replay", "--all")
    assert "left alone, since their source 'lines' was removed: 2" in answer
    assert "1 dead letter will be replayed" in answer
    assert requests(edited) == [{"action": "replay", "segment": "1.9.1/dead", "indexes": [1]}]
    assert "2 dead letters will be dropped" in command(edited, "drop", "1.2.0")


def test_letters_of_a_living_run_come_from_its_server(folder: WorkFolder) -> None:
    lease = take_over(folder.path, lambda _: None)
    (server,) = state_servers(folder, parse(TEXT), sockets())
    address = server.start()
    try:
        member = {"name": address.name, "run_id": address.run_id, "url": address.url}
        write_json(folder.proposal, {"members": [member], "ackers": []})
        assert len(listed(folder)) == 3
        assert "replayed with the next seal" in command(folder, "replay", "1.2.0:1")
    finally:
        server.stop()
        lease.release()


def test_an_unknown_letter_and_a_missing_choice_are_refused(folder: WorkFolder) -> None:
    assert "1.2.0:7" in command(folder, "drop", "1.2.0:7", code=ExitCode.FAILED)
    assert "--all" in command(folder, "drop", code=ExitCode.USAGE)
    assert requests(folder) == []


def test_a_topology_without_a_record_has_no_letters(tmp_path: Path) -> None:
    made = open_folder(tmp_path / "work", "poison", tmp_path / "t.yaml", SystemClock())
    document = parse(TEXT).document()
    write_json(made.topology, document)
    assert command(made, "list").strip() == "no dead letters"


DAMAGED = {
    "a bit flipped": lambda data: data[:-9] + bytes([data[-9] ^ 4]) + data[-8:],
    "lost": lambda data: None,
    "a letter short": lambda data: encode([letter(5, "bad [line]", "utf-8")]),
    "a payload that is no base64": lambda data: encode([letter(5, "a", "base64")] * 2),
    "a newer format": lambda data: encode([{"new": 1}], 99),
}


def encode(letters: list[dict[str, Any]], version: int = 1) -> bytes:
    """As an older release wrote an object, without a checksum."""
    return json.dumps({"format": version, "letters": letters}).encode()


def damage(folder: WorkFolder, how: str, name: str = "1.2.0/dead") -> None:
    """The letters of window 2 become unreadable."""
    (server,) = state_servers(folder, parse(TEXT), sockets())
    client = StateClient(server.start(), folder.uid)
    stamp = Stamp(2, 2)
    client.stamp(stamp)
    roots = [Replay("lines", 7, n, 3, 0.0, None, "parse", "no", False) for n in (5, 6)]
    made = SimpleNamespace(payload=lambda root: b"bad", place=lambda root: "line 1")
    data = DAMAGED[how](encode_letters(roots, {"lines": made}))
    if data is None:
        client.delete(stamp, [name])
    else:
        client.put(stamp, [(name, data)])
    client.close()
    server.stop()


@pytest.mark.parametrize("how", DAMAGED)
def test_a_damaged_object_is_named_and_blocks_no_other(folder: WorkFolder, how: str) -> None:
    damage(folder, how)
    found = {
        one["id"]: one
        for line in command(folder, "list", "--json").splitlines()
        if (one := json.loads(line))
    }
    assert list(found) == ["1.2.0:0", "1.2.0:1", "1.9.1:1"]
    assert found["1.9.1:1"]["payload"] == "kept"
    remedy = "use the newer release" if how == "a newer format" else "bring back"
    assert remedy in found["1.2.0:0"]["damaged"]
    assert found["1.2.0:0"].keys() == found["1.9.1:1"].keys()
    assert found["1.2.0:0"]["source"] is None, "nothing of it is believed"
    table = command(folder, "list")
    assert "1.2.0 (2 dead letters of window 2) cannot be read: " in table
    assert remedy in table
    assert "damaged: 2 dead letters" in table
    assert "ValueError: line 41" in table
    shown = command(folder, "show")
    assert "kept" in shown
    assert "1.2.0 (2 dead letters of window 2) cannot be read: " in shown

    refused = command(folder, "replay", "1.2.0:1", code=ExitCode.FAILED)
    assert "dead letter 1.2.0:1: cannot be replayed: " in refused
    assert remedy in refused
    assert requests(folder) == []
    answer = command(folder, "replay", "--all")
    assert "1 dead letter will be replayed" in answer
    assert "1.2.0 (2 dead letters of window 2) cannot be read: " in answer
    assert requests(folder) == [{"action": "replay", "segment": "1.9.1/dead", "indexes": [1]}]
    answer = command(folder, "drop", "--all", "--source", "lines")
    assert "0 dead letters will be dropped" in answer, "whose the damaged ones are nobody knows"
    assert "2 dead letters will be dropped" in command(folder, "drop", "2")
    dropped = {"action": "drop", "segment": "1.2.0/dead", "indexes": [0, 1]}
    assert requests(folder)[1:] == [dropped]


def test_what_only_the_damaged_object_lacks_is_asked_of_the_driver(folder: WorkFolder) -> None:
    """A drop needs no letter read: the driver that takes it up never looks into the object."""
    damage(folder, "a bit flipped")
    command(folder, "drop", "1.2.0")
    asked: list[str] = []
    box = Mailbox(folder.inbox, lambda name: asked.append(name) or b"", lambda ackers: None)
    box.committed(Record(folder.uid, Tag(1, 1, 1, 1), 9, {}, (), {}, (), DEAD, (), 9))
    (request,) = box.look()
    assert request == DeadLetterRequest(request.token, "1.2.0/dead", (0, 1), ())
    assert asked == []
