"""Rules in CEL held against an object as the API server does it, by an evaluator of CEL."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import celpy
from schema_rules import Schema

_KEYWORDS = frozenset(
    {
        *("true", "false", "null", "in", "as", "break", "const", "continue", "else", "for"),
        *("function", "if", "import", "let", "loop", "package", "namespace", "return", "var"),
        *("void", "while"),
    }
)


@functools.cache
def _program(rule: str) -> Any:
    environment = celpy.Environment()
    return environment.program(environment.compile(rule))


def holds(rule: str, value: Any, old: Any = None) -> bool:
    """Whether a rule is true of a value; ``old`` is what it was before."""
    given = {"self": _cel(value)}
    if old is not None:
        given["oldSelf"] = _cel(old)
    return bool(_program(rule).evaluate(given))


def broken_at(schema: Schema, value: Any, old: Any = None, path: str = "") -> Iterator[str]:
    """Paths of the errors of all rules of a schema; those about a change count with ``old``."""
    for rule in schema.get("x-kubernetes-validations", ()):
        changes = re.search(r"\boldSelf\b", rule["rule"]) is not None
        if (old is not None or not changes) and not holds(rule["rule"], value, old):
            yield f"{path}{rule.get('fieldPath', '')}".lstrip(".")
    if isinstance(value, Mapping):
        for name, inner in value.items():
            known = schema.get("properties", {}).get(name)
            if known is not None:
                was = old.get(name) if isinstance(old, Mapping) else None
                yield from broken_at(known, inner, was, f"{path}.{name}".lstrip("."))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from broken_at(schema.get("items", {}), inner, None, f"{path}[{i}]")


def _cel(value: Any) -> Any:
    return celpy.json_to_cel(_escaped(value))


def _escaped(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {(f"__{n}__" if n in _KEYWORDS else n): _escaped(v) for n, v in value.items()}
    return [_escaped(v) for v in value] if isinstance(value, list) else value
