"""A driver that stands by gets ready, stays so and does nothing else until it is told to."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace.checked import with_checksum
from millrace.engine.driver import standby as module
from millrace.engine.driver.standby import REHEARSE_EVERY_S, Standby
from millrace.engine.jobs.ahead import own_scratch
from millrace.engine.jobs.runner import AttemptRunner
from millrace.engine.jobs.session import SessionSettings, build_session
from millrace.engine.jobs.start import StartedSpark, code_path
from millrace.engine.program.compile import compile_topology
from millrace.engine.program.draft import CompileOptions
from millrace.engine.program.sql import SqlAnalyser
from millrace.errors import ExitCode, MillraceError, TopologyError
from millrace.homes import codec
from millrace.homes.settings import TAKE_OVER, answer_to, in_folder
from millrace.homes.told import read_settings
from millrace.local.files import write_json
from millrace.topology.load import parse

CODE = """
import os
from pathlib import Path

import pyarrow as pa

from millrace import row, stateful
from millrace.sinks import Sink
from millrace.sources import Source, SourcePlan

BOOK = Path(__file__).with_name("book")


def tell(what):
    with BOOK.open("a") as file:
        file.write(f"{what} {os.getpid()}\\n")


tell("imported")


@row(output="word string")
def split(line):
    tell("called")


@stateful(output="word string, n long", state="n long")
def count(line, state):
    tell("called")


class Numbers(Source):
    def __init__(self, name, options, folder):
        super().__init__(name, options, folder)
        tell("made")

    def schema(self):
        tell("asked for its columns")
        return pa.schema([("value", pa.string())])

    def plan(self, offsets, max_records):
        tell("called")

    def read(self, piece):
        tell("called")


class Mute(Sink):
    def __init__(self, name, options, folder):
        super().__init__(name, options, folder)
        tell("made")

    prepare = check_fresh = fence = last_shown = stage = publish = lambda *_: tell("called")
"""

PLAIN = """
  processors:
    - {name: split, function: "standbook:split", inputs: [{from: in}]}
    - {name: count, function: "standbook:count", inputs: [{from: split, key: [word]}]}
    - name: most
      inputs: [{from: count, key: [word]}]
      aggregate: {columns: [{name: n, function: max, of: n}]}
"""

SQL = """
  processors:
    - {name: upper, sql: {select: ["upper(value) AS value"]}, inputs: [{from: in}]}
    - {name: split, function: "standbook:split", inputs: [{from: upper}]}
    - {name: most, function: "standbook:count", inputs: [{from: split, key: [word]}]}
"""

TEXT = """
apiVersion: millrace.dev/v1alpha1
kind: StreamTopology
metadata: {{name: standing}}
spec:
  parallelism: 2
  sources: [{{name: in, custom: {{class: "standbook:Numbers"}}}}]
  {steps}
  sinks: [{{name: out, inputs: [{{from: most}}], custom: {{class: "standbook:Mute"}}}}]
"""


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    session = build_session(SessionSettings("standby", tmp_path_factory.mktemp("spark"), threads=2))
    yield session
    session.stop()


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the user's code; workers that live through several tests know no other."""
    folder = tmp_path_factory.mktemp("code")
    (folder / "standbook.py").write_text(CODE)
    return folder


class Place:
    """What a driver is told of a topology, and one that stands by for it."""

    def __init__(self, folder: Path, code: Path, spark: Any) -> None:
        self.folder = folder
        self.code = code
        self.spark = spark
        self.settings = folder / "driver.json"
        self.ready = folder / "ready"
        self.write(PLAIN)
        read, self.says = os.pipe()
        self.orders = read

    def write(self, steps: str) -> None:
        valid = parse(TEXT.format(steps=steps), folder=self.code)
        file = self.folder / "topology.json"
        whole = valid.document()
        write_json(file, with_checksum(whole))
        write_json(self.settings, codec.encode(in_folder(self.folder, "u", file, self.code)))
        self.topology = valid

    def close(self) -> None:
        for handle in (self.orders, self.says):
            with suppress(OSError):
                os.close(handle)

    def program(self) -> Any:
        code = code_path(self.topology, self.code)
        options = CompileOptions("u", self.code, code, SqlAnalyser(lambda: self.spark))
        return compile_topology(self.topology, options)

    def start(self, *_: Any) -> StartedSpark:
        return StartedSpark(self.spark.sparkContext, self.program())

    def book(self) -> dict[str, set[int]]:
        """Who did what: the pids of each line."""
        found: dict[str, set[int]] = {}
        for line in (self.code / "book").read_text().splitlines():
            what, pid = line.rsplit(" ", 1)
            found.setdefault(what, set()).add(int(pid))
        return found


