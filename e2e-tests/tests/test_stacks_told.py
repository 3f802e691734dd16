"""A process that is asked by SIGUSR1 writes what its threads do, and goes on."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import psutil

from millrace_e2e import feed, processes
from millrace_e2e.harness import Place, Run, running
from millrace_e2e.topologies import remembered

OF_A_WINDOW = 10


def spark_python(run: Run) -> list[int]:
    """Spark's Python daemon, the process that it stands in for, and its workers."""
    (driver,) = processes.listed(run.place.work, "driver")
    found = []
    for process in psutil.Process(driver).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "millrace.engine.task.daemon" in process.cmdline():
                found.append(process.pid)
    return found


def test_every_process_of_a_run_writes_its_stacks_and_goes_on(place: Place) -> None:
    place.write(remembered(OF_A_WINDOW, watch=True))
    feed.add_file(place.texts / "a.txt", feed.text(range(2 * OF_A_WINDOW), 1))
    logs = place.work / "logs"
    with running(place) as run:
        run.await_sealed(2)

        def told(pid: int, log: Path, text: str) -> None:
            before = log.stat().st_size
            os.kill(pid, signal.SIGUSR1)
            run.until(lambda: text in log.read_bytes()[before:].decode(), f"{text} in {log.name}")

        told(run.pid, run.log, "supervisor.py")
        told(*processes.listed(place.work, "driver"), logs / "driver.log", "engine/driver/loop.py")
        told(*processes.listed(place.work, "acker"), logs / "acker-0.log", "tracking/process.py")
        workers = spark_python(run)
        assert len(workers) > 1
        for pid in workers:
            told(pid, logs / "driver.log", "engine/task/daemon.py")
        feed.append(place.texts / "a.txt", feed.text(range(2 * OF_A_WINDOW, 3 * OF_A_WINDOW), 1))
        run.await_sealed(3)
        assert set(workers) <= set(spark_python(run))
