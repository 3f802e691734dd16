"""Names of the snapshots that a topology takes by itself, and which of them have had their time."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from millrace.protocol.types import Record
from millrace.snapshots.reading import Entry
from millrace.snapshots.timelines import Line

_AUTO = "auto"
_OWN = re.compile(rf"{_AUTO}-.{{8}}-[0-9]+\.[0-9]+\.[0-9]+")


@dataclass(frozen=True, slots=True)
class Retention:
    """How many of them are kept, and for how long; the newest one always is. Those that a restore
    left, which no other restore can go back to, are the first to go."""

    keep: int
    max_age_s: float | None = None


def own_name(record: Record) -> str:
    """What the snapshot of a record is called: nobody else gives this name."""
    tag = record.tag
    return f"{_family(record.uid)}{tag.timeline}.{tag.execution}.{record.sealed}"


def is_of_another(name: str, uid: str) -> bool:
    """Whether by its name another topology, or another life of this one, took a snapshot."""
    return _OWN.fullmatch(name) is not None and not name.startswith(_family(uid))


def is_own(name: str, uid: str) -> bool:
    """Whether by its name this life of a topology took a snapshot by itself."""
    return _OWN.fullmatch(name) is not None and name.startswith(_family(uid))


def is_kept(found: Iterable[Entry], record: Record) -> bool:
    """Whether the topology took one of this window already, in whichever execution."""
    wanted = (record.tag.timeline, record.sealed)
    whole = (e for e in found if e.manifest is not None and e.manifest.uid == record.uid)
    return any(is_own(e.name, record.uid) and _age(e) == wanted for e in whole)


def outdated(
    found: Iterable[Entry], record: Record, retention: Retention, now_s: float, line: Line
) -> list[str]:
    """Names of those to be deleted: the topology's own, older than ``record``'s execution where
    they were never finished. What a user asked for stays. ``line`` is what led to ``record``. Those
    of a later timeline are not its business: whoever finds one has been replaced, and would take
    them for the first to go."""
    mine = [entry for entry in found if is_own(entry.name, record.uid)]
    dead = [e.name for e in mine if e.unfinished and _execution(e.name) < record.tag.execution]
    whole = [e for e in mine if e.manifest is not None and e.manifest.uid == record.uid]
    whole = [entry for entry in whole if _age(entry)[0] <= record.tag.timeline]
    whole.sort(key=lambda entry: (not line.lacks(*_age(entry)), _age(entry)), reverse=True)
    late = []
    for place, entry in enumerate(whole[1:], 1):
        assert entry.manifest is not None
        age_s = now_s - entry.manifest.created
        if place >= retention.keep or (
            retention.max_age_s is not None and age_s > retention.max_age_s
        ):
            late.append(entry.name)
    return [*dead, *late]


def _age(entry: Entry) -> tuple[int, int]:
    assert entry.manifest is not None
    return entry.manifest.decoded.tag.timeline, entry.manifest.window


def _family(uid: str) -> str:
    return f"{_AUTO}-{uid[:8]}-"


def _execution(name: str) -> int:
    numbers = name.rpartition("-")[2].split(".")
    return int(numbers[1]) if len(numbers) == 3 and numbers[1].isdecimal() else 0
