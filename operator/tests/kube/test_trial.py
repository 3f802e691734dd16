"""The chart's test: a topology that asks for one pod is made, seen to and deleted."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from memory_api import Json, MemoryApi
from memory_world import CORE, World

from millrace.homes.pods import DATA_FOLDER
from millrace.homes.stores import HomeAwayError
from millrace.topology.checks.pods import on_cluster
from millrace.topology.load import parse
from millrace.topology.scalars import quantity
from millrace_operator import trial
from millrace_operator.api.settings import OperatorSettings
from millrace_operator.builders.naming import Owner
from millrace_operator.builders.pods import acker_pod, driver_pod, state_server_pod
from millrace_operator.kube.objects import Objects, RefusedError
from millrace_operator.kube.observing import Key

CHART = Path(__file__).parents[3] / "charts" / "millrace"
PATH = "/apis/millrace.dev/v1alpha1/namespaces/jobs/streamtopologies/trial-1"


class Generations(MemoryApi):
    """An API server that numbers what is made."""

    def put(self, path: str, found: Json) -> Json:
        found.setdefault("metadata", {}).setdefault("generation", 1)
        return super().put(path, found)


@pytest.fixture
def world() -> World:
    return World(Generations())


def attempt(world: World, pause: Any) -> None:
    objects = Objects(world.api)  # type: ignore[arg-type]
    trial.attempt(objects, "jobs", "trial-1", 60.0, world.clock, pause)


def test_the_topology_is_valid_and_small():
    parse(json.dumps(trial.manifest("jobs", "trial-1")))


def test_a_quota_of_cpu_and_memory_takes_its_pods_and_that_of_the_test():
    model = parse(json.dumps(trial.manifest("jobs", "trial-1")))
    owner, settings = Owner("trial-1", "jobs", "u", "0.1.0"), OperatorSettings("r:1", "s:1", "m")
    made = [
        state_server_pod(owner, settings, model, 0),
        acker_pod(owner, settings, model, 0),
        driver_pod(owner, settings, model, 1, "f"),
    ]
    for pod in made:
        (container,) = pod["spec"]["containers"]
        assert set(container["resources"]["limits"]) == {"cpu", "memory"}
        requested, limited = (
            quantity(container["resources"][kind]["cpu"]) for kind in ("requests", "limits")
        )
        assert requested <= limited
    template = (CHART / "templates" / "tests" / "trial.yaml").read_text()
    (limits,) = re.findall(r"^ +limits:\n((?: +.*\n)*?) +securityContext:", template, re.M)
    assert set(re.findall(r"^ +(\w+): \w+$", limits, re.M)) == {"cpu", "memory"}


def test_a_release_may_have_a_longer_name_than_a_topology():
    long = "team-that-has-much-to-say-of-itself-millrace-trial"
    assert trial.called("trial", "0a1b2c") == "trial-0a1b2c"
    for size in range(1, len(long) + 1):
        made = trial.called(long[:size], "0a1b2c")
        assert made.endswith("-0a1b2c")
        parse(json.dumps(trial.manifest("jobs", made)))


def test_a_release_may_have_a_name_that_begins_with_a_digit():
    assert trial.called("2024-millrace-trial", "0a1b2c") == "trial-2024-millrace-trial-0a1b2c"
    for release in ("2024-millrace", "9" * 50):
        made = parse(json.dumps(trial.manifest("jobs", trial.called(release, "0a1b2c"))))
        assert list(on_cluster(made, DATA_FOLDER)) == []


def test_a_release_may_have_a_name_with_a_dot():
    assert trial.called("v1.2-millrace-trial", "0a1b2c") == "v1-2-millrace-trial-0a1b2c"
    long = f"{'a' * 30}.{'b' * 30}"
    for size in range(1, len(long) + 1):
        parse(json.dumps(trial.manifest("jobs", trial.called(long[:size], "0a1b2c"))))


def test_an_operator_makes_all_down_to_its_pod_and_it_is_deleted(world: World):
    operator, turns = world.operator(), []

    def pause(seconds: float) -> None:
        world.clock.time_s += seconds
        operator.turn(Key("jobs", "trial-1"))
        turns.append(world.api.objects[PATH].get("status", {}).get("phase"))

    attempt(world, pause)
    assert turns[-1] == "Suspended"
    assert PATH not in world.api.objects
    assert f"{CORE}/secrets/trial-1-secret" in world.api.objects
    assert world.names("pods") == ["trial-1-state-0"]


def test_a_pod_that_is_refused_is_told(world: World):
    operator = world.operator()
    world.api.refused["trial-1-state-0"] = (403, "exceeded quota")

    def pause(seconds: float) -> None:
        world.clock.time_s += seconds
        operator.turn(Key("jobs", "trial-1"))

    with pytest.raises(trial.UnsettledError, match="exceeded quota"):
        attempt(world, pause)
    assert PATH not in world.api.objects


def test_without_an_operator_it_fails_and_is_deleted(world: World):
    def pause(seconds: float) -> None:
        world.clock.time_s += seconds

    with pytest.raises(trial.UnsettledError, match=r"60 s .*does an operator run"):
        attempt(world, pause)
    assert PATH not in world.api.objects


def test_what_the_operator_tells_is_passed_on(world: World):
    def pause(seconds: float) -> None:
        world.clock.time_s += seconds
        world.api.objects[PATH]["status"] = {"message": "no rights"}

    with pytest.raises(trial.UnsettledError, match="no rights"):
        attempt(world, pause)


def test_of_an_older_generation_nothing_is_known():
    stalled = {"type": "Stalled", "status": "False", "observedGeneration": 1}
    told = {"metadata": {"generation": 2}, "status": {"conditions": [stalled]}}
    assert trial.stalls(told) is None
    assert trial.stalls({"metadata": {"generation": 2}}) is None
    stalled["observedGeneration"] = 2
    assert trial.stalls(told) is False
    stalled["status"] = "True"
    assert trial.stalls(told) is True


def test_it_waits_for_an_api_server_that_is_away_for_a_moment(world: World):
    operator, asked = world.operator(), []
    answer = world.api.answer

    def now_and_then(method: str, path: str, *more: Any, **named: Any) -> Any:
        asked.append(path)
        if (method, path) == ("GET", PATH) and asked.count(PATH) == 1:
            raise HomeAwayError("no answer")
        return answer(method, path, *more, **named)

    world.api.answer = now_and_then  # type: ignore[method-assign]
    attempt(world, lambda seconds: operator.turn(Key("jobs", "trial-1")))
    assert PATH not in world.api.objects


def test_who_may_not_make_topologies_is_told(world: World):
    world.api.refused["trial-1"] = (403, "forbidden")
    with pytest.raises(RefusedError, match="403"):
        attempt(world, lambda seconds: None)
    del world.api.refused["trial-1"]
    world.api.put(PATH, {"metadata": {}})
    with pytest.raises(trial.UnsettledError, match="already"):
        attempt(world, lambda seconds: None)


def test_a_pod_that_is_told_to_end_leaves_no_topology(world: World):
    before = signal.getsignal(signal.SIGTERM)
    made = []

    def pause(_: float) -> None:
        made.append(PATH in world.api.objects)
        os.kill(os.getpid(), signal.SIGTERM)

    try:
        trial.stop_on_sigterm()
        with pytest.raises(trial.UnsettledError, match="told to end"):
            attempt(world, pause)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert made == [True]
    assert PATH not in world.api.objects
