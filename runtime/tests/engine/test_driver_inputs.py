"""What comes to the driver from outside: plans of anyone's sources, requests."""

from __future__ import annotations

import errno
import json
import queue
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from millrace import durable
from millrace.clock import Clock, SystemClock
from millrace.engine.driver import letters
from millrace.engine.driver import planner as planning
from millrace.engine.driver.errands import MOST_IN_A_ROW
from millrace.engine.driver.home.inbox import Mailbox
from millrace.engine.driver.home.journal import (
    REPEAT_S,
    EventTeller,
    StatusBoard,
)
from millrace.engine.driver.home.newest import STALE_S
from millrace.engine.driver.home.reader import InboxReader
from millrace.engine.driver.letters import decode_letters, encode_letters, replay_of
from millrace.engine.driver.planner import Pace, Planner
from millrace.engine.driver.process import DriverProcess
from millrace.engine.program.cutting import cut_intent
from millrace.errors import (
    ExitCode,
    NewerFormatError,
    SourceAwayError,
    SourceError,
    StateServerError,
)
from millrace.homes.documents import Ask, Proposal, Request, Status
from millrace.homes.memory import MemoryInbox
from millrace.homes.stores import HomeAwayError
from millrace.logs.repeats import TEXTS_KEPT
from millrace.protocol import events as e
from millrace.protocol.codec import decode, encode
from millrace.protocol.record import Backoff, first_record, set_aside
from millrace.protocol.types import (
    Components,
    DeadSegment,
    FailedRoot,
    Intent,
    Member,
    Replay,
    RootRange,
    Tag,
)
from millrace.sources.base import Source, SourcePlan
from millrace.state.inboxfiles import InboxFiles
from millrace.state.journalfiles import JournalFiles

ROOT = Replay("lines", 1, 7, 4, 0.0, {"f": "a.txt"}, "split", "ValueError: no", False)
SEGMENT = "1.12.1.1/dead"


class Broken:
    """A source of one's own that fails in ways of its own."""

    name = "lines"

    def on_news(self, tell):
        pass

    def plan(self, offsets, max_records):
        raise ConnectionResetError("the feed went away")

    def payload(self, root):
        raise KeyError("a.txt")


class MuteError(Exception):
    """An exception that cannot say what it is."""

    def __str__(self):
        raise TypeError("__str__ returned non-string")


class Failing:
    """A source whose plans raise in turn what is in ``errors``; ``None`` stands for a record."""

    name = "lines"

    def __init__(self, *errors):
        self.errors = list(errors)
        self.looks = 0

    def on_news(self, tell):
        pass

    def plan(self, offsets, max_records):
        self.looks += 1
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        start = offsets or 0
        return SourcePlan((RootRange(self.name, 1, start, 1),), start + 1, False, 0)


class Asked:
    """A planner of these sources, and what it posts and tells."""

    def __init__(self, *sources):
        self.posted, self.notices = queue.SimpleQueue(), queue.SimpleQueue()
        pace = Pace(0.0, 60.0)
        post, tell = self.posted.put, self.notices.put
        self.planner = Planner(sources, 10, pace, SystemClock(), post, tell)
        self.planner.start()
        self.token = 0

    def ask(self):
        self.token += 1
        self.planner.ask(e.Plan(self.token, {}))

    def answer(self):
        self.ask()
        return self.posted.get(timeout=30)

    def told(self):
        """What was told; the planner is stopped."""
        self.planner.stop()
        return [self.notices.get_nowait() for _ in range(self.notices.qsize())]


@pytest.fixture
def hasty(monkeypatch):
    """Pauses that no test has to wait for."""
    monkeypatch.setattr(planning, "BREAKAGE_PAUSES_S", (0.0, 0.01, 0.02, 0.03))


RESET = ConnectionResetError("the feed went away")
AWAY = SourceAwayError("source 'lines': /texts does not exist; put it there")
LEAVES = SystemExit(3)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (RESET, "source 'lines': planning raised ConnectionResetError: the feed went away"),
        (AWAY, str(AWAY)),
    ],
)
def test_a_source_that_cannot_plan_for_now_is_asked_again_and_told_of_once(hasty, error, cause):
    source = Failing(*[error] * (MOST_IN_A_ROW - 1))
    asked = Asked(source)
    assert asked.answer().offsets == {"lines": 1}
    assert source.looks == MOST_IN_A_ROW
    away, back = asked.told()
    assert away.warning
    assert (away.kind, back.kind) == ("SourceAway", "SourceBack")
    assert away.text.startswith(f"{cause}; nothing new is planned")
    assert back.text == "source 'lines' can be read again"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RESET, "ConnectionResetError: the feed went away, 5 times in a row"),
        (AWAY, str(AWAY)),
        (LEAVES, "SystemExit: 3, 5 times in a row"),
        (MuteError(), "MuteError, 5 times in a row"),
    ],
)
def test_one_that_never_can_stops_the_driver_with_its_text(hasty, error, text):
    source = Failing(*[error] * MOST_IN_A_ROW)
    asked = Asked(source)
    failed = asked.answer()
    assert isinstance(failed, e.PlanFailed)
    assert text in failed.text
    assert failed.code is ExitCode.SOURCE
    assert source.looks == MOST_IN_A_ROW
    assert [notice.kind for notice in asked.told()] == ["SourceAway"]


