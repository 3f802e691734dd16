"""Runs topologies as a user does, ``millrace run`` in a process of its own, and watches them.

Everything is seen from outside: the work folder's files, ``/proc`` and the command line. Nothing
of the runtime is imported.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from millrace_e2e import processes
from millrace_e2e.waiting import TooLateError, until

APPS = Path(__file__).with_name("apps")

START_S = 240.0
"""Deadline for a driver's start on a busy machine."""

END_S = 120.0
"""Deadline for a run to end cleanly, or for its processes to be gone."""


@dataclass(frozen=True, slots=True)
class Place:
    """The folders of one history: what is fed, what comes out, and the work folder."""

    base: Path

    @property
    def topology(self) -> Path:
        return self.base / "topology.yaml"

    @property
    def texts(self) -> Path:
        return self.base / "texts"

    @property
    def work(self) -> Path:
        return self.base / "work"

    @property
    def marks(self) -> Path:
        """Crash points that have fired."""
        return self.base / "fired"

    @property
    def flaky(self) -> Path:
        """Lines that have failed once."""
        return self.base / "flaky"

    @property
    def gate(self) -> Path:
        """A file whose existence tells the processors to hurry."""
        return self.base / "hurry"

    @property
    def logs(self) -> Path:
        """What each run has written."""
        return self.base / "runs"

    def sink(self, name: str) -> Path:
        """Folder of a files sink."""
        return self.base / name

    def make(self) -> Place:
        """Create the folders that have to be there before a run."""
        for folder in (self.texts, self.marks, self.flaky, self.logs):
            folder.mkdir(parents=True, exist_ok=True)
        return self

    def write(self, document: Mapping[str, Any]) -> None:
        """Write the topology file."""
        self.topology.write_text(yaml.safe_dump(dict(document), sort_keys=False))

    def fired(self) -> set[str]:
        """Names of the crash points that have fired."""
        return {path.name for path in self.marks.iterdir()}


