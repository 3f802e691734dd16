"""Single values of a topology that are more than a type: names, code targets, sizes."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from millrace.topology.duration import FORMS

_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_COMPONENT = r"^[A-Za-z][A-Za-z0-9_-]*$"
_TARGET = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$"
_MEMORY = r"^[1-9][0-9]*([kmgt]|[KMGT]i)$"
_OBJECT = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
_KEY = r"^[-._A-Za-z0-9]+$"
_QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
_MOUNT = r"^(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+$"
_BELOW = r"^[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$"
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
LONGEST_NAME = 50
"""Of a topology: shorter than a label, since the names of its pods add to it."""

TopologyName = Annotated[
    str, Field(max_length=LONGEST_NAME, json_schema_extra={"pattern": _LABEL}), _is_label
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


def _as_spark_has_it(text: str) -> str:
    """``"512Mi"`` as ``"512m"``: what is kept, compared and handed to Spark has one form, which
    older releases read, too."""
    return text.removesuffix("i").lower()


Memory = Annotated[
    str,
    Field(
        json_schema_extra={
            "pattern": _MEMORY,
            FORMS: 'Such as "512Mi" or "2Gi"; "512m" and "2g" are the same.',
        }
    ),
    _matching(
        _MEMORY,
        "is no amount of memory",
        'write a whole number and k, m, g or t, or Ki, Mi, Gi or Ti: "1g"',
    ),
    AfterValidator(_as_spark_has_it),
]
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def memory_bytes(text: str) -> int:
    """Bytes in an amount of memory as a topology keeps it: ``"64m"``."""
    return int(text[:-1]) * _UNITS[text[-1]]


ObjectName = Annotated[
    str,
    Field(max_length=253, json_schema_extra={"pattern": _OBJECT}),
    _matching(
        _OBJECT,
        "cannot name an object of Kubernetes",
        "use lower-case letters, digits, '-' and '.', as kubectl get shows it",
    ),
]
DataKey = Annotated[
    str,
    Field(max_length=253, json_schema_extra={"pattern": _KEY}),
    _matching(
        _KEY, "is no key of a Secret or ConfigMap", "use letters, digits, '-', '_' and '.' alone"
    ),
]
MountPath = Annotated[
    str,
    Field(max_length=256, json_schema_extra={"pattern": _MOUNT}),
    _matching(_MOUNT, "is no place for a volume", 'write a whole path: "/data"'),
]
PathBelow = Annotated[
    str,
    Field(max_length=256, json_schema_extra={"pattern": _BELOW}),
    _matching(_BELOW, "is no path below a volume", 'write it without a leading "/": "words/in"'),
]


def _quantity(value: Any) -> Any:
    # People write cpu: 2, and Kubernetes takes it.
    plain = isinstance(value, int) and not isinstance(value, bool)
    text = str(value) if plain else value
    if isinstance(text, float) or (
        isinstance(text, str) and (len(text) > _LONGEST_QUANTITY or not _IS_QUANTITY(text))
    ):
        reason = "is no quantity of Kubernetes"
        remedy = 'write a number and a unit in quotes: "500m" of CPU, "2Gi" of memory'
        raise PydanticCustomError("text", "{reason}", {"reason": reason, "remedy": remedy})
    return text


_LONGEST_QUANTITY = 20
_IS_QUANTITY = re.compile(_QUANTITY, re.ASCII).fullmatch
Quantity = Annotated[
    str,
    BeforeValidator(_quantity),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}], "pattern": _QUANTITY}),
]
_THOUSANDS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_FACTORS = {
    **{unit: Decimal(size) for unit, size in _THOUSANDS.items()},
    **{f"{unit}i": Decimal(1 << 10 * n) for n, unit in enumerate("KMGTP", 1)},
    "m": Decimal(1) / 1000,
}


def quantity(text: str) -> Decimal:
    """A valid quantity as a number: ``"500m"`` is 0.5, ``"1Ki"`` 1024."""
    number = text.rstrip("mkMGTPKi")
    return Decimal(number) * _FACTORS[text[len(number) :]]


def quantity_bytes(text: str) -> int:
    """Whole bytes in a valid quantity, a started one in full."""
    return math.ceil(quantity(text))


Percent = Annotated[
    str,
    Field(json_schema_extra={"pattern": _PERCENT}),
    _matching(_PERCENT, "is no percentage", 'write a whole number from 0 to 100 and %: "50%"'),
]
Whole = Annotated[int, Field(strict=True)]
Flag = Annotated[bool, Field(strict=True)]
Text = Annotated[str, Field(min_length=1)]