def test_only_failures_in_a_row_count(hasty):
    few = [RESET] * (MOST_IN_A_ROW - 1)
    asked = Asked(Failing(*few, None, *few, None, *few))
    assert [type(asked.answer()) for _ in range(3)] == [e.Planned] * 3
    assert [notice.kind for notice in asked.told()] == ["SourceAway", "SourceBack"] * 3


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SourceError("a.txt has shrunk"), ExitCode.SOURCE),
        (NewerFormatError("offsets of a newer release"), ExitCode.NEWER_FORMAT),
    ],
)
def test_input_that_is_wrong_is_not_tried_again(error, code):
    source = Failing(error)
    asked = Asked(source)
    assert asked.answer() == e.PlanFailed(1, str(error), code)
    assert source.looks == 1
    assert asked.told() == []


def test_a_source_that_says_it_will_be_back_is_waited_for_as_long_as_it_says_so(hasty):
    coming = SourceError("its server starts")
    coming.retryable = True
    asked = Asked(Failing(*[coming] * (2 * MOST_IN_A_ROW), RESET, coming))
    assert isinstance(asked.answer(), e.Planned)
    away, back = asked.told()
    assert away.text.startswith("source 'lines': its server starts; ")
    assert back.kind == "SourceBack"


def test_the_pauses_between_tries_grow():
    """They are those of windows that run again, the last of which repeats."""
    told = []
    troubles = planning.SourceTroubles(told.append)
    coming = SourceError("its server starts")
    coming.retryable = True
    raised = planning.PlanRaisedError("lines", coming)
    assert [troubles.failed(raised) for _ in range(6)] == [0.0, 0.5, 2.0, 8.0, 8.0, 8.0]
    troubles.worked(["lines"])
    assert troubles.failed(raised) == 0.0


def test_a_source_that_was_not_asked_is_not_said_to_be_back():
    """Once the others have filled the window nobody knows of it."""
    told = []
    troubles = planning.SourceTroubles(told.append)
    troubles.failed(planning.PlanRaisedError("b", RESET))
    troubles.worked(["a"])
    assert [notice.kind for notice in told] == ["SourceAway"]
    troubles.worked(["a", "b"])
    assert [notice.kind for notice in told] == ["SourceAway", "SourceBack"]


def test_while_a_source_is_away_a_newer_question_takes_the_place_of_the_older(monkeypatch):
    """It is no reason to hurry: the source is asked when its pause is over."""
    monkeypatch.setattr(planning, "BREAKAGE_PAUSES_S", (0.5,))
    source = Failing(RESET)
    asked = Asked(source)
    asked.ask()
    until(lambda: source.looks == 1)
    began_s = time.monotonic()
    planned = asked.answer()
    assert planned.token == 2
    assert time.monotonic() - began_s >= 0.25
    asked.planner.stop()


def test_a_planner_whose_source_is_away_stops_at_once(monkeypatch):
    monkeypatch.setattr(planning, "BREAKAGE_PAUSES_S", (600.0,))
    source = Failing(RESET)
    asked = Asked(source)
    asked.ask()
    until(lambda: source.looks == 1)
    assert [notice.kind for notice in asked.told()] == ["SourceAway"]
    assert asked.posted.empty()


def test_a_source_that_never_answers_does_not_keep_the_driver_from_its_end(monkeypatch):
    monkeypatch.setattr(planning, "CALL_END_S", 0.01)
    asks, answers = threading.Event(), threading.Event()
    source = Failing()
    source.plan = lambda *_: asks.set() or answers.wait()
    asked = Asked(source)
    asked.ask()
    assert asks.wait(30)
    ending = threading.Thread(target=asked.planner.stop, daemon=True)
    ending.start()
    ending.join(30)
    assert not ending.is_alive()
    answers.set()


