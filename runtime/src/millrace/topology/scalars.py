"""Single values of a topology that are more than a type: names, code targets, sizes."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_COMPONENT = r"^[A-Za-z][A-Za-z0-9_-]*$"
_TARGET = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$"
_MEMORY = r"^[1-9][0-9]*[kmgt]$"
_PERCENT = r"^(100|[1-9]?[0-9])%$"


def _matching(pattern: str, reason: str, remedy: str) -> BeforeValidator:
    def check(value: Any) -> Any:
        # A bare number that would be wrong in quotes, too, is told what to write, not to quote it.
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if (number or isinstance(value, str)) and not re.fullmatch(pattern, str(value), re.ASCII):
            raise PydanticCustomError("text", "{reason}", {"reason": reason, "remedy": remedy})
        return value

    return BeforeValidator(check)


_is_label = _matching(
    _LABEL,
    "is no DNS-1123 label",
    "use lower-case letters, digits and '-', beginning and ending with a letter or digit",
)
Label = Annotated[str, Field(max_length=63, json_schema_extra={"pattern": _LABEL}), _is_label]
# Shorter, since the names of its pods add to it.
TopologyName = Annotated[
    str, Field(max_length=50, json_schema_extra={"pattern": _LABEL}), _is_label
]
ComponentName = Annotated[
    str,
    Field(max_length=63, json_schema_extra={"pattern": _COMPONENT}),
    _matching(
        _COMPONENT,
        "cannot name a source, processor or sink",
        "begin with a letter and use letters, digits, '_' and '-'",
    ),
]
Target = Annotated[
    str,
    Field(json_schema_extra={"pattern": _TARGET}),
    _matching(_TARGET, "does not name user code", 'write "module:function" or "module:Class"'),
]
Memory = Annotated[
    str,
    Field(json_schema_extra={"pattern": _MEMORY}),
    _matching(_MEMORY, "is no amount of memory", 'write a whole number and k, m, g or t: "1g"'),
]
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def memory_bytes(text: str) -> int:
    """Bytes in a valid amount of memory: ``"64m"``."""
    return int(text[:-1]) * _UNITS[text[-1]]


Percent = Annotated[
    str,
    Field(json_schema_extra={"pattern": _PERCENT}),
    _matching(_PERCENT, "is no percentage", 'write a whole number from 0 to 100 and %: "50%"'),
]
Whole = Annotated[int, Field(strict=True)]
Flag = Annotated[bool, Field(strict=True)]
Text = Annotated[str, Field(min_length=1)]
