"""Dead letters for the command line: read from the record, replayed or dropped by the driver.

Reading goes to the state servers of the living run; where none lives, the embedded servers are
started for a moment, and a run that starts meanwhile waits. Replaying and dropping is asked for by
a file in ``requests/``: the driver applies it together with the next seal, the next driver if
none lives. Asking twice for the same letter changes nothing.

A letter has an id for good, after the object that it was first written in. Meanwhile it may have
been carried over to others: a request names the one in which it was found, and its index there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from millrace.engine.driver.letters import (
    REMEDY,
    DamagedLettersError,
    are_intact,
    letters_of,
    origins,
    payload_fields,
    payload_of,
)
from millrace.errors import MillraceError, NewerFormatError
from millrace.homes.documents import Ask, Request
from millrace.homes.stores import Inbox
from millrace.ids import WindowNumber
from millrace.local.inspect.reading import committed_record, fetch, reachable
from millrace.local.takeover import current_holder
from millrace.local.workdir import WorkFolder
from millrace.protocol.names import LettersObject, read_name, spoken
from millrace.protocol.record import holding, replayable
from millrace.protocol.types import DeadSegment, Record
from millrace.state.readable import Readable


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter. ``payload`` is None where the source could not give it any more.

    It is at ``index`` in the object ``segment``. ``first`` is the object of its ``window`` that it
    was first written in and its place among those that were, None where these are the same.
    ``where`` says in words where its record is found, ``trace`` shows the user's lines that raised
    the error; both are empty in letters of an older release.
    ``asked`` is ``replay`` or ``drop`` if that was asked for and has not happened yet; ``gone``
    says that its source was removed, and that a source of that name now is another one.
    ``damaged`` says why nothing but its object is known, and what to do; that has letters from
    window ``since`` (0: from ``window``) to ``window``.
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
    first: tuple[str, int] | None = None
    since: int = 0

    @property
    def object(self) -> str:
        """What the user calls the object that it was written in with others of its window."""
        return spoken(self._first[0])

    @property
    def id(self) -> str:
        """What the user calls it: ``<execution>.<window>.<attempt>.<epoch>:<place>``."""
        return f"{self.object}:{self._first[1]}"

    @property
    def names(self) -> tuple[str, ...]:
        """What may stand for it on the command line, alone or with others.

        Of an object that is damaged and has letters of several windows nobody knows which is which:
        what one of them was called may be another's there.
        """
        together = self.object, str(self.window)
        if self.damaged and self.since not in (0, self.window):
            return together
        return *together, self.id, f"{self.window}:{self._first[1]}"

    @property
    def _first(self) -> tuple[str, int]:
        return self.first or (self.segment, self.index)

    @property
    def windows(self) -> str:
        """Of which windows its object has letters, in words."""
        if self.since in (0, self.window):
            return f"window {self.window}"
        return f"windows {self.since} to {self.window}"

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
    requests = [asked.request for asked in inbox.requests()]
    asked = _asked(requests, record)
    letters: list[Letter] = []
    for segment in record.dead:
        found = _object(clients, record, segment)
        if found is None:
            continue
        if found.record is not record:
            asked |= _asked(requests, found.record)
        try:
            entries = _entries(found.segment, found.data)
        except (DamagedLettersError, NewerFormatError) as error:
            letters += _unreadable(found.segment, str(error), asked)
        else:
            letters += _letters(found.record, found.segment, entries, asked)
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


@dataclass(frozen=True, slots=True)
class _Object:
    """A segment of a committed record and its object, None where no server has it."""

    record: Record
    segment: DeadSegment
    data: bytes | None


def _object(clients: Sequence[Readable], record: Record, segment: DeadSegment) -> _Object | None:
    """What has the letters of a segment: where the living run has carried them over meanwhile, that
    object; None where they were all taken out."""
    while True:
        data = fetch(clients, segment.name, are_intact)
        if data is not None:
            return _Object(record, segment, data)
        latest = committed_record(clients)
        held = None if latest is None else holding(latest, segment.name)
        if latest is None or held is None:
            return None
        if held.name == segment.name:
            return _Object(record, segment, None)
        record, segment = latest, held


def _entries(segment: DeadSegment, data: bytes | None) -> list[dict[str, Any]]:
    """Raises ``DamagedLettersError``, ``NewerFormatError``."""
    if data is None:
        raise DamagedLettersError(f"no state server holds this object of dead letters; {REMEDY}")
    return letters_of(segment, data)


def _letters(
    record: Record,
    segment: DeadSegment,
    entries: Sequence[dict[str, Any]],
    asked: dict[tuple[str, int], str],
) -> Iterator[Letter]:
    removed = set(segment.removed)
    firsts = origins(segment.name, entries)
    for index, (first, entry) in enumerate(zip(firsts, entries, strict=True)):
        if index in removed:
            continue
        window = _window(first[0], segment)
        yield Letter(
            segment.name,
            index,
            window,
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
            gone=not replayable(record, entry["source"], window),
            first=first,
        )


def _window(name: str, segment: DeadSegment) -> WindowNumber:
    """The window of the letters that were first written in the object of this name."""
    made = read_name(name)
    return made.attempt.window if isinstance(made, LettersObject) else segment.window


def _unreadable(
    segment: DeadSegment, why: str, asked: dict[tuple[str, int], str]
) -> Iterator[Letter]:
    since = _window(segment.first, segment)
    for index in range(segment.count):
        if index not in segment.removed:
            known = asked.get((segment.name, index))
            unknown = ("", 0, 0, 0, "", "", None)
            yield Letter(
                segment.name, index, segment.window, *unknown, known, damaged=why, since=since
            )


def _asked(requests: Sequence[Request], record: Record) -> dict[tuple[str, int], str]:
    """What requests ask for, by segment of the record and index there."""
    found: dict[tuple[str, int], str] = {}
    for request in requests:
        segment = holding(record, request.segment) if request.indexes else None
        if segment is not None:
            found |= dict.fromkeys(
                ((segment.name, index) for index in request.indexes), request.action.value
            )
    return found


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