class Endless:
    """A source that always has more; its offsets are how much of it was planned."""

    def __init__(self, name):
        self.name = name

    def on_news(self, tell):
        pass

    def plan(self, offsets, max_records):
        start = offsets or 0
        piece = RootRange(self.name, 1, start, max_records)
        return SourcePlan((piece,), start + max_records, False, 0)


@pytest.mark.parametrize("max_records", [1, 2, 3, 4, 7])
def test_windows_smaller_than_the_number_of_sources_starve_none(max_records):
    names = ["a", "b", "c"]
    events: queue.SimpleQueue[e.Event] = queue.SimpleQueue()
    sources = [Endless(name) for name in names]
    planner = Planner(sources, max_records, Pace(0.0, 0.1), SystemClock(), events.put)
    planner.start()
    offsets = {}
    for token in range(30):
        planner.ask(e.Plan(token, offsets))
        planned = events.get(timeout=30)
        assert sum(piece.count for piece in planned.ranges) == max_records
        assert [p.source for p in planned.ranges] == sorted(p.source for p in planned.ranges)
        offsets = planned.offsets
    planner.stop()
    assert sum(offsets.values()) == 30 * max_records
    assert max(offsets.values()) - min(offsets.values()) <= max_records


class Filling(Endless):
    """More comes in behind its one record while nothing is planned."""

    waiting = 0

    def plan(self, offsets, max_records):
        return SourcePlan((RootRange(self.name, 1, offsets or 0, 2),), 2, False, self.waiting)

    def lag(self, offsets):
        assert offsets == 2
        return self.waiting


def until(look):
    end_s = time.monotonic() + 30
    while not look():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_the_lag_counts_what_no_window_has_taken_also_while_one_runs():
    events: queue.SimpleQueue[e.Event] = queue.SimpleQueue()
    source = Filling("lines")
    planner = Planner([source], 2, Pace(0.0, 0.1), SystemClock(), events.put)
    assert planner.lag_records is None
    planner.start()
    planner.ask(e.Plan(1, {}))
    events.get(timeout=30)
    assert planner.lag_records == 2  # planned, in no window yet
    source.waiting = 7
    until(lambda: planner.lag_records == 9)
    source.waiting = 8
    until(lambda: planner.lag_records == 10)
    planner.stop()
    planner.taken({"lines": 1})
    assert planner.lag_records == 10
    planner.taken({"lines": 2})
    assert planner.lag_records == 8  # a window has the two


def test_of_a_source_that_is_away_nobody_knows_the_lag(monkeypatch):
    monkeypatch.setattr(planning, "BREAKAGE_PAUSES_S", (0.05,) * 100)
    away = threading.Event()

    class Leaving(Filling):
        def plan(self, offsets, max_records):
            if away.is_set():
                raise RESET
            return super().plan(offsets, max_records)

        def lag(self, offsets):
            if away.is_set():
                raise RESET
            return super().lag(offsets)

    events: queue.SimpleQueue[e.Event] = queue.SimpleQueue()
    sources = [Leaving("lines"), Endless("others")]
    planner = Planner(sources, 4, Pace(0.0, 0.1), SystemClock(), events.put)
    planner.start()
    planner.ask(e.Plan(1, {}))
    events.get(timeout=30)
    assert planner.lag_records == 4
    away.set()
    planner.ask(e.Plan(2, {}))
    until(lambda: planner.lag_records is None)
    away.clear()
    events.get(timeout=30)
    assert planner.lag_records == 4
    planner.stop()


class Vanishing:
    """A source that notices something at its first look and has a record at its second."""

    name = "lines"

    def on_news(self, tell):
        pass

    def plan(self, offsets, max_records):
        if offsets is None:
            return SourcePlan((), "noticed", False, 0)
        return SourcePlan((RootRange("lines", 1, 0, 1),), [offsets], False, 0)


def test_what_a_source_notices_without_a_record_counts_from_the_next_look_on():
    events: queue.SimpleQueue[e.Event] = queue.SimpleQueue()
    planner = Planner([Vanishing()], 1, Pace(0.0, 0.1), SystemClock(), events.put)
    planner.start()
    planner.ask(e.Plan(1, {}))
    assert events.get(timeout=30).offsets == {"lines": ["noticed"]}
    planner.stop()


class Trickle:
    """Has what it was given, and can say when that is more."""

    name = "lines"

    def __init__(self):
        self.there = 0
        self.looks = 0

    def on_news(self, tell):
        self.tell = tell

    def plan(self, offsets, max_records):
        self.looks += 1
        start = offsets or 0
        found = min(max_records, self.there - start)
        pieces = (RootRange(self.name, 1, start, found),) if found else ()
        return SourcePlan(pieces, start + found, False, 0)

    def lag(self, offsets):
        return None


