"""A topology that runs on this machine, as a target."""

from __future__ import annotations

import random
from collections.abc import Mapping

from millrace.chaos.plan import ChaosError, VictimKind
from millrace.chaos.target import Look, Victim, look_of
from millrace.homes.documents import Status
from millrace.local.inspect.overview import overview
from millrace.local.inspect.table import process_rows
from millrace.local.processes import ProcessId, kill_all
from millrace.local.takeover import current_holder
from millrace.local.workdir import WorkFolder

_ROLES = {
    VictimKind.ACKER: "acker",
    VictimKind.DRIVER: "driver",
    VictimKind.STANDBY: "standby",
    VictimKind.EXECUTOR: "executor",
    VictimKind.WORKER: "pythonWorker",
    VictimKind.STATE_SERVER: "state",
}

_NO_OPERATOR = (
    "on one machine the supervisor stands for it, and with it the whole run ends: kill the run "
    "itself and start it again"
)


class LocalTarget:
    """The processes of one work folder's run."""

    refused: Mapping[VictimKind, str] = {
        VictimKind.OPERATOR: _NO_OPERATOR,
        VictimKind.NODE: "the run is on this machine alone",
    }

    def __init__(self, folder: WorkFolder) -> None:
        self._folder = folder

    def look(self) -> Look:
        """As the driver tells it, five times a second."""
        figures = self._folder.journal.status()
        alive = current_holder(self._folder.path) is not None
        return look_of(figures, _lives(figures), None if alive else overview(self._folder)["state"])

    def kill(self, kind: VictimKind, chance: random.Random) -> Victim | None:
        """SIGKILL for one process of a kind, once it is known to be the one that was listed."""
        rows = process_rows(self._folder)
        found = [row for row in rows if row.role == _ROLES[kind]]
        if not found:
            return None
        row = chance.choice(sorted(found, key=lambda one: one.name))
        process = ProcessId.of(row.pid)
        # Between the list and this look the pid may have come to another process.
        if process is None or row.pid not in {one.pid for one in process_rows(self._folder)}:
            return None
        if kill_all([process]):
            raise ChaosError(f"{row.name} (pid {row.pid}) is still there after SIGKILL")
        return Victim(row.name, "SIGKILL")

    def ended(self, victim: Victim) -> bool:
        """Always: a strike is over when its victim is gone."""
        return True


def _lives(figures: Status) -> bool:
    return figures.pid is not None and ProcessId.of(figures.pid) is not None
