"""Kills processes of a run at random moments, and proves that each kill hit work in flight.

A victim is first frozen (SIGSTOP), then it is looked whether the window attempt that it takes part
in is running: some Python worker that lives says in its note that it is busy with exactly this
window attempt of this execution, and the driver's status names the same one. A frozen driver,
acker or state server cannot let that window be sealed, so the kill that follows has hit it for
sure. For a worker the note has to be its own, for an executor that of a worker below it. A victim
that is found idle is thawed and does not count.

A state server that is ``EMPTIED`` loses its folder with its life, together with as many others as
may be lost at once: one less than there are copies. That is done only where the view in the work
folder is open with every server in it, none of them a life that was killed here: a loss before that
could be one too many. A driver that stands by has no part in a window; what is said of it is the
window that the other one had in flight.
"""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from millrace_e2e import processes
from millrace_e2e.harness import Place, Run
from millrace_e2e.processes import Note

ROLES = ("acker", "driver", "executor", "pythonWorker", "state")

EMPTIED = "emptied"
STANDBY = "standby"

FREEZE_S = 2.0
DEATH_S = 10.0
STRIKE_S = 240.0
"""How long to look for a moment in which a role's process has work in flight."""

MOST_PAUSE_S = 0.6
"""Kills come up to so long after a window is seen to be in flight."""


@dataclass(frozen=True, slots=True)
class Kill:
    """One SIGKILL and the work that it hit; ``worker`` is the one whose note is the evidence."""

    role: str
    pid: int
    execution: int
    window: int
    attempt: int
    worker: int

    def document(self) -> dict[str, Any]:
        """As the reports hold it."""
        return asdict(self)


class Nemesis:
    """Kills processes of one run; the same seed kills the same roles with the same pauses.

    ``killed`` are the run ids of state servers' lives that were killed, also by others before.
    """

    def __init__(self, run: Run, seed: int, killed: set[str] | None = None) -> None:
        self._run = run
        self.killed = set() if killed is None else killed
        self._place: Place = run.place
        self._chance = random.Random(seed)
        self.kills: list[Kill] = []

    def kill_each(self, roles: list[str]) -> list[Kill]:
        """Kill one process of each role, in random order; answers with the kills."""
        order = list(roles)
        self._chance.shuffle(order)
        return [self.kill(role) for role in order]

    def kill(self, role: str) -> Kill:
        """Kill a process of a role as soon as it has work in flight, after a random pause.

        Every other time, by chance, what the last kill hit is not yet recovered from.
        """
        if self.kills and self._chance.random() < 0.5:
            window = self.kills[-1].window
            self._run.until(
                lambda: self._run.status().get("sealed", 0) >= window, f"window {window}", STRIKE_S
            )
        self._await_work()
        time.sleep(self._chance.uniform(0.0, MOST_PAUSE_S))
        kill: Kill = self._run.until(
            lambda: self._strike(role), f"a {role} with work in flight", STRIKE_S
        )
        self.kills.append(kill)
        return kill

    def _await_work(self) -> None:
        """Wait until some worker is busy, so that the pause does not run beside a start."""
        self._run.until(self._in_flight, "a window in flight", STRIKE_S)

    def _strike(self, role: str) -> Kill | None:
        pids = self._victims(role)
        if not pids:
            return None
        pid = self._chance.choice(pids)
        with processes.held(pid) as handle:
            if handle is None:
                return None
            with _frozen(pid, handle) as thaw:
                evidence = self._in_flight(_belongs(role, pid))
                if evidence is None or (role == EMPTIED and not self._whole()):
                    return None
                thaw.cancel()
                if role == EMPTIED:
                    self._empty(pid)
                elif role == "state":
                    self.killed.add(self._run_ids().get(self._name(pid), ""))
                processes.send(handle, signal.SIGKILL)
            if not processes.ended(handle, DEATH_S):
                raise AssertionError(f"{role} {pid} outlived SIGKILL")
        return Kill(role, pid, evidence.execution, evidence.window, evidence.attempt, evidence.pid)

    def _victims(self, role: str) -> list[int]:
        work = self._place.work
        if role == "executor":
            return processes.executors(work)
        if role == "pythonWorker":
            return [n.pid for n in processes.notes(work) if n.busy and processes.alive(n.pid)]
        return processes.listed(work, "state" if role == EMPTIED else role)

    def _view(self) -> dict[str, Any]:
        return processes.view(self._place.work)

    def _run_ids(self) -> dict[str, str]:
        """Which life of each state server the view means."""
        return {member["name"]: member["run_id"] for member in self._view().get("target", [])}

    def _whole(self) -> bool:
        """Whether every server has what it is to have: no copy is missing."""
        members, listed = self._run_ids(), processes.listed(self._place.work, "state")
        return (
            self._view()["phase"] == "open"
            and len(members) == len(listed)
            and not self.killed & set(members.values())
        )

    def _name(self, pid: int) -> str:
        table = processes.read_json(self._place.work / "processes.json") or {"processes": []}
        return next((row["name"] for row in table["processes"] if row["pid"] == pid), "")

    def _empty(self, first: int) -> None:
        """Kill a server and as many others as may be lost with it, and take what they hold.

        Nobody starts one of them meanwhile.
        """
        work = self._place.work
        others = [pid for pid in processes.listed(work, "state") if pid != first]
        copies = len(self._view()["owners"][0])
        victims = [first, *self._chance.sample(others, copies - 2)]
        with processes.held(self._run.pid) as supervisor:
            assert supervisor is not None
            with _frozen(self._run.pid, supervisor):
                for pid in victims:
                    name = self._name(pid)
                    self.killed.add(self._run_ids()[name])
                    with processes.held(pid) as handle:
                        if handle is not None:
                            processes.send(handle, signal.SIGKILL)
                            assert processes.ended(handle, DEATH_S), f"{name} outlived SIGKILL"
                    shutil.rmtree(work / name)

    def _in_flight(self, fits: Callable[[Note], bool] = lambda _: True) -> Note | None:
        """The note of a live worker that is busy with the window attempt that is running."""
        status = self._run.status()
        window = status.get("window")
        if not window or status.get("sealed", 0) >= window["number"]:
            return None
        running = (status.get("execution"), window["number"], window["attempt"])
        for note in processes.notes(self._place.work):
            same = (note.execution, note.window, note.attempt) == running
            if same and note.busy and processes.alive(note.pid) and fits(note):
                return note
        return None


def _belongs(role: str, pid: int) -> Callable[[Note], bool]:
    """Whether a worker's note is evidence against this victim."""
    if role == "pythonWorker":
        return lambda note: note.pid == pid
    if role == "executor":
        return lambda note: pid in processes.parents(note.pid)
    return lambda _: True


class _Thaw:
    wanted = True

    def cancel(self) -> None:
        self.wanted = False


@contextmanager
def _frozen(pid: int, handle: int) -> Iterator[_Thaw]:
    """Keep a process stopped; it goes on at the end unless that is cancelled."""
    thaw = _Thaw()
    processes.send(handle, signal.SIGSTOP)
    end_s = time.monotonic() + FREEZE_S
    while processes.state_of(pid) not in ("T", "", "Z", "X") and time.monotonic() < end_s:
        time.sleep(0.0005)
    try:
        yield thaw
    finally:
        if thaw.wanted:
            processes.send(handle, signal.SIGCONT)


def by_role(kills: Sequence[Kill], roles: Sequence[str] = ROLES) -> dict[str, int]:
    """How many kills hit each role."""
    return {role: sum(kill.role == role for kill in kills) for role in roles}
