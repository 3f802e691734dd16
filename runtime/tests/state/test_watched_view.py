"""A view file that others look at while the driver replaces it."""

from __future__ import annotations

import fcntl
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from millrace.protocol.types import Member, Phase, View
from millrace.state.viewfile import ViewFile, WatchedView

MEMBERS = (Member("state-0", "a"), Member("state-1", "b"))
VIEW = View("u", 1, 1, Phase.OPEN, 1, MEMBERS, MEMBERS, 1, (("state-0", "state-1"),))


def test_what_is_there_now_is_seen(tmp_path: Path) -> None:
    store, watched = ViewFile(tmp_path / "view.json"), WatchedView(tmp_path / "view.json")
    assert watched.look() is None
    for version in range(3):
        view = replace(VIEW, epoch=version + 1)
        assert store.cas(version, view) == version + 1
        assert watched.look() == view
        assert watched.look() is watched.look()


def test_one_that_cannot_be_read_is_as_it_was(tmp_path: Path) -> None:
    """Whoever watches goes on as before; the driver says what is wrong with the file."""
    path = tmp_path / "view.json"
    watched = WatchedView(path)
    assert ViewFile(path).cas(0, VIEW) == 1
    assert watched.look() == VIEW
    path.write_text("{")
    assert watched.look() == VIEW
    path.unlink()
    assert watched.look() == VIEW


def test_reading_waits_for_nobody(tmp_path: Path) -> None:
    """Readers that took the lock and were stopped would hold up the driver for ever."""
    store = ViewFile(tmp_path / "view.json")
    assert store.cas(0, VIEW) == 1
    with ThreadPoolExecutor(1) as pool:
        with (tmp_path / "view.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            read = pool.submit(store.read)
            found = read.exception(timeout=20) or read.result()
        assert found == (1, VIEW)