def of_a_trickle(pace):
    source, events = Trickle(), queue.SimpleQueue()
    planner = Planner([source], 100, pace, SystemClock(), events.put)
    planner.start()
    return source, planner, events


def test_while_no_window_runs_one_record_is_planned_at_once():
    source, planner, events = of_a_trickle(Pace(0.0, 60.0))
    for token in range(1, 4):
        planner.ask(e.Plan(token, {"lines": token - 1}))
        source.there = token
        assert events.get(timeout=30).offsets == {"lines": token}
    planner.stop()


def test_while_a_window_runs_the_next_one_gathers_until_that_is_over():
    source, planner, events = of_a_trickle(Pace(0.0, 60.0))
    planner.busy(True)
    planner.ask(e.Plan(1, {}))
    source.there = 1
    until(lambda: planner.lag_records == 1)
    source.there = 2
    until(lambda: planner.lag_records == 2)
    assert events.empty()
    planner.busy(False)
    assert events.get(timeout=30).offsets == {"lines": 2}
    planner.stop()


def test_sources_are_looked_at_behind_what_a_window_that_runs_waits_for():
    """And at once where none runs."""
    source, events, waits = Trickle(), queue.SimpleQueue(), threading.Semaphore(0)
    planner = Planner(
        [source], 1, Pace(0.0, 60.0), SystemClock(), events.put, give_way=waits.acquire
    )
    planner.start()
    source.there = 2
    planner.ask(e.Plan(1, {}))
    assert events.get(timeout=30).offsets == {"lines": 1}
    planner.busy(True)
    planner.ask(e.Plan(2, {"lines": 1}))
    with pytest.raises(queue.Empty):
        events.get(timeout=0.1)
    waits.release()
    assert events.get(timeout=30).offsets == {"lines": 2}
    planner.stop()


def test_no_plan_waits_longer_than_the_longest_interval_whatever_runs():
    source, planner, events = of_a_trickle(Pace(0.0, 0.2))
    planner.busy(True)
    source.there = 1
    began_s = time.monotonic()
    planner.ask(e.Plan(1, {}))
    assert events.get(timeout=30).offsets == {"lines": 1}
    assert time.monotonic() - began_s >= 0.2
    planner.stop()


def test_plans_that_are_not_full_keep_the_least_interval_and_full_ones_do_not():
    source, planner, events = of_a_trickle(Pace(0.3, 60.0))
    posted = []
    for token, there in enumerate([1, 2, 150, 250], start=1):
        planner.ask(e.Plan(token, {"lines": source.there}))
        source.there = there
        events.get(timeout=30)
        posted.append(time.monotonic())
    assert posted[1] - posted[0] >= 0.25
    assert posted[3] - posted[2] < 0.25
    planner.stop()


def test_a_source_that_has_news_is_asked_before_its_turn(monkeypatch):
    monkeypatch.setattr(planning, "POLL_S", 60.0)
    source, planner, events = of_a_trickle(Pace(0.0, 60.0))
    planner.ask(e.Plan(1, {}))
    until(lambda: source.looks == 1)
    source.there = 1
    source.tell()
    assert events.get(timeout=30).offsets == {"lines": 1}
    planner.stop()


def test_news_without_an_end_and_without_a_record_keep_nobody_busy():
    source, planner, events = of_a_trickle(Pace(0.0, 60.0))
    planner.ask(e.Plan(1, {}))
    end_s = time.monotonic() + 0.5
    while time.monotonic() < end_s:
        source.tell()
    planner.stop()
    assert events.empty()
    assert 2 <= source.looks <= 0.5 / planning.LEAST_PAUSE_S + 5


class OfTuples(Source):
    """A source whose locators are no JSON as they are."""

    def schema(self):
        return pa.schema([("n", pa.int64())])

    def plan(self, offsets, max_records):
        return SourcePlan((self.range_of("a", 0, 4, {"at": (1, ("b", None))}),), 4, True)

    def read(self, piece):
        raise NotImplementedError

    def split(self, piece, count):
        first, second = super().split(piece, count)
        return replace(first, locator=(1, 2)), replace(second, locator=(2, 3))


def test_an_intent_that_is_read_is_the_one_that_was_planned(tmp_path):
    """Else a driver whose members change takes its own window for one that has not begun."""
    source = OfTuples("lines", {}, tmp_path)
    found = planning.look([source], {}, 10)
    intent = Intent(1, found.ranges)
    assert intent.ranges[0].locator == {"at": [1, ["b", None]]}
    for one in (intent, *cut_intent(intent, 2, {"lines": source})):
        assert decode(Intent, encode(one)) == one


