"""The rights that the document asks for are those that are used, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from memory_world import CORE, KEY, World

from millrace.errors import MillraceError
from millrace_operator.control.reconciler import RESYNC_S
from millrace_operator.kube.lease import Lease
from millrace_operator.kube.objects import Objects
from millrace_operator.kube.observing import topologies

DOCUMENT = Path(__file__).parents[3] / "docs" / "operator.md"
WATCHED = {(what, "watch") for what in ("streamtopologies", "pods", "configmaps", "nodes")}
LISTED_BY_KOPF = {("nodes", "list")}
GRANTED_ON = {("pods", "patch"), ("pods", "deletecollection"), ("configmaps", "update")}
APPLIED = (
    *("serviceaccounts", "roles", "rolebindings"),
    *("services", "networkpolicies", "poddisruptionbudgets"),
)
VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}


def told() -> set[tuple[str, str]]:
    text = DOCUMENT.read_text().partition("## Rights")[2]
    rows = re.findall(r"^\| `([a-z/]+)` \| ([a-z, ]+) \|", text, re.MULTILINE)
    return {(what, verb) for what, verbs in rows for verb in verbs.split(", ")}


def used(calls: list[tuple[str, str]]) -> set[tuple[str, str]]:
    found = set()
    for method, path in calls:
        parts = path.strip("/").split("/")
        rest = parts[2:] if parts[0] == "api" else parts[3:]
        if rest[0] == "namespaces":
            rest = rest[2:]
        named = len(rest) > 1
        verb = "list" if method == "GET" and not named else VERBS[method]
        found.add(("/".join([rest[0], *rest[2:]]), verb))
        if rest[0] in APPLIED:
            # Where there is nothing yet, an apply is a creation too.
            found.add((rest[0], "create"))
    return found


@pytest.fixture
def calls() -> list[tuple[str, str]]:
    """A life of a topology: it comes up, is edited, loses children and a node."""
    world = World()
    calls: list[tuple[str, str]] = []

    def turns() -> None:
        made = world.operator()
        for _ in range(4):
            calls.extend(world.api.calls)
            world.api.calls.clear()
            made.turn(KEY)
            world.kubelets()
            world.clock.time_s += RESYNC_S

    # In the way of an acker.
    world.api.put(f"{CORE}/pods/words-acker-1", {"metadata": {"name": "words-acker-1"}, "spec": {}})
    turns()
    for _ in range(2):
        world.operator().tell(KEY, MillraceError("the same"))
    world.driver()
    turns()
    world.edit(ackers={"replicas": 1}, suspend=True)
    turns()
    metadata = {"labels": {"millrace.dev/topology": "words"}, "namespace": "jobs"}
    secret = world.api.objects["/api/v1/namespaces/jobs/secrets/words-secret"]
    metadata["ownerReferences"] = secret["metadata"]["ownerReferences"]
    rbac, core = "/apis/rbac.authorization.k8s.io/v1", "/api/v1"
    for group, plural in [
        *((rbac, "roles"), (rbac, "rolebindings")),
        *((core, "services"), (core, "serviceaccounts"), (core, "configmaps")),
        *(("/apis/networking.k8s.io/v1", "networkpolicies"),),
    ]:
        path = f"{group}/namespaces/jobs/{plural}/words-old"
        world.api.put(path, {"metadata": {**metadata, "name": "words-old"}})
    world.edit(parallelism=3)
    turns()
    objects = Objects(world.api)  # type: ignore[arg-type]
    topologies(objects, ())
    one = Lease(objects, "system", "op", "me", world.clock)
    for _ in range(2):
        one.turn()
    return [*calls, *world.api.calls]


def test_the_document_asks_for_what_is_used(calls: list[tuple[str, str]]):
    assert used(calls) | WATCHED | LISTED_BY_KOPF | GRANTED_ON == told()
