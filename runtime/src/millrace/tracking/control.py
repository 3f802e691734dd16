"""The driver's hand on the ack log's control stream: opens, closes, forgets, and keeps it short.

Each entry wakes every acker. So what they need not know yet goes with the next one: that an attempt
is over, and that one of few roots is open, of which there is little to read before it is closed.
An attempt whose close marker enclosed what its tasks said, and of which nobody is to blame, leaves
little in the log: that is deleted as the next one is opened.

An acker that starts reads the control stream from its first entry. So the entry that names the
owners of the slices is added again from time to time, with the attempts that are still open, and
what lies before the oldest of both is trimmed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from millrace.errors import ProtocolError
from millrace.ids import Execution
from millrace.protocol.acklog import (
    MOST_SLICES,
    ControlEntry,
    ForgetAttempt,
    Open,
    SliceOwners,
)
from millrace.protocol.types import AttemptId, CloseMarker, Verdict
from millrace.ring import DEFAULT_VIRTUAL_NODES, diff
from millrace.tracking.log import AckLog, AckLogLostError, Leftover, moment_of

log = logging.getLogger(__name__)

EARLY_ROOTS = 1 << 18
"""Of an attempt with so many roots ackers hear at once, and fold what its tasks say while others
work, unless it is one task. A smaller one is told with its end, and each acker has one slice of
it."""

RENEW_AFTER_OPENS = 64
"""Windows after which the owners entry is added again, so that older entries can go."""

_MOST_LEFT = 4
"""Attempts that are over and are deleted only as the next one is opened."""


@dataclass(slots=True)
class _Held:
    """An attempt of this execution until it is over. ``said`` is the id of the entry that told of
    it, ``closes`` are those of its close markers; it is not ``open`` once its log is lost. What is
    ``little`` may stay there for a while."""

    entry: Open
    open: bool = False
    said: str | None = None
    closes: list[str] = field(default_factory=list)
    little: bool = False


class AckControl:
    """Control entries of one execution; safe for several threads.

    ``edges`` are the topology's edges by name (``acklog.edge_name``) in topological order, each
    source's own edge (``acklog.source_edge``) first. ``early_roots``: in place of ``EARLY_ROOTS``.
    ``begin`` must come before anything else.
    Methods raise ``FencedError`` once a newer execution has begun, ``StateServerError`` when the
    server is away.
    """

    def __init__(
        self,
        log: AckLog,
        execution: Execution,
        edges: Sequence[str],
        virtual_nodes: int = DEFAULT_VIRTUAL_NODES,
        early_roots: int | None = None,
    ) -> None:
        self._log = log
        self._execution = execution
        self._edges = tuple(edges)
        self._virtual_nodes = virtual_nodes
        self._early_roots = EARLY_ROOTS if early_roots is None else early_roots
        self._owners: SliceOwners | None = None
        self._told: tuple[str, ...] = ()
        self._held: dict[AttemptId, _Held] = {}
        self._over: dict[AttemptId, ForgetAttempt] = {}
        self._left: dict[AttemptId, Leftover] = {}
        self._opens = 0
        self._lock = threading.Lock()

    def begin(self, ackers: Iterable[str]) -> None:
        """Take the log over: place the slices, end and delete all attempts that it has.

        They are of older executions, or the log was elsewhere since.
        """
        names = tuple(ackers)
        with self._lock:
            self._nothing_open()
            self._renew(self._place(names))
            self._told = names
        self._log.sweep(self._execution)

    @property
    def ackers(self) -> tuple[str, ...]:
        """Those that slices are given to; none while it is not known what the log says."""
        return self._told

    def set_ackers(self, ackers: Iterable[str]) -> None:
        """Tell that these ackers are alive; slices move from those that are gone."""
        names = tuple(ackers)
        with self._lock:
            if names and names == self._told:
                return
            owners = self._place(names)
            # An entry whose answer is lost may be in the log: whatever comes next is said.
            before, self._told = self._owners if self._told else None, ()
            if before is None or (before.owners, before.others) != (owners.owners, owners.others):
                self._tell_moves(before, owners)
                self._renew(owners)
            self._told = names

    def repeat(self) -> None:
        """Say again who owns what: an entry that was given up may have come behind the last."""
        with self._lock:
            self._renew(self._begun())

    def open(self, attempt: AttemptId, roots: int, one_task: bool = False) -> None:
        """Begin a window attempt with this many roots in its intent.

        ``one_task``: there is nothing to fold before its end.
        A log that was lost as a whole is begun again; what else was open in it is lost.
        """
        with self._lock:
            many, owners = roots >= self._early_roots, self._begun()
            slices = owners.slices if many else owners.fewest
            entry = Open(attempt, roots, self._edges, slices)
            held = self._held[attempt] = _Held(entry)
            left = tuple(self._left.values())
            try:
                self._log.open(self._execution, entry, left)
            except AckLogLostError:
                self._nothing_open()
                self._renew(self._begun())
                self._log.open(self._execution, entry, left)
            held.open = True
            self._left.clear()
            if many and not one_task:
                self._say(attempt)
            self._opens += 1
            if self._opens % RENEW_AFTER_OPENS == 0:
                self._renew(self._begun())

    def slices(self, attempt: AttemptId) -> int:
        """How many slices an attempt was opened with.

        Raises ``AckLogLostError`` for one that this has not opened, or that is over.
        """
        if attempt not in self._held:
            raise AckLogLostError(f"window attempt {attempt} was not opened in this ack log")
        return self._held[attempt].entry.slices

    def silent(self, attempt: AttemptId) -> list[str]:
        """The ackers that own a slice of an open attempt and have not answered on it, by name.

        Raises ``AckLogLostError`` as ``slices``.
        """
        with self._lock:
            owners = self._begun().table(self.slices(attempt)) or ()
        answered = self._log.answered(attempt)
        return sorted({name for slice_, name in enumerate(owners) if slice_ not in answered})

    def close(self, marker: CloseMarker) -> None:
        """Name the winners: the ackers judge from here on."""
        with self._lock:
            entry = self._say(marker.id, marker)
            if marker.id in self._held:
                self._held[marker.id].closes.append(entry)

    def judged(self, marker: CloseMarker, verdict: Verdict) -> None:
        """The ackers have answered: where they blame nobody, and the marker encloses what tasks
        said, there is little else in the log."""
        with self._lock:
            if marker.id in self._held:
                blames = marker.excluded or verdict.incomplete
                self._held[marker.id].little = bool(marker.acks) and not blames

    def judge(self, marker: CloseMarker, timeout_s: float) -> Verdict | None:
        """``close``, then ``AckLog.wait_verdict`` and ``judged``."""
        self.close(marker)
        verdict = self._log.wait_verdict(marker.id, self.slices(marker.id), timeout_s)
        if verdict is not None:
            self.judged(marker, verdict)
        return verdict

    def forget(self, attempts: Iterable[AttemptId]) -> None:
        """End attempts and delete what the log holds of them; harmless when repeated.

        Close markers go at once, or as the next attempt is opened: each holds a whole intent.
        """
        with self._lock:
            for attempt in attempts:
                self._forget(attempt)
                self._over[attempt] = ForgetAttempt(attempt)

    def _forget(self, attempt: AttemptId) -> None:
        held = self._held.get(attempt)
        if held is None:
            if attempt not in self._left:
                self._log.delete(self._execution, Leftover(attempt, MOST_SLICES))
            return
        held.open = False
        left = Leftover(attempt, held.entry.slices, tuple(held.closes))
        if held.little and len(self._left) < _MOST_LEFT:
            self._left[attempt] = left
        else:
            self._log.delete(self._execution, left)
        del self._held[attempt]

    def _say(self, attempt: AttemptId, *entries: ControlEntry) -> str:
        """Add entries about an attempt, behind those by which others are over and, unless it was
        said, this one is open; the id of the last."""
        held = self._held.get(attempt)
        begins = [held.entry] if held and held.open and held.said is None else []
        said = [*self._over.values(), *begins, *entries]
        ids = self._log.append_control(self._execution, *said)
        if held and begins:
            held.said = ids[len(self._over)]
        self._over.clear()
        return ids[-1]

    def _nothing_open(self) -> None:
        for held in self._held.values():
            held.open = False

    def _place(self, names: tuple[str, ...]) -> SliceOwners:
        if not names:
            raise ProtocolError(
                "ackers: none is alive, so no window can be judged; start one, or set tracking: Off"
            )
        live = self._live()
        return SliceOwners.of(self._execution, names, live, self._owners, self._virtual_nodes)

    def _tell_moves(self, before: SliceOwners | None, after: SliceOwners) -> None:
        for slices in sorted(set(self._live().values())):
            old, new = (one.table(slices) if one else None for one in (before, after))
            if old is not None and new is not None:
                found = diff(old, new)
                log.info(
                    "%d of %d slices of open windows move to other ackers, %d had to",
                    *(found.moves, slices, found.least),
                )

    def _live(self) -> dict[AttemptId, int]:
        """Slices of each attempt that is open."""
        return {attempt: held.entry.slices for attempt, held in self._held.items() if held.open}

    def _begun(self) -> SliceOwners:
        if self._owners is None:
            raise ProtocolError("ack log: nothing may be written to it before begin()")
        return self._owners

    def _renew(self, owners: SliceOwners) -> None:
        """Say who owns what and what is open, and trim what no acker needs any more.

        What could not be said is not so: whoever wants it says it again.
        """
        owners = owners.renewed(self._live())
        told = (held.said for held in self._held.values() if held.open and held.said)
        keep_from = min(told, key=moment_of, default="=")
        self._log.append_control(self._execution, owners, keep_from=keep_from)
        self._owners = owners
        self._over.clear()  # they are not among those that are open