class Elsewhere(OfTuples):
    """A source whose second halves are of another partition."""

    def split(self, piece, count):
        first, second = Source.split(self, piece, count)
        return first, replace(second, partition=second.partition + 1)


def test_what_a_range_is_cut_into_is_of_its_own_partition(tmp_path):
    """Records of another one would be read under the numbers of those that were planned."""
    source = Elsewhere("lines", {}, tmp_path)
    intent = Intent(1, planning.look([source], {}, 10).ranges)
    with pytest.raises(
        SourceError, match=r"'lines': split\(piece, 2\) of partition .* must be of the"
    ):
        list(cut_intent(intent, 2, {"lines": source}))


class OfNothing(OfTuples):
    """A source that plans ranges of so many records."""

    count = 0

    def plan(self, offsets, max_records):
        piece = self.range_of("a", 0, 4)
        return SourcePlan((piece, replace(piece, start=4, count=self.count)), 4)


@pytest.mark.parametrize("count", [0, -30])
def test_a_range_without_a_record_is_never_made_a_window_of(count, tmp_path):
    source = OfNothing("lines", {}, tmp_path)
    source.count = count
    with pytest.raises(planning.PlanRaisedError) as raised:
        planning.look([source], {}, 10)
    assert f"'lines' planned a range of {count} records" in str(raised.value.__cause__)


def test_a_source_whose_news_fail_is_asked_all_the_same():
    source, events = Trickle(), queue.SimpleQueue()
    source.on_news = Broken().plan
    planner = Planner([source], 100, Pace(0.0, 60.0), SystemClock(), events.put)
    planner.start()
    planner.ask(e.Plan(1, {}))
    source.there = 1
    assert events.get(timeout=30).offsets == {"lines": 1}
    planner.stop()


def test_a_letter_is_written_whatever_its_payload_does():
    (letter,) = decode_letters(encode_letters([ROOT], {"lines": Broken()}))
    assert letter["payload"] is None
    assert "a.txt" in letter["payloadError"]


def test_letters_that_are_too_large_together_are_written_without_some_payloads(monkeypatch):
    monkeypatch.setattr(letters, "MOST_BYTES", 3_000)
    sizes = {1: 1_000, 2: 2_500, 3: 500}
    source = SimpleNamespace(
        place=lambda root: "a.txt", payload=lambda root: b"x" * sizes[root.offset]
    )
    roots = [replace(ROOT, offset=offset) for offset in sizes]
    written = decode_letters(encode_letters(roots, {"lines": source}))
    held = [one["payload"] and len(one["payload"]) for one in written]
    assert held == [1_000, None, 500]
    assert "MiB" in written[1]["payloadError"]
    assert [replay_of(one).offset for one in written] == [1, 2, 3]


def test_a_letter_that_had_all_its_replays_gets_one_more_under_a_number_of_its_own():
    """The ids of its tree are made of the number, so that none may come twice."""
    backoff, root, numbers = Backoff(3, 1.0), ROOT, []
    for _ in range(3):
        (letter,) = decode_letters(encode_letters([root], {"lines": Broken()}))
        again = replay_of(letter)
        assert (again.delay_s, again.locator) == (0.0, ROOT.locator)
        numbers.append(again.number)
        window = Intent(9, (), (again,))
        failed = [FailedRoot(0, "split", "ValueError: no")]
        replays, (root,) = set_aside(window, failed, backoff, lambda *_: None)
        assert replays == ()
    assert numbers == [5, 6, 7]


def test_a_letter_that_was_never_replayed_has_its_replays_before_it():
    """A record that could not be decoded, say, and fails for another reason once it is mended."""
    (letter,) = decode_letters(encode_letters([replace(ROOT, number=0)], {"lines": Broken()}))
    window = Intent(9, (), (replay_of(letter),))
    failed = [FailedRoot(0, "split", "ValueError: no")]
    (again,), dead = set_aside(window, failed, Backoff(3, 1.0), lambda *_: None)
    assert (again.number, dead) == (2, ())


class Requests:
    """A mailbox whose state server can be away."""

    def __init__(self, folder):
        self.folder = folder / "requests"
        self.folder.mkdir()
        self.away = False
        self.data = encode_letters([ROOT], {"lines": Broken()})
        self.box = Mailbox(
            InboxFiles(folder / "proposal.json", folder / "requests"), self.fetch, lambda _: None
        )

    def fetch(self, name):
        if self.away or name != SEGMENT:
            raise StateServerError(f"object {name} is on none of its owners")
        return self.data

    def ask(self, **changes):
        body = {"action": "replay", "segment": SEGMENT, "indexes": [0], **changes}
        (self.folder / "1.json").write_text(json.dumps(body))

    @property
    def left(self):
        return [p.name for p in self.folder.iterdir()]