@dataclass(slots=True)
class Run:
    """One ``millrace run``. ``environment`` is added to this process's own."""

    place: Place
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] = field(init=False)
    log: Path = field(init=False)

    def __post_init__(self) -> None:
        place = self.place
        environment = {
            **os.environ,
            "MILLRACE_E2E_GATE": str(place.gate),
            "MILLRACE_E2E_MARKS": str(place.flaky),
            "NO_COLOR": "1",
            "COLUMNS": "200",
            **self.environment,
        }
        command = [
            *(sys.executable, "-m", "millrace.cli.app", "run", str(place.topology)),
            *("--workdir", str(place.work), "--no-progress", *self.arguments),
        ]
        self.log = place.logs / f"{1 + sum(1 for _ in place.logs.iterdir())}.log"
        with self.log.open("xb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def output(self) -> str:
        """What the command has written so far."""
        return self.log.read_text(errors="replace")

    def status(self) -> dict[str, Any]:
        """The driver's figures as they stand in the work folder; empty before the first."""
        found = processes.read_json(self.place.work / "status.json")
        return found if isinstance(found, dict) else {}

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Events of a kind, of all runs in the work folder."""
        return [event for event in read_events(self.place.work) if event["kind"] == kind]

    def moved(self) -> tuple[object, ...]:
        """What changes while the run gets on: its windows, its drivers, its events."""
        status = self.status()
        told = self.place.work / "events.jsonl"
        return status.get("sealed"), status.get("execution"), told.exists() and told.stat().st_size

    def wait(self, deadline_s: float) -> int:
        """The exit code. Raises ``TooLateError`` with the end of the output where it gets on by
        nothing for so long."""

        def ended() -> bool:
            return self.process.poll() is not None

        try:
            until(ended, "the end of the run", deadline_s, moved=self.moved)
        except TooLateError as late:
            raise TooLateError(f"{late}; {self.tail()}") from None
        return int(self.process.returncode)

    def await_sealed(self, window: int, deadline_s: float = START_S) -> None:
        """Wait until this run's driver has sealed a window."""
        self.until(lambda: self.status().get("sealed", 0) >= window, f"window {window}", deadline_s)

    def until(self, look: Any, what: str, deadline_s: float = START_S) -> Any:
        """``waiting.until``, while the run gets on; ends at once where the run has ended."""

        def or_ended() -> Any:
            found = look()
            if not found and self.process.poll() is not None:
                found = look()
                if not found:
                    raise TooLateError(
                        f"the run ended ({self.process.returncode}) before {what}: {self.tail()}"
                    )
            return found

        try:
            return until(or_ended, what, deadline_s, moved=self.moved)
        except TooLateError as late:
            raise TooLateError(f"{late}; {self.tail()}") from None

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL of the supervisor; everything of its run has to end with it."""
        self.process.kill()
        self.process.wait()

    def tail(self, size: int = 3000) -> str:
        """The ends of what the command and the driver wrote, for messages of failed tests."""
        text = f"\n--- output\n{self.output()[-size:]}"
        for name in ("driver", "acker-0"):
            log = self.place.work / "logs" / f"{name}.log"
            if log.exists():
                text += f"\n--- {name}\n{log.read_bytes()[-size:].decode(errors='replace')}"
        return text


def read_events(work: Path) -> list[dict[str, Any]]:
    """The lines of ``events.jsonl``."""
    try:
        lines = (work / "events.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines]


def command(place: Place, *words: str, deadline_s: float = START_S) -> tuple[int, str]:
    """Exit code and output of ``millrace WORDS --workdir ...``."""
    done = subprocess.run(
        [sys.executable, "-m", "millrace.cli.app", *words, "--workdir", str(place.work)],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=deadline_s,
    )
    return done.returncode, done.stdout


def called(main: Callable[[], None], *words: str, **environment: str) -> tuple[int, str]:
    """Exit code and output of ``millrace WORDS``, in this process: for tests that call commands
    often, where starting is not what they test. ``main`` is the command's own."""
    said, code = io.StringIO(), 0
    with (
        mock.patch.dict(os.environ, environment),
        mock.patch.object(sys, "argv", ["millrace", *words]),
        redirect_stdout(said),
        redirect_stderr(said),
    ):
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
    return code, said.getvalue()


def status_command(place: Place) -> dict[str, Any]:
    """What ``millrace status --json`` prints."""
    command = [sys.executable, "-m", "millrace.cli.app", "status", "--json"]
    done = subprocess.run(
        [*command, "--workdir", str(place.work)], check=True, stdout=subprocess.PIPE, text=True
    )
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def await_nothing_left(work: Path, deadline_s: float = END_S) -> None:
    """Wait until no process of any run in a work folder is there. Raises ``TooLateError``."""
    try:
        until(lambda: not processes.marked(work), "the end of all processes", deadline_s)
    except TooLateError as late:
        left = processes.marked(work)
        raise TooLateError(f"{late}: {processes.describe(left)}") from None


@contextmanager
def running(
    place: Place, *arguments: str, environment: Mapping[str, str] | None = None
) -> Iterator[Run]:
    """A run that is killed at the end if it still runs, with nothing left of it."""
    run = Run(place, arguments, environment or {})
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.kill()
        await_nothing_left(place.work)


def run_refused(place: Place, *arguments: str, deadline_s: float = START_S) -> tuple[int, str]:
    """Exit code and output of a run that is expected to end before it disturbs another one."""
    run = Run(place, arguments)
    try:
        return run.wait(deadline_s), run.output()
    finally:
        run.kill()


def run_to_end(
    place: Place,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    deadline_s: float = 120.0,
) -> Run:
    """Run until the topology is drained. Raises ``TooLateError`` and ``AssertionError``."""
    with running(place, *arguments, environment=environment) as run:
        code = run.wait(deadline_s)
        if code != 0:
            raise AssertionError(f"the run ended with exit code {code}: {run.tail()}")
    return run
