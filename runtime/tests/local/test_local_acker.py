"""The acker process of a run says how many bytes it held for each root."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from standins import until

from millrace.homes.settings import PASSWORD_VARIABLE
from millrace.ids import name_id
from millrace.protocol.acklog import source_edge
from millrace.protocol.types import AttemptId, CloseMarker, Intent, RootRange
from millrace.state.embedded import EmbeddedServer
from millrace.tracking.control import AckControl
from millrace.tracking.log import AckLog
from millrace.tracking.process import connect

ROOTS = 10_000


def test_figures_are_measured_where_a_window_is_judged(tmp_path: Path) -> None:
    figures = tmp_path / "ackers" / "acker-0.json"
    with EmbeddedServer.start(tmp_path / "state") as server:
        password = server.address.password
        assert password is not None
        place = ("--url", server.address.url, "--uid", "u", "--figures", str(figures))
        acker = subprocess.Popen(
            [sys.executable, "-m", "millrace.local.acker", "--name", "acker-0", *place],
            env={**os.environ, PASSWORD_VARIABLE: password},
            stderr=subprocess.DEVNULL,
        )
        try:
            log = AckLog(connect(server.address.url, password), "u")
            control = AckControl(log, 1, (source_edge("s"),))
            control.begin(["acker-0"])
            attempt = AttemptId(1, 1, 1)
            control.open(attempt, ROOTS)
            intent = Intent(1, (RootRange("s", name_id("p"), 0, ROOTS),))
            verdict = control.judge(CloseMarker(attempt, intent, frozenset(), (), ()), 30.0)
            assert verdict is not None
            # Nobody processed a root, so none is complete.
            assert verdict.complete == 0
            until(figures.exists, "the acker's figures")
            assert json.loads(figures.read_text()) == {"roots": ROOTS, "bytes": 8 * ROOTS}
            log._client.close()
        finally:
            acker.kill()
            acker.wait()
