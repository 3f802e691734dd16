"""Hundreds of small windows leave no more behind than the first ones did."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path

from millrace_e2e import feed, valkey
from millrace_e2e.checker import Promise
from millrace_e2e.harness import START_S, Place, Run, running
from millrace_e2e.judge import judge
from millrace_e2e.topologies import Shape, history

SEED = 17
WINDOW = 5
WINDOWS = 540
"""More than two sweeps, of which one comes every 256 windows."""


def test_keys_and_files_stay_as_many_over_hundreds_of_windows(place: Place, tmp_path: Path) -> None:
    """State, ack logs, staged rows and scratch come and go; what sinks show is the user's."""
    feed.add_file(place.texts / "a.txt", feed.text(range(WINDOW * WINDOWS), SEED))
    place.gate.touch()
    keys: list[int] = []
    files: list[int] = []
    with valkey.serving(tmp_path / "own") as server, running_on(server, place) as run:
        client = server.client()
        for window in range(20, WINDOWS - 20, 5):
            run.await_sealed(window, START_S)
            keys.append(client.dbsize())
            files.append(sum(len(names) for _, _, names in os.walk(place.work)))
        client.close()
        assert run.wait(START_S) == 0, run.tail()
    half = len(keys) // 2
    # A chain has up to 32 deltas before its base; anything that is forgotten adds one a window.
    assert max(keys[half:]) <= max(keys[:half]) + 20, keys
    assert max(files[half:]) <= max(files[:half]) + 5, files
    assert judge(place, Promise.EXACTLY_ONCE) == []


def running_on(server: valkey.Server, place: Place) -> AbstractContextManager[Run]:
    place.write(history(Shape(max_records=WINDOW, state_url=server.url, parallelism=1)))
    return running(place)
