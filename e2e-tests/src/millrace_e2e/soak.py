"""One long history with at least 100 kills: ``python -m millrace_e2e.soak`` (``make soak``).

The history is one topology in one folder, over many lives of ``millrace run``, with several state
servers and ackers and a driver that stands by. Its input files grow while processes are killed with
work in flight; servers lose their folders with their lives, as many at once as copies allow; now
and then the supervisor itself is killed, or Ctrl-C ends a life, and the next one goes on. Between
lives everything that was fed is compared with everything that the sinks hold. ``soak.json`` in the
folder holds what was done so far, so that a soak that is interrupted goes on where it stopped. The
last line is one JSON object: ``kills`` (those that had a part in a window that was in flight),
``standbys`` (those of drivers that stood by), ``by_role``, ``heirs`` (driver's deaths after which
the one that stood by took over), ``equal``, ``windows``, ``minutes``.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from millrace_e2e import feed, processes, quickjvm, valkey
from millrace_e2e.chaos import EMPTIED, ROLES, STANDBY, Kill, Nemesis, by_role
from millrace_e2e.checker import Promise
from millrace_e2e.harness import END_S, Place, Run, await_nothing_left, running
from millrace_e2e.judge import judge
from millrace_e2e.topologies import Shape, history
from millrace_e2e.waiting import TooLateError

WINDOW = 6_000
FILES = 4
AHEAD_WINDOWS = 3
"""Input that is kept waiting while processes are killed."""

FLAKY_SHARE = 0.1
"""So many windows of input hold a line that fails once."""

HEIRS_SHARE = 0.7
"""So many deaths of drivers come when another one is ready to take over."""

CALL_S = "0.03"
DRAIN_S = 180.0
STANDBY_S = 90.0
SUPERVISOR = "supervisor"
READY = "StandbyReady"


@dataclass(slots=True)
class History:
    """What was done so far; kept in ``soak.json``."""

    seed: int
    lines: int = 0
    lives: int = 0
    seconds: float = 0.0
    heirs: int = 0
    killed_servers: list[str] = field(default_factory=list)
    kills: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path, seed: int) -> History:
        """The history in a file, or a new one."""
        found = processes.read_json(path)
        return cls(**found) if found else cls(seed)

    def save(self, path: Path) -> None:
        """Replace the file."""
        draft = path.with_suffix(".new")
        draft.write_text(json.dumps(asdict(self)))
        draft.replace(path)


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything the topology has."""

    servers: int
    copies: int
    ackers: int
    standby: int

    @property
    def roles(self) -> tuple[str, ...]:
        """Which processes can be killed."""
        emptied = (EMPTIED,) if self.copies > 1 else ()
        return (*ROLES, *emptied, *([STANDBY] if self.standby else []))