@pytest.fixture
def requests(tmp_path):
    made = Requests(tmp_path)
    dead = (DeadSegment(SEGMENT, 12, 1, ()),)
    record = replace(first_record("u", Tag(1, 1, 1, 1)), sealed=12, dead=dead)
    made.box.committed(record)
    return made


def test_a_request_waits_for_a_state_server_that_is_away(requests):
    requests.ask()
    requests.away = True
    assert list(requests.box.look()) == []
    assert requests.left == ["1.json"]
    requests.away = False
    (asked,) = requests.box.look()
    assert [(r.offset, r.number) for r in asked.replays] == [(7, 5)]


def test_to_be_stopped_is_asked_for_once_and_done_when_the_driver_ends(requests):
    requests.ask(action="stop", segment="", indexes=[])
    assert list(requests.box.look()) == [e.StopAsked()]
    assert list(requests.box.look()) == []
    assert requests.left == ["1.json"], "the next driver would have to end, too"
    requests.box.stopped()
    assert requests.left == []


def test_a_driver_without_a_record_can_be_stopped(tmp_path):
    waiting = Requests(tmp_path)
    waiting.ask(action="stop")
    assert list(waiting.box.look()) == [e.StopAsked()]


def test_a_request_for_letters_that_are_gone_is_done(requests):
    requests.ask(segment="1.3.1.1/dead")
    assert list(requests.box.look()) == []
    assert requests.left == []


@pytest.mark.parametrize("action", ["replay", "drop"])
@pytest.mark.parametrize("segment", ["1.13.1.1/dead", "2.13.1.1/dead"])
def test_a_request_for_letters_that_this_driver_does_not_know_yet_stays(requests, segment, action):
    """A newer driver may have sealed them, or a record that shows them is on its way."""
    requests.ask(segment=segment, action=action)
    assert list(requests.box.look()) == []
    assert requests.left == ["1.json"]
    newer = replace(first_record("u", Tag(1, 2, 1, 1)), sealed=13)
    requests.box.committed(newer)
    assert list(requests.box.look()) == []
    assert requests.left == [], "nothing is left of them by now"


def test_letters_of_windows_that_a_restore_has_taken_back_are_gone(requests):
    requests.box.committed(replace(first_record("u", Tag(2, 3, 1, 1)), sealed=5))
    requests.ask(segment="1.12.1.1/dead")
    assert list(requests.box.look()) == []
    assert requests.left == []


def test_an_overtaken_driver_leaves_the_stop_to_the_newer_one():
    inbox, newer = MemoryInbox(), [True]
    box = Mailbox(inbox, lambda _: b"", lambda _: None, overtaken=lambda: newer[0])
    inbox.ask(Request(Ask.STOP))
    assert list(box.look()) == [e.StopAsked()]
    box.stopped()
    assert len(inbox.requests()) == 1
    newer[0] = False
    box.stopped()
    assert inbox.requests() == []


def test_a_letter_whose_source_is_gone_is_not_replayed(requests):
    """Whether that is known when it is asked for, or is only about to be."""
    dead = (DeadSegment(SEGMENT, 12, 1, ()),)
    record = replace(first_record("u", Tag(1, 1, 1, 1)), sealed=12, dead=dead)
    edited = replace(record, components=Components(1, {"other": 0}, {}, {}))
    requests.ask()
    assert [type(asked) for asked in requests.box.look()] == [e.DeadLetterRequest]
    requests.box.committed(edited)
    assert requests.left == []
    assert list(requests.box.look()) == []
    requests.ask()
    assert list(requests.box.look()) == []
    assert requests.left == []
    requests.ask(action="drop")
    assert [asked.replays for asked in requests.box.look()] == [()]


@pytest.mark.parametrize(
    "changes", [{"indexes": [9]}, {"indexes": None}, {"action": 3, "segment": 4}]
)
def test_a_request_that_means_nothing_is_dropped(requests, changes):
    requests.ask(**changes)
    list(requests.box.look())
    assert requests.left == []


class Standing(Clock):
    """Stands still unless it is moved."""

    at_s = 0.0

    def now_s(self):
        return self.at_s

    def monotonic_s(self):
        return self.at_s


