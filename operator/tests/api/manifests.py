"""Topologies for the tests of the CRDs: one that is valid, and ways to break it.

``BROKEN`` are refused by the CRD, ``OPERATOR_ALONE`` are not: only the model and its checks refuse
those, as ``crds/README.md`` says.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Spec = dict[str, Any]

WORDS: dict[str, Any] = {
    "apiVersion": "millrace.dev/v1alpha1",
    "kind": "StreamTopology",
    "metadata": {"name": "words", "namespace": "default"},
    "spec": {
        "volumes": [
            {
                "name": "data",
                "mountPath": "/data",
                "subPath": "words/in",
                "persistentVolumeClaim": {"claimName": "shared.words"},
            }
        ],
        "pods": {
            "executors": {
                "resources": {"requests": {"cpu": 2}, "limits": {"memory": "2.5Gi"}},
                "nodeSelector": {"example.com/disk": "fast"},
                "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoExecute"}],
                "priorityClassName": "low",
                "labels": {"team": "words"},
                "annotations": {"example.com/note": "any text, at all"},
            }
        },
        "ackers": {"replicas": 3},
        "stateServers": {"replicas": 4, "copies": 2, "memory": "512Mi"},
        "spark": {"driver": {"memory": "2Gi"}, "executors": {"memory": "768m"}},
        "sources": [{"name": "lines", "files": {"path": "texts", "watch": False}}],
        "processors": [
            {"name": "split", "function": "words:split", "inputs": [{"from": "lines"}]},
            {
                "name": "counts",
                "inputs": [{"from": "split", "key": ["word"]}],
                "aggregate": {"columns": [{"name": "n", "function": "count"}]},
            },
        ],
        "sinks": [{"name": "out", "inputs": [{"from": "counts"}], "files": {"path": "out"}}],
    },
}


@dataclass(frozen=True)
class Broken:
    """A change that makes ``WORDS`` invalid, and the path at which that must be said."""

    name: str
    change: Callable[[Spec], Any]
    path: str

    @property
    def manifest(self) -> dict[str, Any]:
        made = copy.deepcopy(WORDS)
        self.change(made["spec"])
        return made


def _source(spec: Spec, **what: Any) -> None:
    spec["sources"][0] = {"name": "lines", **what}


def _sink(spec: Spec, **what: Any) -> None:
    spec["sinks"][0] = {"name": "out", "inputs": [{"from": "counts"}], **what}


def _processor(spec: Spec, number: int, **what: Any) -> None:
    spec["processors"][number].update(what)


PODS = ("driver", "executors", "ackers", "stateServers")


def _volume(spec: Spec, name: str = "more", **what: Any) -> None:
    spec["volumes"].append({"name": name, "mountPath": f"/{name}", **what})


def _tolerating(pod: str, **toleration: Any) -> Callable[[Spec], Any]:
    return lambda s: s.update(pods={pod: {"tolerations": [toleration]}})


def _for_each_pod() -> tuple[Broken, ...]:
    """What rules of pods refuse, once for each pod: the schema has them four times."""
    made: list[Broken] = []
    for pod in PODS:
        path = f"spec.pods.{pod}"
        first = f"{path}.tolerations[0]"
        made += [
            Broken(f"a toleration of nothing: {pod}", _tolerating(pod, value="a"), first),
            Broken(
                f"Exists with a value: {pod}",
                _tolerating(pod, key="a", operator="Exists", value="b"),
                first,
            ),
            Broken(
                f"seconds without NoExecute: {pod}",
                _tolerating(pod, key="a", tolerationSeconds=3),
                f"{first}.tolerationSeconds",
            ),
            Broken(
                f"memory requested apart: {pod}",
                lambda s, pod=pod: s.update(
                    pods={pod: {"resources": {"requests": {"memory": "1Gi"}}}}
                ),
                f"{path}.resources.requests",
            ),
        ]
    return tuple(made)


BY_SCHEMA = (
    Broken("no sources", lambda s: s.pop("sources"), "spec"),
    Broken("sources empty", lambda s: s.update(sources=[]), "spec.sources"),
    Broken(
        "a name that is none",
        lambda s: _source(s, name="9", files={"path": "t"}),
        "spec.sources[0].name",
    ),
    Broken("text for a number", lambda s: s.update(parallelism="2"), "spec.parallelism"),
    Broken("a fraction", lambda s: s.update(parallelism=1.5), "spec.parallelism"),
    Broken("out of bounds", lambda s: s["ackers"].update(replicas=65), "spec.ackers.replicas"),
    Broken("no duration", lambda s: s.update(tupleTimeout="30"), "spec.tupleTimeout"),
    Broken("no guarantee", lambda s: s.update(guarantee="exactlyOnce"), "spec.guarantee"),
    Broken("a bare On", lambda s: s.update(tracking=True), "spec.tracking"),
    Broken(
        "no memory",
        lambda s: s.update(spark={"driver": {"memory": "1GB"}}),
        "spec.spark.driver.memory",
    ),
    Broken(
        "conf is no text",
        lambda s: s.update(spark={"conf": {"spark.ui.enabled": False}}),
        "spec.spark.conf.spark.ui.enabled",
    ),
    Broken("no inputs", lambda s: _processor(s, 0, inputs=[]), "spec.processors[0].inputs"),
    Broken(
        "no code", lambda s: _processor(s, 0, function="words.split"), "spec.processors[0].function"
    ),
    Broken(
        "a pull secret that no Secret can be called",
        lambda s: s.update(code={"image": "app:1", "imagePullSecrets": ["Registry"]}),
        "spec.code.imagePullSecrets[0]",
    ),
    Broken(
        "no quantity",
        lambda s: s.update(pods={"ackers": {"resources": {"limits": {"memory": "1 GB"}}}}),
        "spec.pods.ackers.resources.limits.memory",
    ),
    Broken(
        "a volume at no place",
        lambda s: _volume(s, mountPath="data", emptyDir={}),
        "spec.volumes[1].mountPath",
    ),
    Broken(
        "a Secret without its key",
        lambda s: _sink(
            s,
            redis={
                "url": "redis://r",
                "key": "k:{word}",
                "password": {"secretRef": {"name": "r"}},
            },
        ),
        "spec.sinks[0].redis.password.secretRef",
    ),
    Broken(
        "no percentage",
        lambda s: s.update(deadLetters={"maxShare": "50"}),
        "spec.deadLetters.maxShare",
    ),
    Broken(
        "too many processors",
        lambda s: s.update(
            processors=[{**s["processors"][0], "name": f"p{i}"} for i in range(101)]
        ),
        "spec.processors",
    ),
    Broken(
        "too many pull secrets",
        lambda s: s.update(
            code={"image": "app:1", "imagePullSecrets": [f"s{i}" for i in range(17)]}
        ),
        "spec.code.imagePullSecrets",
    ),
)
"""Refused by types, bounds and patterns."""

BY_KEYS = (
    Broken(
        "two volumes of a name",
        lambda s: _volume(s, name="data", mountPath="/d", emptyDir={}),
        "spec.volumes[1]",
    ),
    Broken(
        "two sources of a name", lambda s: s["sources"].append(s["sources"][0]), "spec.sources[1]"
    ),
    Broken(
        "two inputs from one",
        lambda s: s["sinks"][0]["inputs"].append({"from": "counts"}),
        "spec.sinks[0].inputs[1]",
    ),
    Broken(
        "two columns of a name",
        lambda s: s["processors"][1]["aggregate"]["columns"].append(
            {"name": "n", "function": "max", "of": "word"}
        ),
        "spec.processors[1].aggregate.columns[1]",
    ),
    Broken(
        "a pull secret twice",
        lambda s: s.update(code={"image": "app:1", "imagePullSecrets": ["a", "b", "a"]}),
        "spec.code.imagePullSecrets[2]",
    ),
)
"""Refused since the elements of a list are known by a key, or by themselves."""

BY_FIELDS = (
    Broken("an unknown field", lambda s: s.update(windw={}), "spec.windw"),
    Broken(
        "an unknown field deep down",
        lambda s: s["sinks"][0]["files"].update(formt="csv"),
        "spec.sinks[0].files.formt",
    ),
)
"""Refused by kubectl's strict decoding, and pruned without it."""

