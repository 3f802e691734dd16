"""What Kubernetes demands of a CRD's schema, and how it holds an object against one.

Written from the documentation of Kubernetes alone, so that the generator is judged by another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema

Schema = dict[str, Any]

KEYWORDS = frozenset(
    {
        *("type", "description", "default", "enum", "pattern", "format", "required", "nullable"),
        *("properties", "items", "additionalProperties", "minimum", "maximum", "minLength"),
        *("maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
        *("x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string"),
        *("x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type"),
        "x-kubernetes-validations",
    }
)
"""Of those that a structural schema may hold, the ones that stand alone; alternatives
(``anyOf`` and its like) are allowed there without types, and nothing here needs them."""

TYPES = {"object", "array", "string", "integer", "number", "boolean"}
REASONS = {
    "FieldValueInvalid",
    "FieldValueForbidden",
    "FieldValueRequired",
    "FieldValueDuplicate",
}
FORMATS = {"int32", "int64", "date-time"}


def nodes(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every schema below one, with its path."""
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}".lstrip("."))
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from nodes(schema["additionalProperties"], f"{path}{{}}")


def faults(schema: Schema) -> list[str]:
    """What Kubernetes would refuse in a schema of ``openAPIV3Schema``."""
    found = [f"{path}: {fault}" for path, node in nodes(schema) for fault in _faults(node)]
    if schema.get("type") != "object":
        found.append("the root is no object")
    metadata = schema.get("properties", {}).get("metadata", {})
    if set(metadata) - {"type", "description", "properties"} or not set(
        metadata.get("properties", {})
    ) <= {"name", "generateName"}:
        found.append("metadata: only name and generateName may be restricted")
    return found


def _faults(node: Schema) -> Iterator[str]:
    for word in sorted(set(node) - KEYWORDS):
        yield f"the keyword {word} is not allowed"
    free = node.get("x-kubernetes-int-or-string") or node.get(
        "x-kubernetes-preserve-unknown-fields"
    )
    if node.get("type") not in TYPES and not (free and "type" not in node):
        yield f"the type is {node.get('type')!r}"
    if "properties" in node and "additionalProperties" in node:
        yield "properties and additionalProperties exclude each other"
    if "additionalProperties" in node and not isinstance(node["additionalProperties"], dict):
        yield "additionalProperties must be a schema"
    if ("properties" in node or "additionalProperties" in node) and node.get("type") != "object":
        yield "only an object has properties"
    if ("items" in node) != (node.get("type") == "array"):
        yield "an array has items, and nothing else has"
    for name in node.get("required", []):
        if name not in node.get("properties", {}):
            yield f"requires {name}, which is not declared"
    if node.get("format", "int32") not in FORMATS:
        yield f"the format {node['format']} is not known"
    if re.search(r"\(\?[=!<]|\\[1-9]", node.get("pattern", "")):
        yield "the pattern looks around or back, which RE2 cannot"
    for bound in ("minimum", "maximum"):
        if abs(node.get(bound, 0)) > 2**53:
            yield f"the {bound} cannot be kept as a float64"
    if node.get("nullable") and "enum" in node:
        yield "an enum that is nullable must name null"
    yield from _list_faults(node)
    yield from _rule_faults(node)
    if "default" in node:
        for error in jsonschema.Draft202012Validator(node).iter_errors(node["default"]):
            yield f"the default is invalid: {error.message}"
        for place in unknown_fields(node, node["default"]):
            yield f"the default holds {place}, which would be pruned"


def _list_faults(node: Schema) -> Iterator[str]:
    kind, keys = node.get("x-kubernetes-list-type"), node.get("x-kubernetes-list-map-keys")
    if kind not in (None, "atomic", "set", "map"):
        yield f"the list type is {kind!r}"
    if (kind == "map") != bool(keys):
        yield "a list of type map has keys, and no other has"
    items = node.get("items", {})
    for key in keys or ():
        field = items.get("properties", {}).get(key, {})
        if field.get("type") not in ("string", "integer", "boolean"):
            yield f"the key {key} is no single value"
        if key not in items.get("required", []) and "default" not in field:
            yield f"the key {key} is neither required nor has a default"


def _rule_faults(node: Schema) -> Iterator[str]:
    for rule in node.get("x-kubernetes-validations", ()):
        if not rule.get("rule") or not rule.get("message") or "\n" in rule["message"]:
            yield "a rule needs an expression and a message of one line"
        if rule.get("reason", "FieldValueInvalid") not in REASONS:
            yield f"the reason {rule['reason']} is not known"
        field = rule.get("fieldPath", ".").removeprefix(".")
        if field and field not in node.get("properties", {}):
            yield f"the rule's field {field} is not there"


def unknown_fields(schema: Schema, value: Any, path: str = "") -> list[str]:
    """Fields that strict decoding refuses and pruning removes."""
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return []
    found: list[str] = []
    if isinstance(value, Mapping):
        values = schema.get("additionalProperties")
        for name, inner in value.items():
            here = f"{path}.{name}".lstrip(".")
            known = schema.get("properties", {}).get(name, values)
            found += [here] if known is None else unknown_fields(known, inner, here)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            found += unknown_fields(schema.get("items", {}), inner, f"{path}[{i}]")
    return found


def with_defaults(schema: Schema, value: Any) -> Any:
    """An object as it is stored: defaults filled in from the root down."""
    if isinstance(value, Mapping):
        made = dict(value)
        for name, inner in schema.get("properties", {}).items():
            if name not in made and "default" in inner:
                made[name] = inner["default"]
        known = schema.get("properties", {})
        values = schema.get("additionalProperties", {})
        return {n: with_defaults(known.get(n, values), inner) for n, inner in made.items()}
    if isinstance(value, list):
        return [with_defaults(schema.get("items", {}), inner) for inner in value]
    return value


def invalid_at(schema: Schema, value: Any) -> list[str]:
    """Paths at which types, bounds and patterns refuse an object, after defaulting."""
    errors = jsonschema.Draft202012Validator(schema).iter_errors(with_defaults(schema, value))
    return [_path(error.absolute_path) for error in errors]


def twice_at(schema: Schema, value: Any, path: str = "") -> list[str]:
    """Elements of lists of type map that have the key of one before, and of sets that are one."""
    found: list[str] = []
    if isinstance(value, Mapping):
        for name, inner in value.items():
            known = schema.get("properties", {}).get(name, {})
            found += twice_at(known, inner, f"{path}.{name}".lstrip("."))
    elif isinstance(value, list):
        seen: set[tuple[Any, ...]] = set()
        for i, inner in enumerate(value):
            keys = schema.get("x-kubernetes-list-map-keys", ())
            whole = inner if schema.get("x-kubernetes-list-type") == "set" else i
            key = tuple(inner.get(k) for k in keys) if keys else (whole,)
            found += [f"{path}[{i}]"] if key in seen else []
            seen.add(key)
            found += twice_at(schema.get("items", {}), inner, f"{path}[{i}]")
    return found


def _path(steps: Any) -> str:
    text = ""
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.lstrip(".")
