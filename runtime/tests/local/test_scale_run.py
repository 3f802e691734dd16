"""Another size for a run that goes on: what can be asked for, and when it is there."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from millrace.clock import SystemClock
from millrace.homes import codec
from millrace.homes.documents import ProcessRow, ProcessTable, Scale
from millrace.local import scale as scaling
from millrace.local.files import Watched, write_json
from millrace.local.launch import _forget_asked, members_of, state_servers
from millrace.local.scale import (
    ScaleError,
    ask,
    beginning,
    is_scaled,
    news,
    read,
    refusal_of,
)
from millrace.local.takeover import current_holder, take_over
from millrace.local.workdir import WorkFolder, open_folder, start_over
from millrace.protocol.types import Member, Phase, View
from millrace.state.viewfile import ViewFile
from millrace.topology.load import parse
from millrace.topology.model import StreamTopology

TOPOLOGY = """
apiVersion: millrace.dev/v1alpha1
kind: StreamTopology
metadata: {name: sized}
spec:
  stateServers: {replicas: 3, copies: 2}
  sources: [{name: made, generator: {count: 1}}]
  sinks: [{name: shown, inputs: [{from: made}], custom: {class: "nowhere:Sink"}}]
"""


@pytest.fixture
def folder(tmp_path: Path) -> WorkFolder:
    return open_folder(tmp_path, "sized", Path("t.yaml"), SystemClock())


@pytest.fixture
def topology() -> StreamTopology:
    return parse(TOPOLOGY)


def view(uid: str, phase: Phase, last_open: int, target: int) -> View:
    def members(count: int) -> tuple[Member, ...]:
        return tuple(Member(f"state-{number}", "life") for number in range(count))

    owners = (tuple(m.name for m in members(target)),)
    return View(uid, 1, 2, phase, 1, members(last_open), members(target), 2, owners)


def test_what_is_asked_for_adds_up_and_is_read_where_it_was_replaced(folder, topology) -> None:
    looked = Watched(folder.scale, Scale)
    lease = take_over(folder.path, lambda _: None)
    try:
        assert looked.look() is None
        ask(folder, topology, Scale(state_servers=4))
        assert looked.look() == Scale(4, None)
        assert ask(folder, topology, Scale(ackers=2)) == Scale(None, 2)
        assert looked.look() == looked.look() == Scale(4, 2)
        folder.scale.write_text("{")
        assert looked.look() == Scale(4, 2)
        assert read(folder.scale) is None
    finally:
        lease.release()


def test_who_asks_while_a_run_begins_asks_that_run(folder, topology) -> None:
    """A fresh start asks its sinks for seconds before it deletes the state."""
    first = take_over(folder.path, lambda _: None)
    ask(folder, topology, Scale(state_servers=4))
    first.release()
    lease = take_over(folder.path, lambda _: None, begins=lambda: beginning(folder))
    try:
        assert read(folder.scale) is None
        ask(folder, topology, Scale(ackers=2))
        _forget_asked(start_over(folder, SystemClock()))
        assert read(folder.scale) == Scale(None, 2)
    finally:
        lease.release()


def test_the_run_that_begins_is_known_with_what_was_asked_before_forgotten(
    folder, topology, monkeypatch
) -> None:
    """Nobody who sees the new run leaves something that is taken for what the old one was asked."""
    first = take_over(folder.path, lambda _: None)
    ask(folder, topology, Scale(state_servers=4))
    first.release()
    asked, seen = threading.Event(), []

    def asking() -> None:
        asked.set()
        ask(folder, topology, Scale(ackers=2))

    monkeypatch.setattr(
        scaling, "current_holder", lambda path: seen.append(read(folder.scale)) or holder(path)
    )
    holder = current_holder
    with beginning(folder):
        thread = threading.Thread(target=asking)
        thread.start()
        assert asked.wait(20.0)
        assert seen == []
        lease = take_over(folder.path, lambda _: None)
    thread.join(20.0)
    lease.release()
    assert seen == [None]
    assert read(folder.scale) == Scale(None, 2)


def test_only_what_is_asked_for_anew_is_followed(folder, topology) -> None:
    """The load may have changed the number of ackers since they were asked for."""
    lease = take_over(folder.path, lambda _: None)
    try:
        followed = None
        for scale in (Scale(4, 2), Scale(state_servers=3), Scale(ackers=2), Scale(ackers=2)):
            ask(folder, topology, scale)
            asked = read(folder.scale)
            assert asked is not None
            assert news(followed, asked) == scale
            assert news(asked, asked) == Scale()
            followed = asked
        assert news(None, followed) == followed == Scale(3, 2)
        # What was asked for twice between two looks is followed once, and nothing of it is missed.
        for scale in (Scale(state_servers=4), Scale(ackers=3), Scale(state_servers=2)):
            ask(folder, topology, scale)
        asked = read(folder.scale)
        assert asked is not None
        assert news(followed, asked) == Scale(2, 3)
    finally:
        lease.release()


def test_what_an_older_release_asks_for_is_always_new(folder) -> None:
    write_json(folder.scale, codec.encode(Scale(4, 2)))
    assert "Mark" not in folder.scale.read_text()
    asked = read(folder.scale)
    assert asked is not None
    assert news(asked, asked) == Scale(4, 2)


def test_of_two_who_ask_at_once_neither_is_lost(folder, topology, monkeypatch) -> None:
    """The second one asks while the first one is about to write what it has read and joined."""
    lease = take_over(folder.path, lambda _: None)
    reached, started, write = threading.Event(), threading.Event(), write_json

    def slow(path: Path, document: Any) -> None:
        if threading.current_thread() is first:
            reached.set()
            started.wait(20)
            # It cannot end while the first one is in here; without a lock it would.
            second.join(0.3)
        write(path, document)

    monkeypatch.setattr(scaling, "write_json", slow)
    first = threading.Thread(target=ask, args=(folder, topology, Scale(state_servers=4)))
    second = threading.Thread(target=ask, args=(folder, topology, Scale(ackers=2)))
    try:
        first.start()
        assert reached.wait(20)
        second.start()
        started.set()
        first.join(20)
        second.join(20)
        assert read(folder.scale) == Scale(4, 2)
    finally:
        lease.release()


def test_ackers_are_cut_to_what_the_load_may_choose_from(folder) -> None:
    bounded = parse(TOPOLOGY.replace("spec:\n", "spec:\n  ackers: {min: 2, max: 3}\n"))
    lease = take_over(folder.path, lambda _: None)
    try:
        for asked, had in ((9, 3), (1, 2), (3, 3)):
            assert ask(folder, bounded, Scale(ackers=asked)) == Scale(None, had)
            assert read(folder.scale) == Scale(None, had)
    finally:
        lease.release()


def test_without_a_run_there_is_nothing_to_scale(folder, topology) -> None:
    with pytest.raises(ScaleError, match=r"not running.*spec.stateServers.replicas"):
        ask(folder, topology, Scale(state_servers=4))
    assert not folder.scale.exists()


@pytest.mark.parametrize(
    ("edit", "scale", "reason"),
    [
        ("", Scale(state_servers=1), "1 state servers: there must be 2 to 64"),
        ("", Scale(state_servers=65), "65 state servers"),
        ("", Scale(ackers=0), "0 ackers: there must be 1 to 64"),
        ("guarantee", Scale(ackers=2), "nothing is tracked"),
        ("url", Scale(state_servers=2), "server of your own"),
        ("", Scale(state_servers=2, ackers=1), ""),
    ],
)
def test_a_size_that_cannot_be_is_refused_with_the_reason(edit, scale, reason) -> None:
    text = TOPOLOGY
    if edit == "guarantee":
        text = text.replace("spec:\n", "spec:\n  guarantee: AtMostOnce\n")
    if edit == "url":
        text = text.replace("{replicas: 3, copies: 2}", '{url: "redis://127.0.0.1:1"}')
    told = refusal_of(parse(text), scale)
    assert reason in told
    assert bool(told) == bool(reason)


def test_a_run_has_its_size_when_the_view_is_open_with_it(folder: WorkFolder) -> None:
    wanted = Scale(state_servers=3, ackers=1)
    rows = (ProcessRow("acker", "acker-0", 1, 1), ProcessRow("state", "state-0", 2, 1))
    assert not is_scaled(folder, wanted, view(folder.uid, Phase.OPEN, 3, 3))
    write_json(folder.processes, codec.encode(ProcessTable(rows)))
    assert is_scaled(folder, wanted, view(folder.uid, Phase.OPEN, 3, 3))
    assert not is_scaled(folder, wanted, view(folder.uid, Phase.MOVING, 4, 3))
    assert not is_scaled(folder, wanted, view(folder.uid, Phase.OPEN, 4, 4))
    assert not is_scaled(folder, wanted, None)
    assert not is_scaled(folder, Scale(ackers=2), None)
    # One that is to leave still runs, be it a member or not.
    left = ProcessTable((*rows, ProcessRow("state", "state-3", 3, 1)))
    write_json(folder.processes, codec.encode(left))
    assert not is_scaled(folder, wanted, view(folder.uid, Phase.OPEN, 3, 3))


def test_members_of_the_last_run_are_started_with_those_that_are_asked_for(
    folder: WorkFolder, topology: StreamTopology
) -> None:
    """After a run that was made larger they may hold the only copy of something."""
    assert members_of(folder) == []
    assert [one.name for one in state_servers(folder, topology, folder.path)] == [
        "state-0",
        "state-1",
        "state-2",
    ]
    assert ViewFile(folder.view).cas(0, view(folder.uid, Phase.MOVING, 4, 5)) == 1
    assert members_of(folder) == [f"state-{number}" for number in range(5)]
    assert len(state_servers(folder, topology, folder.path)) == 5
