"""JSON of an API server, of which nothing is nested without an end.

Anybody may write a resource whose values are nested a thousand times; what reads them calls itself
for each level, and ends with an error that would hold up all that comes in the same answer.
"""

from __future__ import annotations

import json
import re
from typing import Any

LEVELS = 100
"""What is nested deeper is read as null: more than a topology may be, so that one of which that is
true is refused, and nothing of Kubernetes itself is."""

_ALL_BUT_BRACKETS = bytes(one for one in range(256) if one not in b"{}[]")
_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_STRINGS = re.compile(_STRING, re.DOTALL)
_TOKENS = re.compile(_STRING + r"|[\[\]{}]", re.DOTALL)


def loads(text: str | bytes | bytearray) -> Any:
    """As ``json.loads``, and null for what is nested too deeply. Raises ``ValueError``."""
    text = text if isinstance(text, str) else text.decode()
    return json.loads(_cut(text) if _is_deep(text) else text)


def _is_deep(text: str) -> bool:
    """Whether brackets are left when the innermost ones are taken away ``LEVELS`` times."""
    if text.count("{") + text.count("[") <= LEVELS:
        return False
    left = _STRINGS.sub("", text).encode(errors="replace").translate(None, _ALL_BUT_BRACKETS)
    for _ in range(LEVELS):
        if not left:
            return False
        left = left.replace(b"{}", b"").replace(b"[]", b"")
    return bool(left)


def _cut(text: str) -> str:
    made: list[str] = []
    depth = kept = 0
    for token in _TOKENS.finditer(text):
        match token.group():
            case "{" | "[":
                depth += 1
                if depth == LEVELS + 1:
                    made += [text[kept : token.start()], "null"]
            case "}" | "]":
                depth -= 1
                if depth == LEVELS:
                    kept = token.end()
    # What does not end is no document.
    made.append(text[kept:] if depth <= LEVELS else "")
    return "".join(made)
