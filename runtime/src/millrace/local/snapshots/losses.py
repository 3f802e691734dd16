"""What follows where all copies of some state are gone, and ``onStateLoss`` is Restore.

The run that learns of it from its driver restores the newest snapshot that can be, in its own work
folder, and starts the next driver. Sinks that show more than the snapshot and cannot take it back
refuse that, and so it ends where no snapshot can be used: nothing has been changed then.

===============================  ===============================================================
the process dies right after     what follows
===============================  ===============================================================
the driver has ended             the next run's driver finds the same
a step of the restore            the next run goes on with it before it starts a driver, with the
                                 same snapshot or an older one (``restoring`` has the steps)
the restore                      the next run goes on in the new timeline
===============================  ===============================================================

A snapshot is passed over for an older one only where it is known that it cannot be restored. One
that cannot be read now is waited for: what lies behind the chosen one is given up for good.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from millrace import crash
from millrace.clock import Clock
from millrace.errors import MillraceError, SnapshotError, StateLostError
from millrace.homes.restarts import DELAYS_S
from millrace.local.snapshots.places import place_of_file
from millrace.local.snapshots.restoring import Restored, check_fit, restore_held
from millrace.local.snapshots.unfinished import marked
from millrace.local.workdir import WorkFolder
from millrace.snapshots import timelines
from millrace.snapshots.manifest import Manifest
from millrace.snapshots.places import Place
from millrace.snapshots.reading import entries, faults
from millrace.snapshots.retention import is_of_another
from millrace.state.viewfile import ViewFile
from millrace.topology.load import LoadedTopology

Warn = Callable[[str, str], object]
"""Told the kind and the text of an event."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The snapshot that is restored; ``passed`` says what is wrong with those that are not, though
    they are newer or nobody knows how old."""

    manifest: Manifest
    passed: tuple[str, ...] = ()


def restore_lost(
    loaded: LoadedTopology, folder: WorkFolder, clock: Clock, warn: Warn, pause: Callable[[], None]
) -> Restored:
    """Restore the newest snapshot that can be; the work folder is held.

    ``pause`` is called between steps, and may raise to give up, as a crash would. What may be
    mended, such as a sink or a place that is away, is tried again for some twenty seconds. Raises
    ``StateLostError`` where there is no snapshot, ``SinkError`` where a sink cannot take back what
    it shows, ``SnapshotsAwayError``, and what ``restore`` raises.
    """
    for wait_s in DELAYS_S:
        try:
            restored, passed = _restore(loaded, folder, clock, pause)
            break
        except MillraceError as error:
            if not error.retryable:
                raise
            warn("RestoreFailed", f"{error}; that is tried again")
        pause()
        time.sleep(wait_s)
    else:
        restored, passed = _restore(loaded, folder, clock, pause)
    crash.reached("lost.restored")
    warn("StateRestored", told(restored, passed))
    return restored


def told(restored: Restored, passed: Sequence[str] = ()) -> str:
    """From which window to which a topology went back, and which snapshots it passed over."""
    manifest, last = restored.manifest, restored.last
    text = (
        f"all copies of some state were gone: snapshot {manifest.name} is restored behind window "
        f"{manifest.window}, as timeline {restored.timeline}"
    )
    if last is None:
        text += "; nothing was sealed behind it"
    else:
        text += f"; {windows(manifest.window, last)} given up, and processed again"
    return "; ".join([text, *(f"passed over: {' '.join(one.split())}" for one in passed)])


def windows(behind: int, last: int) -> str:
    """The windows behind one, as the subject of a sentence."""
    if last == behind + 1:
        return f"window {last} is"
    return f"windows {behind + 1} to {last} are"


def _restore(
    loaded: LoadedTopology, folder: WorkFolder, clock: Clock, pause: Callable[[], None]
) -> tuple[Restored, tuple[str, ...]]:
    place = place_of_file(loaded, folder.path, None)
    choice = newest(loaded, folder, place)
    manifest = choice.manifest
    restored = restore_held(loaded, folder, place, manifest, clock, lost=True, pause=pause)
    return restored, choice.passed


def newest(loaded: LoadedTopology, folder: WorkFolder, place: Place) -> Choice:
    """The newest snapshot of this life of the topology that is whole and fits the file.

    Raises ``StateLostError`` with what is wrong with each where there is none,
    ``SnapshotsAwayError`` where one that may be the newest cannot be read now.
    """
    found, broken = _candidates(folder, place)
    reasons: list[str] = []
    for manifest in found:
        fault = _unfit(loaded, place, manifest)
        if fault is None:
            return Choice(manifest, (*reasons, *broken))
        reasons.append(fault)
    text = (
        f"{folder.identity.name}: no state server has its state any more, and {place.shown} holds "
        "no snapshot of it that can be restored. Bring back the append-only file of a state "
        "server, restore a snapshot from elsewhere with millrace snapshot restore, or start over "
        "with --fresh; spec.snapshots.every takes snapshots for the next time"
    )
    raise StateLostError("\n".join([text, *reasons, *broken]))


def _unfit(loaded: LoadedTopology, place: Place, manifest: Manifest) -> str | None:
    """Why a snapshot cannot be restored; None where it can be."""
    try:
        check_fit(loaded.topology, manifest, lambda _: None)
    except SnapshotError as error:
        return str(error)
    return next(faults(place, manifest), None)


def _candidates(folder: WorkFolder, place: Place) -> tuple[list[Manifest], list[str]]:
    """Snapshots of what led to the present timeline, the newest first, and what is wrong with those
    that may be some but cannot be read. Where a restore was begun its sinks may show no more than
    that snapshot."""
    _, view = ViewFile(folder.view).read()
    begun = marked(folder.path)
    found = [one for one in entries(place) if not is_of_another(one.name, folder.uid)]
    for entry in found:
        if entry.away is not None:
            raise entry.away
    broken = [entry.fault for entry in found if entry.fault and not entry.unfinished]
    if view is None:
        return [], broken
    line = timelines.line_to(timelines.read(folder.path), view.timeline)
    mine = []
    for manifest in (entry.manifest for entry in found):
        if manifest is None or manifest.uid != folder.uid:
            continue
        timeline, window = manifest.decoded.tag.timeline, manifest.window
        kept = begun is None or window <= begun.window
        if kept and line.has(timeline, window):
            mine.append(((window, timeline, manifest.created), manifest))
    return [one for _, one in sorted(mine, key=lambda pair: pair[0], reverse=True)], broken