@pytest.fixture
def place(tmp_path: Path, code: Path, spark: Any) -> Iterator[Place]:
    made = Place(tmp_path, code, spark)
    yield made
    made.close()


class Hasty:
    """A clock that is further each time by what lies between two rehearsals."""

    at_s = 0.0

    def now_s(self) -> float:
        return self.at_s

    def monotonic_s(self) -> float:
        self.at_s += REHEARSE_EVERY_S
        return self.at_s


def once(condition: Callable[[], bool], then: Callable[[], object]) -> threading.Thread:
    """Do something, on a thread, as soon as a condition holds; a minute is enough for it."""

    def look() -> None:
        for _ in range(1200):
            if condition():
                break
            threading.Event().wait(0.05)
        then()

    thread = threading.Thread(target=look)
    thread.start()
    return thread


@pytest.mark.parametrize("steps", [PLAIN, SQL], ids=["plain", "sql"])
def test_a_rehearsal_runs_every_pass_and_touches_nothing(place: Place, steps: str) -> None:
    place.write(steps)
    program = place.program()
    assert len(program.passes) > 1
    (place.code / "book").unlink(missing_ok=True)
    before = {path for path in place.folder.rglob("*") if "spark" not in path.parts}

    def asked() -> Any:
        raise AssertionError("a server is asked")

    runner = AttemptRunner(place.spark.sparkContext, program, {}, asked)
    runner.rehearse()
    runner.rehearse()
    assert {path for path in place.folder.rglob("*") if "spark" not in path.parts} == before
    if (place.code / "book").exists():  # else the workers of the test before have it all
        assert place.book().keys() == {"imported"}


def test_it_is_ready_stays_so_and_is_a_driver_when_it_is_told(place: Place) -> None:
    clock = Hasty()
    standing = Standby(place.settings, place.ready, clock, place.start)
    jobs = place.spark.sparkContext.statusTracker().getJobIdsForGroup

    def latest() -> int:
        return max(jobs(None), default=-1)

    def rehearsed_again() -> bool:
        return place.ready.exists() and latest() > seen + 2 * module.REHEARSALS

    seen = latest()
    thread = once(rehearsed_again, lambda: os.write(place.says, TAKE_OVER))
    assert not answer_to(place.ready).exists()
    assert standing.wait(place.orders)
    thread.join()
    assert answer_to(place.ready).exists()
    assert rehearsed_again()
    started = standing.start(place.topology, "u", place.folder, place.folder)
    assert started.program.uid == "u"
    told = place.book()
    assert told["imported"] - {os.getpid()}, "workers have the user's code"
    assert "called" not in told
    assert told["asked for its columns"] == {os.getpid()}
    operations = Path(__file__).parents[3] / "docs" / "operations.md"
    text = " ".join(operations.read_text().split())
    assert "makes each source once to ask it for its columns (`schema()`)" in text


def test_one_that_is_told_in_its_last_rehearsal_does_not_say_that_it_is_ready(
    tmp_path: Path, code: Path
) -> None:
    place = Place(tmp_path, code, spark=None)
    last, going_on = threading.Event(), threading.Event()

    class Slow(Standby):
        rehearsals = 0

        def _rehearse(self) -> None:
            self.rehearsals += 1
            if self.rehearsals == module.REHEARSALS:
                last.set()
                assert going_on.wait(60)

    started = StartedSpark(None, None)  # type: ignore[arg-type]
    standing = Slow(place.settings, place.ready, Hasty(), lambda *_: started)
    thread = once(last.is_set, lambda: os.write(place.says, TAKE_OVER))
    assert standing.wait(place.orders)
    thread.join()
    going_on.set()
    standing._pool.shutdown(wait=True)
    assert standing.rehearsals == module.REHEARSALS
    assert not place.ready.exists()
    place.close()


