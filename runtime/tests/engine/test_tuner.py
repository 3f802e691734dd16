"""Settings that change while a driver runs: which are taken, when, and for which windows."""

from __future__ import annotations

import json
from dataclasses import replace

from millrace.engine.driver.home.inbox import Mailbox
from millrace.engine.driver.home.tuner import Tuner
from millrace.homes import codec
from millrace.homes.documents import Proposal
from millrace.homes.memory import MemoryInbox
from millrace.homes.tuning import FIELDS, Tuning
from millrace.protocol import events as e
from millrace.topology.load import parse

FIRST = Tuning(0, 100, 1000, 60_000, 4)


class Desk:
    """A tuner and what it told."""

    def __init__(self, first: Tuning = FIRST) -> None:
        self.windows: list[int] = []
        self.told: list[e.Notify] = []
        self.tuner = Tuner(first, lambda w: self.windows.append(w.max_records), self.told.append)

    def take(self, window: int | None) -> None:
        self.tuner.take(lambda _: window)


def test_every_window_keeps_the_settings_that_it_began_with() -> None:
    desk = Desk()
    second, third = replace(FIRST, number=1, parallelism=8), replace(FIRST, number=2, parallelism=2)
    desk.tuner.give(second)
    assert desk.tuner.at(5) == FIRST
    desk.take(6)
    desk.tuner.give(third)
    desk.take(9)
    assert [desk.tuner.at(window) for window in (1, 5, 6, 8, 9, 99)] == [
        *(FIRST, FIRST, second, second, third, third)
    ]


def test_of_two_edits_before_one_window_the_second_counts_from_it_on() -> None:
    desk = Desk()
    for number in (1, 2):
        desk.tuner.give(replace(FIRST, number=number, parallelism=4 + number))
        desk.take(6)
    assert desk.tuner.at(5) == FIRST
    assert desk.tuner.at(6).parallelism == 6


def test_what_cannot_be_taken_now_waits() -> None:
    desk = Desk()
    desk.tuner.give(replace(FIRST, number=1, max_records=7))
    desk.take(None)
    assert (desk.windows, desk.told, desk.tuner.at(3)) == ([], [], FIRST)
    desk.take(4)
    assert desk.windows == [7]
    desk.take(5)
    assert desk.windows == [7], "once"


def test_nobody_goes_back_to_older_settings() -> None:
    """A driver begins with what was accepted when it was made; its inbox may be behind that."""
    desk = Desk(replace(FIRST, number=3))
    for number in (1, 3):
        desk.tuner.give(replace(FIRST, number=number, max_records=9))
        desk.take(2)
    assert (desk.windows, desk.told) == ([], [])


def test_the_event_says_what_is_new_and_from_which_window_on() -> None:
    desk = Desk()
    now = Tuning(1, 50, 1000, 30_000, 8, min_interval_ms=500)
    desk.tuner.give(now)
    desk.take(12)
    (event,) = desk.told
    assert (event.kind, event.window) == ("SettingsChanged", 12)
    assert event.text == (
        "from window 12 on: spec.window.maxRecords 50, spec.window.minInterval 500ms, "
        "spec.tupleTimeout 30s, spec.parallelism 8"
    )
    desk.tuner.give(replace(now, number=2))
    desk.take(14)
    assert desk.told == [event], "nothing is another"
    desk.tuner.give(replace(now, number=3, min_interval_ms=None))
    desk.take(15)
    assert desk.told[-1].text == "from window 15 on: spec.window.minInterval not set"


def test_a_proposal_carries_them_to_the_driver() -> None:
    given: list[Tuning] = []
    inbox = MemoryInbox()
    mailbox = Mailbox(inbox, lambda _: b"", lambda _: None, tuned=given.append)
    inbox.propose(Proposal((), ()))
    assert list(mailbox.look()) == []
    assert given == []
    inbox.propose(Proposal((), (), 1, tuning=FIRST))
    for _ in range(2):
        list(mailbox.look())
    assert given == [FIRST]


def test_a_driver_of_an_older_release_reads_proposals_without_them() -> None:
    assert "tuning" not in codec.encode(Proposal((), ()))
    told = Proposal((), (), 1, tuning=replace(FIRST, min_interval_ms=5))
    assert codec.decode(Proposal, _text(told)) == told


def _text(proposal: Proposal) -> str:
    return json.dumps(codec.encode(proposal))


def test_they_are_what_the_topology_says() -> None:
    topology = parse(
        """
        apiVersion: millrace.dev/v1alpha1
        kind: StreamTopology
        metadata: {name: words}
        spec:
          window: {maxRecords: 7, maxInterval: 2s, minInterval: 1s}
          tupleTimeout: 90s
          parallelism: 3
          sources: [{name: numbers, generator: {}}]
          sinks: [{name: out, inputs: [{from: numbers}], files: {path: out}}]
        """,
        import_code=False,
    )
    found = Tuning.of(topology, 5)
    assert found == Tuning(5, 7, 2000, 90_000, 3, 1000)
    assert found.window == topology.spec.window
    assert set(FIELDS) == {
        "spec.parallelism",
        "spec.tupleTimeout",
        *(f"spec.window.{f.alias}" for f in type(topology.spec.window).model_fields.values()),
    }
