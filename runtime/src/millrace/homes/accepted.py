"""The topology as it was last accepted, and which life each component is in.

Every edit that adds or removes components has a number, and a component is known by its name and
the number of the edit that brought it. So the record of the topology, which the driver changes
later, can tell a component from one of the same name that was removed before, however many edits
were accepted meanwhile and wherever a run died. Sinks that were removed are kept as they were
declared: windows that are sealed may still have to be shown there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from millrace.protocol.types import Components

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Retired:
    """A sink that was removed: its name, the number of its life and its declaration."""

    name: str
    number: int
    sink: Document


@dataclass(frozen=True, slots=True)
class Accepted:
    """A topology's document, and the lives of its components. ``tuned`` counts the edits of what a
    driver takes while it runs (``homes.tuning``)."""

    topology: Document
    components: Components
    retired: tuple[Retired, ...] = ()
    tuned: int = 0


def accept(before: Accepted | None, topology: Document) -> Accepted:
    """What is accepted once ``topology`` has followed ``before``."""
    names = {section: _names(topology, section) for section in ("sources", "processors", "sinks")}
    if before is None:
        zeros = {section: dict.fromkeys(listed, 0) for section, listed in names.items()}
        return Accepted(topology, Components(0, **zeros))
    old = asdict(before.components)
    same = all(set(old[section]) == set(listed) for section, listed in names.items())
    if same:
        return replace(before, topology=topology)
    number = before.components.edit + 1
    numbered = {
        section: {name: old[section].get(name, number) for name in listed}
        for section, listed in names.items()
    }
    gone = tuple(
        Retired(one["name"], old["sinks"][one["name"]], one)
        for one in before.topology["spec"]["sinks"]
        if one["name"] not in numbered["sinks"]
    )
    retired = (*before.retired, *gone)
    return Accepted(topology, Components(number, **numbered), retired, before.tuned)


def accepted_from(document: Document) -> Accepted:
    """From its JSON, where ``topology``, ``components`` and ``retired`` are its fields; others are
    left alone. Raises ``KeyError``, ``TypeError``."""
    return Accepted(
        document["topology"],
        Components(**document["components"]),
        retired_from(document["retired"]),
        document.get("tuned", 0),
    )


def retired_from(listed: Iterable[Document]) -> tuple[Retired, ...]:
    """Removed sinks from their JSON. Raises ``KeyError``, ``TypeError``."""
    return tuple(Retired(one["name"], one["number"], one["sink"]) for one in listed)


def _names(topology: Document, section: str) -> list[str]:
    return [part["name"] for part in topology["spec"].get(section, ())]
