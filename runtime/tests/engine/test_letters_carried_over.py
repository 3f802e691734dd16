"""Objects of dead letters that begin with the letters of older ones: written, read, asked about."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.clock import SystemClock
from millrace.engine.driver import letters as objects
from millrace.engine.driver.errands import Foreground
from millrace.engine.driver.home.inbox import Mailbox
from millrace.engine.driver.home.journal import EventTeller
from millrace.engine.driver.letters import (
    DamagedLettersError,
    carried_over,
    decode_letters,
    encode_letters,
    origins,
    payload_of,
)
from millrace.engine.driver.performer import Equipment, RealPerformer
from millrace.errors import StateServerError
from millrace.homes.documents import Ask, Request
from millrace.homes.memory import MemoryInbox
from millrace.protocol import events as e
from millrace.protocol.record import first_record, take_letters
from millrace.protocol.types import DeadSegment, Record, Replay, Stamp, Tag
from millrace.state.errors import UnreachableError
from millrace.state.journalfiles import JournalFiles

STAMP = Stamp(1, 1)
WAIT_S = 30.0
OLD, NEW = "1.4.1.1/dead", "1.7.1.1/dead"


class Lines:
    """A source whose records are read from ``text``, which may change."""

    name = "lines"

    def __init__(self) -> None:
        self.text = "line"

    def payload(self, root: Replay) -> bytes:
        return f"{self.text} {root.offset}".encode()

    def place(self, root: Replay) -> str:
        return f"a.txt, line {root.offset}"


def root(offset: int) -> Replay:
    return Replay("lines", 0, offset, 3, 0.0, {"at": offset}, "split", "ValueError: no")


def of(*offsets: int) -> bytes:
    return encode_letters([root(n) for n in offsets], {"lines": Lines()})  # type: ignore[dict-item]


def payloads(data: bytes) -> list[bytes | None]:
    return [payload_of(one) for one in decode_letters(data)]


class Servers:
    """What owners hold, and what befalls who asks them; ``stored`` is told of every try."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.stored: list[tuple[str, bytes]] = []
        self.away: StateServerError | None = None
        self.fails: list[StateServerError] = []

    def fetch(
        self, name: str, groups: int = 0, digest: str = "", most_bytes: int | None = None
    ) -> bytes:
        assert most_bytes is not None, "no more than may be carried over is read"
        if self.away is not None:
            raise self.away
        if name not in self.held or len(self.held[name]) > most_bytes:
            raise StateServerError(f"{name} is not there, or too large")
        return self.held[name]

    def put_everywhere(self, stamp: Stamp, name: str, data: bytes) -> None:
        self.stored.append((name, data))
        if self.fails:
            raise self.fails.pop()
        self.held[name] = data


class Bench:
    def __init__(self, folder: Path) -> None:
        self.servers, self.source = Servers(), Lines()
        self.events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        journal = JournalFiles(folder / "status.json", folder / "events.jsonl")
        part = SimpleNamespace(stop=lambda *_: None)
        names = ("view", "verdicts", "planner", "publisher", "mailbox")
        parts = Equipment(
            **dict.fromkeys(names, part),  # type: ignore[arg-type]
            stores=self.servers,  # type: ignore[arg-type]
            events=EventTeller(journal, SystemClock()),
            sources={"lines": self.source},  # type: ignore[dict-item]
            runner=None,  # type: ignore[arg-type]
            committed=lambda _: None,
            running=lambda _: None,
            settle=lambda: None,
            foreground=Foreground(),
        )
        self.performer = RealPerformer(parts, self.events.put, self.events.put)

    def write(self, action: e.WriteDead) -> list[Any]:
        """What is posted of it, once it is done."""
        self.performer.perform(action)
        mark = object()
        self.performer._asking.do(mark, lambda: [mark])  # type: ignore[list-item]
        found = []
        while (event := self.events.get(timeout=WAIT_S)) is not mark:
            found.append(event)
        return found


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    made.servers.held[OLD] = of(1, 2)
    yield made
    made.performer.close()


def asked(name: str = NEW, count: int = 2) -> e.WriteDead:
    """Two letters behind the two of another object."""
    return e.WriteDead(name, STAMP, 7, (root(5), root(6)), DeadSegment(OLD, 4, count))