class Told:
    """Notices that are heard each second, and when which of them are written."""

    def __init__(self, folder):
        self.clock, self.file = Standing(), folder / "events.jsonl"
        self.events = EventTeller(JournalFiles(folder / "status.json", self.file), self.clock)

    def hear(self, seconds, *notices):
        """The (second, text) of what is written meanwhile, both ends with it."""
        before = len(self.written())
        for _ in range(seconds + 1):
            for notice in notices:
                self.events.add(notice)
            self.clock.at_s += 1
        return self.written()[before:]

    def written(self):
        lines = self.file.open() if self.file.exists() else ()
        return [(one["time"], one["text"]) for one in map(json.loads, lines)]


def held_up(text, **more):
    return e.Notify("WindowHeldUp", text, 3, warning=True, **more)


def test_a_warning_that_repeats_itself_is_written_after_longer_and_longer_pauses(tmp_path):
    told = Told(tmp_path)
    seconds = [second for second, _ in told.hear(3000, held_up("away"))]
    assert seconds == [0, 30, 90, 210, 450, 930, 1530, 2130, 2730]


def test_troubles_at_the_same_time_are_told_as_often_as_each_alone(tmp_path):
    told = Told(tmp_path)
    full = e.Notify("PublishFailed", "no room", 2, warning=True)
    assert told.hear(60, held_up("away"), full, held_up("later")) == [
        (second, text) for second in (0, 30) for text in ("away", "no room", "later")
    ]


def test_a_warning_that_was_silent_for_a_while_is_news(tmp_path):
    told = Told(tmp_path)
    told.hear(100, held_up("away"))
    told.clock.at_s += REPEAT_S
    assert len(told.hear(0, held_up("away"))) == 1


def test_a_trouble_that_was_said_to_be_over_is_news(tmp_path):
    told = Told(tmp_path)
    first, second = (
        e.Notify("StateServerAway", f"{name} is away", warning=True, server=name)
        for name in ("state-0", "state-1")
    )
    source = e.Notify("SourceAway", "it is away", warning=True)
    back = e.Notify("StateServerBack", "state-0 answers again", server="state-0")
    assert len(told.hear(0, first, second, source)) == 3
    assert [text for _, text in told.hear(0, back, first, second, source, back, first)] == [
        back.text,
        first.text,
        back.text,
        first.text,
    ]


def test_what_is_no_warning_happened_as_often_as_it_is_told(tmp_path):
    told = Told(tmp_path)
    scaled = e.Notify("AckersScaled", "3 ackers")
    assert len(told.hear(2, scaled, scaled)) == 6


def test_only_so_many_warnings_are_remembered(tmp_path):
    told = Told(tmp_path)
    many = [held_up(str(number)) for number in range(TEXTS_KEPT)]
    told.hear(0, *many)
    assert told.hear(0, *many) == []
    told.hear(0, held_up("one more"))
    assert len(told.events._repeats) == TEXTS_KEPT
    assert len(told.hear(0, many[0])) == 1


def test_a_status_that_cannot_be_written_stops_nothing(tmp_path):
    gone = tmp_path / "gone"
    board = StatusBoard(
        JournalFiles(gone / "status.json", gone / "events.jsonl"), Standing(), "uid"
    )
    board.change(state="running")
    board.tell(force=True)
    gone.mkdir()
    board.tell(force=True)
    assert json.loads((gone / "status.json").read_text())["state"] == "running"


def test_where_a_disk_has_no_room_for_another_file_the_status_is_written_over(
    tmp_path, monkeypatch
):
    """Else nobody would hear that all input is processed."""

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    journal = JournalFiles(tmp_path / "status.json", tmp_path / "events.jsonl")
    journal.tell(Status(1, "running", "running", reason="a long one"))
    monkeypatch.setattr(durable, "replace", full)
    journal.tell(Status(1, "drained", "running"))
    assert journal.status().state == "drained"


class Unanswered(MemoryInbox):
    """An inbox of which parts do not answer."""

    def __init__(self, *parts):
        super().__init__()
        self.parts = set(parts)

    def _answer(self, part):
        if part in self.parts:
            raise HomeAwayError(f"{part} does not answer")

    def requests(self):
        self._answer("requests")
        return super().requests()

    def done(self, token):
        self._answer("done")
        super().done(token)


def looked_at(inbox):
    """What a reader posts within two looks, and what is left to say when the inbox is mended."""
    posted: queue.SimpleQueue[e.Event] = queue.SimpleQueue()
    away: queue.SimpleQueue[HomeAwayError] = queue.SimpleQueue()
    box = Mailbox(inbox, lambda _: b"", lambda _: None)
    reader = InboxReader(box, posted.put, away.put, posted.put)
    reader.committed(first_record("u", Tag(1, 1, 1, 1)))
    reader.start()
    return reader, posted, away


