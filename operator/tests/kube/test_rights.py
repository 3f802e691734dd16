"""The rights that the document asks for are those that are used, and no others."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from memory_api import MemoryApi
from memory_world import CORE, KEY, World

from millrace.errors import MillraceError
from millrace.homes import codec
from millrace.homes.documents import KeptSnapshot, SnapshotFigures, Status
from millrace_operator.control.reconciler import RESYNC_S
from millrace_operator.kube.lease import Lease
from millrace_operator.kube.objects import Objects
from millrace_operator.kube.observing import topologies

DOCUMENT = Path(__file__).parents[3] / "docs" / "operator.md"
WATCHED = {
    (what, "watch")
    for what in ("streamtopologies", "topologysnapshots", "pods", "configmaps", "nodes")
}
LISTED_BY_KOPF = {("nodes", "list")}
SNAPSHOTS = "/apis/millrace.dev/v1alpha1/namespaces/jobs/topologysnapshots"
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


def granted(role: dict[str, Any]) -> set[tuple[str, str]]:
    """What a manifest lets others do, if it is one of a role."""
    return {
        (what, verb)
        for rule in role.get("rules", ())
        for what in rule["resources"]
        for verb in rule["verbs"]
    }


class Guarded(MemoryApi):
    """Refuses what the rights do not have, as a real API server does: also to make or change a role
    that has what they have not (``test_operator_rights_on_api_server.py``)."""

    def __init__(self, denied: tuple[str, str] | None) -> None:
        super().__init__()
        self.denied, self.asked = denied, list[tuple[str, str]]()
        self.granted_on = set[tuple[str, str]]()

    def answer(self, method: str, path: str, *body: Any, **more: Any) -> tuple[int, Any]:
        self.asked.append((method, path))
        if method != "GET" and "/roles" in path and body and body[0]:
            self.granted_on |= granted(body[0])
            if self.denied in granted(body[0]):
                return 403, {"message": "is attempting to grant RBAC permissions not held"}
        if self.denied is not None and self.denied in used([(method, path)]):
            creates = self.denied[1] == "create" and method == "PATCH"
            if not creates or path not in self.objects:
                return 403, {"message": f"cannot {self.denied[1]} {self.denied[0]}"}
        return super().answer(method, path, *body, **more)


def life(world: World) -> list[str]:
    """A topology comes up, is edited, loses children and a node. What failed of it."""
    failed: list[str] = []

    def attempt(work: Callable[[], object]) -> None:
        try:
            work()
        except (MillraceError, LookupError) as error:
            failed.append(f"{type(error).__name__}: {error}")

    def turns() -> None:
        made = world.operator()
        for _ in range(4):
            attempt(lambda: made.turn(KEY))
            world.kubelets()
            world.clock.time_s += RESYNC_S

    # In the way of an acker.
    world.api.put(f"{CORE}/pods/words-acker-1", {"metadata": {"name": "words-acker-1"}, "spec": {}})
    turns()
    for _ in range(2):
        attempt(lambda: world.operator().tell(KEY, MillraceError("the same")))
    attempt(world.driver)
    turns()
    silent = {world.pod(name)["spec"].get("nodeName") for name in world.names("pods")} - {None}
    world.node(min(silent), "Unknown")
    turns()
    world.node(min(silent), "True")
    world.edit(ackers={"replicas": 1}, suspend=True)
    turns()
    # What an operator made for an earlier topology of the name.
    metadata = {"labels": {"millrace.dev/topology": "words"}, "namespace": "jobs"}
    owned = {"apiVersion": "millrace.dev/v1alpha1", "kind": "StreamTopology", "name": "words"}
    metadata["ownerReferences"] = [{**owned, "uid": "t1", "controller": True}]  # type: ignore[assignment]
    rbac, core = "/apis/rbac.authorization.k8s.io/v1", "/api/v1"
    for group, plural in [
        *((rbac, "roles"), (rbac, "rolebindings")),
        *((core, "services"), (core, "serviceaccounts"), (core, "configmaps")),
        *(("/apis/networking.k8s.io/v1", "networkpolicies"),),
    ]:
        path = f"{group}/namespaces/jobs/{plural}/words-old"
        world.api.put(path, {"metadata": {**metadata, "name": "words-old"}})
    world.edit(parallelism=3)
    # An operator of a release without roots has made it.
    secret = f"{CORE}/secrets/words-secret"
    if secret in world.api.objects:
        held = world.api.objects[secret]
        shared = {key: held["data"][key] for key in ("password", "run-key")}
        world.api.put(secret, {**held, "data": shared})
    turns()
    world.edit(spark={"executors": {"instances": 1}}, suspend=False)
    turns()
    # The topology has taken one, somebody wants another, and the resource of a third is changed
    # by somebody while it is deleted.
    world.edit(snapshots={"to": "snapshots"})
    metadata = {"generation": 1, "labels": {"millrace.dev/periodic": "t1"}}
    for name, more in {"wanted": {"generation": 1}, "auto-gone": metadata}.items():
        spec, named = {"topology": "words"}, {"name": name, "namespace": "jobs"}
        world.api.put(f"{SNAPSHOTS}/{name}", {"metadata": {**named, **more}, "spec": spec})
    journal = f"{CORE}/configmaps/words-journal"
    kept = KeptSnapshot("auto-t1-1.1.1", 1, 1.0, 1)
    figures = Status(uid="t1", snapshots=SnapshotFigures("/data/snapshots", (kept,)))
    if journal in world.api.objects:
        data = {"data": {"status": json.dumps(codec.encode(figures))}}
        world.api.put(journal, {**world.api.objects[journal], **data})
    turns()
    objects = Objects(world.api)  # type: ignore[arg-type]
    attempt(lambda: list(topologies(objects, ())))
    one = Lease(objects, "system", "op", "me", world.clock)
    for _ in range(2):
        attempt(one.turn)
    return failed


def guarded(denied: tuple[str, str] | None = None) -> World:
    return World(Guarded(denied))


def seen(world: World) -> dict[str, Any]:
    """What there is in the end, but for versions and ids, which a denied call shifts."""
    told = {path: (set(one), one.get("count")) for path, one in world.api.objects.items()}
    return {**told, "reasons": sorted(world.reasons())}


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    world = guarded()
    life(world)
    return seen(world)


def test_the_document_asks_for_what_is_used(whole: dict[str, Any]):
    world = guarded()
    assert life(world) == []
    api: Guarded = world.api  # type: ignore[assignment]
    assert used(api.asked) | WATCHED | LISTED_BY_KOPF | api.granted_on == told()
    assert seen(world) == whole


def test_every_right_says_what_it_is_for_and_those_of_watches_what_is_late_without():
    """No turn fails without a watch: what it tells is seen at the next look."""
    text = DOCUMENT.read_text().partition("## Rights")[2]
    reasons = re.findall(r"^\| `([a-z/]+)` \| ([a-z, ]+) \| (.*) \|$", text, re.MULTILINE)
    assert {(what, verb) for what, verbs, _ in reasons for verb in verbs.split(", ")} == told()
    assert all(why.strip() for _, _, why in reasons)
    watches = {what for what, verb in WATCHED if verb == "watch"}
    assert {what for what, _, why in reasons if "kopf's watch" in why} == watches
    begins = {what for what, _, why in reasons if "which begins with a list" in why}
    assert {what for what, _ in LISTED_BY_KOPF} <= begins


@pytest.mark.parametrize("right", sorted(told() - WATCHED - LISTED_BY_KOPF), ids=" ".join)
def test_without_any_of_them_something_fails(right: tuple[str, str], whole: dict[str, Any]):
    world = guarded(right)
    failed = life(world)
    assert failed or seen(world) != whole


def test_some_are_only_granted_on():
    """As the document says: the operator itself asks for none of this."""
    world = guarded()
    life(world)
    api: Guarded = world.api  # type: ignore[assignment]
    text = DOCUMENT.read_text().partition("## Rights")[2]
    rows = re.findall(r"^\| `([a-z]+)` \| ([a-z, ]+) \| granted on to drivers \|", text, re.M)
    said = {(what, verb) for what, verbs in rows for verb in verbs.split(", ")}
    assert said == api.granted_on - used(api.asked) - WATCHED
