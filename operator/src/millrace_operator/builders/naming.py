"""Names, labels and owners of children: deterministic, so that what is there is adopted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from millrace.homes.pods import ROLE_LABEL, TOPOLOGY_LABEL
from millrace.topology.model import API_VERSION, KIND

Manifest = dict[str, Any]

MANAGER = "millrace-operator"
MANAGED_BY = "app.kubernetes.io/managed-by"
FINGERPRINT = "millrace.dev/fingerprint"
"""Annotation of a driver pod: what it was started with."""

MADE_WITH = "millrace.dev/image"
"""Annotation of a pod: the image that it was made with. An admission webhook may put another one
into the container, of a mirror or by its digest."""

DIGEST = "millrace.dev/digest"
"""Annotation of a child: a digest of what it was applied with, or of what a pod was made with."""

_VERSION = "app.kubernetes.io/version"


@dataclass(frozen=True, slots=True)
class Owner:
    """The topology whose children are made; ``version`` is the operator's."""

    name: str
    namespace: str
    uid: str
    version: str

    def child(self, suffix: str) -> str:
        """The name of a child."""
        return f"{self.name}-{suffix}"

    def selector(self, component: str) -> dict[str, str]:
        """The labels by which pods of a component are found."""
        return {TOPOLOGY_LABEL: self.name, ROLE_LABEL: str(component)}

    def labels(self, component: str) -> dict[str, str]:
        """The recommended labels, and the topology."""
        return {
            "app.kubernetes.io/name": "millrace",
            "app.kubernetes.io/instance": self.name,
            _VERSION: self.version,
            ROLE_LABEL: str(component),
            "app.kubernetes.io/part-of": "millrace",
            MANAGED_BY: MANAGER,
            TOPOLOGY_LABEL: self.name,
        }

    def manifest(
        self,
        api_version: str,
        kind: str,
        name: str,
        component: str,
        body: Mapping[str, Any],
        annotations: Mapping[str, str] | None = None,
    ) -> Manifest:
        """A child that is deleted with its topology, whether the operator runs or not."""
        metadata: Manifest = {
            "name": name,
            "namespace": self.namespace,
            "labels": self.labels(component),
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": KIND,
                    "name": self.name,
                    "uid": self.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        }
        if annotations:
            metadata["annotations"] = dict(annotations)
        return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **body}


def digest(manifest: Manifest) -> str:
    """What an applied child is compared by."""
    text = json.dumps(manifest, sort_keys=True)
    return blake2b(text.encode(), digest_size=8).hexdigest()


def digested(pod: Manifest) -> Manifest:
    """A pod with a digest of all that it is made with, but for the operator's release."""
    metadata = pod["metadata"]
    labels = {name: value for name, value in metadata["labels"].items() if name != _VERSION}
    made = digest({**pod, "metadata": {**metadata, "labels": labels}})
    annotations = {**metadata.get("annotations", {}), DIGEST: made}
    return {**pod, "metadata": {**metadata, "annotations": annotations}}


def selector_text(labels: Mapping[str, str]) -> str:
    """Labels as ``kubectl -l`` takes them."""
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
