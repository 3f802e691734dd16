"""Hundreds of simulated runs break no invariant, and one seed always gives the same run."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from millrace.protocol.types import Guarantee, Member, Phase, View
from millrace.simulate.history import History, Restored, ViewChanged
from millrace.simulate.options import draw
from millrace.simulate.parts.cluster import ViewStore
from millrace.simulate.simulation import Simulation

RUNS = 500


def simulate(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "millrace.simulate", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )


def test_no_run_breaks_an_invariant() -> None:
    done = simulate("--runs", str(RUNS), "--jobs", "2")
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["runs"], found["violations"]) == (RUNS, 0), done.stderr
    assert done.returncode == 0
    assert found["actions"] >= 200
    assert found["crashes"] >= 2
    assert found["seals"] >= 4


@pytest.mark.parametrize("seed", [3, 17, 41])
def test_a_seed_gives_the_same_run_in_every_process(seed: int) -> None:
    first = simulate("--seed", str(seed), "--trace", hash_seed="1")
    second = simulate("--seed", str(seed), "--trace", hash_seed="2")
    assert len(first.stdout.splitlines()) > 200
    assert first.stdout == second.stdout


def test_a_violation_is_reported_with_its_seed_and_how_to_replay_it() -> None:
    done = simulate("--runs", "20", "--bug", "publish_before_seal", "--first", "--jobs", "1")
    found = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 1
    assert found["violations"] == 1
    (seed,) = found["failed_seeds"]
    assert f"--seed {seed} --bug publish_before_seal --trace" in done.stderr


def test_neighbouring_seeds_differ() -> None:
    drawn = [draw(seed) for seed in range(36)]
    assert {o.guarantee for o in drawn} == set(Guarantee)
    assert {(o.servers, o.passes) for o in drawn} >= {(s, p) for s in (1, 2, 3) for p in (1, 2, 3)}
    assert {o.servers for o in drawn} == {1, 2, 3, 4, 5}
    assert {o.copies for o in drawn} >= {1, 2}


def test_a_change_of_the_view_that_was_on_its_way_never_reaches_a_copy() -> None:
    """Versions count from the copy on, so the number alone does not tell whose change it is."""
    members = (Member("a", "1"),)
    view = View("u", 1, 1, Phase.OPEN, 1, members, members, 1, (("a",),))
    store = ViewStore(History())
    earlier = store.life
    assert store.cas(0, view, earlier) == 1
    store.put_back(0, None)
    assert store.cas(0, view, earlier) is None
    assert store.read() == (0, None)
    assert store.cas(0, view, store.life) == 1


def test_some_runs_lose_all_copies_and_restore_a_snapshot() -> None:
    """With one server and with several, and again behind a restore."""
    found: dict[tuple[int, int], int] = {}
    for seed in (seed for seed in range(260) if draw(seed).lost_s is not None):
        restores: list[Restored] = []
        views: list[ViewChanged] = []
        simulation = Simulation(seed)
        simulation.history.listen(Restored, restores.append)
        simulation.history.listen(ViewChanged, views.append)
        assert simulation.run().violation is None, seed
        timelines = [entry.record.tag.timeline for entry in restores]
        assert timelines == sorted(set(timelines))
        for view in (entry.view for entry in views):
            later = view.timeline > 1 and view.phase is Phase.CREATING
            assert view.restoring is later, "the release before must not begin with it"
        for number, _ in enumerate(timelines):
            found[min(2, simulation.options.servers), min(number, 1)] = seed
    assert set(found) == {(1, 0), (1, 1), (2, 0), (2, 1)}
