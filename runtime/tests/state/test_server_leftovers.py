"""What a killed state server leaves, and what may not be ended with it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from millrace.errors import WorkFolderError
from millrace.redisserver import open_client
from millrace.state import embedded
from millrace.state.embedded import EmbeddedServer
from millrace.state.leftovers import end_orphans
from millrace_e2e.embedded import started

SLOW_US = 2_000_000_000
"""Waited behind each key that is rewritten, as a disk may be that hangs."""

DEADLINE_S = 30.0


def rewriting(server: EmbeddedServer) -> psutil.Process:
    """Its child, which writes the append-only file anew and does not come to an end."""
    client = open_client(server.address.url, server.address.password, answer_s=5.0)
    client.set("a", b"1")
    client.config_set("rdb-key-save-delay", SLOW_US)
    client.execute_command("BGREWRITEAOF")
    client.close()
    end_s = time.monotonic() + DEADLINE_S
    while not (children := psutil.Process(server.pid).children()):
        assert time.monotonic() < end_s
        time.sleep(0.01)
    return children[0]


def test_the_child_of_a_server_that_was_killed_does_not_keep_its_folder(tmp_path: Path) -> None:
    first = started(tmp_path)
    child = rewriting(first)
    try:
        first.kill()
        assert child.is_running()
        with started(tmp_path) as second:
            assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
            client = open_client(second.address.url, second.address.password, answer_s=5.0)
            assert client.get("a") == b"1"
            client.close()
    finally:
        end(child)


def test_a_server_that_lives_keeps_its_folder_and_its_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "LOCK_TIMEOUT_S", 0.3)
    with started(tmp_path) as server:
        child = rewriting(server)
        with pytest.raises(WorkFolderError, match="in use"):
            started(tmp_path)
        assert server.alive()
        assert child.is_running()
        assert child.status() != psutil.STATUS_ZOMBIE


def test_the_child_of_another_folders_server_is_left_alone(tmp_path: Path) -> None:
    other = started(tmp_path / "other")
    child = rewriting(other)
    try:
        other.kill()
        with started(tmp_path / "own") as own:
            assert end_orphans(own.folder) == []
        assert child.is_running()
        assert end_orphans(other.folder) == [child.pid]
    finally:
        end(child)


def end(child: psutil.Process) -> None:
    if child.is_running():
        os.kill(child.pid, signal.SIGKILL)
