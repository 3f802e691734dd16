"""Names of the snapshots that a topology takes by itself, and which of them have had their time."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from millrace.protocol.types import Record
from millrace.snapshots.reading import Entry
from millrace.snapshots.timelines import Fork, Line

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


def leftovers(found: Iterable[Entry], record: Record) -> list[str]:
    """Names of what the topology's drivers left unfinished, up to that of ``record``, which writes
    none now."""
    mine = (entry for entry in found if entry.unfinished and is_own(entry.name, record.uid))
    return [one.name for one in mine if _life(one.name)[1] <= record.tag.execution]


def successor(found: Iterable[Entry], record: Record, forks: Iterable[Fork]) -> str | None:
    """What tells that a driver other than that of ``record`` goes on; None where nothing does. One
    that has been replaced would delete what the present one can go back to."""
    for fork in forks:
        if fork.timeline > record.tag.timeline:
            return f"the topology was restored, as timeline {fork.timeline}"
    for entry in found:
        if is_own(entry.name, record.uid):
            timeline, execution = _life(entry.name)
            if timeline > record.tag.timeline or execution > record.tag.execution:
                return f"{entry.name} is of a later driver"
    return None


def outdated(
    found: Iterable[Entry], record: Record, retention: Retention, now_s: float, line: Line
) -> list[str]:
    """Names of those to be deleted, which are the topology's own. What a user asked for stays.
    ``line`` is what led to ``record``, whose driver has no ``successor``. A damaged one goes, by
    the age that its name tells, once there are as many newer ones on this line as are kept."""
    mine = [entry for entry in found if is_own(entry.name, record.uid)]
    whole = [e for e in mine if e.manifest is not None and e.manifest.uid == record.uid]
    whole.sort(key=lambda entry: (not line.lacks(*_age(entry)), _age(entry)), reverse=True)
    late = []
    for place, entry in enumerate(whole[1:], 1):
        assert entry.manifest is not None
        age_s = now_s - entry.manifest.created
        if place >= retention.keep or (
            retention.max_age_s is not None and age_s > retention.max_age_s
        ):
            late.append(entry.name)
    good = [_age(entry) for entry in whole if not line.lacks(*_age(entry))]
    for entry in mine:
        if entry.damaged and sum(age > _named_age(entry.name) for age in good) >= retention.keep:
            late.append(entry.name)
    return late


def _named_age(name: str) -> tuple[int, int]:
    """The age of an own snapshot that only its name tells."""
    return _life(name)[0], int(name.rpartition(".")[2])


def _age(entry: Entry) -> tuple[int, int]:
    assert entry.manifest is not None
    return entry.manifest.decoded.tag.timeline, entry.manifest.window


def _family(uid: str) -> str:
    return f"{_AUTO}-{uid[:8]}-"


def _life(name: str) -> tuple[int, int]:
    """The timeline and the execution of an own name."""
    timeline, execution, _ = name.rpartition("-")[2].split(".")
    return int(timeline), int(execution)