def test_a_proposal_is_heard_though_requests_cannot_be_read():
    inbox = Unanswered("requests")
    stays, leaves = Member("state-0", "run-2"), Member("state-1", "run-1")
    inbox.propose(Proposal((stays,), (), 7, leaving=(leaves,)))
    reader, posted, away = looked_at(inbox)
    assert posted.get(timeout=30) == e.MembersSeen((stays,), 7, (leaves,))
    assert "requests does not answer" in str(away.get(timeout=30))
    inbox.ask(Request(Ask.STOP))
    inbox.parts.clear()
    assert posted.get(timeout=30) == e.StopAsked()
    reader.stop(orderly=True)
    assert inbox.requests() == []


def test_a_stop_is_heard_though_no_request_can_be_put_away():
    inbox = Unanswered("done")
    inbox.ask(Request(Ask.DROP, "1.3.1.1/dead", (0,)))
    inbox.ask(Request(Ask.STOP))
    reader, posted, _ = looked_at(inbox)
    assert posted.get(timeout=30) == e.StopAsked()
    reader.stop(orderly=False)
    assert posted.empty()


def test_a_request_that_cannot_be_read_keeps_no_other_from_being_heard(requests, monkeypatch):
    requests.ask(action="stop")
    (requests.folder / "0.json").write_text("{}")
    whole = Path.read_bytes

    def read_bytes(path):
        if path.name == "0.json":
            raise PermissionError(13, "Permission denied")
        return whole(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    assert list(requests.box.look()) == [e.StopAsked()]
    assert sorted(requests.left) == ["0.json", "1.json"]


def proposing(*numbers: int) -> tuple[MemoryInbox, Mailbox, Standing, list[int]]:
    """An inbox that has shown these proposals, one a look, and the numbers of those taken."""
    inbox, clock = MemoryInbox(), Standing()
    box = Mailbox(inbox, lambda _: b"", lambda _: None, clock=clock)
    return (
        inbox,
        box,
        clock,
        [taken for number in numbers for taken in proposed(inbox, box, number)],
    )


def proposed(inbox: MemoryInbox, box: Mailbox, number: int) -> list[int]:
    """The numbers taken at a look at the proposal with this one."""
    inbox.propose(Proposal((Member("state-0", f"run-{number}"),), (), number))
    return [event.number for event in box.look() if isinstance(event, e.MembersSeen)]


def test_a_proposal_of_an_operator_that_was_replaced_is_passed_over():
    inbox, box, clock, taken = proposing(7, 8, 7)
    assert taken == [7, 8]
    clock.at_s += STALE_S - 1
    assert proposed(inbox, box, 7) == []
    assert proposed(inbox, box, 8) == [], "it is in force"
    clock.at_s += 2
    assert proposed(inbox, box, 7) == [], "who leads has written meanwhile"
    assert proposed(inbox, box, 9) == [9]


def test_numbers_begin_anew_in_an_inbox_that_was_lost():
    inbox, box, _, _ = proposing(8)
    inbox._proposal = None
    assert list(box.look()) == []
    assert proposed(inbox, box, 1) == [1]


def test_numbers_begin_anew_in_an_inbox_whose_loss_nobody_saw():
    inbox, box, clock, taken = proposing(8, 1)
    assert taken == [8]
    clock.at_s += STALE_S
    assert proposed(inbox, box, 1) == [1]
    assert proposed(inbox, box, 2) == [2]


def test_proposals_without_numbers_all_count():
    """Those of a supervisor on one machine."""
    inbox, box, _, _ = proposing(0)
    inbox.propose(Proposal((Member("state-0", "run-9"),), ()))
    assert list(box.look()) == [e.MembersSeen((Member("state-0", "run-9"),), 0)]


def test_owners_of_a_key_group_are_on_different_nodes_where_they_are_told():
    inbox = Unanswered()
    names = [f"state-{number}" for number in range(4)]
    members = tuple(Member(name, "run-1") for name in names)
    nodes = {name: f"node-{number % 2}" for number, name in enumerate(names)}
    inbox.propose(Proposal(members, (), 1, tuple(nodes.items())))
    box = Mailbox(inbox, lambda _: b"", lambda _: None)
    driver = SimpleNamespace(_settings=SimpleNamespace(key_groups=128, copies=2))
    seen = next(box.look())
    assert seen == e.MembersSeen(members, 1)
    placed = DriverProcess._owners(driver, seen.members, ((),) * 128)  # type: ignore[arg-type]
    assert all({nodes[name] for name in group} == {"node-0", "node-1"} for group in placed)
