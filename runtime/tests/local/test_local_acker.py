"""The acker process of a run: how many bytes it held for each root, and where it finds the log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from standins import until

from millrace.homes.passwords import ACKER_USER
from millrace.homes.settings import PASSWORD_VARIABLE
from millrace.ids import name_id
from millrace.local.servers import RunPasswords
from millrace.protocol.acklog import source_edge
from millrace.protocol.types import (
    AttemptId,
    CloseMarker,
    Intent,
    Member,
    Phase,
    RootRange,
    Verdict,
    View,
)
from millrace.state.embedded import EmbeddedServer
from millrace.state.viewfile import ViewFile
from millrace.tracking.control import AckControl
from millrace.tracking.log import AckLog
from millrace.tracking.process import connect
from millrace_e2e.embedded import started

ROOTS = 10_000


@contextmanager
def acker(
    view: Path, figures: Path, password: str | None, *more: str
) -> Iterator[subprocess.Popen[bytes]]:
    ready = figures.with_suffix(".ready")
    place = ("--view", str(view), "--uid", "u", "--figures", str(figures), "--ready", str(ready))
    process = subprocess.Popen(
        [sys.executable, "-m", "millrace.local.acker", "--name", "acker-0", *place, *more],
        env={**os.environ, PASSWORD_VARIABLE: password or ""},
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def install(path: Path, *members: Member) -> None:
    """The next view: open, with these members."""
    store = ViewFile(path)
    version, _ = store.read()
    owners = (tuple(m.name for m in members),)
    view = View("u", 1, version + 1, Phase.OPEN, 1, members, members, version + 1, owners)
    assert store.cas(version, view) is not None


def judged(server: EmbeddedServer, window: int) -> Verdict | None:
    """The verdict on a window of which nobody processed a root, by the log on one server."""
    log = AckLog(connect(server.address.url, server.address.password), "u")
    try:
        control = AckControl(log, 1, (source_edge("s"),))
        control.begin(["acker-0"])
        attempt = AttemptId(1, window, 1)
        control.open(attempt, ROOTS)
        intent = Intent(window, (RootRange("s", name_id("p"), 0, ROOTS),))
        return control.judge(CloseMarker(attempt, intent, frozenset(), (), ()), 30.0)
    finally:
        log.close()


def test_figures_are_measured_where_a_window_is_judged(tmp_path: Path) -> None:
    figures, view = tmp_path / "ackers" / "acker-0.json", tmp_path / "view.json"
    with (
        started(tmp_path / "state") as server,
        acker(view, figures, server.address.password),
    ):
        # It is there before the view is, as at the birth of a topology.
        install(view, server.address.member())
        verdict = judged(server, 1)
        assert verdict is not None
        # Nobody processed a root, so none is complete.
        assert verdict.complete == 0
        assert figures.with_suffix(".ready").exists()
        until(figures.exists, "the acker's figures")
        assert json.loads(figures.read_text()) == {"roots": ROOTS, "bytes": 8 * ROOTS}


def test_the_log_is_read_where_the_view_says(tmp_path: Path) -> None:
    """It moves to another server, also when the one before hangs, and back. The password that it
    has is its own, which both take."""
    view, passwords = tmp_path / "view.json", RunPasswords(tmp_path, "u")

    def start(name: str) -> EmbeddedServer:
        given = {"password": passwords.of(name), "users": passwords.users()}
        return started(tmp_path / name, name, **given)

    with start("state-0") as first, start("state-1") as second:
        assert first.address.password != second.address.password
        members = first.address.member(), second.address.member()
        install(view, *members)
        own = passwords.of("acker-0")
        with acker(view, tmp_path / "figures.json", own, "--user", ACKER_USER):
            assert judged(first, 1) is not None
            first.process.send_signal(signal.SIGSTOP)
            try:
                install(view, members[1])
                assert judged(second, 2) is not None
            finally:
                first.process.send_signal(signal.SIGCONT)
            install(view, *members)
            assert judged(first, 3) is not None
