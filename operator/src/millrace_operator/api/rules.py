"""What the topology's CRD says beyond the types of fields: rules in CEL, keys of lists, bounds.

Each rule repeats one that ``millrace.topology.checks`` has, so that the API server already refuses
what the operator would; what CEL cannot say at a bounded cost is left to the operator (the folder
``crds/`` lists it). Bounds are there to keep the cost of the rules bounded, and hold on clusters
alone: the cost is about (elements x what a rule does with one).

In CEL a field that is called like a keyword stands between double underscores: ``__function__``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from millrace.topology.kinds.registry import PROCESSORS, SINKS, SOURCES
from millrace.topology.parts import Guarantee
from millrace.topology.pods import VOLUME_KINDS, Pods

Schema = dict[str, Any]

MOST_SOURCES = 50
MOST_PROCESSORS = 100
MOST_SINKS = 50
MOST_INPUTS = 16
MOST_COLUMNS = 100
MOST_VOLUMES = 16
MOST_PULL_SECRETS = 16
MOST_TOLERATIONS = 16
MOST_RESOURCES = 16
MOST_LABELS = 32
LONGEST_URL = 2_048

_KEYWORDS = frozenset(
    {
        *("true", "false", "null", "in", "as", "break", "const", "continue", "else", "for"),
        *("function", "if", "import", "let", "loop", "package", "namespace", "return", "var"),
        *("void", "while"),
    }
)


@dataclass(frozen=True, slots=True)
class Rule:
    """An expression that must be true, and what is said where it is not.

    ``reason`` is one of the four that Kubernetes knows; ``field`` names a field below the one that
    the rule stands at, to which the error belongs.
    """

    rule: str
    message: str
    reason: str = "FieldValueInvalid"
    field: str = ""

    def schema(self) -> Schema:
        """As it stands in a CRD."""
        made = {"rule": self.rule, "message": self.message, "reason": self.reason}
        return {**made, "fieldPath": f".{self.field}"} if self.field else made


def validations(*rules: Rule) -> Schema:
    """The part of a schema that holds rules."""
    return {"x-kubernetes-validations": [rule.schema() for rule in rules]}


def named_list(key: str, most: int) -> Schema:
    """A list whose elements are known by a field: two of one name are refused, and server-side
    apply merges them by it."""
    return {
        "maxItems": most,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": [key],
    }


def _field(name: str) -> str:
    return f"__{name}__" if name in _KEYWORDS else name


def _one_kind(names: Iterable[str]) -> Rule:
    names = list(names)
    declared = ", ".join(f"has(self.{_field(name)})" for name in names)
    return Rule(f"[{declared}].exists_one(x, x)", f"give it exactly one of {', '.join(names)}")


def _known(section: str) -> Rule:
    found = (
        "self.sources.exists(s, s.name == i.from) || "
        "(has(self.processors) && self.processors.exists(p, p.name == i.from))"
    )
    rule = f"self.{section}.all(c, c.inputs.all(i, {found}))"
    if section == "processors":
        rule = f"!has(self.processors) || {rule}"
    return Rule(rule, "an input is from what is no source or processor", field=section)


_DISTINCT = (
    Rule(
        "self.sources.all(s, !self.sinks.exists(k, k.name == s.name) && "
        "!(has(self.processors) && self.processors.exists(p, p.name == s.name)))",
        "a source has the name of a processor or sink; rename one of them",
        "FieldValueDuplicate",
        "sources",
    ),
    Rule(
        "!has(self.processors) || self.processors.all(p, !self.sinks.exists(k, k.name == p.name))",
        "a processor has the name of a sink; rename one of them",
        "FieldValueDuplicate",
        "processors",
    ),
)


def _guarantees() -> list[Rule]:
    """Kinds of sinks that cannot give every guarantee, each with what it lacks."""
    rules = []
    for kind in SINKS:
        for lacking in [g for g in Guarantee if g not in kind.guarantees]:
            rules.append(
                Rule(
                    f"self.guarantee != '{lacking.value}' || "
                    f"!self.sinks.exists(k, has(k.{_field(kind.name)}))",
                    f"a {kind.name} sink cannot give {lacking.value}: {kind.weakness}",
                    field="sinks",
                )
            )
    return rules


_SPEC = (
    *_DISTINCT,
    _known("processors"),
    _known("sinks"),
    Rule(
        "self.ackers.replicas > 0 || self.tracking == 'Off' || self.guarantee == 'AtMostOnce'",
        'no acker proves that tuple trees are complete; use at least 1, or tracking: "Off"',
        field="ackers",
    ),
    *_guarantees(),
)

_ACKERS = (
    Rule("has(self.min) == has(self.max)", "min and max come together"),
    Rule(
        "!has(self.min) || !has(self.max) || self.min <= self.max",
        "min is more than max",
        field="min",
    ),
)

_EXECUTORS = (
    Rule("has(self.min) == has(self.max)", "min and max come together"),
    Rule(
        "!has(self.min) || !has(self.max) || "
        "(self.min <= self.instances && self.instances <= self.max)",
        "instances are not from min to max",
        field="instances",
    ),
)

_STATE_SERVERS = (
    Rule(
        "self.copies <= self.replicas",
        "copies are more than there are servers",
        field="copies",
    ),
    Rule(
        "!has(self.url) || self.replicas == 1",
        "a server of your own is one: use replicas: 1 or remove url",
        field="replicas",
    ),
    Rule(
        "!has(self.password) || has(self.url)",
        "goes with a server of your own: name it in url, or remove password",
        field="password",
    ),
    Rule(
        "has(self.url) == has(oldSelf.url) && (!has(self.url) || self.url == oldSelf.url)",
        "url cannot be changed: the state lies on the server that was used so far",
        "FieldValueForbidden",
    ),
)

_INPUT = Rule(
    "!self.broadcast || !has(self.key) || size(self.key) == 0",
    "broadcast does not go with a key: a tuple goes to every partition or to one",
    field="broadcast",
)

_PROCESSOR = (
    _one_kind(PROCESSORS.names),
    Rule(
        "self.inputs.all(i, i.from != self.name)",
        "is an input of itself",
        field="inputs",
    ),
    Rule(
        "!has(self.aggregate) || self.inputs.all(i, has(i.key) && size(i.key) > 0)",
        "an aggregate needs a key on each input",
        field="inputs",
    ),
    Rule(
        "!has(self.sql) || (size(self.inputs) == 1 && self.inputs.all(i, !i.broadcast "
        "&& (!has(i.key) || size(i.key) == 0) && (!has(i.columns) || size(i.columns) == 0)))",
        "sql takes one plain input: it runs in the JVM while a source is read",
        field="inputs",
    ),
)

_SINK = (
    _one_kind(SINKS.names),
    Rule(
        "self.inputs.all(i, !i.broadcast)",
        "broadcast into a sink would show every row once for each partition",
        field="inputs",
    ),
)

_CODE = (
    Rule(
        "[has(self.path), has(self.image), has(self.configMap)].filter(x, x).size() <= 1",
        "user code comes from one place: keep one of path, image and configMap",
    ),
    Rule(
        "!has(self.imagePullSecrets) || has(self.image)",
        "goes with an image of your own: name it in image, or remove imagePullSecrets",
        field="imagePullSecrets",
    ),
)

_FILES_SOURCE = Rule(
    "has(self.schema) == (self.format in ['jsonLines', 'csv'])",
    "schema goes with jsonLines and csv, which do not say which columns they have, and no other",
)

_AGGREGATE_COLUMN = Rule(
    "has(self.of) == (self.__function__ != 'count')",
    "every function but count needs of, the column that it is computed over; count takes none",
)

_REDIS_SINK = Rule(
    "self.mode == 'hash' ? has(self.key) && !has(self.stream) : has(self.stream) && !has(self.key)",
    "mode hash takes key and no stream, mode stream takes stream and no key",
)

_VOLUMES = Rule(
    "self.all(v, self.exists_one(w, w.mountPath == v.mountPath))",
    "two volumes have one mountPath; mount them at places of their own",
    "FieldValueDuplicate",
)

_TOLERATION = (
    Rule(
        "self.operator == 'Equal' ? has(self.key) : !has(self.value)",
        "Equal needs a key, and Exists looks at no value",
    ),
    Rule(
        "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
        "tolerationSeconds go with the effect NoExecute alone",
        field="tolerationSeconds",
    ),
)

_RESOURCES = Rule(
    "!has(self.requests) || !('memory' in self.requests)",
    "memory is requested as much as it is limited: write it below limits alone",
    field="requests",
)


def _pods() -> dict[str, Schema]:
    """The same for each kind of pod."""
    made: dict[str, Schema] = {}
    for field in Pods.model_fields.values():
        path = f"spec.pods.{field.alias}"
        made[f"{path}.resources"] = validations(_RESOURCES)
        for name in ("requests", "limits"):
            made[f"{path}.resources.{name}"] = {"maxProperties": MOST_RESOURCES}
        for name in ("nodeSelector", "labels", "annotations"):
            made[f"{path}.{name}"] = {"maxProperties": MOST_LABELS}
        made[f"{path}.tolerations"] = {"maxItems": MOST_TOLERATIONS}
        made[f"{path}.tolerations[]"] = validations(*_TOLERATION)
    return made


_RESTORE_FROM = Rule(
    "has(self.snapshot) != has(self.place) && has(self.place) == has(self.name)",
    "give it snapshot alone, the name of a TopologySnapshot, or both place and name",
)

_FIXED_GROUPS = Rule(
    "self == oldSelf",
    "keyGroups cannot be changed: state is cut into key groups and cannot be cut anew",
    "FieldValueForbidden",
)

_INPUTS = named_list("from", MOST_INPUTS)

TOPOLOGY: dict[str, Schema] = {
    "spec": validations(*_SPEC),
    "spec.ackers": validations(*_ACKERS),
    "spec.spark.executors": validations(*_EXECUTORS),
    "spec.stateServers": validations(*_STATE_SERVERS),
    "spec.stateServers.url": {"maxLength": LONGEST_URL},
    "spec.keyGroups": validations(_FIXED_GROUPS),
    "spec.restoreFrom": validations(_RESTORE_FROM),
    "spec.code": validations(*_CODE),
    "spec.code.imagePullSecrets": {"maxItems": MOST_PULL_SECRETS, "x-kubernetes-list-type": "set"},
    "spec.volumes": {**named_list("name", MOST_VOLUMES), **validations(_VOLUMES)},
    "spec.volumes[]": validations(_one_kind(VOLUME_KINDS)),
    **_pods(),
    "spec.sources": named_list("name", MOST_SOURCES),
    "spec.sources[]": validations(_one_kind(SOURCES.names)),
    "spec.sources[].files": validations(_FILES_SOURCE),
    "spec.processors": named_list("name", MOST_PROCESSORS),
    "spec.processors[]": validations(*_PROCESSOR),
    "spec.processors[].inputs": _INPUTS,
    "spec.processors[].inputs[]": validations(_INPUT),
    "spec.processors[].aggregate.columns": named_list("name", MOST_COLUMNS),
    "spec.processors[].aggregate.columns[]": validations(_AGGREGATE_COLUMN),
    "spec.sinks": named_list("name", MOST_SINKS),
    "spec.sinks[]": validations(*_SINK),
    "spec.sinks[].redis": validations(_REDIS_SINK),
    "spec.sinks[].inputs": _INPUTS,
}
"""By path in the structural schema."""

STATUS: dict[str, Schema] = {
    "status.conditions": {
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    },
}

SNAPSHOT: dict[str, Schema] = {
    "spec": validations(
        Rule(
            "self.topology == oldSelf.topology",
            "cannot be changed; make another snapshot",
            "FieldValueForbidden",
            "topology",
        ),
        Rule(
            "has(self.to) == has(oldSelf.to) && (!has(self.to) || self.to == oldSelf.to)",
            "cannot be changed; make another snapshot",
            "FieldValueForbidden",
        ),
        # An operator that is away would hear neither of it nor, behind it, of the deletion.
        Rule(
            "oldSelf.deletionPolicy != 'Delete' || self.deletionPolicy == 'Delete'",
            "Delete cannot be taken back: take another snapshot with Retain",
            "FieldValueForbidden",
            "deletionPolicy",
        ),
    ),
    "spec.to": {"maxLength": LONGEST_URL},
}