def test_letters_that_are_carried_over_come_first_as_they_were(bench: Bench) -> None:
    before = decode_letters(bench.servers.held[OLD])
    assert bench.write(asked()) == [e.DeadWritten(NEW, carried=True)]
    data = bench.servers.held[NEW]
    assert payloads(data) == [b"line 1", b"line 2", b"line 5", b"line 6"]
    assert [{**one, "object": OLD} for one in before] == decode_letters(data)[:2]
    assert list(origins(NEW, decode_letters(data))) == [(OLD, 0), (OLD, 1), (NEW, 0), (NEW, 1)]


def test_without_a_segment_to_go_on_with_nothing_is_read(bench: Bench) -> None:
    bench.servers.away = UnreachableError("nobody asks it")
    assert bench.write(replace(asked(), after=None)) == [e.DeadWritten(NEW)]
    assert payloads(bench.servers.held[NEW]) == [b"line 5", b"line 6"]


NOT_TO_BE_HAD: dict[str, Callable[[Bench], None]] = {
    "away": lambda b: setattr(b.servers, "away", UnreachableError("for a moment")),
    "lost": lambda b: b.servers.held.clear(),
    "damaged": lambda b: b.servers.held.update({OLD: of(1, 2)[:-9] + b"x" * 9}),
    "another count": lambda b: b.servers.held.update({OLD: of(1, 2, 3)}),
    "newer": lambda b: b.servers.held.update({OLD: b'{"format": 99, "letters": [1, 2]}'}),
    "too large": lambda b: b.servers.held.update({OLD: of(*range(3000))}),
}


@pytest.mark.parametrize("how", NOT_TO_BE_HAD)
def test_letters_that_cannot_be_had_are_not_waited_for(bench: Bench, how: str) -> None:
    """They stay where they are, and the next window goes on with the new ones."""
    NOT_TO_BE_HAD[how](bench)
    count = 3000 if how == "too large" else 2
    assert bench.write(asked(count=count)) == [e.DeadWritten(NEW)]
    assert payloads(bench.servers.held[NEW]) == [b"line 5", b"line 6"]
    assert bench.events.empty()
    bench.servers.away = None
    after = DeadSegment(NEW, 7, 2)
    third = e.WriteDead("1.8.1.1/dead", STAMP, 8, (root(9),), after)
    assert bench.write(third) == [e.DeadWritten(third.name, carried=True)]
    assert payloads(bench.servers.held[third.name]) == [b"line 5", b"line 6", b"line 9"]


@pytest.mark.parametrize("first", ["carried over", "away"])
def test_what_is_stored_again_under_a_name_is_what_was_stored_before(
    bench: Bench, first: str
) -> None:
    """Some owners may have it, whatever is there by then to be read."""
    carried = first == "carried over"
    if not carried:
        bench.servers.away = UnreachableError("for a moment")
    bench.servers.fails = [UnreachableError("an owner is away")] * 2
    assert bench.write(asked()) == []
    bench.source.text = "another"
    bench.servers.away = None if not carried else UnreachableError("by now")
    assert bench.write(asked()) == []
    assert bench.write(asked()) == [e.DeadWritten(NEW, carried)]
    assert len(bench.servers.stored) == 3
    assert len({data for _, data in bench.servers.stored}) == 1


def test_what_every_owner_has_is_not_written_again(bench: Bench) -> None:
    """It may be sealed by then, and what it was made of be gone."""
    assert bench.write(asked()) == [e.DeadWritten(NEW, carried=True)]
    bench.servers.held.clear()
    assert bench.write(asked()) == [e.DeadWritten(NEW, carried=True)]
    assert [name for name, _ in bench.servers.stored] == [NEW]


def test_another_name_is_another_object(bench: Bench) -> None:
    """Of another view, say: what is read then is what counts."""
    assert bench.write(asked()) == [e.DeadWritten(NEW, carried=True)]
    bench.servers.away = UnreachableError("for a moment")
    assert bench.write(asked("1.7.1.2/dead")) == [e.DeadWritten("1.7.1.2/dead")]


# --- their form


def test_a_letter_keeps_the_object_that_it_was_first_written_in() -> None:
    sources: Any = {"lines": Lines()}
    middle = encode_letters([root(3)], sources, carried_over(DeadSegment(OLD, 4, 2), of(1, 2)))
    segment = DeadSegment(NEW, 7, 3, (0,), OLD)
    last = decode_letters(encode_letters([root(8)], sources, carried_over(segment, middle)))
    firsts = list(origins("1.9.1.1/dead", last))
    assert firsts == [(OLD, 0), (OLD, 1), (NEW, 0), ("1.9.1.1/dead", 0)]
    assert [one["offset"] for one in last] == [1, 2, 3, 8]