BY_RULES = (
    Broken(
        "a source called as a processor",
        lambda s: s["sources"].append({"name": "split", "generator": {}}),
        "spec.sources",
    ),
    Broken(
        "a source called as a sink",
        lambda s: s["sources"].append({"name": "out", "generator": {}}),
        "spec.sources",
    ),
    Broken(
        "a processor called as a sink",
        lambda s: s["processors"].append(
            {"name": "out", "function": "w:o", "inputs": [{"from": "lines"}]}
        ),
        "spec.processors",
    ),
    Broken(
        "an unknown producer",
        lambda s: _processor(s, 0, inputs=[{"from": "lins"}]),
        "spec.processors",
    ),
    Broken(
        "a sink of a sink",
        lambda s: s["sinks"].append(
            {"name": "more", "inputs": [{"from": "out"}], "files": {"path": "m"}}
        ),
        "spec.sinks",
    ),
    Broken(
        "its own input",
        lambda s: s["processors"][0]["inputs"].append({"from": "split"}),
        "spec.processors[0].inputs",
    ),
    Broken("no acker", lambda s: s["ackers"].update(replicas=0), "spec.ackers"),
    Broken("min alone", lambda s: s["ackers"].update(min=2), "spec.ackers"),
    Broken("min above max", lambda s: s["ackers"].update(min=3, max=2), "spec.ackers.min"),
    Broken(
        "min of executors alone",
        lambda s: s.update(spark={"executors": {"instances": 1, "min": 1}}),
        "spec.spark.executors",
    ),
    Broken(
        "fewer executors to begin with than there may be",
        lambda s: s.update(spark={"executors": {"instances": 1, "min": 2, "max": 4}}),
        "spec.spark.executors.instances",
    ),
    Broken(
        "more copies than servers",
        lambda s: s["stateServers"].update(copies=5),
        "spec.stateServers.copies",
    ),
    Broken(
        "own server and several",
        lambda s: s["stateServers"].update(copies=1, url="redis://elsewhere"),
        "spec.stateServers.replicas",
    ),
    Broken(
        "a password of servers that Millrace starts",
        lambda s: s["stateServers"].update(password={"secretRef": {"name": "n", "key": "k"}}),
        "spec.stateServers.password",
    ),
    Broken("console under ExactlyOnce", lambda s: _sink(s, console={}), "spec.sinks"),
    Broken(
        "two ways to begin",
        lambda s: s.update(restoreFrom={"snapshot": "early", "place": "/data/s", "name": "x"}),
        "spec.restoreFrom",
    ),
    Broken(
        "a place without a name",
        lambda s: s.update(restoreFrom={"place": "/data/snapshots"}),
        "spec.restoreFrom",
    ),
    Broken("no kind", lambda s: _source(s), "spec.sources[0]"),
    Broken("two kinds", lambda s: _processor(s, 0, sql={}), "spec.processors[0]"),
    Broken(
        "two kinds of sink",
        lambda s: _sink(s, files={"path": "o"}, custom={"class": "w:S"}),
        "spec.sinks[0]",
    ),
    Broken(
        "csv without schema",
        lambda s: _source(s, files={"path": "t", "format": "csv"}),
        "spec.sources[0].files",
    ),
    Broken(
        "text with a schema",
        lambda s: _source(s, files={"path": "t", "schema": "a long"}),
        "spec.sources[0].files",
    ),
    Broken(
        "an aggregate without a key",
        lambda s: _processor(s, 1, inputs=[{"from": "split"}]),
        "spec.processors[1].inputs",
    ),
    Broken(
        "a key and broadcast",
        lambda s: s["processors"][1]["inputs"][0].update(broadcast=True),
        "spec.processors[1].inputs[0].broadcast",
    ),
    Broken(
        "broadcast into a sink",
        lambda s: s["sinks"][0]["inputs"][0].update(broadcast=True),
        "spec.sinks[0].inputs",
    ),
    Broken(
        "sql behind a key",
        lambda s: s["processors"].append(
            {"name": "q", "inputs": [{"from": "lines", "key": ["value"]}], "sql": {}}
        ),
        "spec.processors[2].inputs",
    ),
    Broken(
        "max of nothing",
        lambda s: _processor(s, 1, aggregate={"columns": [{"name": "m", "function": "max"}]}),
        "spec.processors[1].aggregate.columns[0]",
    ),
    Broken(
        "count of something",
        lambda s: _processor(
            s, 1, aggregate={"columns": [{"name": "m", "function": "count", "of": "word"}]}
        ),
        "spec.processors[1].aggregate.columns[0]",
    ),
    Broken(
        "a hash without its key",
        lambda s: _sink(s, redis={"url": "redis://r"}),
        "spec.sinks[0].redis",
    ),
    Broken(
        "a stream with a key",
        lambda s: _sink(
            s, redis={"url": "redis://r", "mode": "stream", "stream": "s", "key": "k:{word}"}
        ),
        "spec.sinks[0].redis",
    ),
    Broken(
        "code from two places",
        lambda s: s.update(code={"path": "src", "image": "app:1"}),
        "spec.code",
    ),
    Broken(
        "a pull secret of no image",
        lambda s: s.update(code={"path": "src", "imagePullSecrets": ["registry"]}),
        "spec.code.imagePullSecrets",
    ),
    Broken("a volume of no kind", lambda s: _volume(s, readOnly=True), "spec.volumes[1]"),
    Broken(
        "a volume of two kinds",
        lambda s: _volume(s, emptyDir={}, configMap={"name": "c"}),
        "spec.volumes[1]",
    ),
    Broken(
        "two volumes at one place",
        lambda s: _volume(s, mountPath="/data", emptyDir={}),
        "spec.volumes",
    ),
    *_for_each_pod(),
)
"""Refused by a rule in CEL."""

