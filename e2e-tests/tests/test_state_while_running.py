"""State that is read while windows go on is that of one window as a whole."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from typing import Any

from millrace_e2e import feed
from millrace_e2e.harness import Place, running
from millrace_e2e.topologies import remembered

LINES, OF_A_WINDOW, LOOKS = 30_000, 10, 3
"""More lines than a run gets through while it is looked at: it is killed behind that."""


def scan(place: Place, processor: str) -> tuple[set[int], dict[str, Any]]:
    """The windows that the rows are said to be of, and the rows: key → state."""
    command = [sys.executable, "-m", "millrace.cli.app", "state", "scan", processor, "--json"]
    done = subprocess.run(
        [*command, "--workdir", str(place.work)], check=True, stdout=subprocess.PIPE, text=True
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    windows = {row["window"] for row in rows}
    return windows, {next(iter(row["key"].values())): row["state"]["n"] for row in rows}


def expected(window: int) -> dict[str, Counter[str]]:
    """What the lines up to a window leave, counted here."""
    lines = [feed.line(number, 1).split() for number in range(window * OF_A_WINDOW)]
    return {
        "count": Counter(word for _, _, *words in lines for word in words),
        "number": Counter(f"b{name[-2:]}" for name, *_ in lines),
    }


def test_every_answer_is_of_one_window_while_windows_go_on(place: Place) -> None:
    place.write(remembered(OF_A_WINDOW, watch=True))
    feed.add_file(place.texts / "a.txt", feed.text(range(LINES), 1))
    seen: set[int] = set()
    with running(place, environment={"MILLRACE_E2E_CALL_S": "0.4"}) as run:
        run.await_sealed(2)
        for _ in range(LOOKS):
            for processor in ("count", "number"):
                windows, rows = scan(place, processor)
                (window,) = windows
                assert rows == expected(window)[processor], window
                seen.add(window)
        last = run.status()["sealed"]
        assert last * OF_A_WINDOW < LINES, "the input ended before the last look"
    assert len(seen) > LOOKS, "windows did not go on between the looks"
    # The run was killed; what it has sealed is there still.
    (window,), rows = scan(place, "count")
    assert window >= last
    assert rows == expected(window)["count"]
