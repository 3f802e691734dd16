"""A topology on a cluster, as a target: its pods, the operator's, and nodes by a given command.

A pod is deleted, deleted without grace, and its process killed, in turn for each kind. What the
topology does is what its driver tells in the journal, which is behind by seconds; what is sealed
may be known sooner (``sealing``).
"""

from __future__ import annotations

import random
import shlex
import subprocess
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from millrace.chaos.campaign import Pace
from millrace.chaos.plan import ChaosError, VictimKind
from millrace.chaos.sealing import Seen
from millrace.chaos.target import Look, Victim, look_of
from millrace.clock import Clock
from millrace.homes.documents import Status
from millrace.homes.pods import Role, executor_prefix
from millrace.homes.stores import HomeAwayError
from millrace.kube.streams import StreamForbiddenError, StreamRefusedError, executed
from millrace.remote.cluster import ClusterError, NotThereError
from millrace.remote.overview import driver_of, standby_of, state_of
from millrace.remote.topology import PodRow, RemoteTopology, pod_row

Answer = TypeVar("Answer")

PACE = Pace(look_s=0.25, rest_s=15.0, work_s=60.0)
"""A driver tells its figures every five seconds, so that rest is seen three times. Within a minute
one that is gone is followed by another that is at work."""

MOVING_S = 2.0
"""Who has sealed a window in these seconds is not at rest. Whether one is under way now nobody can
tell by that."""

STREAM = 3
"""So many windows sealed in that time are a stream of them, one behind the other, each much shorter
than figures are apart: there one is always under way, or about to be."""

AWAY_S = 60.0
"""How long the API server may be silent: what is killed may have been its node."""

WAYS = ("delete", "force", "SIGKILL")

_ROLES = {
    VictimKind.ACKER: Role.ACKER,
    VictimKind.DRIVER: Role.DRIVER,
    VictimKind.EXECUTOR: Role.EXECUTOR,
    VictimKind.STANDBY: Role.DRIVER,
    VictimKind.STATE_SERVER: Role.STATE_SERVER,
}

_OPERATOR = "app.kubernetes.io/component=operator,app.kubernetes.io/part-of=millrace"

_LEASE = "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/millrace-operator"
_LONGEST_HOST = 63

_ENDS = ("drained", "suspended", "stalled", "deleting")
"""States that nothing follows by itself."""

_EXEC_S = 20.0
_EXEC_TRIES, _EXEC_AGAIN_S = 5, 1.0
_SEEN_S = 20.0
_NODE_S = 600.0
_NODE_SEEN_S = 180.0
"""Within this a node that ended is given up by Kubernetes and by the operator, or is back."""

KILL_BELOW = """\
import os, signal, sys
def parent(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return None
first = int(sys.argv[1])
found = [int(p) for p in os.listdir("/proc") if p.isdigit() and parent(p) == first]
print(*found, flush=True)
for pid in found:
    os.kill(pid, signal.SIGKILL)
"""
"""Kills what runs below a process: in a container the first one is a mere reaper, which a signal
from inside does not end."""


@dataclass(frozen=True, slots=True)
class _Ran:
    """A life of a pod's container; of an executor also that of its driver (``_Ran``), with which it
    ends wherever it runs. None where that was not there any more."""

    row: PodRow
    life: object
    driver: _Ran | None = None


@dataclass(slots=True)
class _Struck:
    """A node for which the command was run, and what ran there. ``seen``: whether one of these
    lives was seen to be over in time; None as long as that may still be seen."""

    victim: Victim
    at_s: float
    ran: tuple[_Ran, ...] = field(repr=False)
    seen: bool | None = None


