"""What is listed of dead letters while a run carries them over from one object to the next."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from millrace.homes.documents import Ask, Request
from millrace.homes.memory import MemoryInbox
from millrace.local.inspect.letters import letters_on
from millrace.protocol.codec import encode_record
from millrace.protocol.record import first_record
from millrace.protocol.server import MISSING, Found, Stamped
from millrace.protocol.types import DeadSegment, Record, Tag

OLD, NEW, OTHER = "1.4.1.1/dead", "1.7.1.1/dead", "1.2.1.1/dead"


def letter(offset: int, **more: str) -> dict[str, Any]:
    return {
        "source": "lines",
        "partition": 0,
        "offset": offset,
        "number": 3,
        "processor": "p",
        "error": "no",
        "alone": False,
        "locator": None,
        "payload": "x",
        "payloadEncoding": "utf-8",
        **more,
    }


def data(*letters: dict[str, Any]) -> bytes:
    return json.dumps({"format": 1, "letters": letters}).encode()


BEFORE = {OTHER: data(letter(1)), OLD: data(letter(2), letter(3))}
BEHIND = {
    OTHER: BEFORE[OTHER],
    NEW: data(letter(2, object=OLD), letter(3, object=OLD), letter(8)),
}


def record(*dead: DeadSegment) -> Record:
    made = first_record("u", Tag(1, 1, 1, dead[-1].window))
    return replace(made, sealed=dead[-1].window, dead=dead)


FIRST = record(DeadSegment(OTHER, 2, 1), DeadSegment(OLD, 4, 2))
SECOND = record(DeadSegment(OTHER, 2, 1), DeadSegment(NEW, 7, 3, (0,), OLD))


class Server:
    """The only one, whose run does ``meanwhile`` behind the first look at the record."""

    def __init__(self, meanwhile: Callable[[Server], None]) -> None:
        self.record, self.held = FIRST, BEFORE
        self._meanwhile: Callable[[Server], None] | None = meanwhile

    def peek(self) -> Stamped:
        reply = Stamped(encode_record(self.record), self.record.tag)
        if self._meanwhile is not None:
            self._meanwhile(self)
            self._meanwhile = None
        return reply

    def get_parts(self, _: None, parts: list[tuple[str, int, int]]) -> tuple[Any, ...]:
        return tuple(Found(self.held[n]) if n in self.held else MISSING for n, _, _ in parts)


def listed(meanwhile: Callable[[Server], None], inbox: MemoryInbox) -> list[tuple[str, int, Any]]:
    found = letters_on([Server(meanwhile)], inbox)  # type: ignore[list-item]
    assert not any(one.damaged for one in found)
    return [(one.id, one.offset, one.asked) for one in found]


def carries_over(server: Server) -> None:
    server.record, server.held = SECOND, BEHIND


def test_letters_are_found_in_the_object_that_has_them_by_then() -> None:
    inbox = MemoryInbox()
    inbox.ask(Request(Ask.REPLAY, OLD, (0, 1)))
    found = listed(carries_over, inbox)
    assert found == [("1.2.1.1:0", 1, None), ("1.4.1.1:1", 3, "replay"), ("1.7.1.1:0", 8, None)]


def test_letters_that_were_taken_out_meanwhile_are_not_listed() -> None:
    def taken(server: Server) -> None:
        server.record, server.held = record(DeadSegment(OTHER, 2, 1)), {OTHER: BEFORE[OTHER]}

    assert listed(taken, MemoryInbox()) == [("1.2.1.1:0", 1, None)]


def test_an_object_that_the_record_still_names_and_nobody_has_is_lost() -> None:
    def loses(server: Server) -> None:
        server.held = {OTHER: BEFORE[OTHER]}

    found = letters_on([Server(loses)], MemoryInbox())  # type: ignore[list-item]
    assert [(one.id, bool(one.damaged)) for one in found] == [
        ("1.2.1.1:0", False),
        ("1.4.1.1:0", True),
        ("1.4.1.1:1", True),
    ]


def test_letters_that_are_not_carried_over_are_read_once() -> None:
    assert listed(lambda _: None, MemoryInbox()) == [
        ("1.2.1.1:0", 1, None),
        ("1.4.1.1:0", 2, None),
        ("1.4.1.1:1", 3, None),
    ]
