"""The programs that are compared: plain Structured Streaming, and Millrace as a user runs it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from measure import SETTLE_S, CpuClock, Round, copied

HERE = Path(__file__).resolve().parent
ROUND_S = 600.0
_LOOK_S = 0.001
_SELDOM_S = 0.05
"""Where what is looked at has the times: looking takes from a core."""


class SideError(RuntimeError):
    """A side ended or stood still; the message names its log."""


def all_times(times: Mapping[int, float], first: int, windows: int) -> list[float]:
    """The time of each of so many windows from ``first`` on. ``SideError`` where one lacks."""
    missed = [window for window in range(first, first + windows) if window not in times]
    if missed:
        raise SideError(f"the status did not show {len(missed)} of {windows} windows: {missed[:5]}")
    return [times[window] for window in range(first, first + windows)]


class BaselineSide:
    """A ``baseline.py`` process; one on the folder of another goes on from its checkpoint."""

    def __init__(
        self,
        name: str,
        plan: str,
        store: str,
        folder: Path,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.output = folder / "output"
        self.batches_ms: list[dict[str, int]] = []
        folder.mkdir(parents=True, exist_ok=True)
        self._drafts = folder / "drafts"
        self._input = folder / "input"
        self._log = folder / "log.txt"
        command = [sys.executable, str(HERE / "baseline.py"), "--plan", plan, "--store", store]
        for key, value in (settings or {}).items():
            command += ["--set", f"{key}={value}"]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [*command, "--folder", str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                bufsize=1,
                start_new_session=True,
            )
        self._cpu = CpuClock([self._process.pid])
        self._answer()

    def round(self, files: Sequence[Path]) -> Round:
        before = self._cpu.read_s()
        self.begin(copied(files, self._drafts))
        answer = self.end()
        time.sleep(SETTLE_S)
        return Round(answer["begin"], answer["ends"], self._cpu.read_s() - before)

    def begin(self, files: Sequence[Path]) -> None:
        """Have files, which are moved away, processed as one window each."""
        self._tell({"files": [str(path) for path in files]})

    def end(self) -> dict[str, Any]:
        """Wait until they are: when it began, and each one's ``ends``."""
        answer = self._answer()
        self.batches_ms += answer["batches_ms"]
        return answer

    def arrive(self, files: Sequence[Path]) -> None:
        """Let copies of the files arrive, whether the process lives or not."""
        there = sum(1 for _ in self._input.iterdir())
        for index, path in enumerate(copied(files, self._drafts)):
            path.rename(self._input / f"{there + index:08d}.txt")

    def expect(self, batches: int) -> float:
        """Wait for batches over what has arrived; when the last one was written, by
        ``time.monotonic``."""
        self._tell({"files": [], "expect": batches})
        ended: float = self._answer()["ends"][-1]
        return ended

    def cpu_s(self) -> float:
        """Seconds of CPU that this process and those below it have spent."""
        return self._cpu.read_s()

    @contextlib.contextmanager
    def resting(self) -> Iterator[None]:
        """Stopped where it is, with all that is below it, so that it takes nothing from another."""
        os.killpg(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL for the process and all that is below it, at once."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._tell({"stop": True})
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _tell(self, command: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SideError(f"{self.name} ended; see {self._log}")
        answer: dict[str, Any] = json.loads(line)
        return answer


class MillraceSide:
    """A ``millrace run`` with all its processes, over a folder into which files arrive.

    ``spec`` is the topology's spec; its source must read ``input``, its sink write ``output``,
    both beside the topology file. ``standby``: how many drivers stand by.
    """

    def __init__(self, name: str, spec: Mapping[str, Any], folder: Path, standby: int = 0) -> None:
        self.name = name
        self.output = folder / "output"
        self.workdir = folder / "work"
        self._drafts = folder / "drafts"
        self._input = folder / "input"
        self._input.mkdir(parents=True, exist_ok=True)
        self._rounds = sum(1 for _ in self._input.iterdir())
        self._log = folder / "log.txt"
        topology = folder / "topology.yaml"
        spark = dict(spec.get("spark", {}))
        spark["driver"] = {**spark.get("driver", {}), "standby": standby}
        document = {
            "apiVersion": "millrace.dev/v1alpha1",
            "kind": "StreamTopology",
            "metadata": {"name": name},
            "spec": {**spec, "spark": spark},
        }
        topology.write_text(json.dumps(document, indent=1))
        command = [sys.executable, "-m", "millrace.cli.app", "run", str(topology)]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [*command, "--workdir", str(self.workdir), "--no-progress"],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "NO_COLOR": "1"},
            )
        self._cpu = CpuClock([self._process.pid])

    @property
    def pid(self) -> int:
        """Of the supervisor, below which all others are."""
        return self._process.pid

    def round(self, files: Sequence[Path]) -> Round:
        """Each file is one window: it must hold as many lines as a window."""
        before = self._cpu.read_s()
        first = self._next_window()
        begin = self.feed(files)
        ends = list(itertools.islice(self._published(first), len(files)))
        time.sleep(SETTLE_S)
        return Round(begin, ends, self._cpu.read_s() - before)

    def small_round(self, file: Path, windows: int) -> list[float]:
        """From open to published, in seconds and by Millrace's own status, of each window that one
        file fills. Raises ``SideError`` where the status did not show one: it has the last few
        only, and is behind by a fraction of a second."""
        first = self._next_window()
        last = first + windows - 1
        self.feed([file])
        times: dict[int, float] = {}

        def finished() -> bool:
            status = self.status()
            for timing in status.get("timings", ()):
                times[timing["window"]] = timing["openToPublishedS"]
            return self.shown() >= last and max(times, default=0) >= last

        self._wait(finished, ROUND_S, _SELDOM_S)
        return all_times(times, first, windows)

    def _next_window(self) -> int:
        """Between rounds all windows are shown."""
        return self.shown() + 1

    def shown(self) -> int:
        """The last window that the sink shows as a whole."""
        marks = (self.output / "_millrace" / "windows").glob("*.done")
        return max((int(mark.stem) for mark in marks), default=0)

    def feed(self, files: Sequence[Path]) -> float:
        """Let copies of the files arrive at once; returns when that began."""
        drafts = copied(files, self._drafts)
        begin = time.monotonic()
        for index, path in enumerate(drafts):
            path.rename(self._input / f"{self._rounds:05d}-{index:05d}.txt")
        self._rounds += 1
        return begin

    def cpu_s(self) -> float:
        """Seconds of CPU that all processes of the run have spent."""
        return self._cpu.read_s()

    def status(self) -> dict[str, Any]:
        """What the driver wrote last; empty before."""
        try:
            found: dict[str, Any] = json.loads((self.workdir / "status.json").read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return found

    def processes(self) -> list[dict[str, Any]]:
        """Role, pid and resident bytes of every process of the run."""
        command = [sys.executable, "-m", "millrace.cli.app", "status", "--json"]
        done = subprocess.run(
            [*command, "--workdir", str(self.workdir)], stdout=subprocess.PIPE, check=True
        )
        found: list[dict[str, Any]] = json.loads(done.stdout)["processes"]
        return found

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            for process in [*psutil.Process(self._process.pid).children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            self._process.kill()
            self._process.wait()

    def _published(self, first: int) -> Iterator[float]:
        """When each window from ``first`` on was shown, in order, as it happens."""
        for window in itertools.count(first):
            self.expect(window)
            yield time.monotonic()

    def expect(self, window: int) -> None:
        """Wait until a window is shown as a whole, and at most a millisecond longer.

        The sink's done marks tell, so that nothing the runtime reports of itself is believed. Their
        own times say nothing: they are names of a file that is older.
        """
        self._wait(lambda: self.shown() >= window, ROUND_S)

    def _wait(self, condition: Callable[[], bool], limit_s: float, look_s: float = _LOOK_S) -> None:
        deadline = time.monotonic() + limit_s
        while not condition():
            if self._process.poll() is not None:
                raise SideError(f"{self.name} ended with {self._process.returncode}: {self._log}")
            if time.monotonic() > deadline:
                raise SideError(f"{self.name} stood still for {limit_s:.0f} s; see {self._log}")
            time.sleep(look_s)
