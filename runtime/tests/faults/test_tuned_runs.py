"""Settings that change while a driver runs, on whole histories; what is seen is what sinks show.

A window's rows say how large it was, the names of its staged files how many partitions it had and
which execution made them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
from faults_driver import CALL_S

from millrace.checked import with_checksum
from millrace.homes import codec
from millrace.homes.documents import Proposal
from millrace.homes.settings import PASSWORD_VARIABLE, in_folder
from millrace.homes.tuning import Tuning
from millrace.local.files import read_json, write_json
from millrace.state.inboxfiles import InboxFiles
from millrace.topology.load import load
from millrace_e2e import feed
from millrace_e2e.checker import Promise
from millrace_e2e.harness import Place, read_events
from millrace_e2e.judge import judge
from millrace_e2e.topologies import Shape, history
from millrace_e2e.waiting import until

SIZE, WIDER = 4500, 6100
LINES = 12 * SIZE
SHAPE = Shape(max_records=SIZE, parallelism=2)
DEADLINE_S = 300.0


@dataclass(frozen=True)
class Shown:
    """A window as the sink of rows shows it."""

    rows: int
    partitions: int
    execution: int


def windows(place: Place) -> dict[int, Shown]:
    found = {}
    for manifest in (place.sink("rows") / "_millrace" / "windows").glob("*.json"):
        files = json.loads(manifest.read_text())["files"]
        names = [file["staged"].split("/")[0].split(".") for file in files]
        (window,) = {int(name[1]) for name in names}
        (execution,) = {int(name[0]) for name in names}
        partitions = len({file["staged"] for file in files})
        found[window] = Shown(sum(file["rows"] for file in files), partitions, execution)
    return found


def tuned(number: int = 1, **what: Any) -> Tuning:
    first = Tuning(0, SIZE, 50, 30_000, 2)
    return replace(first, number=number, **what)


def changes(place: Place) -> list[dict[str, Any]]:
    return [event for event in read_events(place.work) if event["kind"] == "SettingsChanged"]


@pytest.fixture
def slow(lab):
    """Windows take their time until the gate is there again."""
    lab.gate.unlink()
    yield
    lab.gate.touch()


def test_windows_are_larger_and_cut_into_more_partitions_from_the_window_told_on(
    lab, live, place, slow
):
    place.write(history(SHAPE))
    feed.add_file(place.texts / "a.txt", feed.text(range(LINES), 1))
    life = live()
    life.until(lambda: life.sealed() >= 2, "two windows")
    inbox = InboxFiles(place.work / "proposal.json", place.work / "requests")
    said = inbox.proposal()
    wanted = tuned(max_records=WIDER, parallelism=3, tuple_timeout_ms=60_000)
    inbox.propose(replace(said, number=said.number + 1, tuning=wanted))
    life.until(lambda: changes(place), "the change")
    lab.gate.touch()
    assert life.wait() == 0
    assert judge(place, Promise.EXACTLY_ONCE) == []
    (event,) = changes(place)
    first = event["window"]
    assert event["text"] == (
        f"from window {first} on: spec.window.maxRecords {WIDER}; "
        "from the next attempt on: spec.tupleTimeout 1m, spec.parallelism 3"
    )
    found = windows(place)
    assert sum(one.rows for one in found.values()) == LINES
    last = max(found)
    assert 2 < first < last, "windows of both kinds are seen"
    for window, shown in found.items():
        size, partitions = (WIDER, {3}) if window >= first else (SIZE, {2})
        if window == first - 1:
            partitions = {2, 3}  # its attempt may have begun before the edit, or after it
        if window != last:
            assert (window, shown.rows) == (window, size)
            assert shown.partitions in partitions, window
    assert {shown.execution for shown in found.values()} == {1}, "no driver was started for it"


def test_an_attempt_that_waits_for_ever_ends_when_it_is_given_less_time(live, place, lab):
    document = history(Shape(max_records=50, tuple_timeout="24h"))
    document["spec"]["processors"][0]["function"] = "fault_hang:parse"
    place.write(document)
    feed.add_file(place.texts / "a.txt", feed.text(range(200), 1))
    lab.order({"hangs": 3})
    life = live()
    life.until(lambda: "hang" in lab.strikes(), "a call that never returns")
    inbox = InboxFiles(place.work / "proposal.json", place.work / "requests")
    said = inbox.proposal()
    wanted = Tuning(1, 50, 50, 20_000, 2)
    inbox.propose(replace(said, number=said.number + 1, tuning=wanted))
    assert life.wait() == 0
    assert judge(place, Promise.EXACTLY_ONCE) == []
    assert lab.strikes()["hang"]["attempt"] == [1, 3, 1]
    (event,) = changes(place)
    assert event["text"] == "from the next attempt on: spec.tupleTimeout 20s"
    (again,) = life.events("WindowRunAgain")
    assert again["text"] == (
        "attempt 1 of window 3: spec.tupleTimeout is 20s now and was longer as it began"
    )
    found = windows(place)
    assert sum(one.rows for one in found.values()) == 200, "no root is blamed"
    assert {shown.execution for shown in found.values()} == {1}, "no driver was started for it"


def start(place: Place, address: Any, **variables: str) -> subprocess.Popen[bytes]:
    slow = {"MILLRACE_E2E_GATE": str(place.gate), "MILLRACE_E2E_CALL_S": CALL_S}
    environment = {**os.environ, PASSWORD_VARIABLE: address.password, **slow, **variables}
    command = ["-m", "millrace.engine.driver.main", "--settings", str(place.work / "driver.json")]
    with (place.work / "driver.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            cwd=place.work,
        )


def accept(place: Place, uid: str, number: int, window: Mapping[str, Any]) -> None:
    """What a driver is started with from now on."""
    loaded = load(place.topology)
    document = loaded.topology.document()
    document["spec"]["window"] |= window
    file = place.work / "topology.json"
    write_json(file, with_checksum(document))
    settings = replace(in_folder(place.work, uid, file, loaded.folder), tuned=number)
    write_json(place.work / "driver.json", codec.encode(settings))


def sealed(place: Place) -> int:
    return int((read_json(place.work / "status.json") or {}).get("sealed", 0))


def test_a_driver_that_dies_right_after_it_took_an_edit_is_followed_by_one_that_has_it(
    place, state_server
):
    """SIGKILL of its process before it has told anyone, or run anything, by the new settings."""
    document = history(Shape(max_records=SIZE, guarantee="AtLeastOnce"))
    document["spec"] |= {"tracking": "Off", "ackers": {"replicas": 0}, "guarantee": "ExactlyOnce"}
    place.write(document)
    feed.add_file(place.texts / "a.txt", feed.text(range(LINES), 1))
    place.work.mkdir(exist_ok=True)
    address = state_server.address
    accept(place, "tuned", 0, {})
    inbox = InboxFiles(place.work / "proposal.json", place.work / "requests")
    proposal = Proposal((address.member(),), (), 1)
    inbox.propose(proposal)
    driver = start(place, address, MILLRACE_CRASH_AT="driver.tuned")
    try:
        until(lambda: sealed(place) >= 2, "two windows", DEADLINE_S)
        # As the operator does: what is accepted first, then who runs is told.
        accept(place, "tuned", 1, {"maxRecords": WIDER})
        inbox.propose(replace(proposal, number=2, tuning=tuned(max_records=WIDER)))
        assert driver.wait(DEADLINE_S) == -signal.SIGKILL
        before = windows(place)
        assert {shown.execution for shown in before.values()} == {1}
        assert changes(place) == []
        place.gate.touch()
        driver = start(place, address)
        assert driver.wait(DEADLINE_S) == 0
    finally:
        driver.kill()
        driver.wait()
    assert judge(place, Promise.EXACTLY_ONCE) == []
    assert changes(place) == [], "it begins with them, and has nothing to change to"
    found = windows(place)
    assert sum(one.rows for one in found.values()) == LINES
    ours = sorted(window for window, shown in found.items() if shown.execution == 2)
    # What the first driver had planned it runs first, as it was planned.
    assert [found[window].rows for window in ours[1:-1]] == [WIDER] * (len(ours) - 2)
    assert len(ours) > 3
    assert all(found[window].rows == SIZE for window in found if window < ours[0])
