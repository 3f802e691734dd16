"""Drivers in this process on one shared Spark session, with the real parts around them.

A state server, the acker process, sources, sinks and Spark's jobs are those of a run; only the
supervisor is left out: its proposal is written once, and again when a test moves the server.
"""

from __future__ import annotations

import faulthandler
import json
import os
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from millrace.checked import with_checksum
from millrace.engine.driver.process import DriverProcess
from millrace.engine.jobs.session import SessionSettings, build_session
from millrace.engine.jobs.start import StartedSpark, code_path
from millrace.engine.program.compile import compile_topology
from millrace.engine.program.draft import CompileOptions
from millrace.engine.program.program import DEFAULT_TRANSPORT
from millrace.engine.program.sql import SqlAnalyser
from millrace.homes.documents import Proposal
from millrace.homes.passwords import shared
from millrace.homes.settings import in_folder
from millrace.local.files import read_json, write_json
from millrace.logs import stacks
from millrace.state.client import StateAddress
from millrace.state.inboxfiles import InboxFiles
from millrace.state.viewfile import ViewFile
from millrace.topology.load import load
from millrace_e2e import quickjvm
from millrace_e2e.harness import Place, read_events
from millrace_e2e.waiting import until

CODE = Path(__file__).parent / "code"
SOURCES = Path(__file__).parents[2] / "src"
END_S = 400.0
CALL_S = "0.05"
JAVA = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")
STOP_S = 60.0
SLOW_S = 240.0


@dataclass(frozen=True)
class Lab:
    """What the runs of a test module share."""

    spark: Any
    folder: Path
    orders: Path

    @property
    def gate(self) -> Path:
        """While it is gone the processors of the histories take their time."""
        return self.folder / "gate"

    @property
    def shuffles(self) -> Path:
        """Where Spark keeps map outputs."""
        return self.folder / "spark"

    def order(self, document: Mapping[str, Any]) -> None:
        """Give the saboteurs their orders; what they did before is forgotten."""
        shutil.rmtree(self.orders)
        self.orders.mkdir()
        write_json(self.orders / "orders.json", dict(document))

    def strikes(self) -> dict[str, dict[str, Any]]:
        """What the saboteurs did, by kind and window: the attempt that they hit, and where."""
        return {f.stem: json.loads(f.read_text()) for f in sorted(self.orders.glob("*.mark"))}


@contextmanager
def laboratory(folder: Path, executors: int = 0):
    """A session of two threads, or of executors as processes of their own, whose workers find the
    saboteurs and their orders."""
    orders = folder / "orders"
    orders.mkdir()
    conf = {
        **dict.fromkeys(JAVA, quickjvm.options()),
        "spark.executorEnv.MILLRACE_FAULTS": str(orders),
        "spark.executorEnv.MILLRACE_E2E_GATE": str(folder / "gate"),
        "spark.executorEnv.MILLRACE_E2E_CALL_S": CALL_S,
        "spark.executorEnv.PYTHONPATH": os.pathsep.join([str(CODE), str(SOURCES)]),
    }
    settings = SessionSettings(
        "faults",
        folder,
        threads=2,
        instances=executors,
        executor_memory="512m",
        conf=conf,
        daemon_ahead=not executors,
    )
    spark = build_session(settings)
    try:
        lab = Lab(spark, folder, orders)
        lab.gate.touch()
        yield lab
    finally:
        spark.stop()


def write_stacks() -> None:
    """What this process, Spark's JVM and its Python workers do, to standard error."""
    faulthandler.dump_traceback(2)
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            command = child.cmdline()
            if "millrace.engine.task.daemon" in command:
                child.send_signal(stacks.SIGNAL)
            elif command and command[0].endswith("java"):
                subprocess.run(["jstack", str(child.pid)], check=False)