def test_letters_of_a_release_before_are_carried_over_and_checked_from_then_on() -> None:
    old = of(1, 2).partition(b"\n")[2]
    document = json.loads(old)
    for one in document["letters"]:
        del one["where"], one["trace"]
    old = json.dumps({**document, "format": 1}).encode()
    carried = carried_over(DeadSegment(OLD, 4, 2), old)
    new = encode_letters([], {}, carried)
    assert [one["object"] for one in decode_letters(new)] == [OLD, OLD]
    with pytest.raises(DamagedLettersError):
        decode_letters(new.replace(b"line 1", b"line 7"))


def test_the_payloads_that_are_carried_over_count_towards_the_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(objects, "MOST_BYTES", len(of(1, 2)) + 100)
    carried = carried_over(DeadSegment(OLD, 4, 2), of(1, 2))
    data = encode_letters([root(3)], {"lines": Lines()}, carried)  # type: ignore[dict-item]
    assert payloads(data) == [b"line 1", b"line 2", None]


def test_a_letter_whose_object_has_no_name_is_damaged() -> None:
    (letter,) = decode_letters(of(1))
    data = json.dumps({"format": 1, "letters": [{**letter, "object": 7}]}).encode()
    with pytest.raises(DamagedLettersError):
        decode_letters(data)


# --- requests for them


def held(*dead: DeadSegment) -> Record:
    record = replace(first_record("u", Tag(1, 1, 1, 1)), sealed=dead[-1].window, dead=dead)
    return replace(record, last_dead=dead[-1].window)


def test_a_request_by_an_older_object_reads_the_one_that_has_the_letters_now() -> None:
    data = encode_letters(
        [root(5)],
        {"lines": Lines()},  # type: ignore[dict-item]
        carried_over(DeadSegment(OLD, 4, 2), of(1, 2)),
    )
    record = held(DeadSegment(NEW, 7, 3, (), OLD))
    inbox = MemoryInbox()
    there = {NEW: data}
    box = Mailbox(inbox, there.__getitem__, lambda _: None)
    box.committed(record)
    inbox.ask(Request(Ask.REPLAY, OLD, (1,)))
    (asked,) = box.look()
    assert isinstance(asked, e.DeadLetterRequest)
    assert (asked.segment, asked.indexes) == (OLD, (1,))
    assert [one.offset for one in asked.replays] == [2]
    record = take_letters(record, asked.segment, asked.indexes, asked.replays)
    assert record.dead == (DeadSegment(NEW, 7, 3, (1,), OLD),)
    box.committed(record)
    assert inbox.requests() == []


def test_a_request_waits_while_the_letters_are_on_their_way_to_another_object() -> None:
    """The next window is sealed, and this driver's inbox has not heard of it yet."""
    objects_held: dict[str, bytes] = {}

    def fetch(name: str) -> bytes:
        if name not in objects_held:
            raise StateServerError(f"object {name} is on none of its owners")
        return objects_held[name]

    inbox = MemoryInbox()
    box = Mailbox(inbox, fetch, lambda _: None)
    box.committed(held(DeadSegment(OLD, 4, 2)))
    inbox.ask(Request(Ask.REPLAY, OLD, (0,)))
    assert list(box.look()) == []
    objects_held[NEW] = of(1, 2, 5)
    box.committed(held(DeadSegment(NEW, 7, 3, (), OLD)))
    (asked,) = box.look()
    assert isinstance(asked, e.DeadLetterRequest)
    assert [one.offset for one in asked.replays] == [1]


@pytest.mark.parametrize("action", [Ask.REPLAY, Ask.DROP])
def test_a_request_for_what_was_taken_out_of_an_older_object_is_done(action: Ask) -> None:
    inbox = MemoryInbox()
    box = Mailbox(inbox, {}.__getitem__, lambda _: None)
    box.committed(held(DeadSegment(NEW, 7, 3, (0, 1), OLD)))
    inbox.ask(Request(action, OLD, (0, 1)))
    assert list(box.look()) == []
    assert inbox.requests() == []
