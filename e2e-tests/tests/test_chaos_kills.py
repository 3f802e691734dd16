"""Every kind of process is killed at random moments in one run, and the counts are the same.

A kill counts only if it hit work in flight; ``chaos`` says how that is known.
"""

from __future__ import annotations

import json

import pytest

from millrace_e2e import feed, valkey
from millrace_e2e.chaos import ROLES, Nemesis
from millrace_e2e.checker import Promise
from millrace_e2e.harness import Place, running
from millrace_e2e.judge import judge
from millrace_e2e.topologies import Shape, history

LINES = 45_000
WINDOW = 4_500
"""Larger than what runs as one task, so that envelopes are exchanged between executors."""

CALL_S = "0.03"
"""Half a second of waiting in each of a window's two tasks while processes are being killed."""

END_S = 400.0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_all_roles_killed_with_work_in_flight_and_counts_are_equal(
    seed: int, place: Place, sink_server: valkey.Server
) -> None:
    special = {1_234: feed.FLAKY, 30_321: feed.FLAKY}
    for part in range(2):
        numbers = range(part * LINES // 2, (part + 1) * LINES // 2)
        feed.add_file(place.texts / f"part-{part}.txt", feed.text(numbers, seed, special))
    place.write(history(Shape(max_records=WINDOW, redis=sink_server.url, executors=1)))
    with running(place, environment={"MILLRACE_E2E_CALL_S": CALL_S}) as run:
        nemesis = Nemesis(run, seed)
        nemesis.kill_each(list(ROLES))
        place.gate.touch()
        assert run.wait(END_S) == 0, run.tail()
    print("\n".join(json.dumps(kill.document()) for kill in nemesis.kills))
    assert {kill.role for kill in nemesis.kills} == set(ROLES)
    with sink_server.client() as client:
        assert judge(place, Promise.EXACTLY_ONCE, client) == []
