"""``list``, ``logs``, ``stop``, ``status --watch``; all commands take the file the same ways."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from cli_support import topology
from command_calls import called, command
from rich.console import Console

from millrace.cli.output import counted
from millrace.cli.progress import Lines, event_line
from millrace.clock import SystemClock
from millrace.errors import ExitCode
from millrace.homes.documents import RunEvent
from millrace.local.files import write_json
from millrace.local.logs import RunLog
from millrace.local.workdir import WorkFolder, open_folder
from millrace.state.journalfiles import JournalFiles
from millrace.topology.load import load

SPEC = """
  sources: [{name: lines, files: {path: texts}}]
  sinks: [{name: out, inputs: [{from: lines}], files: {path: out}}]
"""
STATUS = {
    "state": "drained",
    "execution": 3,
    "epoch": 1,
    "phase": "open",
    "sealed": 1,
    "published": 1,
    "totals": {"roots": 1, "windows": 1, "replays": 0, "dead": 0, "dropped": 0},
    "pendingReplays": 1,
    "deadLetters": 0,
    "rootsPerS": 1.0,
    "lagRecords": 1,
    "window": None,
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return topology(tmp_path, SPEC)


@pytest.fixture
def folder(file: Path) -> WorkFolder:
    """The topology has run."""
    made = open_folder(file.parent / ".millrace" / "first", "first", file, SystemClock())
    write_json(made.status, {**STATUS, "pid": 1})
    document = load(file).topology.document()
    write_json(made.topology, document)
    (made.logs / "driver.log").write_text("one\ntwo\nthree\n")
    (made.logs / "acker-0.log").write_text("acked\n")
    (made.path / "state-0").mkdir()
    (made.path / "state-0" / "server.log").write_text("served\n")
    return made


@pytest.mark.parametrize(
    "words",
    [["validate"], ["describe"], ["status"], ["logs"], ["stop"], ["dead-letters", "list"]],
    ids=lambda words: words[-1],
)
def test_every_command_takes_the_file_in_front_or_by_an_option(file, folder, words) -> None:
    done = [called(*words, *how, cwd=Path("/")) for how in ([str(file)], ["-t", str(file)])]
    assert [one.returncode for one in done] == [0, 0], done[0].stderr + done[1].stderr
    assert done[0].stdout == done[1].stdout
    twice = called(*words, str(file), "--topology", str(file))
    assert twice.returncode == ExitCode.USAGE


def test_scale_takes_the_file_the_same_ways_and_needs_a_run(file, folder) -> None:
    for how in ([str(file)], ["-t", str(file)]):
        done = called("scale", *how, "--state-servers", "2", cwd=Path("/"))
        assert done.returncode == ExitCode.USAGE
        assert "first is not running" in done.stderr
    for nothing in ([], ["--ackers", "-1"], ["-t", str(file), "--ackers", "1"]):
        assert called("scale", str(file), *nothing).returncode == ExitCode.USAGE


def test_run_takes_the_file_the_same_ways(file, tmp_path) -> None:
    home = str(tmp_path / "no-java")
    done = [command("run", *how, JAVA_HOME=home) for how in ([str(file)], ["-t", str(file)])]
    assert [one.returncode for one in done] == [ExitCode.JAVA, ExitCode.JAVA]
    assert called("run", str(file), "-t", str(file)).returncode == ExitCode.USAGE
    assert called("run").returncode == ExitCode.USAGE


def test_topologies_that_have_run_are_listed(file, folder, tmp_path) -> None:
    open_folder(tmp_path / ".millrace" / "other", "other", tmp_path / "o.yaml", SystemClock())
    broken = tmp_path / ".millrace" / "broken"
    broken.mkdir()
    (broken / "identity.json").write_text("{")
    rows = {
        row["name"]: row
        for row in map(json.loads, called("list", "--json", str(tmp_path)).stdout.splitlines())
    }
    assert list(rows) == ["broken", "first", "other"]
    assert (rows["first"]["state"], rows["first"]["roots"]) == ("drained", 1)
    assert rows["first"]["topology"] == str(file)
    assert rows["other"]["state"] == "starting"
    assert rows["broken"]["state"].startswith("unreadable: ")
    text = called("list", cwd=tmp_path).stdout
    assert re.search(r"first\s+drained\s+1\s+1\s+0", text)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert called("list", cwd=empty).stdout == "no topology of this folder has run\n"


def test_stop_says_where_nothing_runs(file, folder) -> None:
    assert called("stop", str(file)).stdout == "first is not running\n"


def test_logs_are_chosen_by_role_or_process(folder, tmp_path) -> None:
    assert called("logs", "-n", "2", cwd=tmp_path).stdout == "two\nthree\n"
    assert called("logs", "acker", cwd=tmp_path).stdout == "acked\n"
    assert called("logs", "topology.yaml", "state-0", cwd=tmp_path).stdout == "served\n"
    both = called("logs", "driver", "acker-0", "-n", "1", cwd=tmp_path).stdout
    assert both == "driver: three\nacker-0: acked\n"
    done = called("logs", "nobody", cwd=tmp_path)
    assert done.returncode == ExitCode.WORK_FOLDER
    assert "acker-0, driver, state-0" in done.stderr


def following(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "millrace.cli.app", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, "NO_COLOR": "1"},
    )


def ended(process: subprocess.Popen[str]) -> int:
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    return process.returncode


def test_logs_are_followed_over_a_file_that_is_put_aside(folder, tmp_path) -> None:
    log = folder.logs / "driver.log"
    with following("logs", "-f", "-n", "1", cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "three\n"
        with log.open("a") as writer:
            writer.write("four\nfi")
            writer.flush()
            assert process.stdout.readline() == "four\n"
            writer.write("ve\n")
            writer.flush()
            assert process.stdout.readline() == "five\n"
        log.replace(log.with_suffix(".log.1"))
        log.write_text("six\n")
        assert process.stdout.readline() == "six\n"
        assert ended(process) == 0


def test_status_is_watched_until_it_is_interrupted(folder, tmp_path) -> None:
    with following("status", "--watch", "--json", cwd=tmp_path) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["sealed"] == 1
        write_json(folder.status, {**STATUS, "sealed": 2})
        seen = (json.loads(process.stdout.readline())["sealed"] for _ in range(30))
        assert 2 in seen
        assert ended(process) == 0
    with following("status", "-w", cwd=tmp_path) as process:
        assert process.stdout is not None
        text = [process.stdout.readline() for _ in range(60)]
        assert len([line for line in text if line.startswith("first ")]) >= 2
        assert ended(process) == 0


def test_status_speaks_plainly_and_counts_one_as_one(folder, tmp_path) -> None:
    text = called("status", cwd=tmp_path).stdout
    assert "first is drained: all input is processed and published (drained)" in text
    assert "1 root in 1 window\n" in re.sub(r" +\n", "\n", text)
    assert "1 record waits in the sources" in text
    labels = re.findall(r"^(\w[\w /]*?)  ", text, re.M)
    wanted = "topology, work folder, guarantee, sealed, roots, roots/s, unread, pending, replays"
    assert labels == [*wanted.split(", "), "dead letters", "execution"]
    assert (counted(1, "root"), counted(0, "pass"), counted(1200, "root")) == (
        "1 root",
        "0 passes",
        "1,200 roots",
    )


def test_events_have_a_date_and_plain_words() -> None:
    event = RunEvent(0.0, "StateServerEnded", "it is started again", warning=True)
    assert re.fullmatch(
        r"19(69|70)-\d\d-\d\d \d\d:\d\d:\d\d state server ended \(StateServerEnded\): "
        "it is started again",
        event_line(event),
    )


def lines_to(out: io.StringIO, folder: Path, **options: bool) -> Lines:
    return Lines(Console(file=out, width=200, **options), folder, SystemClock())


def test_events_are_shown_in_the_order_of_the_file(tmp_path) -> None:
    """What the driver wrote before an event of the supervisor is shown before it, each once."""
    out = io.StringIO()
    display = lines_to(out, tmp_path)
    log = RunLog(JournalFiles(tmp_path / "status.json", tmp_path / "events.jsonl"), SystemClock())
    log.add("WindowSplit", "by the driver")
    mine = log.add("DriverEnded", "by the supervisor")
    display.event(mine)
    log.add("DriverRecovered", "by the next driver")
    display.progress()
    display.event(RunEvent(1.0, "Unwritten", "the disk is full"))
    display.finish()
    told = re.findall(r"\((\w+)\)", out.getvalue())
    assert told == ["WindowSplit", "DriverEnded", "DriverRecovered", "Unwritten"]


def test_an_interrupt_that_the_terminal_echoes_is_cleared(tmp_path) -> None:
    out = io.StringIO()
    display = lines_to(out, tmp_path, force_terminal=True)
    display.event(RunEvent(1.0, "StopAsked", "asked to stop"))
    assert out.getvalue().startswith("\r\x1b[2K")
    assert "stop asked" in out.getvalue()


def test_lines_of_several_writers_are_never_glued(tmp_path) -> None:
    """The driver's output comes by a thread, events and figures by another."""
    read, write = os.pipe()
    with os.fdopen(write, "w") as file, os.fdopen(read) as reader:
        display = Lines(Console(file=file, width=200), tmp_path, SystemClock())
        texts = [f"{letter * 700}" for letter in "abcd"]
        found: list[str] = []
        collecting = threading.Thread(target=lambda: found.extend(reader))
        collecting.start()
        writers = [
            threading.Thread(target=lambda text=text: [display.output(text) for _ in range(50)])
            for text in texts
        ]
        for writer in writers:
            writer.start()
        for number in range(50):
            display.event(RunEvent(1.0, "Some", f"event {number}"))
        for writer in writers:
            writer.join()
        file.close()
        collecting.join()
    assert {line.rstrip("\n") for line in found if line[0] in "abcd"} == set(texts)
    assert len(found) == 250
