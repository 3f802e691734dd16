"""Settings that change while a driver runs: which are taken, when, and what has them."""

from __future__ import annotations

import json
from dataclasses import replace

from millrace.engine.driver.home.inbox import Mailbox
from millrace.engine.driver.home.tuner import Tuner
from millrace.homes import codec
from millrace.homes.documents import Proposal
from millrace.homes.memory import MemoryInbox
from millrace.homes.tuning import FIELDS, Tuning
from millrace.ids import Execution, WindowAttempt, WindowNumber
from millrace.protocol import events as e
from millrace.protocol.types import AttemptId
from millrace.topology.load import parse

FIRST = Tuning(0, 100, 1000, 60_000, 4)


class Desk:
    """A tuner and what it told."""

    def __init__(self, first: Tuning = FIRST) -> None:
        self.windows: list[int] = []
        self.told: list[e.Notify] = []
        self.again: list[tuple[AttemptId, str]] = []
        self.tuner = Tuner(
            first,
            lambda window: self.windows.append(window.max_records),
            lambda *attempt: self.again.append(attempt),
            self.told.append,
        )

    def take(self, window: int | None) -> None:
        self.tuner.take(lambda _: window)


def attempt(window: int, number: int) -> AttemptId:
    return AttemptId(Execution(1), WindowNumber(window), WindowAttempt(number))


def test_the_next_attempt_of_an_open_window_has_the_new_settings() -> None:
    """A window that runs out of memory, say, has to be cut into more parts."""
    desk = Desk()
    assert desk.tuner.begin(attempt(5, 1)) == FIRST
    second = replace(FIRST, number=1, tuple_timeout_ms=90_000, parallelism=8)
    desk.tuner.give(second)
    assert desk.tuner.newest == FIRST
    desk.take(6)
    assert desk.tuner.newest == second
    assert desk.tuner.begin(attempt(5, 2)) == second
    assert desk.again == [], "what is patient enough goes on"


def test_an_attempt_that_began_with_a_longer_time_out_ends() -> None:
    """It may wait, for a day say, for a call that never returns."""
    desk = Desk(replace(FIRST, tuple_timeout_ms=86_400_000))
    desk.tuner.begin(attempt(5, 1))
    desk.tuner.give(replace(FIRST, number=1, tuple_timeout_ms=30_000))
    desk.take(None)
    assert desk.again == []
    desk.take(6)
    text = "spec.tupleTimeout is 30s now and was longer as it began"
    assert desk.again == [(attempt(5, 1), text)]
    desk.tuner.begin(attempt(5, 2))
    desk.tuner.give(replace(FIRST, number=2, tuple_timeout_ms=30_000, parallelism=2))
    desk.take(6)
    assert len(desk.again) == 1, "the next one began with it"


def test_of_two_edits_before_one_window_the_second_counts() -> None:
    desk = Desk()
    for number in (1, 2):
        desk.tuner.give(replace(FIRST, number=number, parallelism=4 + number))
        desk.take(6)
    assert desk.tuner.newest.parallelism == 6


def test_what_cannot_be_taken_now_waits() -> None:
    desk = Desk()
    desk.tuner.give(replace(FIRST, number=1, max_records=7))
    desk.take(None)
    assert (desk.windows, desk.told, desk.tuner.newest) == ([], [], FIRST)
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


def test_the_event_says_what_is_new_and_from_when_on() -> None:
    desk = Desk()
    now = Tuning(1, 50, 1000, 30_000, 8, min_interval_ms=500)
    desk.tuner.give(now)
    desk.take(12)
    (event,) = desk.told
    assert (event.kind, event.window) == ("SettingsChanged", 12)
    assert event.text == (
        "from window 12 on: spec.window.maxRecords 50, spec.window.minInterval 500ms; "
        "from the next attempt on: spec.tupleTimeout 30s, spec.parallelism 8"
    )
    desk.tuner.give(replace(now, number=2))
    desk.take(14)
    assert desk.told == [event], "nothing is another"
    desk.tuner.give(replace(now, number=3, min_interval_ms=None))
    desk.take(15)
    assert desk.told[-1].text == "from window 15 on: spec.window.minInterval not set"
    desk.tuner.give(replace(now, number=4, min_interval_ms=None, parallelism=2))
    desk.take(16)
    assert desk.told[-1].text == "from the next attempt on: spec.parallelism 2"


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
