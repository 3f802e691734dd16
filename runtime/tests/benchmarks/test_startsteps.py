"""The table of a driver's cold start: its steps, and what its processes used until each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def importable() -> Iterator[None]:
    """Benchmarks import each other by name, as scripts of one folder do."""
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))


def test_each_step_has_its_time_from_the_kill_and_the_cpu_until_then() -> None:
    from startsteps import Seen, Start, print_table, rows_of

    def start(killed_s: float, late_s: float, forked: bool) -> Start:
        line = f"the start: Spark begun 0.20 s, JVM up {1 + late_s:.2f} s, window shown 3.00 s"
        uses = [
            (killed_s + 0.5, {"driver": 0.25, "JVM": 0.0, "workers": 0.0}),
            (killed_s + 2.2, {"driver": 0.5, "JVM": 2.0, "workers": 1.0}),
            (killed_s + 9.0, {"driver": 9.0, "JVM": 9.0, "workers": 9.0}),
        ]
        return Start(killed_s, 3.5, line, Seen(uses, killed_s + 2.5 if forked else None))

    rows = rows_of([start(100.0, 0.5, True), start(200.0, 1.0, True), start(300.0, 1.5, False)])
    assert [(row.step, round(row.at_s, 2)) for row in rows] == [
        ("process begun", 0.5),
        ("Spark begun", 0.7),
        ("JVM up", 2.5),
        ("worker forked", 2.5),
        ("window shown", 3.5),
    ]
    said: list[str] = []
    print_table(rows, said.append)
    assert said[0].count("|") == said[1].count("|")
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in said[2:]]
    assert [(row[0], row[1], row[2], *row[4:]) for row in cells[1:3]] == [
        ("0.70", "0.20", "Spark begun", "0.25", "0.00", "0.00"),
        ("2.50", "1.80", "JVM up", "0.50", "2.00", "1.00"),
    ]
    assert all(row[3] for row in cells), "each says what filled the time"


def program(folder: Path, module: str, code: str) -> None:
    """A module of that name which does that, and then works until it is ended."""
    file = folder.joinpath(*module.split(".")).with_suffix(".py")
    file.parent.mkdir(parents=True, exist_ok=True)
    for package in (file.parent, *file.parent.parents):
        if package == folder:
            break
        (package / "__init__.py").touch()
    file.write_text(f"{code}while True:\n    pass\n")


def test_a_driver_that_begins_is_looked_at_with_all_that_is_below_it(tmp_path: Path) -> None:
    from startsteps import ROLES, Watch

    program(tmp_path, "millrace.engine.task.daemon", "import os\nos.fork()\n")
    code = "subprocess.Popen([sys.executable, '-m', 'millrace.engine.task.daemon'])\n"
    program(tmp_path, "millrace.engine.driver.main", f"import subprocess, sys\n{code}")
    top = "import subprocess, sys; sys.stdin.readline(); subprocess.Popen(sys.argv[1:]).wait()"
    driver = [sys.executable, "-m", "millrace.engine.driver.main"]
    with subprocess.Popen(
        [sys.executable, "-c", top, *driver],
        stdin=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    ) as process:
        try:
            with Watch(process.pid, 0) as seen:
                told_s = time.time()
                assert process.stdin is not None
                process.stdin.write(b"go\n")
                process.stdin.flush()
                until_s = time.monotonic() + 60
                while seen.forked_s is None or not seen.use(time.time())["driver"]:
                    assert time.monotonic() < until_s
                    time.sleep(0.01)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    # The clock of the kernel's ticks is a hundredth of a second coarse.
    assert seen.forked_s is not None
    assert told_s - 0.02 <= seen.forked_s <= time.time()
    assert seen.use(time.time())["JVM"] == 0
    assert seen.use(told_s - 1) == dict.fromkeys(ROLES, 0.0)