@dataclass
class Life:
    """One life of a driver over a history; ``start`` it, then ``wait``.

    ``acker`` is the module or file that is run as the acker, None for none.
    """

    lab: Lab
    place: Place
    address: StateAddress
    transport: str = DEFAULT_TRANSPORT
    acker: str | None = "millrace.tracking.process"
    uid: str = field(default_factory=lambda: uuid.uuid4().hex)
    code: int | None = None
    error: BaseException | None = None

    def start(self) -> Life:
        work = self.place.work
        work.mkdir(exist_ok=True)
        loaded = load(self.place.topology)
        self.topology = loaded.topology
        self.propose(self.address)
        file = work / "topology.json"
        document = loaded.topology.document()
        write_json(file, with_checksum(document))
        settings = in_folder(work, self.uid, file, loaded.folder)
        self._acker = self._start_acker()
        try:
            self.driver = DriverProcess(
                settings, shared(self.address.password), start=self._program
            )
        except BaseException:
            self._end_acker()
            raise
        self._thread = threading.Thread(target=self._run, name="driver", daemon=True)
        self._thread.start()
        return self

    def propose(self, address: StateAddress) -> None:
        """What the supervisor would say of the state server and the acker."""
        inbox = InboxFiles(self.place.work / "proposal.json", self.place.work / "requests")
        inbox.propose(Proposal((address.member(),), ("acker-0",) if self.acker else ()))

    def move(self, address: StateAddress) -> None:
        """The state server is another process now, at another port."""
        self._end_acker()
        self.address = address
        self._acker = self._start_acker()
        self.propose(address)

    def wait(self, deadline_s: float = END_S) -> int:
        """The exit code of the driver, once it has ended."""
        self._thread.join(deadline_s)
        if self._thread.is_alive():
            write_stacks()
            self.stop()
            raise AssertionError(f"the driver did not end: {self.events()[-5:]}")
        self._end_acker()
        if self.error is not None:
            raise self.error
        assert self.code is not None
        return self.code

    def alive(self) -> bool:
        """Whether the driver or its acker runs."""
        return self._thread.is_alive() or self._acker is not None

    def stop(self) -> None:
        """End it, if it has not ended: cleanly where it can, else fenced as by a newer driver."""
        self.driver.ask_to_stop()
        self._thread.join(STOP_S)
        if self._thread.is_alive():
            self._fence()
            self._thread.join(STOP_S)
        self._end_acker()
        assert not self._thread.is_alive(), "a driver outlives its test"

    def _fence(self) -> None:
        store = ViewFile(self.place.work / "view.json")
        version, view = store.read()
        if view is not None:
            store.cas(version, replace(view, execution=view.execution + 1))

    def until(self, look: Any, what: str, deadline_s: float = SLOW_S) -> Any:
        """Wait for a condition while the driver lives."""

        def or_ended() -> Any:
            found = look()
            assert found or self._thread.is_alive(), f"the driver ended before {what}"
            return found

        return until(or_ended, what, deadline_s)

    def said(self, text: str) -> bool:
        """Whether the driver has told of something with this text in it."""
        return any(text in event["text"] for event in self.events())

    def sealed(self) -> int:
        """The last window that the driver says is sealed."""
        return int((read_json(self.place.work / "status.json") or {}).get("sealed", 0))

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        return [e for e in read_events(self.place.work) if kind is None or e["kind"] == kind]

    def _run(self) -> None:
        try:
            self.code = int(self.driver.run())
        except BaseException as error:  # noqa: BLE001 the boundary of a thread
            self.error = error

    def _program(self, topology: Any, uid: str, folder: Path, _: Path) -> StartedSpark:
        code = code_path(topology, folder)
        options = CompileOptions(uid, folder, code, SqlAnalyser(lambda: self.lab.spark))
        program = compile_topology(topology, options)
        return StartedSpark(self.lab.spark.sparkContext, replace(program, transport=self.transport))

    def _start_acker(self) -> subprocess.Popen[bytes] | None:
        if self.acker is None:
            return None
        module = [self.acker] if self.acker.endswith(".py") else ["-m", self.acker]
        command = [
            *(sys.executable, *module, "--name", "acker-0", "--url", self.address.url),
            *("--uid", self.uid, "--parent-pid", str(os.getpid())),
        ]
        environment = {**os.environ, "MILLRACE_FAULTS": str(self.lab.orders)}
        if self.address.password:
            environment["MILLRACE_STATE_PASSWORD"] = self.address.password
        with (self.place.work / "acker.log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def _end_acker(self) -> None:
        if self._acker is not None:
            self._acker.kill()
            self._acker.wait()
            self._acker = None


def sealed_attempts(place: Place) -> set[tuple[int, int, int]]:
    """The window attempts whose output the files sinks show, as the staged files were named."""
    found = set()
    for manifest in place.base.glob("*/_millrace/windows/*.json"):
        for file in json.loads(manifest.read_text())["files"]:
            execution, window, attempt = map(int, file["staged"].split(".")[:3])
            found.add((execution, window, attempt))
    return found
