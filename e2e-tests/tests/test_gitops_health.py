"""The health check of docs/install.md for Argo CD, which the Lua of a state server runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml

from millrace_e2e import valkey

TEXT = (Path(__file__).parents[2] / "docs" / "install.md").read_text()
KEY = "resource.customizations.health.millrace.dev_StreamTopology"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[redis.Redis]:
    with (
        valkey.serving(tmp_path_factory.mktemp("lua") / "server") as server,
        server.client() as client,
    ):
        yield client


def check() -> str:
    blocks = [yaml.safe_load(one) for one in re.findall(r"^```yaml\n(.*?)^```", TEXT, re.M | re.S)]
    (text,) = [one["data"][KEY] for one in blocks if "data" in one]
    return str(text)


def health(client: redis.Redis, status: dict[str, Any] | None, generation: int = 3) -> list[str]:
    topology = {"metadata": {"generation": generation}, "status": status}
    if status is None:
        del topology["status"]
    script = (
        "local obj = cjson.decode(ARGV[1])\n"
        f"local function check()\n{check()}\nend\n"
        "return cjson.encode(check())"
    )
    told: Any = client.eval(script, 0, json.dumps(topology))
    found = json.loads(told)
    return [found["status"], found["message"]]


def condition(kind: str, status: str, message: str = "", generation: int = 3) -> dict[str, Any]:
    told = {"type": kind, "status": status, "message": message}
    return {**told, "observedGeneration": generation, "reason": "R"}


FINE = condition("Stalled", "False")
UNSEEN = ["Progressing", "the operator has not looked at it yet"]


@pytest.mark.parametrize(
    ("conditions", "says"),
    [
        ([condition("Ready", "True", "all there"), FINE], ["Healthy", "all there"]),
        ([FINE, condition("Ready", "True", "all there")], ["Healthy", "all there"]),
        ([FINE, condition("Ready", "False", "no room")], ["Progressing", "no room"]),
        (
            [condition("Ready", "False", "no"), condition("Stalled", "True", "refused")],
            ["Degraded", "refused"],
        ),
        (
            [condition("Stalled", "True", "refused"), condition("Ready", "False", "no")],
            ["Degraded", "refused"],
        ),
        ([condition("Ready", "True", "of before", 2), condition("Stalled", "True", "", 2)], UNSEEN),
        ([condition("Reconciling", "False"), condition("Ready", "True", "", 2)], UNSEEN),
    ],
)
def test_a_topology_is_as_its_conditions_say(
    client: redis.Redis, conditions: list[dict[str, Any]], says: list[str]
) -> None:
    assert health(client, {"observedGeneration": 3, "conditions": conditions}) == says


def test_what_no_operator_has_seen_is_not_healthy(client: redis.Redis) -> None:
    assert health(client, None) == UNSEEN
    assert health(client, {"phase": "Pending"}) == UNSEEN
