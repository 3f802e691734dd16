"""What kubeconform checks by: JSON Schemas made of an API server's own OpenAPI document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LOCATION = "{{.ResourceKind}}{{.KindSuffix}}.json"
"""The suffix has the group's first word and the version."""

_FREE = "x-kubernetes-preserve-unknown-fields"
_QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"


def write(openapi: dict[str, Any], folder: Path) -> str:
    """One file for each kind; where kubeconform finds them."""
    folder.mkdir()
    definitions = {name: _strict(one) for name, one in openapi["definitions"].items()}
    # A quantity may be a number as well; the document knows of the text alone.
    definitions[_QUANTITY] = {"type": ["string", "number"]}
    (folder / "definitions.json").write_text(json.dumps({"definitions": definitions}))
    for name, one in openapi["definitions"].items():
        for kind in one.get("x-kubernetes-group-version-kind", []):
            words = (kind["kind"].lower(), kind["group"].partition(".")[0], kind["version"])
            file = f"{'-'.join(word for word in words if word)}.json"
            told = {"$ref": f"definitions.json#/definitions/{name}"}
            (folder / file).write_text(json.dumps(told))
    return str(folder / LOCATION)


def _strict(node: Any) -> Any:
    """Objects take the fields that they have, and no others."""
    if isinstance(node, list):
        return [_strict(one) for one in node]
    if not isinstance(node, dict):
        return node
    made = {name: _strict(one) for name, one in node.items()}
    if node.get("format") == "int-or-string":
        return {"type": ["string", "integer"]}
    if isinstance(node.get("properties"), dict) and not node.get(_FREE):
        made.setdefault("additionalProperties", False)
    if "$ref" in node and isinstance(node["$ref"], str):
        return {"$ref": node["$ref"]}
    return made
