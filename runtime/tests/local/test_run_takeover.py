"""Two runs of one topology: the newer one wins, the older one says so, or is killed."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
from pathlib import Path

import psutil
from standins import Run, alive, running, until

from millrace.errors import ExitCode
from millrace.local.processes import marked
from millrace.local.takeover import Holder, take_over
from millrace.local.workdir import MARK


def test_the_newer_run_fences_the_older_one(tmp_path: Path) -> None:
    with running(tmp_path) as older:
        older.up()
        family = older.family()
        with running(tmp_path) as newer:
            result = older.result()
            assert result["code"] == ExitCode.FENCED
            assert result["reason"] == "fenced"
            assert str(newer.pid) in result["message"]
            assert older.process.returncode == ExitCode.FENCED
            assert alive(family) == []
            until(lambda: newer.complete(2), "the newer run's driver")
            assert newer.processes()["supervisor"]["pid"] == newer.pid


def test_an_older_run_that_does_not_answer_is_killed(tmp_path: Path) -> None:
    with running(tmp_path) as older:
        older.up()
        family = older.family()
        os.kill(older.pid, signal.SIGSTOP)
        with running(tmp_path, ANSWER_S="0.5") as newer:
            assert older.process.wait(30) == -signal.SIGKILL
            until(lambda: newer.complete(2), "the newer run's driver")
            assert alive(family) == []


def test_of_three_runs_the_last_one_wins_although_the_first_does_not_answer(
    tmp_path: Path,
) -> None:
    with running(tmp_path) as first:
        first.up()
        os.kill(first.pid, signal.SIGSTOP)
        with running(tmp_path, ANSWER_S="60") as second:
            until(lambda: _generation(tmp_path) == 2, "the second run's claim")
            with running(tmp_path, ANSWER_S="0.5") as third:
                assert second.result()["code"] == ExitCode.FENCED
                until(lambda: third.complete(2), "the third run's driver")
                assert first.process.wait(30) == -signal.SIGKILL


def test_a_claim_does_not_kill_a_process_that_only_has_the_old_pid(tmp_path: Path) -> None:
    """The holder named in the lock file is gone and its pid belongs to somebody else."""
    stranger = psutil.Popen(["sleep", "60"])
    try:
        note = {"generation": 1, "pid": stranger.pid, "ticks": 1}
        (tmp_path / "run.json").write_text(json.dumps(note))
        (tmp_path / "identity.json").write_text(
            json.dumps({"uid": "u", "name": "standin", "topology": "t", "created": 0})
        )
        with (tmp_path / "run.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lock.write(json.dumps(note))
            lock.flush()
            run = Run(tmp_path, ANSWER_S="0.2")
            assert run.result()["code"] == ExitCode.WORK_FOLDER
        assert stranger.is_running()
    finally:
        stranger.kill()
        stranger.wait()


def test_a_newer_run_is_seen_once_its_claim_can_be_read(tmp_path: Path) -> None:
    lease = take_over(tmp_path, lambda _: None)
    claim = tmp_path / "run.json"
    newer = {**json.loads(claim.read_text()), "generation": 2}
    claim.unlink()
    claim.symlink_to(claim)
    assert lease.newer() is None
    claim.unlink()
    claim.write_text(json.dumps(newer))
    assert lease.newer() == Holder(**newer)
    lease.release()


def test_processes_of_a_folder_whose_name_is_no_text_are_found(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xff")
    with subprocess.Popen(["sleep", "60"], env={MARK: str(folder)}) as process:
        try:
            # Its environment is there a moment after ``Popen`` has returned.
            until(lambda: list(marked(folder)), "a process of the folder", 10.0)
            assert [one.pid for one in marked(folder)] == [process.pid]
        finally:
            process.kill()


def _generation(folder: Path) -> int:
    return int(json.loads((folder / "run.json").read_text())["generation"])
