"""A namespace in memory with one topology, its kubelets and its driver, and operators over it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from hand_clock import HandClock
from memory_api import Json, MemoryApi

from millrace.homes import codec
from millrace.homes.documents import Proposal, Status
from millrace.protocol.codec import decode_view, encode_view
from millrace.protocol.types import Phase, View
from millrace_operator.api.settings import OperatorSettings
from millrace_operator.control.reconciler import Reconciler
from millrace_operator.kube.incarnations import Incarnations
from millrace_operator.kube.objects import Objects
from millrace_operator.kube.observing import Key

KEY = Key("jobs", "words")
SETTINGS = OperatorSettings("runtime:1", "state:1", "millrace-system")
SPEC: Json = {
    "ackers": {"replicas": 2},
    "stateServers": {"replicas": 3, "copies": 2},
    "volumes": [
        {"name": "data", "mountPath": "/data", "persistentVolumeClaim": {"claimName": "words"}}
    ],
    "sources": [{"name": "lines", "files": {"path": "texts", "watch": False}}],
    "processors": [{"name": "split", "function": "words:split", "inputs": [{"from": "lines"}]}],
    "sinks": [{"name": "out", "inputs": [{"from": "split"}], "files": {"path": "out"}}],
}
TOPOLOGY = "/apis/millrace.dev/v1alpha1/namespaces/jobs/streamtopologies/words"
CORE = "/api/v1/namespaces/jobs"
NOW_S = 1_770_000_000.0


@dataclass
class World:
    """``asked`` are the pods that were asked for their incarnation, in order; one whose ``lives``
    are less than none does not say it."""

    api: MemoryApi = field(default_factory=MemoryApi)
    clock: HandClock = field(default_factory=lambda: HandClock(NOW_S))
    asked: list[str] = field(default_factory=list)
    lives: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.topology()
        for number in range(3):
            self.node(f"node-{number}", "True")

    def topology(self, uid: str = "t1") -> None:
        metadata = {"name": "words", "namespace": "jobs", "uid": uid, "generation": 1}
        self.api.put(TOPOLOGY, {"metadata": metadata, "spec": copy.deepcopy(SPEC)})

    def operator(self, leading: Callable[[], bool] = lambda: True) -> Reconciler:
        """One that remembers nothing."""
        objects = Objects(self.api)  # type: ignore[arg-type]
        return Reconciler(
            objects, Incarnations(self.ask), SETTINGS, self.clock, lambda: "s" * 48, leading
        )

    def ask(self, address: str, name: str) -> str | None:
        self.asked.append(name)
        life = self.lives.get(name, 0)
        return None if life < 0 else f"run-{name}-{life}"

    # -- what there is

    def names(self, kind: str) -> list[str]:
        places = sorted(self.api.objects)
        return [p.rpartition("/")[2] for p in places if p.startswith(f"{CORE}/{kind}/")]

    def pod(self, name: str) -> Json:
        return self.api.objects[f"{CORE}/pods/{name}"]

    @property
    def resource(self) -> Json:
        return self.api.objects[TOPOLOGY]

    def condition(self, kind: str) -> tuple[str, str]:
        found = next(c for c in self.resource["status"]["conditions"] if c["type"] == kind)
        return found["status"], found["reason"]

    def events(self) -> list[Any]:
        return [o for p, o in self.api.objects.items() if p.startswith(f"{CORE}/events/")]

    def reasons(self) -> list[str]:
        return [event["reason"] for event in self.events()]

    def proposal(self) -> Proposal:
        data = self.api.objects[f"{CORE}/configmaps/words-inbox"]["data"]
        return codec.decode(Proposal, data["proposal"])

    # -- what others do

    def edit(self, **spec: Any) -> None:
        found = self.resource
        found["spec"].update(spec)
        found["metadata"]["generation"] += 1
        self.api.put(TOPOLOGY, found)

    def node(self, name: str, ready: str) -> None:
        status = {"conditions": [{"type": "Ready", "status": ready}]}
        self.api.put(f"/api/v1/nodes/{name}", {"metadata": {"name": name}, "status": status})

    def kubelets(self) -> None:
        """Pods that are new run; those that are to go are gone."""
        for path, found in list(self.api.objects.items()):
            if not path.startswith(f"{CORE}/pods/"):
                continue
            name = path.rpartition("/")[2]
            if "deletionTimestamp" in found["metadata"]:
                del self.api.objects[path]
            elif "status" not in found:
                found["spec"]["nodeName"] = f"node-{len(name) % 3}"
                found["status"] = running(f"{name}-0")
                self.api.put(path, found)

    def driver(self) -> None:
        """It moves the view to what is proposed, and tells what it follows."""
        place = f"{CORE}/configmaps/words-view"
        found = self.api.objects[place]
        target = self.proposal().members
        owners = (tuple(member.name for member in target),)
        if "data" in found:
            view = decode_view(found["data"]["view"].encode())
            if view.target == target:
                self.tell(view)
                return
            view = replace(
                view,
                epoch=view.epoch + 1,  # type: ignore[arg-type]
                last_open=target,
                target=target,
                owners=owners,
            )
        else:
            view = View("t1", 1, 1, Phase.OPEN, 1, target, target, 1, owners)  # type: ignore[arg-type]
        found["data"] = {"version": str(view.epoch), "view": encode_view(view).decode()}
        self.api.put(place, found)
        self.tell(view)

    def tell(self, view: View) -> None:
        place = f"{CORE}/configmaps/words-journal"
        told = Status(execution=view.execution, follows=self.proposal().number)
        found = self.api.objects[place]
        found["data"] = {"status": json.dumps(codec.encode(told))}
        self.api.put(place, found)

    def settle(self, operator: Reconciler | None = None) -> Reconciler:
        """Until a turn writes nothing."""
        made = operator or self.operator()
        for _ in range(10):
            self.clock.time_s += 1
            self.api.calls.clear()
            made.turn(KEY)
            if not self.api.writes():
                return made
            self.kubelets()
            if "proposal" in (self.api.objects[f"{CORE}/configmaps/words-inbox"].get("data") or {}):
                self.driver()
        raise AssertionError(f"no end: {self.api.writes()}")


def running(container: str, ready: str = "True") -> Json:
    return {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "conditions": [{"type": "Ready", "status": ready}],
        "containerStatuses": [
            {
                "containerID": f"containerd://{container}",
                "state": {"running": {"startedAt": "2026-02-01T00:00:00Z"}},
            }
        ],
    }
