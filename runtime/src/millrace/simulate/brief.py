"""Short words for the values in a trace, so that one step fits on one line."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from enum import Enum

from millrace.protocol import types as t


def brief(value: object) -> str:
    """Any value of the protocol or the history in a few words."""
    form = _FORMS.get(type(value))
    if form is not None:
        return form(value)
    if isinstance(value, Enum):
        return str(value.value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = (f"{f.name}={brief(getattr(value, f.name))}" for f in dataclasses.fields(value))
        return f"{type(value).__name__}({' '.join(parts)})"
    if isinstance(value, (tuple, list)):
        return f"[{' '.join(brief(one) for one in value)}]"
    if isinstance(value, (frozenset, set)):
        return f"{{{' '.join(sorted(brief(one) for one in value))}}}"
    if isinstance(value, float):
        return f"{value:.3f}"
    return str(value)


def _record(r: t.Record) -> str:
    return (
        f"<record {brief(r.tag)} sealed {r.sealed} published {r.published} "
        f"open {brief(r.intents)} replays {brief(r.replays)} dead {len(r.dead)}>"
    )


def _view(v: t.View) -> str:
    return (
        f"<view epoch {v.epoch} {v.phase.value} execution {v.execution} "
        f"{brief(v.last_open)} to {brief(v.target)} open at {v.open_epoch}>"
    )


def _intent(i: t.Intent) -> str:
    ranges = " ".join(f"{r.source}{r.partition}:{r.start}+{r.count}" for r in i.ranges)
    return f"<{i.window}: {ranges} {brief(i.replays)}>"


_FORMS: dict[type, Callable[..., str]] = {
    t.Record: _record,
    t.View: _view,
    t.Intent: _intent,
    t.Member: lambda m: f"{m.name}/{m.run_id}",
    t.Stamp: lambda s: f"e{s.epoch}x{s.execution}",
    t.Tag: str,
    t.AttemptId: str,
    t.TaskId: lambda a: f"{a.pass_no}/{a.partition}/{a.task_attempt}",
    t.Replay: lambda r: f"{r.source}{r.partition}:{r.offset}#{r.number}",
    t.Sealed: lambda s: f"<sealed {s.window} {s.digest[:6]}>",
    t.AttemptPlan: lambda p: f"<{brief(p.id)} {brief(p.intent)} without {brief(p.excluded)}>",
    t.Segment: lambda s: f"{s.name}{'=' if s.base else '+'}{s.groups:x}",
}
