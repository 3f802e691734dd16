"""How documents of older formats are read: one step from each format to the next, in order.

A format changes by a new number in ``types.FORMAT`` and one entry here: for each kind of document
that is written otherwise a pure function from its value in the older format to that in the next,
both as plain JSON. Kinds without one are the same in both. What was read is written again in
today's format, so a document goes through the steps once.

A field that only came to a document, with a default, needs no step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from millrace.errors import ProtocolError
from millrace.protocol.types import FORMAT

Plain = dict[str, Any]
Steps = Mapping[int, Mapping[str, Callable[[Plain], Plain]]]


def upgraded(kind: str, number: int, value: Plain, steps: Steps, last: int = FORMAT) -> Plain:
    """The value of a document of format ``number`` as format ``last`` would have it.

    ``value`` is not changed. Raises ``ProtocolError`` for a format that no release wrote.
    """
    for step in range(number, last):
        if step not in steps:
            raise ProtocolError(f"there has never been a format {number}")
        change = steps[step].get(kind)
        value = value if change is None else change(value)
    return value


# --- 1 to 2: a replay says how long it waits; it said until when, by a clock that may have jumped


def _replay(replay: Plain) -> Plain:
    """Due at once, since its clock means nothing any more."""
    rest = {name: part for name, part in replay.items() if name != "due_s"}
    return rest | {"delay_s": 0.0} if "due_s" in replay else rest


def _replays(value: Plain, *names: str) -> Plain:
    return value | {n: [_replay(one) for one in value[n]] for n in names if n in value}


def _within(value: Plain, name: str, change: Callable[[Plain], Plain]) -> Plain:
    """``value`` with a part changed, or with each of a list of parts; parts may be left out."""
    part = value.get(name)
    if part is None:
        return value
    return value | {name: [change(one) for one in part] if type(part) is list else change(part)}


def _intent(intent: Plain) -> Plain:
    return _replays(intent, "replays")


def _roots(roots: Plain) -> Plain:
    return _within(_replays(roots, "replays", "letters"), "intent", _intent)


def _sealed(sealed: Plain) -> Plain:
    return _within(sealed, "roots", _roots)


def _planned(value: Plain) -> Plain:
    return _within(value, "intent", _intent)


def _record(record: Plain) -> Plain:
    waiting = _replays(record, "replays")
    return _within(_within(waiting, "intents", _intent), "unpublished", _sealed)


STEPS: Steps = {
    1: {
        "Replay": _replay,
        "Intent": _intent,
        "Roots": _roots,
        "Sealed": _sealed,
        "CloseMarker": _planned,
        "AttemptPlan": _planned,
        "Record": _record,
    }
}
