"""Flink and Bytewax as sides: processes over ``FOLDER/input`` that write ``FOLDER/output``."""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
from measure import CpuClock
from peerprograms import BYTEWAX, bytewax_python, flink_classpath, tool
from sides import SideError

PARALLELISM = 2
LOOK_MS = 10
START_S = 120.0
_TRIES = 5
_JAVA = (
    "-Xms2g",
    "-Xmx2g",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)


class PeerSide:
    """Processes that read and write folders by themselves. ``checkpoint_ms``: between snapshots."""

    def __init__(self, name: str, folder: Path, checkpoint_ms: int) -> None:
        self.name = name
        self.folder = folder
        self.output = folder / "output"
        self.checkpoint_ms = checkpoint_ms
        self._log = folder / "log.txt"
        self._processes: list[subprocess.Popen[str]] = []
        for made in (folder / "input", self.output):
            made.mkdir(parents=True)

    def cpu_s(self) -> float:
        """Seconds of CPU that all processes of the side have spent."""
        return self._cpu.read_s()

    def alive(self) -> None:
        """Raise ``SideError`` unless all processes are."""
        for process in self._processes:
            if process.poll() is not None:
                raise SideError(f"{self.name} ended with {process.returncode}; see {self._log}")

    def stop(self) -> None:
        for process in self._processes:
            with contextlib.suppress(psutil.Error):
                for below in psutil.Process(process.pid).children(recursive=True):
                    below.kill()
            process.kill()
        for process in self._processes:
            process.wait()

    def rest(self) -> None:
        """Stop all processes where they are, so that they take nothing from other sides."""
        for process in self._processes:
            process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        """Let them go on."""
        for process in self._processes:
            process.send_signal(signal.SIGCONT)

    def _start(self, command: Sequence[str], answers: int | None = None) -> subprocess.Popen[str]:
        with self._log.open("a") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log if answers is None else answers,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._processes.append(process)
        self._cpu = CpuClock([one.pid for one in self._processes])
        return process


class FlinkSide(PeerSide):
    """One JVM with Flink's own cluster in it, two slots. ``plan``: ``sql`` or ``combined``."""

    def __init__(self, name: str, plan: str, folder: Path, checkpoint_ms: int) -> None:
        java, classpath = tool("java", "default-jre-headless"), flink_classpath()
        super().__init__(name, folder, checkpoint_ms)
        command = [java, *_JAVA, "-cp", classpath, "peers.WordCount", plan, str(folder)]
        command += [str(checkpoint_ms), str(LOOK_MS), str(PARALLELISM)]
        process = self._start(command, answers=subprocess.PIPE)
        assert process.stdout is not None
        try:
            if process.stdout.readline().strip() != "ready":
                raise SideError(f"{name} did not start; see {self._log}")
        except BaseException:
            self.stop()
            raise


class BytewaxSide(PeerSide):
    """Two processes of one worker each: workers of one process would share a Python's lock."""

    def __init__(self, name: str, folder: Path, checkpoint_ms: int) -> None:
        python = str(bytewax_python())
        super().__init__(name, folder, checkpoint_ms)
        recovery = folder / "recovery"
        recovery.mkdir()
        subprocess.run(
            [python, "-m", "bytewax.recovery", str(recovery), str(PARALLELISM)], check=True
        )
        command = [python, str(BYTEWAX / "word_count.py"), "--folder", str(folder)]
        command += ["--snapshot-ms", str(checkpoint_ms), "--addresses"]
        try:
            for _ in range(_TRIES):
                self._begin(command)
                if self._ready():
                    return
                # Somebody else may have taken a port between the look and its use.
                self.stop()
            raise SideError(f"{name} did not start; see {self._log}")
        except BaseException:
            self.stop()
            raise

    def _begin(self, command: Sequence[str]) -> None:
        self._processes.clear()
        addresses = [f"127.0.0.1:{port}" for port in free_ports(PARALLELISM)]
        for number in range(PARALLELISM):
            self._start([*command, *addresses, "--process", str(number)])

    def _ready(self) -> bool:
        """Wait until each process looks for input, or one has ended."""
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s:
            if any(process.poll() is not None for process in self._processes):
                return False
            if all((self.folder / f"{n}.started").exists() for n in range(PARALLELISM)):
                return True
            time.sleep(0.05)
        return False


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody listens on, and that the kernel gives nobody."""
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        while len(found) < count:
            one = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                one.bind(("127.0.0.1", random.randrange(20_000, 30_000)))
                found.append(one.getsockname()[1])
    return found