OPERATOR_ALONE = (
    Broken(
        "a longer cycle",
        lambda s: s["processors"].extend(
            (
                {"name": "a", "function": "w:a", "inputs": [{"from": "split"}, {"from": "b"}]},
                {"name": "b", "function": "w:b", "inputs": [{"from": "a"}]},
            )
        ),
        "spec.processors[2].inputs[1].from",
    ),
    Broken(
        "what reaches no sink",
        lambda s: s["processors"].append(
            {"name": "idle", "function": "w:i", "inputs": [{"from": "lines"}]}
        ),
        "spec.processors[2]",
    ),
    Broken(
        "final without an end",
        lambda s: (
            _source(s, files={"path": "t"}),
            s["processors"][1]["aggregate"].update(emit="final"),
        ),
        "spec.processors[1].aggregate.emit",
    ),
    Broken(
        "an unknown column",
        lambda s: _processor(s, 0, inputs=[{"from": "lines", "key": ["nothing"]}]),
        "spec.processors[0].inputs[0].key[0]",
    ),
    Broken(
        "no schema",
        lambda s: _source(s, files={"path": "t", "format": "csv", "schema": "a strng"}),
        "spec.sources[0].files.schema",
    ),
    Broken(
        "no address",
        lambda s: _sink(s, redis={"url": "http://r", "key": "k:{word}"}),
        "spec.sinks[0].redis.url",
    ),
    Broken(
        "a folder that is read",
        lambda s: _sink(s, files={"path": "texts"}),
        "spec.sinks[0].files.path",
    ),
    Broken(
        "sql behind Python",
        lambda s: s["processors"].append({"name": "q", "inputs": [{"from": "split"}], "sql": {}}),
        "spec.processors[2].inputs[0].from",
    ),
    Broken(
        "a key twice",
        lambda s: _processor(s, 0, inputs=[{"from": "lines", "key": ["value", "value"]}]),
        "spec.processors[0].inputs[0].key",
    ),
    Broken(
        "a volume over our own folders",
        lambda s: _volume(s, mountPath="/etc/millrace/x", emptyDir={}),
        "spec.volumes[1].mountPath",
    ),
    Broken(
        "a label of ours",
        lambda s: s.update(pods={"driver": {"labels": {"millrace.dev/topology": "x"}}}),
        "spec.pods.driver.labels[millrace.dev/topology]",
    ),
    Broken(
        "more requested than is limited",
        lambda s: s.update(
            pods={"ackers": {"resources": {"requests": {"cpu": 2}, "limits": {"cpu": "500m"}}}}
        ),
        "spec.pods.ackers.resources.requests.cpu",
    ),
    Broken(
        "a quantity below nothing",
        lambda s: s.update(pods={"ackers": {"resources": {"requests": {"cpu": -1}}}}),
        "spec.pods.ackers.resources.requests.cpu",
    ),
    Broken(
        "no memory beside the heap",
        lambda s: s.update(pods={"driver": {"resources": {"limits": {"memory": "1Gi"}}}}),
        "spec.pods.driver.resources.limits.memory",
    ),
    Broken(
        "a reference to no Secret",
        lambda s: _sink(s, custom={"class": "w:S", "options": {"key": {"secretRef": {"name": 1}}}}),
        "spec.sinks[0].custom.options.key",
    ),
    Broken("longer than a year", lambda s: s.update(tupleTimeout="9000h"), "spec.tupleTimeout"),
    Broken("a duration of nothing", lambda s: s.update(tupleTimeout="0s"), "spec.tupleTimeout"),
    Broken(
        "a control character",
        lambda s: _source(s, files={"path": "t\x1b"}),
        "spec.sources[0].files.path",
    ),
    Broken(
        "the same key for all rows",
        lambda s: _sink(s, redis={"url": "redis://r", "key": "k"}),
        "spec.sinks[0].redis.key",
    ),
    Broken(
        "a computed column called as the key",
        lambda s: _processor(s, 1, aggregate={"columns": [{"name": "word", "function": "count"}]}),
        "spec.processors[1].aggregate.columns[0].name",
    ),
)
"""Refused by the operator alone, with a condition and an event."""
