"""The CRDs as documents, made from the models."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from millrace.topology.model import KIND, Spec, StreamTopology
from millrace.topology.schema import schema_of
from millrace_operator.api import rules
from millrace_operator.api.resources import (
    GROUP,
    SNAPSHOTS,
    TOPOLOGIES,
    VERSION,
    SnapshotSpec,
    SnapshotStatus,
    TopologySnapshot,
    TopologyStatus,
)
from millrace_operator.api.structural import Schema, structural

CATEGORY = "millrace"
SNAPSHOT_KIND = TopologySnapshot.__name__

MOST_BYTES = 262_144
"""`kubectl apply` keeps a copy in an annotation, which may not be larger."""

Column = tuple[str, str, str, int]
"""Name, type, JSON path and priority; those above 0 are shown with ``-o wide``."""

_TOPOLOGY_COLUMNS: tuple[Column, ...] = (
    ("Ready", "string", ".status.conditions[?(@.type=='Ready')].status", 0),
    ("Phase", "string", ".status.phase", 0),
    ("Ackers", "string", ".status.ackers.summary", 0),
    ("Executors", "string", ".status.executors.summary", 0),
    ("Window", "integer", ".status.window", 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("State", "string", ".status.stateServers.summary", 1),
    ("Epoch", "integer", ".status.epoch", 1),
    ("Snapshot", "string", ".status.lastSnapshot", 1),
    ("Message", "string", ".status.message", 1),
)
_SNAPSHOT_COLUMNS: tuple[Column, ...] = (
    ("Ready", "string", ".status.conditions[?(@.type=='Ready')].status", 0),
    ("Phase", "string", ".status.phase", 0),
    ("Topology", "string", ".spec.topology", 0),
    ("Window", "integer", ".status.window", 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("Place", "string", ".status.place", 1),
    ("Bytes", "integer", ".status.sizeBytes", 1),
    ("Message", "string", ".status.message", 1),
)


def definitions() -> dict[str, dict[str, Any]]:
    """The CRDs by the names of their files. Raises ``UnfitSchemaError`` where a model, of a kind
    that a package brings for example, says what no CRD can."""
    return {f"{TOPOLOGIES}.yaml": topology_definition(), f"{SNAPSHOTS}.yaml": snapshot_definition()}


def topology_definition() -> dict[str, Any]:
    """The CRD of topologies."""
    metadata = schema_of(StreamTopology)["$defs"]["Metadata"]["properties"]["name"]
    schema = _resource(StreamTopology, Spec, TopologyStatus, rules.TOPOLOGY)
    schema["properties"]["metadata"] = {
        "type": "object",
        "properties": {"name": {**structural(metadata), "type": "string"}},
    }
    scale = {
        "specReplicasPath": ".spec.ackers.replicas",
        "statusReplicasPath": ".status.ackers.replicas",
        "labelSelectorPath": ".status.ackers.selector",
    }
    names = {"plural": TOPOLOGIES, "singular": "streamtopology", "kind": KIND}
    return _definition({**names, "shortNames": ["topo"]}, schema, _TOPOLOGY_COLUMNS, scale)


def snapshot_definition() -> dict[str, Any]:
    """The CRD of snapshots."""
    schema = _resource(TopologySnapshot, SnapshotSpec, SnapshotStatus, rules.SNAPSHOT)
    names = {"plural": SNAPSHOTS, "singular": "topologysnapshot", "kind": SNAPSHOT_KIND}
    return _definition({**names, "shortNames": ["toposnap"]}, schema, _SNAPSHOT_COLUMNS, None)


def _resource(
    resource: type[BaseModel],
    spec: type[BaseModel],
    status: type[BaseModel],
    extras: dict[str, Schema],
) -> Schema:
    """A resource's schema: Kubernetes says itself what apiVersion, kind and metadata are."""
    parts = {"spec": schema_of(spec), "status": schema_of(status)}
    shared = {name: one for part in parts.values() for name, one in part.pop("$defs", {}).items()}
    whole = {
        "type": "object",
        "description": " ".join((resource.__doc__ or "").split()),
        "required": ["spec"],
        "properties": parts,
        "$defs": shared,
    }
    made = structural(whole, {**extras, **rules.STATUS})
    common = {name: {"type": "string"} for name in ("apiVersion", "kind")}
    made["properties"] = {**common, "metadata": {"type": "object"}, **made["properties"]}
    return made


def _definition(
    names: dict[str, Any], schema: Schema, columns: tuple[Column, ...], scale: Schema | None
) -> dict[str, Any]:
    subresources: dict[str, Any] = {"status": {}}
    if scale is not None:
        subresources["scale"] = scale
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{names['plural']}.{GROUP}",
            "labels": {"app.kubernetes.io/part-of": "millrace"},
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {**names, "listKind": f"{names['kind']}List", "categories": [CATEGORY]},
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": subresources,
                    "additionalPrinterColumns": [_column(*column) for column in columns],
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def _column(name: str, kind: str, path: str, priority: int) -> dict[str, Any]:
    made = {"name": name, "type": kind, "jsonPath": path}
    return {**made, "priority": priority} if priority else made
