"""How a run ends: drained, asked, forced, given up."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from standins import alive, running, until

from millrace.errors import ExitCode


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_driver_drain_and_ends_everything(
    tmp_path: Path, number: signal.Signals
) -> None:
    with running(tmp_path) as run:
        run.up()
        family = run.family()
        os.kill(run.pid, number)
        result = run.result()
        assert (result["code"], result["reason"]) == (ExitCode.INTERRUPTED, "asked")
        assert alive(family) == []
        assert run.processes() == {}


def test_a_run_outlives_its_session_where_that_was_asked_for(tmp_path: Path) -> None:
    """``nohup`` says so by ignoring the signal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with running(tmp_path) as run:
            run.up()
            status = Path(f"/proc/{run.pid}/status").read_text()
            os.kill(run.pid, signal.SIGTERM)
            assert run.result()["reason"] == "asked"
    finally:
        signal.signal(signal.SIGHUP, before)
    ignored = int(status.partition("SigIgn:")[2].split()[0], 16)
    assert ignored & 1 << signal.SIGHUP - 1


def test_a_second_signal_kills_a_driver_that_does_not_drain(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        run.up()
        os.kill(run.tree("driver")[0], signal.SIGSTOP)
        os.kill(run.pid, signal.SIGINT)
        until(lambda: "StopAsked" in (tmp_path / "events.jsonl").read_text(), "the first signal")
        os.kill(run.pid, signal.SIGINT)
        assert run.result()["reason"] == "asked"
        assert any(line.get("kind") == "StopForced" for line in run.lines)


def test_a_driver_that_has_drained_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "driver-exit").write_text("[0]")
    with claimed(tmp_path), running(tmp_path) as run:
        result = run.result()
        assert (result["code"], result["reason"]) == (ExitCode.OK, "drained")


def test_a_zero_alone_is_not_believed(tmp_path: Path) -> None:
    """Some constructor of the user's may call ``os._exit(0)``."""
    (tmp_path / "driver-exit").write_text("[-1, -1, 0]")
    with claimed(tmp_path), running(tmp_path) as run:
        assert run.result()["restarts"] == {"driver": 2}
        ends = [line["text"] for line in run.lines if line.get("kind") == "DriverEnded"]
        assert all("exit code 0: it has not said that all input is processed" in e for e in ends)


def test_a_driver_that_never_says_why_it_ends_with_zero_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "driver-exit").write_text("[-1]")
    with claimed(tmp_path), running(tmp_path) as run:
        result = run.result()
        assert (result["code"], result["reason"]) == (ExitCode.FAILED, "failed")
        assert "it has not said that all input is processed" in result["message"]


def test_a_driver_that_others_than_the_run_asked_to_end_is_started_again(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        run.up()
        os.kill(run.tree("driver")[0], signal.SIGTERM)
        until(lambda: run.tree("driver")[1:], "the next driver")
        os.kill(run.pid, signal.SIGINT)
        result = run.result()
        assert (result["reason"], result["restarts"]) == ("asked", {"driver": 1})


def test_a_fenced_driver_ends_the_run_as_fenced(tmp_path: Path) -> None:
    (tmp_path / "driver-exit").write_text(json.dumps([ExitCode.FENCED]))
    with claimed(tmp_path), running(tmp_path) as run:
        assert run.result()["code"] == ExitCode.FENCED


def test_the_code_of_a_fenced_driver_alone_is_not_believed(tmp_path: Path) -> None:
    """As little as a zero: ``os._exit(7)`` of the user's ends no run."""
    (tmp_path / "driver-exit").write_text(json.dumps([-ExitCode.FENCED, -ExitCode.FENCED, 0]))
    with claimed(tmp_path), running(tmp_path) as run:
        result = run.result()
        assert (result["reason"], result["restarts"]) == ("drained", {"driver": 2})
        ends = [line["text"] for line in run.lines if line.get("kind") == "DriverEnded"]
        assert all("exit code 7: it has not said that it is fenced" in text for text in ends)


def test_a_driver_that_never_says_that_it_is_fenced_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "driver-exit").write_text(json.dumps([-ExitCode.FENCED]))
    with claimed(tmp_path), running(tmp_path) as run:
        result = run.result()
        assert (result["code"], result["reason"]) == (ExitCode.FAILED, "failed")
        assert result["restarts"] == {"driver": 4}


@pytest.mark.parametrize(
    ("code", "lives"), [(ExitCode.INVALID_TOPOLOGY, 1), (ExitCode.SOURCE, 2), (ExitCode.FAILED, 5)]
)
def test_an_exit_code_that_no_restart_helps_ends_the_run_with_the_cause(
    tmp_path: Path, code: ExitCode, lives: int
) -> None:
    (tmp_path / "driver-exit").write_text(json.dumps([code]))
    with claimed(tmp_path), running(tmp_path) as run:
        result = run.result()
        assert (result["code"], result["reason"]) == (code, "failed")
        assert "the source is gone" in result["message"]
        assert result["restarts"].get("driver", 0) == lives - 1


def test_a_driver_that_loses_its_state_server_is_started_until_it_works(tmp_path: Path) -> None:
    codes = [int(ExitCode.STATE_SERVER)] * 4 + [0]
    (tmp_path / "driver-exit").write_text(json.dumps(codes))
    with claimed(tmp_path), running(tmp_path) as run:
        result = run.result()
        assert result["code"] == ExitCode.OK
        assert result["restarts"] == {"driver": 4}


def test_what_the_driver_prints_reaches_the_listener_and_its_errors_the_log(
    tmp_path: Path,
) -> None:
    (tmp_path / "driver-exit").write_text(json.dumps([ExitCode.INVALID_TOPOLOGY]))
    with claimed(tmp_path), running(tmp_path) as run:
        run.result()
        assert "the source is gone" in (tmp_path / "logs" / "driver.log").read_text()
    (tmp_path / "driver-exit").unlink()
    with running(tmp_path) as run:
        run.up()
        os.kill(run.pid, signal.SIGINT)
        run.result()
        assert {"output": "shown on the console"} in run.lines


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """A folder with an order for the stand-in gets its identity, as a first run would have."""
    identity = {"uid": "u", "name": "standin", "topology": "t", "created": 0}
    (folder / "identity.json").write_text(json.dumps(identity))
    yield