class ClusterTarget:
    """``node_command`` ends a node, whose name stands for ``{node}`` in it; None where none may be.
    ``operator_namespace`` is where the operator's pods are, None for anywhere. ``seen`` may know
    sooner than the driver tells which window is sealed."""

    def __init__(
        self,
        topology: RemoteTopology,
        clock: Clock,
        pause: Callable[[float], None],
        *,
        operator_namespace: str | None = None,
        node_command: str | None = None,
        seen: Callable[[], Seen] = Seen,
        ways: Sequence[str] = WAYS,
    ) -> None:
        self.refused: Mapping[VictimKind, str] = {
            VictimKind.WORKER: "a worker is a process of an executor's or driver's pod: kill these",
            **({} if node_command is not None else {VictimKind.NODE: "give a --node-command"}),
        }
        self._node_command = [] if node_command is None else _words(node_command)
        self._seen = seen
        self._ways = ways
        self._topology = topology
        self._operator_namespace = operator_namespace
        self._clock = clock
        self._pause = pause
        self._strikes: Counter[VictimKind] = Counter()
        self._struck: list[_Struck] = []
        self._asked_to_end: set[str] = set()
        self._operators_too = False
        self._last: Look | None = None
        self._silent_s: float | None = None
        self._asked_s = self._told_s = 0.0
        self._updated: float | None = None
        self._rises: deque[tuple[float, int]] = deque()
        """When the last window that is sealed was another one, and which."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Those for which the command was run, whether it went well or not, by name."""
        return tuple(sorted(self._asked_to_end))

    # -- how it stands

    def look(self) -> Look:
        """As its driver and its record tell it. While the API server is away nobody can tell what
        it does: raises ``ClusterError`` where that lasts, and for any other refusal."""
        try:
            self._last = self._looked()
        except ClusterError as error:
            now_s = self._clock.monotonic_s()
            self._silent_s = now_s if self._silent_s is None else self._silent_s
            if self._last is None or not _silent(error) or now_s - self._silent_s > AWAY_S:
                raise
            return replace(self._last, working=False, idle=False)
        self._silent_s = None
        return self._last

    def _looked(self) -> Look:
        asked_s, seen = self._clock.now_s(), self._seen()
        now = self._topology.again()
        with now.speaking():
            told = now.journal.status()
        figures = told if told.uid == now.uid else Status()
        view, driver = now.view(), driver_of(now, now.pods())
        state = state_of(now, figures, driver)
        # A driver that is ready has claimed its execution; other figures are of one before it.
        speaks = state == "running" and view is not None and figures.execution == view.execution
        if figures.updated != self._updated:
            self._updated = figures.updated
            if figures.own:
                # By the driver's clock, which is another machine's: written since the last look.
                self._told_s = self._asked_s
        self._asked_s = asked_s
        look = look_of(figures, speaks, state if state in _ENDS else None)
        sealed_just = self._sealed_just(seen.window)
        return replace(
            look,
            working=look.working or sealed_just >= STREAM,
            sealed=max(look.sealed, seen.window),
            told_s=max(self._told_s, seen.at_s),
            figures_s=self._told_s,
            idle=look.idle and not sealed_just,
        )

    def _sealed_just(self, window: int) -> int:
        """How many windows were sealed within ``MOVING_S``: the driver's figures may be of a moment
        before or between. ``window`` is the last one by now, 0 as long as none is known."""
        now_s, rises = self._clock.monotonic_s(), self._rises
        if window > (rises[-1][1] if rises else 0):
            rises.append((now_s, window))
        while len(rises) > 1 and rises[1][0] <= now_s - MOVING_S:
            rises.popleft()
        return rises[-1][1] - rises[0][1] if rises else 0

    # -- killing

    def check(self, kinds: Iterable[VictimKind]) -> None:
        """Whether it can be listed what these would kill, and that it is this topology's operator.
        Raises ``ClusterError``, ``ChaosError``."""
        for kind in kinds:
            self._operators_too |= kind is VictimKind.OPERATOR
            try:
                rows = self._running(kind)
            except ClusterError as error:
                text = f"--kill {kind}: {error}"
                if kind is VictimKind.OPERATOR and self._operator_namespace is None:
                    text += "; or say with --operator-namespace where the operator's pods are"
                raise ClusterError(text) from error
            spaces = sorted({row.namespace for row in rows})
            if kind is VictimKind.OPERATOR and len(spaces) > 1:
                raise ChaosError(
                    f"--kill {kind}: operators run in the namespaces {', '.join(spaces)}; say with "
                    "--operator-namespace which of them is meant"
                )

    def kill(self, kind: VictimKind, chance: random.Random) -> Victim | None:
        """The next way for one that runs. While the API server is away nothing is killed, and
        that is waited for. Raises ``ChaosError``, ``ClusterError``."""
        rows = self._answered(lambda: self._running(kind))
        if kind is VictimKind.NODE:
            return self._end_node(rows, chance)
        if kind is VictimKind.OPERATOR:
            rows = self._answered(lambda: self._leading(rows))
        found = sorted(rows, key=lambda row: row.name)
        if not found:
            return None
        row = chance.choice(found)
        way = self._ways[self._strikes[kind] % len(self._ways)]
        try:
            if way == "SIGKILL":
                self._kill_process(row)
            else:
                self._delete(row, grace=way == "delete")
        except NotThereError:
            return None  # it went by itself in between
        self._strikes[kind] += 1
        return Victim(row.name, way)

    def ended(self, victim: Victim) -> bool | None:
        """Of a node: once one of the containers that ran there is gone or has another life. That
        takes a while, since nobody notices at once that a node is gone; what goes later than that
        goes for another reason."""
        struck = next((one for one in self._struck if one.victim is victim), None)
        if struck is None:
            return True
        if struck.seen is None:
            if self._clock.monotonic_s() >= struck.at_s + _NODE_SEEN_S:
                struck.seen = False
            elif self._any_over(struck.ran):
                struck.seen = True
        return struck.seen

    def _any_over(self, ran: Iterable[_Ran]) -> bool:
        """Not so while the API server is away: nobody can tell, and nobody waits here."""
        try:
            return any(map(self._is_over, ran))
        except ClusterError as error:
            if not _silent(error):
                raise
            return False

    def _is_over(self, ran: _Ran) -> bool:
        if self._life_now(ran.row) == ran.life:
            return False
        if ran.row.role != Role.EXECUTOR:
            return True
        # Asked behind the executor: had the driver gone first, that is seen here.
        driver = ran.driver
        return driver is not None and self._life_now(driver.row) == driver.life

    def _running(self, kind: VictimKind) -> Sequence[PodRow]:
        if kind is VictimKind.NODE:
            rows = [row for row in self._topology.pods() if _runs(row) and row.node]
            return [row for row in rows if self._may_run(row)]
        pods = self._operators() if kind is VictimKind.OPERATOR else self._topology.pods()
        rows = [row for row in pods if kind is VictimKind.OPERATOR or row.role == _ROLES[kind]]
        rows = [row for row in rows if _runs(row) and self._may_run(row)]
        if kind is VictimKind.OPERATOR:
            return rows
        if kind is VictimKind.EXECUTOR:
            # One that stands by may have executors of its own, which have nothing to do.
            driver = driver_of(self._topology.again(), pods)
            return [] if driver is None else [row for row in rows if _is_of(row, driver)]
        if kind is VictimKind.DRIVER:
            newest = driver_of(self._topology.again(), rows)
            return [] if newest is None else [newest]
        if kind is VictimKind.STANDBY:
            waiting = standby_of(self._topology.again(), rows)
            return [] if waiting is None else [waiting]
        return rows

    def _may_run(self, row: PodRow) -> bool:
        """Not so what ran on a node that was ended since: it is listed as running until somebody
        notices, or for ever."""
        lives = [ran.life for one in self._struck for ran in one.ran if ran.row.uid == row.uid]
        return not lives or self._container(row) not in (None, *lives)

    def _operators(self) -> list[PodRow]:
        place = f"/namespaces/{self._operator_namespace}" if self._operator_namespace else ""
        query = {"labelSelector": _OPERATOR}
        found = self._topology.cluster.get(f"/api/v1{place}/pods", query)
        return [pod_row(one) for one in found["items"]]

    def _leading(self, rows: Sequence[PodRow]) -> Sequence[PodRow]:
        """The operator that acts; all of them where its Lease is not there or may not be read. The
        only one is believed to: the Lease of one before it may lie there still."""
        spaces = {row.namespace for row in rows}
        if len(rows) == 1 or len(spaces) != 1:
            return rows
        try:
            found = self._topology.cluster.get(_LEASE.format(namespace=spaces.pop()))
        except ClusterError as error:
            if _silent(error):
                raise
            return rows
        holder = str((found.get("spec") or {}).get("holderIdentity") or "")
        # The name of the host, which is that of the pod cut to its length, and which life of it.
        host = holder.rpartition("-")[0]
        return [row for row in rows if row.name[:_LONGEST_HOST].rstrip("-.") == host]

    def _delete(self, row: PodRow, *, grace: bool) -> None:
        body: dict[str, object] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        body["preconditions"] = {"uid": row.uid}
        if not grace:
            body["gracePeriodSeconds"] = 0
        unanswered = False

        def ask() -> None:
            nonlocal unanswered
            try:
                self._topology.cluster.delete(row.path, body)
            except NotThereError:
                if not unanswered:
                    raise
                # It is gone by what was asked before, of which no answer came.
            except ClusterError:
                unanswered = True
                raise

        # Under its uid no other pod is deleted, however often it is asked.
        self._answered(ask)

    def _kill_process(self, row: PodRow) -> None:
        """Counts only where the container is seen to have ended. Raises ``NotThereError`` where it
        did not run, or its node did not."""
        before = self._container(row)
        if before is None:
            raise NotThereError(f"{row.name} does not run")
        code, said = self._executed(row, before)
        end_s = self._clock.monotonic_s() + _SEEN_S
        while True:
            asked_s = self._clock.monotonic_s()
            if self._container(row) != before:
                return
            # Nobody can tell an API server that is away what became of the container.
            end_s += self._clock.monotonic_s() - asked_s
            if self._clock.monotonic_s() >= end_s:
                raise ChaosError(
                    f"SIGKILL for {row.name}: its container still runs {_SEEN_S:g} s later (exit "
                    f"code {code}: {said.strip()[:300] or 'nothing said'}); is its first process a "
                    "reaper such as tini, with python3 beside it?"
                )
            self._pause(PACE.look_s)

    def _executed(self, row: PodRow, before: object) -> tuple[int, str]:
        """What the script says that kills what runs in a container, whose life is the one of
        ``before``. To look at that waits for an API server that is away, and then it is asked
        again; a node may be away for a moment."""
        command = ["python3", "-c", KILL_BELOW, "1"]
        api, tries = self._topology.cluster.api, 0
        while True:
            try:
                return executed(api, row.namespace, row.name, row.container, command, _EXEC_S)
            except StreamRefusedError as error:
                forbidden = isinstance(error, StreamForbiddenError)
                # A node that this campaign ended takes its pods along long before anybody notices.
                lost = self._node_command and not forbidden
                if lost or self._container(row) != before:
                    raise NotThereError(f"{row.name} went by itself, or with its node") from error
                tries += 1
                if forbidden or tries == _EXEC_TRIES:
                    raise ChaosError(f"SIGKILL for {row.name}: {error}") from error
            self._pause(_EXEC_AGAIN_S)

    def _container(self, row: PodRow) -> object:
        """Which life of the container runs; None where none does. An API server that is away is
        waited for."""
        return self._answered(lambda: self._life_now(row))

    def _life_now(self, row: PodRow) -> object:
        """The same. Raises ``ClusterError`` also while the API server is away."""
        try:
            found = self._topology.cluster.get(row.path)
        except NotThereError:
            return None
        if found["metadata"]["uid"] != row.uid:
            return None
        for one in (found.get("status") or {}).get("containerStatuses") or []:
            running = "running" in (one.get("state") or {})
            if running and one.get("name") == row.container:
                return one.get("containerID"), one.get("restartCount")
        return None

    def _answered(self, ask: Callable[[], Answer]) -> Answer:
        """What the API server answers, which may be silent for a while. Raises as ``ask``."""
        end_s = self._clock.monotonic_s() + AWAY_S
        while True:
            try:
                return ask()
            except ClusterError as error:
                if not _silent(error) or self._clock.monotonic_s() >= end_s:
                    raise
            self._pause(PACE.look_s)

    def _end_node(self, rows: Sequence[PodRow], chance: random.Random) -> Victim | None:
        nodes = sorted({row.node for row in rows if row.node})
        if not nodes:
            return None
        node = chance.choice(nodes)
        others = self._answered(self._operators) if self._operators_too else []
        there = [row for row in (*rows, *filter(_runs, others)) if row.node == node]
        drivers = [one for row in rows if row.role == Role.DRIVER for one in self._lives(row)]
        ran = tuple(one for row in there for one in self._lives(row, drivers))
        command = [word.replace("{node}", node) for word in self._node_command]
        self._asked_to_end.add(node)
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                timeout=_NODE_S,
                # What it leaves behind brings the node back, though the terminal is closed.
                start_new_session=True,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ChaosError(f"--node-command {shlex.join(command)}: {error}") from error
        if done.returncode:
            said = (done.stderr or done.stdout).strip()[-500:]
            raise ChaosError(
                f"--node-command {shlex.join(command)}: exit code {done.returncode}: {said}"
            )
        struck = _Struck(Victim(node, "command"), self._clock.monotonic_s(), ran)
        self._struck.append(struck)
        return struck.victim

    def _lives(self, row: PodRow, drivers: Sequence[_Ran] = ()) -> Iterable[_Ran]:
        """What runs of a pod, if anything does."""
        life = self._container(row)
        if life is not None:
            executor = row.role == Role.EXECUTOR
            driver = next((one for one in drivers if executor and _is_of(row, one.row)), None)
            yield _Ran(row, life, driver)


def _runs(row: PodRow) -> bool:
    return row.phase == "Running" and not row.ending


def _is_of(executor: PodRow, driver: PodRow) -> bool:
    return executor.name.startswith(f"{executor_prefix(driver.name)}-exec-")


def _silent(error: ClusterError) -> bool:
    """Whether the API server is away, or says no more than that it is to be asked again."""
    cause = error.__cause__
    return isinstance(cause, HomeAwayError) and cause.status != 403


def _words(command: str) -> list[str]:
    """Raises ``ChaosError`` for a command that cannot be run for a node."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ChaosError(f"--node-command {command!r}: {error}") from None
    if not any("{node}" in word for word in words):
        raise ChaosError(
            f"--node-command {command!r}: says nowhere which node; write {{node}} for its name"
        )
    return words
