"""Restores a topology from a snapshot, into a new work folder or the one that it was taken of.

In its own work folder what was sealed behind the snapshot is given up: the sinks take it back, and
a new timeline begins (rules 17 and 25). A new work folder is a new life of the topology, with sinks
of its own.

==============================  ================================================================
the process dies right after    what follows
==============================  ================================================================
the work folder is marked       runs are refused until the restore is done again, or --fresh;
                                one that a run began, since state was lost, the next run does
the sinks are fenced            the same; nothing of them has changed yet
the sinks have retracted        the same; doing it again is nothing
the timeline is noted           the same; the next restore notes the same timeline anew
the view is claimed             the view is being created, so that no record of any member is ever
                                read: the next restore begins with a higher timeline
what was there is deleted       the same: nothing goes back to it any more
objects, record                 the same
the view is open                the same: nothing ran under the new timeline
folders of servers that are     the same
none any more are deleted
the mark is gone                the topology is restored
==============================  ================================================================
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from millrace import checked, crash
from millrace.clock import Clock
from millrace.errors import SnapshotError
from millrace.homes.accepted import Accepted, accept
from millrace.ids import Timeline, WindowNumber
from millrace.local import scratch
from millrace.local.accepted import read_accepted, write_accepted
from millrace.local.files import write_json
from millrace.local.launch import state_servers
from millrace.local.scale import server_names
from millrace.local.servers import StateServer
from millrace.local.snapshots.unfinished import mark, marked, unmark
from millrace.local.takeover import held_briefly
from millrace.local.workdir import WorkFolder, open_folder, unusable
from millrace.protocol.record import next_timeline, restored, restoring_view
from millrace.protocol.types import Phase, Tag, View
from millrace.restoring.figures import figures
from millrace.restoring.fit import Tell, check_fit
from millrace.restoring.removed import Document, RemovedSink, removed
from millrace.restoring.shown import Shown, last_behind, last_shown, take_back
from millrace.restoring.writing import put
from millrace.ring import owners
from millrace.sinks import Sink, SinkSpec, kept_sink, make_sink
from millrace.snapshots import timelines
from millrace.snapshots.manifest import Manifest
from millrace.snapshots.places import Place
from millrace.snapshots.reading import faults, load
from millrace.snapshots.timelines import Fork
from millrace.state.client import StateClient
from millrace.state.viewfile import ViewFile
from millrace.topology.load import LoadedTopology
from millrace.topology.usercode import code_on_path

_ELSEWHERE = "a new folder with --workdir"
_GIVE_UP = "leave what it shows as it is with --drop-removed"

_SERVER = re.compile(r"state-[0-9]+")


@dataclass(frozen=True, slots=True)
class Restored:
    """What came of a restore. ``given_up`` is the last window that sinks had shown behind it,
    ``last`` the last one that was sealed or shown, as far as that is known."""

    folder: WorkFolder
    manifest: Manifest
    timeline: Timeline
    given_up: WindowNumber | None
    last: WindowNumber | None = None


def restore(
    loaded: LoadedTopology,
    path: Path,
    place: Place,
    name: str,
    clock: Clock,
    tell: Tell,
    *,
    drop_removed: bool = False,
) -> Restored:
    """Restore a topology; the next ``millrace run`` goes on behind the snapshot's window.

    Nothing is changed where the snapshot is damaged or of another topology, the topology's file
    does not fit it, a run is alive, or a sink shows more and cannot take that back. With
    ``drop_removed`` sinks that the file has no more are left as they are. Raises
    ``SnapshotError``, ``SinkError``, ``StateServerError``, ``WorkFolderError``.
    """
    manifest = load(place, name)
    check_fit(loaded.topology, manifest, tell)
    for fault in faults(place, manifest):
        raise SnapshotError(fault)
    named = loaded.topology.name, loaded.file, clock
    folder = open_folder(path, *named, held=False)
    with held_briefly(folder.path) as free:
        if not free:
            raise SnapshotError(
                f"snapshot {name}: a run of {folder.identity.name} is alive in {folder.path}; end "
                "it with millrace stop, or name another folder with --workdir"
            )
        folder = open_folder(path, *named)
        return restore_held(loaded, folder, place, manifest, clock, drop_removed=drop_removed)


def restore_held(
    loaded: LoadedTopology,
    folder: WorkFolder,
    place: Place,
    manifest: Manifest,
    clock: Clock,
    *,
    lost: bool = False,
    drop_removed: bool = False,
    pause: Callable[[], None] = lambda: None,
) -> Restored:
    """Restore a snapshot that is whole and fits, in a work folder that is held.

    ``lost``: since all copies of some state were gone. ``pause`` is called between steps, and may
    raise to leave the restore as a crash would. Raises as ``restore``.
    """
    try:
        how = _How(lost, drop_removed, pause)
        return _Restore(loaded, folder, place, manifest, clock, how).run()
    except OSError as error:
        raise unusable(folder.path, error) from error


@dataclass(frozen=True, slots=True)
class _How:
    """See ``restore_held``."""

    lost: bool
    drop_removed: bool
    pause: Callable[[], None]


class _Restore:
    """One restore, in a work folder that is held."""

    def __init__(
        self,
        loaded: LoadedTopology,
        folder: WorkFolder,
        place: Place,
        manifest: Manifest,
        clock: Clock,
        how: _How,
    ) -> None:
        self._loaded = loaded
        self._topology = loaded.topology
        self._folder = folder
        self._place = place
        self._manifest = manifest
        self._clock = clock
        self._lost = how.lost
        self._drop_removed = how.drop_removed
        self._pause = how.pause
        self._views = ViewFile(folder.view)
        self._uid = folder.uid

    def run(self) -> Restored:
        version, view = self._views.read()
        own = self._is_own(view)
        with code_on_path(self._loaded.code_path), ExitStack() as stack:
            today = []
            for declared in self._topology.spec.sinks:
                today.append(make_sink(SinkSpec.of(declared, self._loaded.folder)))
                stack.callback(today[-1].close)
            was = self._was_accepted() if own else None
            sinks = [*today, *(self._removed(was, stack) if own else ())]
            shown = self._shown(sinks) if own else self._check_empty(today)
            given_up = max((w for w in shown if w > self._manifest.window), default=None)
            last = self._last(shown) if own else None
            if own and view is not None:
                self._check_line(view.timeline)
            mark(self._folder.path, self._manifest, own=own, lost=self._lost, last=last)
            crash.reached("restore.marked")
            tag = next_timeline(self._manifest.decoded.tag, view)
            if own:
                self._retract(sinks, tag.execution)
        opened = self._new_timeline(version, tag, last, self._accepted(was))
        crash.reached("restore.opened")
        self._delete_left(opened)
        unmark(self._folder.path)
        return Restored(
            self._folder,
            self._manifest,
            opened.timeline,
            None if given_up is None else WindowNumber(given_up),
            None if last is None else WindowNumber(last),
        )

    def _last(self, shown: Sequence[int]) -> int | None:
        """The last window behind the snapshot's that is known: what sinks show, what the driver
        said last, and what a restore that was begun before knew."""
        begun = marked(self._folder.path)
        before = None if begun is None else begun.last
        return last_behind(self._manifest, [*shown, self._folder.journal.status().sealed, before])

    # -- whether it may be done

    def _is_own(self, view: View | None) -> bool:
        """Whether the work folder is the one that the snapshot was taken of; else it is a new one.

        Raises ``SnapshotError`` for one that has another life of the topology in it.
        """
        begun = marked(self._folder.path)
        if not begun.own if begun is not None else view is None:
            return False
        if (self._uid if view is None else view.uid) == self._manifest.uid:
            return True
        raise SnapshotError(
            f"snapshot {self._manifest.name}: work folder {self._folder.path} holds another life "
            "of the topology than the snapshot is of; restore into a new folder with --workdir, "
            "and give its sinks places of their own"
        )

    def _check_line(self, timeline: int) -> None:
        """The snapshot must be of what led to the present timeline. Raises ``SnapshotError``."""
        manifest, of = self._manifest, self._manifest.decoded.tag.timeline
        line = timelines.line_to(timelines.read(self._folder.path), timeline)
        if not line.lacks(of, manifest.window):
            return
        left = line.limits.get(of)
        until = (
            "an earlier restore left"
            if left is None
            else f"a restore left behind its window {left}"
        )
        raise SnapshotError(
            f"snapshot {manifest.name}: is behind window {manifest.window} of timeline {of}, which "
            f"{until}: the sinks would show windows of the one timeline beside state of the other. "
            "Nothing was changed. Restore another snapshot, or restore this one into a new folder "
            "with --workdir and other places for the sinks"
        )

    def _removed(self, was: Accepted | None, stack: ExitStack) -> Iterator[RemovedSink]:
        """Sinks that were removed since the snapshot. Raises ``SinkError``."""
        if self._drop_removed:
            return

        def make(declared: Document) -> Sink:
            sink = kept_sink(declared, self._loaded.folder)
            stack.callback(sink.close)
            return sink

        manifest, today = self._manifest, self._topology.document()
        now, retired = (None, ()) if was is None else (was.components, was.retired)
        for declared in removed(manifest, today, now, retired):
            yield RemovedSink(declared, make, manifest, _GIVE_UP)

    def _shown(self, sinks: Sequence[Shown]) -> list[int]:
        return last_shown(sinks, self._manifest, _ELSEWHERE, lambda sink: sink.prepare(self._uid))

    def _check_empty(self, sinks: Sequence[Sink]) -> list[int]:
        """A new life of the topology: its sinks must hold nothing."""
        for sink in sinks:
            sink.check_fresh(overwrite=False)
        return []

    # -- doing it

    def _retract(self, sinks: Sequence[Shown], execution: int) -> None:
        self._pause()
        take_back(sinks, self._manifest, execution, _ELSEWHERE)

    def _new_timeline(self, version: int, tag: Tag, last: int | None, accepted: Accepted) -> View:
        topology = self._topology
        write_accepted(self._folder.accepted, accepted)
        write_json(self._folder.topology, checked.with_checksum(dict(accepted.topology)))
        with ExitStack() as stack:
            clients: dict[str, StateClient] = {}
            sockets = stack.enter_context(scratch.temporary(self._folder.path))
            for server in self._servers(sockets):
                stack.callback(server.stop)
                address = server.start()
                clients[address.name] = StateClient(address, self._uid)
                stack.callback(clients[address.name].close)
            members = tuple(one.address.member() for one in clients.values())
            copies = topology.spec.state_servers.copies
            placed = owners(topology.spec.key_groups, list(clients), copies)
            creating = restoring_view(self._uid, tag, members, placed)
            timelines.note(self._folder.path, self._fork(tag.timeline, last))
            crash.reached("restore.noted")
            version = self._swapped(version, creating)
            crash.reached("restore.claimed")
            record = restored(self._manifest.decoded, self._uid, tag)
            put(clients, creating, record, self._place, self._manifest, self._pause)
            opened = replace(creating, phase=Phase.OPEN, restoring=False)
            self._swapped(version, opened)
        # What ``status`` shows until the next run.
        self._folder.journal.tell(figures(record, opened, self._clock.now_s()))
        return opened

    def _fork(self, timeline: Timeline, last: int | None) -> Fork:
        manifest = self._manifest
        parent, now_s = manifest.decoded.tag.timeline, self._clock.now_s()
        return Fork(timeline, parent, manifest.window, manifest.name, last, self._lost, now_s)

    def _servers(self, sockets: Path) -> list[StateServer]:
        """Those that the file asks for; what others have held belongs to the timeline before."""
        wanted = self._topology.spec.state_servers
        servers = state_servers(self._folder, self._topology, sockets)
        if wanted.url is not None:
            return servers
        return [one for one in servers if one.name in server_names(wanted.replicas)]

    def _delete_left(self, view: View) -> None:
        """A folder of a server that is none any more has state that was given up; should a server
        of that name come again, it would count against its memory. A server of the user's own has
        none here."""
        own = self._topology.spec.state_servers.url is not None
        names = set() if own else {member.name for member in view.target}
        for found in self._folder.path.glob("state-*"):
            if _SERVER.fullmatch(found.name) and found.name not in names:
                shutil.rmtree(found, ignore_errors=True)

    def _was_accepted(self) -> Accepted | None:
        """The file as an edit of what the work folder accepted last."""
        accepted = read_accepted(self._folder.accepted, self._folder.topology)
        return None if accepted is None else accept(accepted, self._topology.document())

    def _accepted(self, was: Accepted | None) -> Accepted:
        """The file as an edit of what the record was written for, which the next driver applies.

        Where state was lost nobody wants to go back: what was removed and brought back since has
        the life that it was given then. Sinks that were removed stay known, for a restore of an
        older snapshot, but for those that came behind this one: all that they showed is taken back.
        """
        if self._lost and was is not None:
            return was
        before = accept(None, dict(self._manifest.document))
        components = self._manifest.decoded.components or before.components
        known_then = () if was is None else was.retired
        retired = tuple(one for one in known_then if one.number <= components.edit)
        before = replace(before, components=components, retired=retired)
        accepted = accept(before, self._topology.document())
        known = {(one.name, one.number): one for one in accepted.retired}
        return replace(accepted, retired=tuple(known.values()))

    def _swapped(self, version: int, view: View) -> int:
        swapped = self._views.cas(version, view)
        if swapped is None:
            raise SnapshotError(
                f"snapshot {self._manifest.name}: {self._folder.view} was changed by somebody else "
                "meanwhile; restore again"
            )
        return swapped
