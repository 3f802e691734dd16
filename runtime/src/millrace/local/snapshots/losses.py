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
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from millrace import crash
from millrace.clock import Clock
from millrace.errors import MillraceError, SnapshotError, StateLostError
from millrace.homes.restarts import DELAYS_S
from millrace.local.snapshots import timelines
from millrace.local.snapshots.places import place_of_file
from millrace.local.snapshots.restoring import Restored, check_fit, restore_held
from millrace.local.snapshots.unfinished import marked
from millrace.local.workdir import WorkFolder
from millrace.snapshots.manifest import Manifest
from millrace.snapshots.places import Place
from millrace.snapshots.reading import Entry, entries, faults
from millrace.state.viewfile import ViewFile
from millrace.topology.load import LoadedTopology

Warn = Callable[[str, str], object]
"""Told the kind and the text of an event."""


def restore_lost(
    loaded: LoadedTopology, folder: WorkFolder, clock: Clock, warn: Warn, pause: Callable[[], None]
) -> Restored:
    """Restore the newest snapshot that can be; the work folder is held.

    ``pause`` is called between steps, and may raise to give up, as a crash would. What may be
    mended, such as a sink that is away, is tried again for some twenty seconds. Raises
    ``StateLostError`` where there is no snapshot, ``SinkError`` where a sink cannot take back what
    it shows, and what ``restore`` raises.
    """
    for wait_s in DELAYS_S:
        try:
            restored = _restore(loaded, folder, clock, pause)
            break
        except MillraceError as error:
            if not error.retryable:
                raise
            warn("RestoreFailed", f"{error}; that is tried again")
        pause()
        time.sleep(wait_s)
    else:
        restored = _restore(loaded, folder, clock, pause)
    crash.reached("lost.restored")
    warn("StateRestored", told(restored))
    return restored


def told(restored: Restored) -> str:
    """From which window to which a topology went back."""
    manifest, last = restored.manifest, restored.last
    text = (
        f"all copies of some state were gone: snapshot {manifest.name} is restored behind window "
        f"{manifest.window}, as timeline {restored.timeline}"
    )
    if last is None:
        return f"{text}; nothing was sealed behind it"
    return f"{text}; {windows(manifest.window, last)} given up, and processed again"


def windows(behind: int, last: int) -> str:
    """The windows behind one, as the subject of a sentence."""
    if last == behind + 1:
        return f"window {last} is"
    return f"windows {behind + 1} to {last} are"


def _restore(
    loaded: LoadedTopology, folder: WorkFolder, clock: Clock, pause: Callable[[], None]
) -> Restored:
    place = place_of_file(loaded, folder.path, None)
    manifest = newest(loaded, folder, place)
    return restore_held(loaded, folder, place, manifest, clock, lost=True, pause=pause)


def newest(loaded: LoadedTopology, folder: WorkFolder, place: Place) -> Manifest:
    """The newest snapshot of this life of the topology that is whole and fits the file.

    Raises ``StateLostError`` with what is wrong with each where there is none.
    """
    reasons = []
    for entry in _candidates(folder, place):
        if entry.manifest is None:
            reasons.append(entry.fault)
            continue
        try:
            check_fit(loaded.topology, entry.manifest, lambda _: None)
        except SnapshotError as error:
            reasons.append(str(error))
            continue
        found = next(faults(place, entry.manifest), None)
        if found is None:
            return entry.manifest
        reasons.append(found)
    text = (
        f"{folder.identity.name}: no state server has its state any more, and {place.shown} holds "
        "no snapshot of it that can be restored. Bring back the append-only file of a state "
        "server, restore a snapshot from elsewhere with millrace snapshot restore, or start over "
        "with --fresh; spec.snapshots.every takes snapshots for the next time"
    )
    raise StateLostError("\n".join([text, *reasons]))


def _candidates(folder: WorkFolder, place: Place) -> Iterator[Entry]:
    """Snapshots of what led to the present timeline, the newest first; behind them those that
    cannot be read. Where a restore was begun its sinks may show no more than that snapshot."""
    _, view = ViewFile(folder.view).read()
    begun = marked(folder.path)
    found = entries(place)
    if view is not None:
        line = timelines.line_to(timelines.read(folder.path), view.timeline)
        mine = []
        for entry in found:
            one = entry.manifest
            if one is None or one.uid != folder.uid:
                continue
            timeline = one.decoded.tag.timeline
            kept = begun is None or one.window <= begun.window
            if kept and line.has(timeline, one.window):
                mine.append(((one.window, timeline, one.created), entry))
        yield from (entry for _, entry in sorted(mine, key=lambda pair: pair[0], reverse=True))
    yield from (entry for entry in found if entry.fault and not entry.unfinished)