class Soak:
    """Lives of one history in ``folder``, each with up to ``kills_per_life`` kills."""

    def __init__(self, folder: Path, seed: int, kills_per_life: int, size: Size) -> None:
        self._size = size
        self._file = folder / "soak.json"
        self._place = Place(folder / "history").make()
        self._server = valkey.Server(folder / "sink-server")
        self._per_life = kills_per_life
        self.history = History.load(self._file, seed)
        # A soak that goes on must not repeat the choices it began with.
        self._chance = random.Random(f"{self.history.seed}/{self.history.lives}")
        self._started_s = time.monotonic() - self.history.seconds

    @property
    def minutes(self) -> float:
        return (time.monotonic() - self._started_s) / 60

    def run(self, kills: int, minutes: float) -> dict[str, Any]:
        """Live on until there are enough kills, or no time is left; the object that is printed."""
        self._server.start()
        self._mend()
        try:
            self._place.write(history(self._shape()))
            while self._counted() < kills and self.minutes < minutes:
                self._life(min(self._per_life, kills - self._counted()))
                if self.history.problems:
                    break
            return self._result()
        finally:
            self._server.kill()

    def _shape(self) -> Shape:
        size = self._size
        return Shape(
            max_records=WINDOW,
            redis=self._server.url,
            executors=2,
            watch=True,
            servers=size.servers,
            copies=size.copies,
            ackers=size.ackers,
            standby=size.standby,
        )

    def _counted(self) -> int:
        """Kills of what had a part in a window."""
        return sum(kill["role"] != STANDBY for kill in self.history.kills)

    # -- one life

    def _life(self, kills: int) -> None:
        """Kill, then end: drained and compared, or cut off by a kill of the supervisor."""
        history_ = self.history
        cut_off = history_.lives % 3 == 1
        self._place.gate.unlink(missing_ok=True)
        with running(self._place, environment={"MILLRACE_E2E_CALL_S": CALL_S}) as run:
            killed = set(history_.killed_servers)
            nemesis = Nemesis(run, self._chance.randrange(1 << 30), killed)
            for _ in range(kills - cut_off):
                role = self._chance.choice(self._size.roles)
                heir = self._size.standby and self._chance.random() < HEIRS_SHARE
                # The input must not run out while the next one that stands by starts.
                if role == STANDBY or (role == "driver" and heir):
                    self._await_standby(run)
                self._feed(run)
                standing = processes.listed(self._place.work, STANDBY)
                kill = nemesis.kill(role)
                history_.killed_servers = sorted(killed)
                self._done(run, kill)
                if kill.role == "driver" and standing:
                    self._look_at_heir(run, kill.pid, standing)
            if cut_off:
                self._feed(run)
                self._done(run, nemesis.kill(SUPERVISOR))
                run.process.wait(END_S)
                await_nothing_left(self._place.work)
            else:
                self._drain(run)
        history_.lives += 1
        if not cut_off:
            self._compare()
        self._save()

    def _await_standby(self, run: Run) -> None:
        """Wait for one that can take over; a machine that is too busy for it is no fault."""
        with suppress(TooLateError):
            run.until(lambda: self._stands_by(run), "a driver that stands by", STANDBY_S)

    def _stands_by(self, run: Run) -> bool:
        """Whether a driver stands by with all of it up; the input may have ended meanwhile."""
        self._feed(run)
        pids = processes.listed(self._place.work, STANDBY)
        return any(f"process {pid})" in e["text"] for pid in pids for e in run.events(READY))

    def _look_at_heir(self, run: Run, before: int, standing: Sequence[int]) -> None:
        """Whether the next driver is the one that stood by: it may have died on its way."""
        work = self._place.work

        def next_driver() -> int:
            return next((pid for pid in processes.listed(work, "driver") if pid != before), 0)

        self.history.heirs += run.until(next_driver, "the next driver") in standing

    def _feed(self, run: Run) -> None:
        """Have some windows of input waiting; files grow, now and then within a line."""
        lag = int(run.status().get("lagRecords") or 0)
        while lag < AHEAD_WINDOWS * WINDOW:
            path = self._place.texts / f"part-{self._chance.randrange(FILES)}.txt"
            numbers = range(self.history.lines, self.history.lines + WINDOW)
            flaky = [self._chance.choice(numbers)] if self._chance.random() < FLAKY_SHARE else []
            special = dict.fromkeys(flaky, feed.FLAKY)
            data = feed.text(numbers, self.history.seed, special)
            # Saved first: a number may be left out of a history, never be used twice.
            self.history.lines += WINDOW
            self._save()
            feed.append(path, data, cut=self._chance.randrange(1, len(data)))
            lag += WINDOW

    def _mend(self) -> None:
        """End the lines within which an interrupted soak stopped feeding."""
        for path in self._place.texts.iterdir():
            if not path.read_bytes().endswith(b"\n"):
                feed.append(path, b" ok\n")

    def _drain(self, run: Run) -> None:
        """Hurry, wait until everything is sealed and published, then Ctrl-C."""
        self._place.gate.touch()
        run.until(lambda: drained(run.status(), self._fed()), "the end of the input", DRAIN_S)
        run.interrupt()
        run.wait(END_S)

    def _fed(self) -> int:
        """Lines in the files."""
        return sum(path.read_bytes().count(b"\n") for path in self._place.texts.iterdir())

    def _compare(self) -> None:
        with self._server.client() as client:
            self.history.problems = judge(self._place, Promise.EXACTLY_ONCE, client)
        wrong = self.history.problems
        verdict = f"NOT EQUAL: {wrong}" if wrong else "equal"
        self._say(f"{self._fed():,} lines fed and compared: {verdict}")

    def _done(self, run: Run, kill: Kill) -> None:
        self.history.kills.append({**kill.document(), "life": self.history.lives})
        self._save()
        self._say(
            f"kill {len(self.history.kills):3d}: {kill.role} {kill.pid} in window {kill.window}, "
            f"attempt {kill.attempt}; sealed {run.status().get('sealed')}"
        )

    def _say(self, text: str) -> None:
        print(f"{self.minutes:6.1f} min  {text}", flush=True)

    def _save(self) -> None:
        self.history.seconds = time.monotonic() - self._started_s
        self.history.save(self._file)

    def _result(self) -> dict[str, Any]:
        kills = [
            Kill(**{name: value for name, value in kill.items() if name != "life"})
            for kill in self.history.kills
        ]
        if self.history.lives % 3 == 2 and not self.history.problems:
            # The last life was cut off: what it left behind is still to be compared.
            self._finish()
        status = processes.read_json(self._place.work / "status.json") or {}
        return {
            "kills": self._counted(),
            "standbys": len(kills) - self._counted(),
            "by_role": by_role(kills, (*self._size.roles, SUPERVISOR)),
            "heirs": self.history.heirs,
            "equal": not self.history.problems,
            "windows": status.get("sealed"),
            "minutes": round(self.minutes, 1),
        }

    def _finish(self) -> None:
        with running(self._place) as run:
            self._drain(run)
        self.history.lives += 1
        self._compare()
        self._save()


def drained(status: dict[str, Any], fed: int) -> bool:
    """Whether a driver has published every line that was fed, and has none to be replayed."""
    totals = status.get("totals") or {}
    return bool(
        status.get("sealed")
        and status.get("sealed") == status.get("published")
        and not status.get("pendingReplays")
        and totals.get("roots", 0) >= fed
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module's text; 0 if everything was equal and there were enough kills."""
    parser = argparse.ArgumentParser(prog="millrace_e2e.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path(".millrace") / "soak")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no life after that time")
    parser.add_argument("--kills-per-life", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--servers", type=int, default=3, help="state servers")
    parser.add_argument("--copies", type=int, default=2, help="of each key group's state")
    parser.add_argument("--ackers", type=int, default=3)
    parser.add_argument("--standby", type=int, choices=(0, 1), default=1)
    parser.add_argument("--fresh", action="store_true", help="forget an earlier history")
    options = parser.parse_args(arguments)
    folder = options.folder.resolve()
    if options.fresh:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    quickjvm.build()
    size = Size(options.servers, options.copies, options.ackers, options.standby)
    soak = Soak(folder, options.seed, options.kills_per_life, size)
    if soak.history.kills:
        print(f"going on behind kill {len(soak.history.kills)}", flush=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        # Also where a shell has had its background jobs ignore them.
        signal.signal(number, signal.default_int_handler)
    try:
        result = soak.run(options.kills, options.minutes)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", flush=True)
        return 130
    print(json.dumps(result))
    return 0 if result["equal"] and result["kills"] >= options.kills else 1


if __name__ == "__main__":
    sys.exit(main())
