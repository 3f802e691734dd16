"""What is known about a topology on this machine, alive or not, as one document."""

from __future__ import annotations

from typing import Any

from millrace import checked
from millrace.errors import MillraceError
from millrace.homes import codec
from millrace.homes.documents import Status
from millrace.local.files import read_json
from millrace.local.inspect.table import process_rows
from millrace.local.takeover import current_holder
from millrace.local.workdir import WorkFolder
from millrace.snapshots import timelines
from millrace.state.viewfile import ViewFile

_FIGURES = (
    "execution",
    "epoch",
    "phase",
    "members",
    "sealed",
    "published",
    "window",
    "spark",
    "totals",
    "pendingReplays",
    "deadLetters",
    "lagRecords",
    "rootsPerS",
    "timings",
    "memory",
    "updated",
    "reason",
)

_WARNING = "tracking is off: a tuple that is lost on the way goes unnoticed"

_DAMAGED = "status.json is damaged, so there are no figures; the next millrace run writes it anew"


def overview(folder: WorkFolder) -> dict[str, Any]:
    """State, figures and processes.

    ``state`` is starting, running or ending while a run is alive; then how it ended: drained,
    asked, fenced, failed, or killed. Figures are those of the last driver, null before the first.
    """
    holder = current_holder(folder.path)
    figures = folder.journal.status()
    told = codec.plain(figures)
    rows = process_rows(folder) if holder is not None else []
    spec = _spec(folder)
    tracked = spec.get("tracking", "On") == "On" and spec.get("guarantee") != "AtMostOnce"
    return {
        "name": folder.identity.name,
        "uid": folder.uid,
        "workdir": str(folder.path),
        "topology": folder.identity.topology,
        "alive": holder is not None,
        "run": holder.generation if holder is not None else None,
        "state": _state(holder is not None, figures, {row.pid for row in rows}),
        "guarantee": spec.get("guarantee"),
        "tracking": "On" if tracked else "Off",
        "warnings": [
            *([] if tracked or not spec else [_WARNING]),
            *([_DAMAGED] if figures == Status() and folder.status.exists() else []),
        ],
        **{name: told[name] for name in _FIGURES},
        "bytesPerRoot": bytes_per_root(folder),
        "restored": _restored(folder),
        "requests": len(list(folder.requests.glob("*.json"))),
        "processes": [row.document() for row in rows],
    }


def _restored(folder: WorkFolder) -> dict[str, Any] | None:
    """The restore that began the present timeline; None in the first one, or where none is known.

    ``last`` is the last window that was given up for it, and ``lost`` says whether all copies of
    some state were gone; else somebody asked for it.
    """
    try:
        _, view = ViewFile(folder.view).read()
        forks = timelines.read(folder.path)
    except MillraceError:
        return None
    if view is None:
        return None
    return next((codec.plain(one) for one in forks if one.timeline == view.timeline), None)


def _spec(folder: WorkFolder) -> dict[str, Any]:
    """The topology's ``spec``; empty where none can be believed."""
    try:
        found = checked.decode(folder.topology.read_bytes()).get("spec")
    except (OSError, checked.DamagedError):
        return {}
    return found if isinstance(found, dict) else {}


def bytes_per_root(folder: WorkFolder) -> float | None:
    """Bytes of check values that the ackers held for each root they judged; None before that."""
    figures = [read_json(path) for path in folder.ackers.glob("acker-*.json")]
    known = [
        (one["roots"], one["bytes"])
        for one in figures
        if isinstance(one, dict) and {type(one.get(k)) for k in ("roots", "bytes")} == {int}
    ]
    roots = sum(roots for roots, _ in known)
    return round(sum(size for _, size in known) / roots, 3) if roots > 0 else None


def _state(alive: bool, figures: Status, pids: set[int]) -> str:
    written = figures.state or "starting"
    if not alive:
        known = figures != Status()
        return "killed" if written in ("starting", "running") and known else written
    if written in ("starting", "running"):
        # Figures of a driver that is gone say nothing about the one that is coming.
        return written if figures.pid in pids else "starting"
    return "ending" if figures.pid in pids else "starting"
