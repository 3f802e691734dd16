"""From the JSON schema of a model to the structural schema of a CRD.

Kubernetes takes a part of OpenAPI v3: no references, no types inside alternatives, no
``additionalProperties: false`` (what is not declared is refused by kubectl's strict decoding, and
pruned otherwise), numbers of a bound that a float64 holds. What a model says beyond that is an
error here, so that nothing is lost in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millrace.errors import MillraceError

Schema = dict[str, Any]

PRESERVE = "x-kubernetes-preserve-unknown-fields"

_AS_IT_IS = frozenset(
    {
        *("type", "description", "default", "pattern", "format", "required"),
        *("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "maxProperties"),
    }
)
_LEFT_OUT = frozenset({"additionalProperties", "propertyNames", "properties", "items", "enum"})
"""Treated one by one below. Names of map keys have no schema in Kubernetes."""

_EXACT = 2**53
"""Bounds are kept as float64: one above cannot be told from its neighbours."""

_TEXT_OR_NUMBER = ({"type": "integer"}, {"type": "string"})


class UnfitSchemaError(MillraceError):
    """A model that says something that no CRD can."""


def structural(schema: Mapping[str, Any], extras: Mapping[str, Schema] | None = None) -> Schema:
    """The structural schema of a JSON schema with ``$defs``.

    ``extras`` adds to what is found at a path (``spec.sources[].files``, the root is ``""``).
    Raises ``UnfitSchemaError`` for a keyword that Kubernetes does not know, and for extras whose
    path is not there.
    """
    left = dict(extras or {})
    made = _structural(schema, schema.get("$defs", {}), "", left)
    if left:
        raise UnfitSchemaError(f"no field {min(left)!r} is in the schema; the extras name it")
    return made


def _structural(
    node: Mapping[str, Any], defs: Mapping[str, Schema], path: str, extras: dict[str, Schema]
) -> Schema:
    node = {name: value for name, value in node.items() if name not in ("$defs", "$schema")}
    if "$ref" in node:
        named = defs[node.pop("$ref").rpartition("/")[2]]
        node = {**named, **node}
    if "anyOf" in node:
        node = _text_or_number(node, path)
    unknown = sorted(set(node) - _AS_IT_IS - _LEFT_OUT - {"x-kubernetes-int-or-string"})
    if unknown:
        raise UnfitSchemaError(
            f"{path or 'the schema'}: no CRD can say {unknown[0]!r}; write the field's model so "
            "that its schema does without"
        )
    made = {name: value for name, value in node.items() if name not in _LEFT_OUT}
    if "default" in made:
        # What holds nothing is as good as none, and noise in every object that is stored.
        made["default"] = _solid(made["default"])
        if made["default"] in ([], {}):
            del made["default"]
    if "enum" in node:
        # Other forms than text are for tools that read YAML in their own way.
        made["enum"] = [value for value in node["enum"] if isinstance(value, str)]
        made["type"] = "string"
    if made.get("type") == "integer":
        made |= _whole(made)
        made = {name: value for name, value in made.items() if value is not None}
    if made.get("type") == "object":
        made |= _fields(node, defs, path, extras)
    if made.get("type") == "array":
        made["items"] = _structural(node["items"], defs, f"{path}[]", extras)
        made.setdefault("x-kubernetes-list-type", "atomic")
    return {**made, **extras.pop(path, {})}


def _solid(value: Any) -> Any:
    """A default without what holds nothing, however deep."""
    if not isinstance(value, Mapping):
        return value
    kept = {name: _solid(inner) for name, inner in value.items()}
    return {name: inner for name, inner in kept.items() if inner not in ([], {})}


def _fields(
    node: Mapping[str, Any], defs: Mapping[str, Schema], path: str, extras: dict[str, Schema]
) -> Schema:
    values = node.get("additionalProperties", False)
    if node.get("properties"):
        if values is not False:
            raise UnfitSchemaError(f"{path}: has named fields and others; a CRD takes one of both")
        return {
            "properties": {
                name: _structural(field, defs, f"{path}.{name}".lstrip("."), extras)
                for name, field in node["properties"].items()
            }
        }
    if values is True:
        return {PRESERVE: True}
    if values is False:
        return {}
    return {"additionalProperties": _structural(values, defs, f"{path}{{}}", extras)}


def _whole(node: Schema) -> Schema:
    bounds = {name: node.get(name) for name in ("minimum", "maximum")}
    small = all(bound is not None and abs(bound) < 2**31 for bound in bounds.values())
    kept = {n: b if b is None or abs(b) <= _EXACT else None for n, b in bounds.items()}
    return {"format": "int32" if small else "int64", **kept}


def _text_or_number(node: Mapping[str, Any], path: str) -> Schema:
    options = sorted(({"type": o.get("type")} for o in node["anyOf"]), key=str)
    if tuple(options) != _TEXT_OR_NUMBER:
        raise UnfitSchemaError(
            f"{path}: is one of several forms; a CRD can only say that it is a whole number or text"
        )
    rest = {name: value for name, value in node.items() if name != "anyOf"}
    return {**rest, "x-kubernetes-int-or-string": True}