def test_it_ends_when_nobody_is_left_to_tell_it(place: Place) -> None:
    standing = Standby(place.settings, place.ready, Hasty(), place.start)
    thread = once(place.ready.exists, lambda: os.close(place.says))
    assert not standing.wait(place.orders)
    thread.join()


ALONE = """
import sys
from functools import partial
from millrace.engine.driver import main, standby

main.Standby = partial(standby.Standby, start=lambda *_: sys.exit("no session is needed"))
sys.exit(main.main(sys.argv[1:]))
"""


def test_one_that_nobody_can_tell_does_not_end_as_if_all_were_processed(
    tmp_path: Path, code: Path
) -> None:
    place = Place(tmp_path, code, spark=None)
    place.close()
    told = ["--settings", str(place.settings), "--standby", str(place.ready)]
    done = subprocess.run(
        [sys.executable, "-c", ALONE, *told], stdin=subprocess.DEVNULL, capture_output=True
    )
    assert done.returncode == ExitCode.FAILED, done.stderr
    assert b"nobody is left" in done.stderr


def test_it_is_no_driver_for_a_topology_that_was_edited(place: Place) -> None:
    standing = Standby(place.settings, place.ready, Hasty(), place.start)
    place.write(PLAIN.replace("of: n", "of: word"))
    os.write(place.says, TAKE_OVER)
    with pytest.raises(MillraceError, match="has been edited"):
        standing.wait(place.orders)


def test_an_edit_that_a_driver_takes_while_it_runs_needs_no_other(place: Place) -> None:
    """The driver of before was told it by a proposal, and whoever follows begins with it."""
    standing = Standby(place.settings, place.ready, Hasty(), place.start)
    told = read_settings(place.settings)
    place.write(PLAIN + "  tupleTimeout: 7s\n")
    write_json(place.settings, codec.encode(replace(told, tuned=told.tuned + 1)))
    os.write(place.says, TAKE_OVER)
    assert standing.wait(place.orders)


def test_what_keeps_it_from_getting_ready_ends_it(place: Place) -> None:
    def fails(*_: Any) -> StartedSpark:
        raise TopologyError("no such function")

    standing = Standby(place.settings, place.ready, Hasty(), fails)
    with pytest.raises(TopologyError, match="no such function"):
        standing.wait(place.orders)
    assert not place.ready.exists()


def test_what_it_starts_reads_no_orders(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys\n"
        "from millrace.engine.driver.standby import private_orders\n"
        "orders = private_orders()\n"
        "child = [sys.executable, '-c', 'import sys; print(repr(sys.stdin.read()))']\n"
        "print(subprocess.run(child, capture_output=True, text=True).stdout.strip())\n"
        "print(os.read(orders, 64))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], input=TAKE_OVER, capture_output=True)
    assert done.stdout.decode().splitlines() == ["''", repr(TAKE_OVER)], done.stderr


HOLD = """
import sys
from pathlib import Path
from millrace.engine.jobs.ahead import own_scratch
print(own_scratch(Path(sys.argv[1])), flush=True)
sys.stdin.read()
"""


def test_two_drivers_have_a_folder_each_and_a_dead_ones_is_used_again(tmp_path: Path) -> None:
    def hold() -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    first, name = hold()
    second, other = hold()
    try:
        assert (name, other) == ("spark", "spark-2")
        left = tmp_path / "spark" / "kit-1"
        left.write_text("left")
        (tmp_path / "spark-2" / "kit-2").write_text("in use")
        first.kill()
        first.wait()
        assert own_scratch(tmp_path) == "spark"
        assert not left.exists()
        assert (tmp_path / "spark-2" / "kit-2").exists()
    finally:
        for process in (first, second):
            process.kill()
            process.communicate()
