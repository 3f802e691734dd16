"""Takes snapshots of the running topology, beside its windows.

A snapshot is of one committed record. Its objects are spared from being deleted while they are
copied, which is always allowed, so that windows go on meanwhile; the manifest is written once the
sinks show all windows of that record. What the topology took by itself and is too many or too old,
and what it never finished, is deleted before the next one that is due, also where that one fails.

====================================  ========================================================
the driver dies                       what follows
====================================  ========================================================
while it copies                       the request is still there: the next driver takes the
                                      snapshot anew, of its own record; what was spared is found
                                      by the next sweep
after the manifest                    the next driver finds the snapshot that answers the
                                      request, and calls it done, or answers
after an answer                       the request is there until who asked has read the answer: the
                                      next driver answers again
====================================  ========================================================
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from millrace.clock import Clock
from millrace.errors import MillraceError, SnapshotError, StateServerError, error_text
from millrace.homes.documents import (
    Answer,
    Ask,
    KeptSnapshot,
    Outcome,
    SnapshotFigures,
    deletes_of,
    is_named_for,
    take_token,
)
from millrace.homes.stores import HomeAwayError, PendingRequest
from millrace.protocol import events as e
from millrace.protocol.types import Components, Record
from millrace.protocol.windows.forgetting import Held
from millrace.snapshots.cleaning import clean
from millrace.snapshots.manifest import Manifest
from millrace.snapshots.places import Place, open_place
from millrace.snapshots.reading import Entry, believed, delete, entries, find
from millrace.snapshots.retention import Retention, is_kept, is_own, own_name
from millrace.snapshots.timelines import Fork
from millrace.snapshots.writing import Fetch, Subject, write_snapshot

log = logging.getLogger(__name__)

TRIES = 5
"""How often a snapshot is begun anew that meets an object which is on no server."""

RETRY_S = 1.0

SOON_S = 30.0
"""No snapshot comes by itself earlier behind the start of a driver, unless they come more often."""


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """What is said of snapshots at the start of a driver.

    ``to`` is a path, relative to ``folder``, or a URL. ``components`` are those that a record
    must have been written for: one from before an edit goes with another ``document``. Without
    ``every_s`` none is taken that nobody asks for. ``forks`` tells the restores that the topology
    has gone through, and may raise ``MillraceError``. ``tells``: somebody reads which snapshots
    there are.
    """

    topology: str
    document: Mapping[str, Any]
    key_groups: int
    components: Components | None
    to: str
    folder: Path
    retention: Retention
    every_s: float | None = None
    forks: Callable[[], Iterable[Fork]] = tuple
    tells: bool = False


MOST_TOLD = 100
"""Snapshots that figures name: a ConfigMap has to hold them."""


class _Listing(Enum):
    """The job of looking at what there is."""

    ALL = "all"


Job = PendingRequest | _Listing | None
"""A request, a look at what there is, or a snapshot that is due."""


class _StoppedError(Exception):
    """The driver ends."""


class SnapshotTaker:
    """``committed``, ``look`` and ``stop`` are for the loop's thread, ``asked`` and ``spared`` for
    any. ``done`` forgets a request; ``tell`` takes what a user should know."""

    def __init__(
        self,
        plan: SnapshotPlan,
        fetch: Fetch,
        done: Callable[[str], None],
        tell: Callable[[e.Notify], object],
        clock: Clock,
    ) -> None:
        self.plan = plan
        self._fetch = fetch
        self._done = done
        self._tell = tell
        self._clock = clock
        self._changed = threading.Condition()
        self._record: Record | None = None
        self._held = Held()
        self._stopped = False
        self._jobs: deque[Job] = deque()
        self._known: set[str] = set()
        self._asking: set[str] = set()
        self._answers: dict[str, Answer] = {}
        self._kept: dict[str, KeptSnapshot] | None = None
        self._looked = False
        self._thread: threading.Thread | None = None
        self._began_s: float | None = None
        self._due_s = math.inf

    # -- beside the machine

    def committed(self, record: Record) -> None:
        """A record is committed; what it replaces has not been deleted yet."""
        with self._changed:
            self._record = record
            self._changed.notify_all()

    def spared(self, forget: e.Forget) -> e.Forget:
        """What may be deleted now: not what is being copied, but what was and is needed no more."""
        with self._changed:
            return self._held.spared(forget)

    def asked(self, asked: PendingRequest) -> None:
        """Take a snapshot for a request, unless that is known already."""
        with self._changed:
            if asked.token not in self._known:
                self._known.add(asked.token)
                self._begin(asked)

    def waiting(self, tokens: set[str]) -> None:
        """These requests are in the inbox: nobody asks for an answer to others any more."""
        with self._changed:
            self._asking = tokens
            for token in self._answers.keys() - tokens:
                del self._answers[token]
                self._known.discard(token)

    def figures(self) -> SnapshotFigures | None:
        """What is known of snapshots; None where nobody asks."""
        with self._changed:
            if not (self.plan.tells or self._answers):
                return None
            known = self._kept if self.plan.tells else None
            kept = None if known is None else tuple(known.values())[-MOST_TOLD:]
            return SnapshotFigures(self._shown(self.plan.to), kept, tuple(self._answers.values()))

    def look(self) -> None:
        """Some time has passed: one may be due."""
        every_s = self.plan.every_s
        now = self._clock.monotonic_s()
        with self._changed:
            if every_s is not None and self._began_s is None:
                self._began_s, self._due_s = now, now + every_s
            if not self._looked and self._record is not None:
                self._looked = True
                if self.plan.tells or every_s is not None:
                    self._begin(_Listing.ALL)
            if every_s is not None and now >= self._due_s:
                self._due_s = now + every_s
                if None not in self._jobs:
                    self._begin(None)

    def stop(self) -> None:
        """Begin nothing more. What is under way ends without a snapshot, or with all of one."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _begin(self, job: Job) -> None:
        self._jobs.append(job)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="snapshots", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    # -- on its own thread

    def _run(self) -> None:
        try:
            while True:
                self._await(lambda: bool(self._jobs))
                job = self._jobs[0]
                if isinstance(job, _Listing):
                    self._list()
                    self._bring_forward()
                elif job is None or self._still_asked(job):
                    self._do(job)
                self._jobs.popleft()
        except _StoppedError:
            return

    def _await(self, ready: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or ready())
            if self._stopped:
                raise _StoppedError

    def _still_asked(self, job: PendingRequest) -> bool:
        with self._changed:
            return not job.request.answered or job.token in self._asking

    def _do(self, job: PendingRequest | None) -> None:
        """What is asked for, and a word of how it went."""
        deletes = job is not None and job.request.action is Ask.DELETE_SNAPSHOT
        try:
            answer = self._deleted(job) if job is not None and deletes else self._taken(job)
        except _StoppedError:
            raise
        except Exception as error:
            # The boundary of a thread, and to file systems of others: windows go on without.
            what = "a snapshot" if job is None else f"snapshot {job.request.name}"
            expected = isinstance(error, MillraceError)
            if not expected:
                log.exception("%s", what)
            why = str(error) if expected else error_text(error)
            text = f"{what} was not {'deleted' if deletes else 'taken'}: {why}"
            self._tell(e.Notify("SnapshotFailed", text, warning=True))
            answer = Answer("", Outcome.FAILED, text=why)
        if self.plan.tells:
            self._list()
        if job is None:
            return
        if job.request.answered:
            with self._changed:
                self._answers[job.token] = replace(answer, token=job.token)
        else:
            self._finish(job.token)

    def _taken(self, job: PendingRequest | None) -> Answer:
        if job is None:
            self._due()
            return Answer("", Outcome.TAKEN)
        place = open_place(self._where(job), self.plan.folder)
        manifest = self._written(place, job)
        assert manifest is not None
        self._told(manifest)
        return Answer("", Outcome.TAKEN, _kept(manifest), self._shown(self._where(job)))

    def _due(self) -> None:
        """Make room, take one, and let older ones go for it."""
        place = open_place(self.plan.to, self.plan.folder)
        found = self._own(place)
        cleaned = self._clean(place, found)
        manifest = self._written(place, None, found)
        if manifest is None:
            return
        self._told(manifest)
        if cleaned:
            self._clean(place)

    def _deleted(self, job: PendingRequest) -> Answer:
        """One that is not there any more is deleted."""
        place, name = open_place(self._where(job), self.plan.folder), job.request.name or ""
        self._await(lambda: self._record is not None)
        assert self._record is not None
        uid = self._record.uid
        # Of a damaged one only the name tells whose it is.
        manifest = believed(place, name) if is_own(name, uid) else find(place, name)
        if manifest is not None and manifest.uid != uid:
            raise SnapshotError(
                f"snapshot {name}: is of another topology, or of another life of this one, and is "
                "not deleted here"
            )
        if not place.files(name):
            return Answer("", Outcome.DELETED)
        if not _is_asked_for(name, manifest, uid, job.token):
            raise SnapshotError(
                f"snapshot {name}: was not taken for the resource that is gone, and is not deleted "
                "with it"
            )
        delete(place, name)
        self._tell(e.Notify("SnapshotDeleted", f"snapshot {name} is deleted"))
        return Answer("", Outcome.DELETED)

    def _where(self, job: PendingRequest) -> str:
        return job.request.to or self.plan.to

    def _shown(self, to: str) -> str:
        """A place as another driver can name it."""
        return to if "://" in to else str(self.plan.folder / to)

    def _list(self) -> None:
        """What the topology has taken by itself, as far as it can be read."""
        self._await(lambda: self._record is not None)
        assert self._record is not None
        uid, known = self._record.uid, self._kept or {}
        found = []
        try:
            place = open_place(self.plan.to, self.plan.folder)
            for name in place.folders():
                if not is_own(name, uid):
                    continue
                one = known.get(name)
                if one is None:
                    manifest = believed(place, name)
                    one = _kept(manifest) if manifest is not None else None
                if one is not None:
                    found.append(one)
        except MillraceError as error:
            log.warning("which snapshots there are is not known now: %s", error)
            return
        found.sort(key=lambda one: (one.created, one.window))
        with self._changed:
            self._kept = {one.name: one for one in found}

    def _bring_forward(self) -> None:
        """The first is due as if no driver had begun since the newest there is; where there is none
        though this is not the topology's first driver, soon."""
        every_s, record = self.plan.every_s, self._record
        if every_s is None or self._kept is None or record is None or self._began_s is None:
            return
        newest = max((one.created for one in self._kept.values()), default=None)
        if newest is not None:
            left_s = every_s - (self._clock.now_s() - newest)
        else:
            left_s = 0.0 if record.tag.execution > 1 else every_s
        left_s = min(max(left_s, SOON_S), every_s)
        with self._changed:
            self._due_s = min(self._due_s, self._began_s + left_s)

    def _told(self, manifest: Manifest) -> None:
        text = (
            f"snapshot {manifest.name} is taken behind window {manifest.window}: "
            f"{len(manifest.parts)} objects, {manifest.size_bytes:,} bytes"
        )
        self._tell(e.Notify("SnapshotTaken", text, manifest.decoded.sealed))

    def _finish(self, token: str) -> None:
        while True:
            try:
                self._done(token)
                return
            except HomeAwayError as error:
                log.warning("request %s stays for now: %s", token, error)
            self._pause()

    def _own(self, place: Place) -> list[Entry]:
        """What the topology has taken by itself, or begun to."""
        self._await(lambda: self._record is not None)
        assert self._record is not None
        uid = self._record.uid
        return entries(place, lambda name: is_own(name, uid))

    def _written(
        self, place: Place, job: PendingRequest | None, found: Sequence[Entry] = ()
    ) -> Manifest | None:
        """None where nothing was sealed since the last snapshot, of those that were ``found``."""
        for left in reversed(range(TRIES)):
            record = self._hold()
            try:
                if job is None and is_kept(found, record):
                    return None
                name = own_name(record) if job is None else job.request.name or ""
                subject = self._subject(record, "" if job is None else job.token)
                manifest = write_snapshot(place, name, subject, self._fetch, self._until(record))
            except StateServerError as error:
                # It went with a state server while members changed, or the server is away.
                if not left:
                    raise
                log.warning("a snapshot is begun again: %s", error)
            else:
                return manifest
            finally:
                self._release()
            self._pause()
        raise AssertionError("unreachable")

    def _hold(self) -> Record:
        """The last committed record; its objects stay from now on."""
        self._await(self._fits)
        with self._changed:
            record = self._record
            assert record is not None
            self._held.hold(record)
            return record

    def _fits(self) -> bool:
        components = self.plan.components
        return self._record is not None and components in (None, self._record.components)

    def _release(self) -> None:
        with self._changed:
            self._held.release()

    def _pause(self) -> None:
        with self._changed:
            if self._changed.wait_for(lambda: self._stopped, RETRY_S):
                raise _StoppedError

    def _until(self, record: Record) -> Callable[[], None]:
        """Waits until the sinks show what a record had sealed."""

        def shown() -> None:
            self._await(lambda: self._record is not None and self._is_shown(record))

        return shown

    def _is_shown(self, record: Record) -> bool:
        assert self._record is not None
        return self._record.published >= record.sealed

    def _subject(self, record: Record, token: str) -> Subject:
        plan = self.plan
        now_s = self._clock.now_s()
        return Subject(plan.topology, plan.document, plan.key_groups, record, now_s, token)

    def _clean(self, place: Place, known: list[Entry] | None = None) -> bool:
        """Delete what was not finished, and what retention says; False where that did not go, and
        is tried again when the next one is due."""
        with self._changed:
            record = self._record
        assert record is not None
        try:
            found = self._own(place) if known is None else known
            now_s, plan = self._clock.now_s(), self.plan
            clean(place, found, record, plan.retention, plan.forks, now_s)
        except MillraceError as error:
            text = f"old snapshots stay for now: {error}"
            self._tell(e.Notify("SnapshotsKept", text, warning=True))
            return False
        return True


def _is_asked_for(name: str, manifest: Manifest | None, uid: str, token: str) -> bool:
    """Whether a snapshot may go by this request: one that was taken for the resource of the token,
    or that topology ``uid`` has taken by itself. Of what has no manifest only the name is known."""
    resource = deletes_of(token)
    if manifest is None:
        return is_own(name, uid) or is_named_for(name, resource)
    return manifest.asked == take_token(resource) or (not manifest.asked and is_own(name, uid))


def _kept(manifest: Manifest) -> KeptSnapshot:
    return KeptSnapshot(manifest.name, manifest.window, manifest.created, manifest.size_bytes)
