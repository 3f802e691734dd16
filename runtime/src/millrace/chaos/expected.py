"""What the sinks of a topology should hold: said by a function of the user's, or by a twin.

The twin is the same topology over the same input, run once more in a folder of its own, to its end
and without a kill. It is run by the same release: what that does wrong without kills, too, is wrong
in both, and not seen. A function shares nothing with it.
"""

from __future__ import annotations

import copy
import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millrace.chaos.ledger import Row, RunningTotals, Seen, SinkVerdict, judge, read_rows
from millrace.chaos.plan import ChaosError
from millrace.chaos.target import roots_read
from millrace.local.inspect.letters import Letter, read_letters
from millrace.local.workdir import find_folder
from millrace.topology.kinds.processor_aggregate import (
    AggregateFunction,
    AggregateSettings,
    Emit,
)
from millrace.topology.kinds.sink_files import FilesSink
from millrace.topology.model import Sink, StreamTopology

Expected = Mapping[str, Iterable[Row]]


@dataclass(frozen=True, slots=True)
class Compared:
    """How the rows of a sink are compared: by the last row of each key of ``totals``, or where that
    is None by every row."""

    totals: RunningTotals | None = None

    def judge(self, expected: Iterable[Row], seen: Seen) -> SinkVerdict:
        """Raises ``UnreadableError``."""
        return judge(expected, seen.rows, self.totals, seen.windows)


EVERY_ROW = Compared()


@dataclass(frozen=True, slots=True)
class Judged:
    """A sink whose rows can be read: its folder, and how they are compared."""

    name: str
    folder: Path
    compared: Compared = EVERY_ROW


def judged_sinks(
    topology: StreamTopology, folder: Path, last: Mapping[str, tuple[str, ...]]
) -> tuple[tuple[Judged, ...], tuple[str, ...]]:
    """(files sinks, names of the sinks that cannot be read here).

    Behind an aggregate that shows its changes only the last row of each key counts, for where
    windows end is nobody's promise; ``last`` says so of other sinks. Raises ``ChaosError`` for a
    name that is no such sink.
    """
    found, others = [], []
    for sink in topology.spec.sinks:
        settings = sink.settings
        if isinstance(settings, FilesSink):
            place = (folder / settings.path).resolve()
            found.append(Judged(sink.name, place, compared(topology, sink, last)))
        else:
            others.append(sink.name)
    for name in last:
        if name not in {one.name for one in found}:
            raise ChaosError(f"--last {name}: is not a files sink of this topology")
    if not found:
        raise ChaosError("no sink of this topology writes files, which are what chaos can read")
    return tuple(found), tuple(others)


def compared(topology: StreamTopology, sink: Sink, last: Mapping[str, tuple[str, ...]]) -> Compared:
    """By its totals where that is what a sink shows, or where ``last`` says so of it."""
    known = _totals(topology, sink)
    columns = last.get(sink.name)
    if columns is None or (known is not None and set(columns) == set(known.key)):
        return Compared(known)
    # A window shows no two rows of a finer key, either; of what else puts rows out it may.
    return Compared(
        RunningTotals(columns, once=known is not None and set(known.key) < set(columns))
    )


def _totals(topology: StreamTopology, sink: Sink) -> RunningTotals | None:
    """Of the aggregate that a sink shows the changes of, if that is all it shows."""
    producers = {one.name: one for one in topology.spec.processors}
    if len(sink.inputs) != 1 or sink.inputs[0].columns:
        return None
    producer = producers.get(sink.inputs[0].producer)
    if producer is None:
        return None
    settings = producer.settings
    if not isinstance(settings, AggregateSettings) or settings.emit is not Emit.CHANGES:
        return None
    counting = [one.name for one in settings.columns if one.function is AggregateFunction.COUNT]
    key = tuple(producer.inputs[0].key)
    # What has expired is counted anew.
    return RunningTotals(key, tuple(counting), once=True, rising=producer.ttl is None)


