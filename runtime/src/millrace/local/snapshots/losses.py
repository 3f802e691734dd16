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
from collections.abc import Callable

from millrace import crash
from millrace.clock import Clock
from millrace.errors import MillraceError, StateLostError
from millrace.homes.restarts import DELAYS_S
from millrace.local.snapshots.places import place_of_file
from millrace.local.snapshots.restoring import Restored, restore_held
from millrace.local.snapshots.unfinished import marked
from millrace.local.workdir import WorkFolder
from millrace.restoring.fit import Choice, candidates, told
from millrace.restoring.fit import newest as newest_of
from millrace.snapshots import timelines
from millrace.snapshots.manifest import Manifest
from millrace.snapshots.places import Place
from millrace.state.viewfile import ViewFile
from millrace.topology.load import LoadedTopology

Warn = Callable[[str, str], object]
"""Told the kind and the text of an event."""


def restore_lost(
    loaded: LoadedTopology,
    folder: WorkFolder,
    clock: Clock,
    warn: Warn,
    pause: Callable[[], None],
    *,
    drop_removed: bool = False,
) -> Restored:
    """Restore the newest snapshot that can be; the work folder is held.

    ``pause`` is called between steps, and may raise to give up, as a crash would. With
    ``drop_removed`` sinks that the file has no more are left as they are. What may be mended, such
    as a sink or a place that is away, is tried again for some twenty seconds. Raises
    ``StateLostError`` where there is no snapshot, ``SinkError`` where a sink cannot take back what
    it shows, ``SnapshotsAwayError``, and what ``restore`` raises.
    """
    for wait_s in DELAYS_S:
        try:
            restored, passed = _restore(loaded, folder, clock, drop_removed, pause)
            break
        except MillraceError as error:
            if not error.retryable:
                raise
            warn("RestoreFailed", f"{error}; that is tried again")
        pause()
        time.sleep(wait_s)
    else:
        restored, passed = _restore(loaded, folder, clock, drop_removed, pause)
    crash.reached("lost.restored")
    manifest, topology = restored.manifest, loaded.topology
    text = told(manifest, topology, restored.timeline, restored.last, lost=True, passed=passed)
    warn("StateRestored", text)
    return restored


def _restore(
    loaded: LoadedTopology,
    folder: WorkFolder,
    clock: Clock,
    drop_removed: bool,
    pause: Callable[[], None],
) -> tuple[Restored, tuple[str, ...]]:
    place = place_of_file(loaded, folder.path, None)
    choice = newest(loaded, folder, place)
    manifest = choice.manifest
    restored = restore_held(
        loaded,
        folder,
        place,
        manifest,
        clock,
        lost=True,
        drop_removed=drop_removed,
        pause=pause,
    )
    return restored, choice.passed


def newest(loaded: LoadedTopology, folder: WorkFolder, place: Place) -> Choice:
    """The newest snapshot of this life of the topology that is whole and fits the file.

    Raises ``StateLostError`` with what is wrong with each where there is none,
    ``SnapshotsAwayError`` where one that may be the newest cannot be read now.
    """
    found, broken = _candidates(folder, place)
    choice = newest_of(found, loaded.topology, place)
    if isinstance(choice, Choice):
        return Choice(choice.manifest, (*choice.passed, *broken))
    text = (
        f"{folder.identity.name}: no state server has its state any more, and {place.shown} holds "
        "no snapshot of it that can be restored. Bring back the append-only file of a state "
        "server, restore a snapshot from elsewhere with millrace snapshot restore, or start over "
        "with --fresh; spec.snapshots.every takes snapshots for the next time"
    )
    raise StateLostError("\n".join([text, *choice, *broken]))


def _candidates(folder: WorkFolder, place: Place) -> tuple[list[Manifest], list[str]]:
    """Snapshots of what led to the present timeline. Where a restore was begun its sinks may show
    no more than that snapshot."""
    _, view = ViewFile(folder.view).read()
    begun = marked(folder.path)
    line = None
    if view is not None:
        line = timelines.line_to(timelines.read(folder.path), view.timeline)
    return candidates(place, folder.uid, line, None if begun is None else begun.window)
