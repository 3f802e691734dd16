"""Dead letters for the command line: read from the record, replayed or dropped by the driver.

Reading goes to the state servers of the living run; where none lives, the embedded servers are
started for a moment, and a run that starts meanwhile waits. Replaying and dropping is asked for by
a file in ``requests/``: the driver applies it together with the next seal, the next driver if
none lives. Asking twice for the same letter changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from millrace.engine.driver.letters import (
    DamagedLettersError,
    are_intact,
    decode_letters,
    payload_fields,
    payload_of,
)
from millrace.errors import MillraceError, NewerFormatError
from millrace.homes.documents import Ask, Request
from millrace.homes.stores import Inbox
from millrace.local.inspect.reading import committed_record, fetch, reachable
from millrace.local.takeover import current_holder
from millrace.local.workdir import WorkFolder
from millrace.protocol.names import spoken
from millrace.protocol.record import replayable
from millrace.protocol.types import DeadSegment, Record
from millrace.state.readable import Readable


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter. ``payload`` is None where the source could not give it any more.

    ``where`` says in words where its record is found, ``trace`` shows the user's lines that raised
    the error; both are empty in letters of an older release.
    ``asked`` is ``replay`` or ``drop`` if that was asked for and has not happened yet; ``gone``
    says that its source was removed, and that a source of that name now is another one.
    ``damaged`` says why nothing but its id and window is known, and what to do.
    """

    segment: str
    index: int
    window: int
    source: str
    partition: int
    offset: int
    replays: int
    processor: str
    error: str
    payload: bytes | None
    asked: str | None = None
    where: str = ""
    trace: str = ""
    gone: bool = False
    damaged: str = ""

    @property
    def object(self) -> str:
        """What the user calls the object that holds it with others of its window."""
        return spoken(self.segment)

    @property
    def id(self) -> str:
        """What the user calls it: ``<execution>.<window>.<attempt>.<epoch>:<index>``."""
        return f"{self.object}:{self.index}"

    @property
    def names(self) -> tuple[str, ...]:
        """What may stand for it on the command line, alone or with others."""
        return self.id, self.object, f"{self.window}:{self.index}", str(self.window)

    def document(self) -> dict[str, Any]:
        """As ``--json`` shows it; bytes that are no UTF-8 come in base64, what is unknown null."""
        plain: dict[str, Any] = {
            "id": self.id,
            "window": self.window,
            "source": self.source,
            "partition": self.partition,
            "offset": self.offset,
            "where": self.where,
            "replays": self.replays,
            "processor": self.processor,
            "error": self.error,
            "trace": self.trace,
            "asked": self.asked,
            "sourceGone": self.gone,
            "damaged": self.damaged or None,
        }
        if self.damaged:
            known = ("id", "window", "asked", "damaged")
            unknown = dict.fromkeys(["payload", "payloadEncoding"])
            return {key: plain[key] if key in known else None for key in plain} | unknown
        return {**plain, **payload_fields(self.payload)}


def read_letters(folder: WorkFolder) -> list[Letter]:
    """All dead letters of a topology, oldest window first.

    Those of an object that is damaged, lost or of a newer format are there too, as ``damaged``.
    Raises ``StateServerError`` where no state server can be reached.
    """
    with reachable(folder) as clients:
        return letters_on(clients, folder.inbox)


def letters_on(clients: Sequence[Readable], inbox: Inbox) -> list[Letter]:
    """The same, of state servers wherever they are; ``inbox`` says what was asked for."""
    record = committed_record(clients)
    if record is None:
        return []
    asked = _asked(inbox)
    letters: list[Letter] = []
    for segment in record.dead:
        data = fetch(clients, segment.name, are_intact)
        if data is None and _forgotten(clients, segment.name):
            continue
        try:
            entries = _entries(segment, data)
        except (DamagedLettersError, NewerFormatError) as error:
            letters += _unreadable(segment, str(error), asked)
        else:
            letters += _letters(record, segment, entries, asked)
    return letters


def ask(folder: WorkFolder, action: str, letters: Collection[Letter]) -> bool:
    """Ask for letters to be replayed or dropped; whether a run is alive to do so now."""
    ask_in(folder.inbox, action, letters)
    return current_holder(folder.path) is not None


def ask_in(inbox: Inbox, action: str, letters: Collection[Letter]) -> None:
    """``action`` is ``replay`` or ``drop``; letters that were asked for already are left alone."""
    by_segment: dict[str, list[int]] = {}
    for letter in letters:
        if letter.asked is None:
            by_segment.setdefault(letter.segment, []).append(letter.index)
    for segment, indexes in by_segment.items():
        inbox.ask(Request(Ask(action), segment, tuple(sorted(indexes))))


def _entries(segment: DeadSegment, data: bytes | None) -> list[dict[str, Any]]:
    """Raises ``DamagedLettersError``, ``NewerFormatError``."""
    if data is None:
        raise DamagedLettersError(
            "no state server holds this object of dead letters; bring back the state server's "
            "append-only file from a copy, or give its letters up with millrace dead-letters drop"
        )
    entries = decode_letters(data)
    if len(entries) != segment.count:
        raise DamagedLettersError(
            f"this object holds {len(entries)} dead letters and not {segment.count}; bring back "
            "the state server's append-only file from a copy, or give its letters up with "
            "millrace dead-letters drop"
        )
    return entries


def _letters(
    record: Record,
    segment: DeadSegment,
    entries: Sequence[dict[str, Any]],
    asked: dict[tuple[str, int], str],
) -> Iterator[Letter]:
    for index, entry in enumerate(entries):
        if index in segment.removed:
            continue
        yield Letter(
            segment.name,
            index,
            segment.window,
            entry["source"],
            entry["partition"],
            entry["offset"],
            entry["number"],
            entry["processor"],
            entry["error"],
            payload_of(entry),
            asked.get((segment.name, index)),
            str(entry.get("where", "")),
            str(entry.get("trace", "")),
            gone=not replayable(record, entry["source"], segment.window),
        )


def _unreadable(
    segment: DeadSegment, why: str, asked: dict[tuple[str, int], str]
) -> Iterator[Letter]:
    for index in range(segment.count):
        if index not in segment.removed:
            known = asked.get((segment.name, index))
            unknown = ("", 0, 0, 0, "", "", None)
            yield Letter(segment.name, index, segment.window, *unknown, known, damaged=why)


def _asked(inbox: Inbox) -> dict[tuple[str, int], str]:
    """What requests ask for, by (segment, index)."""
    return {
        (asked.request.segment, index): asked.request.action.value
        for asked in inbox.requests()
        for index in asked.request.indexes
    }


def _forgotten(clients: Sequence[Readable], name: str) -> bool:
    """Whether the living run has sealed meanwhile that an object counts no more."""
    record = committed_record(clients)
    return record is None or all(segment.name != name for segment in record.dead)


def chosen(letters: Sequence[Letter], ids: Sequence[str]) -> list[Letter]:
    """The letters that ``ids`` name: by their id or ``<window>:<index>``, or all of a window.

    Raises ``MillraceError`` for an id that names none.
    """
    found: list[Letter] = []
    for wanted in ids:
        named = [one for one in letters if wanted in one.names]
        if not named:
            raise MillraceError(
                f"dead letter {wanted}: there is none of that id; millrace dead-letters list "
                "shows them all"
            )
        found += [one for one in named if one not in found]
    return found