def named_function(text: str, folder: Path) -> Callable[[Path], Expected]:
    """The function behind ``module:function``, its module looked for beside the topology first.

    Raises ``ChaosError``.
    """
    module, _, name = text.partition(":")
    sys.path.insert(0, str(folder))
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:
        raise ChaosError(
            f"--expect {text!r}: cannot be imported from {folder} ({error})"
        ) from error
    finally:
        sys.path.remove(str(folder))
    if not callable(found):
        raise ChaosError(f"--expect {text!r}: is not a function")
    checked: Callable[[Path], Expected] = found
    return checked


def asked(function: Callable[[Path], Expected], folder: Path, sinks: Iterable[str]) -> Expected:
    """What it says for every sink. Raises ``ChaosError`` where it fails or leaves one out."""
    try:
        told = {name: list(rows) for name, rows in function(folder).items()}
    except Exception as error:
        raise ChaosError(
            f"--expect: the function failed ({type(error).__name__}: {error})"
        ) from error
    missing = [name for name in sinks if name not in told]
    if missing:
        raise ChaosError(f"--expect: the function says nothing of sink {missing[0]!r}")
    return told


@dataclass(frozen=True, slots=True)
class Twin:
    """What a twin came to: its rows by sink, how many roots it read, and its dead letters."""

    rows: Expected
    roots: int
    letters: tuple[Letter, ...]


def twin_document(document: Mapping[str, Any], shown: Path) -> dict[str, Any]:
    """The same topology, to be run once to its end: all its sinks write files below ``shown``, its
    sources are not watched, and it keeps its own state. Other paths of it start where they did."""
    twin = copy.deepcopy(dict(document))
    spec = twin["spec"]
    for source in spec["sources"]:
        if source.get("files"):
            source["files"]["watch"] = False
    for sink in spec["sinks"]:
        kinds = [key for key in sink if key not in ("name", "inputs")]
        written = sink.get("files") or {}
        for kind in kinds:
            del sink[kind]
        sink["files"] = {**written, "path": str(shown / sink["name"])}
    for left in ("snapshots", "onStateLoss", "suspend", "restartNonce"):
        spec.pop(left, None)
    spec["stateServers"] = {}
    spec.setdefault("spark", {}).setdefault("driver", {})["standby"] = 0
    return twin


def run_twin(
    document: Mapping[str, Any],
    folder: Path,
    place: Path,
    sinks: Iterable[Judged],
    timeout_s: float,
) -> Twin:
    """Run the twin below the empty folder ``place``.

    Raises ``ChaosError`` where it does not end well in time.
    """
    shown, log = place / "shown", place / "twin.log"
    # What comes by a pipe lies nowhere: the current folder takes its place. No module of there may
    # take that of one of Python's.
    command = [sys.executable, "-P", "-m", "millrace.cli.app", "run", "/dev/stdin", "--quiet"]
    try:
        with log.open("wb") as said:
            done = subprocess.run(
                [*command, "--workdir", str(place / "work")],
                input=json.dumps(twin_document(document, shown)).encode(),
                cwd=folder,
                stdout=said,
                stderr=said,
                check=False,
                timeout=timeout_s,
            )
    except subprocess.TimeoutExpired:
        raise ChaosError(
            f"the twin did not end within {timeout_s:g} s: a source of it may be endless; say what "
            "is expected with --expect, or give a longer --settle"
        ) from None
    if done.returncode:
        last = log.read_text(errors="replace").strip().splitlines()[-1:] or ["nothing"]
        raise ChaosError(f"the twin ended with exit code {done.returncode}: {last[0][:500]}")
    work = find_folder(place / "work")
    figures = work.journal.status()
    rows = {sink.name: read_rows(shown / sink.name).rows for sink in sinks}
    letters = tuple(read_letters(work)) if figures.dead_letters else ()
    return Twin(rows, roots_read(figures), letters)
